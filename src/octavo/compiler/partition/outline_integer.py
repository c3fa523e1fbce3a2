"""Outline what runs in integers: each op with the quantize, dequantize and clamps around it becomes a composite function.

Before::

    x = R.dequantize(x_q, ...); y = R.nn.conv2d(x, w); z = R.nn.relu(y); z_q = R.quantize(z, ...)

After::

    z_q = cls.octavo_conv2d_z_q(x_q)          # a private function with the attributes Composite, octavo.op and quantize_info

A vendor's code generator can take over from here. Requires constants bound. Ensures that a composite says in its attributes all
that a code generator needs; an op that stays float has a rejection, with the value that decided, in the context.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import tvm

from ...ir.graph.dataflow import DataflowView, view_of_main
from ...ir.graph.rules import Claims, Repeatable, claim, partition
from ...ir.qdq.cluster import PRELU
from ...ir.qdq.integer_sums import centered_members
from ...ir.qdq.matchers.block_matmul import match_block_matmul
from ...ir.qdq.matchers.conv.conv2d import match_conv2d, match_matmul
from ...ir.qdq.matchers.conv.transposed_conv2d import match_conv2d_transpose
from ...ir.qdq.matchers.elementwise.float_elementwise import match_mixed_add
from ...ir.qdq.matchers.elementwise.lookup import ELEMENTWISE_OPS, match_lookup, match_pair_lookup
from ...ir.qdq.matchers.elementwise.pairwise import (
    COMPARE_OPS,
    LOGICAL_OPS,
    match_add,
    match_compare,
    match_logical,
    match_pairwise,
    match_select,
)
from ...ir.qdq.matchers.matmul import match_batch_matmul
from ...ir.qdq.matchers.move.concat import match_concat
from ...ir.qdq.matchers.move.gather import GATHER_OPS, match_gather
from ...ir.qdq.matchers.move.move import MOVE_OPS, match_move, match_requantize, match_take
from ...ir.qdq.matchers.norms import match_group_norm, match_l2_normalize, match_layer_norm, match_softmax
from ...ir.qdq.matchers.pool2d import match_pool2d
from ...ir.qdq.matchers.recurrence import match_recurrence
from ...ir.qdq.matchers.reduce import match_place, match_reduce, match_topk
from ...ir.qdq.matchers.resize import match_resize
from ...ir.qdq.matchers.stacked_matmul import match_gathered_matmul, match_stacked_matmul
from ...ir.qdq.runtime_inputs import dynamic_members
from ...ir.qdq.tensor_ids import tensors_of_variables
from ...target import CPU, RECURRENCE, TargetDescription
from ...target.op_facts import CLAMPS, REDUCTIONS
from .adopt_roundings import adopt_roundings, asks_other_roundings
from .context import PartitionContext
from .target_rules import Row, describe, is_repeatable, rules_for

COMPUTE: tuple[Row, ...] = (
    ("conv2d", ("nn.conv2d",), match_conv2d),
    ("conv2d_transpose", ("nn.conv2d_transpose",), match_conv2d_transpose),
    ("matmul", ("matmul",), match_matmul),
    ("stacked_matmul", ("matmul",), match_stacked_matmul),
    ("gathered_matmul", ("matmul",), match_gathered_matmul),
    ("batch_matmul", ("matmul",), match_batch_matmul),
    ("block_matmul", ("matmul",), match_block_matmul),
    ("recurrence", (RECURRENCE,), match_recurrence),
    ("add", ("add",), match_add),
    ("add", ("add",), match_pairwise),
    ("mul", ("multiply",), match_pairwise),
    ("sub", ("subtract",), match_pairwise),
    ("max", ("maximum",), match_pairwise),
    ("min", ("minimum",), match_pairwise),
    ("pool2d", ("nn.avg_pool2d", "nn.adaptive_avg_pool2d", "mean", "nn.max_pool2d"), match_pool2d),
    ("reduce", REDUCTIONS, match_reduce),
    ("place", ("argmax", "argmin"), match_place),
    ("softmax", ("nn.softmax",), match_softmax),
    ("log_softmax", ("nn.log_softmax",), match_softmax),
    ("layer_norm", ("nn.layer_norm",), match_layer_norm),
    ("group_norm", ("nn.group_norm",), match_group_norm),
    ("concat", ("concat",), match_concat),
    ("move", MOVE_OPS, match_move),
    ("gather", GATHER_OPS, match_gather),
    ("take", ("take",), match_take),
    ("topk", ("topk",), match_topk),
    ("resize", ("image.resize2d",), match_resize),
    ("lookup", (*ELEMENTWISE_OPS, *CLAMPS), match_lookup),
    ("pair_lookup", (*ELEMENTWISE_OPS, PRELU), match_pair_lookup),
    ("l2_normalize", ("divide",), match_l2_normalize),
    ("move", ("quantize",), match_requantize),
    # Results of one op that leads to several: each is a table.
    ("lookup", ("quantize",), match_lookup),
    ("pair_lookup", ("quantize",), match_pair_lookup),
    # What no table holds.
    ("mixed_elementwise", ("add",), match_mixed_add),
    # Where no table holds a comparison and what is chosen by it together.
    ("compare", COMPARE_OPS, match_compare),
    ("logical", LOGICAL_OPS, match_logical),
    ("select", ("where",), match_select),
)


def outline_integer(module: tvm.IRModule, context: PartitionContext) -> tvm.IRModule:
    """Outline each integer op, with the quantize, dequantize and clamps around it, as a composite function."""
    view = view_of_main(module)
    context.tensors = tensors_of_variables(view, context.ids, context.sources)
    for target, backend in context.takers:
        if target is not CPU and asks_other_roundings(view):
            module = _as_target_rounds(module, context, (target, backend))
        rules = rules_for(context, COMPUTE, target, backend)
        found = partition(module, rules, repeatable=_repeatable_in(view_of_main(module)), describe=describe)
        context.take_integer(found, backend)
        module = found.module
    return module


def claim_integer(module: tvm.IRModule, context: PartitionContext, takers: Iterable[tuple[TargetDescription, str]]) -> Claims:
    """Return the ops that `outline_integer` outlines for targets, in their order, without outlining them."""
    view = view_of_main(module)
    rules = [rule for target, backend in takers for rule in rules_for(context, COMPUTE, target, backend)]
    return claim(view, rules, repeatable=_repeatable_in(view))


def _as_target_rounds(module: tvm.IRModule, context: PartitionContext, taker: tuple[TargetDescription, str]) -> tvm.IRModule:
    """Return the module with a target's own roundings behind the ops that are taken for it once they have them."""
    target, _ = taker
    regions = claim_integer(module, replace(context, simulated=()), [(target, target.name)]).regions.values()
    adopted = adopt_roundings(module, regions)
    if adopted is module:
        return module
    taken = {var.name for var in claim_integer(adopted, context, [taker]).regions}
    return adopt_roundings(module, [region for region in regions if region.output.name in taken])


def _repeatable_in(view: DataflowView) -> Repeatable:
    """Return what says of a value of this function whether it may be computed inside a composite of integers and outside."""
    shared = dynamic_members(view) | centered_members(view)
    return lambda view, var: var in shared or is_repeatable(view, var)
