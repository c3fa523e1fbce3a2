"""QDQ regions -> composites: which rules there are, in which order, under which target description.

The composites are TVM functions with attributes Composite and quantize_info; a vendor's code generator can take over from here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax
from tvm.relax import Var

from ..composites.attributes import write_op
from ..graph.dataflow import DataflowView, call_to, op_name
from ..graph.observe import OBSERVE
from ..graph.rules import Claims, Partition, Region, Rejection, Repeatable, Rule, claim, partition
from ..graph.split import split_to_slices
from ..ops import CLAMPS, REDUCTIONS
from ..qdq.batch_norm import normalizations_as_sums
from ..qdq.cluster import PRELU
from ..qdq.integer_sums import centered_members
from ..qdq.matchers.add import match_add
from ..qdq.matchers.batch_matmul import match_batch_matmul
from ..qdq.matchers.compare import COMPARE_OPS, LOGICAL_OPS, match_compare, match_logical
from ..qdq.matchers.concat import match_concat
from ..qdq.matchers.conv2d import match_conv2d, match_matmul
from ..qdq.matchers.edge import match_dequantize, match_quantize
from ..qdq.matchers.float_attention import match_float_batch_matmul, match_float_layer_norm, match_float_softmax
from ..qdq.matchers.float_chain import CHAINED
from ..qdq.matchers.float_concat import match_float_concat, match_float_norm
from ..qdq.matchers.float_conv2d import match_float_conv2d, match_float_matmul
from ..qdq.matchers.float_conv2d_transpose import match_float_conv2d_transpose
from ..qdq.matchers.float_elementwise import match_float_elementwise
from ..qdq.matchers.float_group_norm import match_float_group_norm
from ..qdq.matchers.float_mean import match_float_mean
from ..qdq.matchers.gather import GATHER_OPS, match_gather
from ..qdq.matchers.group_norm import match_group_norm
from ..qdq.matchers.half_float import half_rules, is_widening
from ..qdq.matchers.l2_normalize import match_l2_normalize
from ..qdq.matchers.layer_norm import match_layer_norm
from ..qdq.matchers.lookup import ELEMENTWISE_OPS, match_lookup
from ..qdq.matchers.move import MOVE_OPS, match_move, match_requantize
from ..qdq.matchers.observe import match_observe
from ..qdq.matchers.pair_lookup import match_pair_lookup
from ..qdq.matchers.pairwise import match_pairwise
from ..qdq.matchers.pool2d import match_pool2d
from ..qdq.matchers.reduce import match_place, match_reduce
from ..qdq.matchers.resize import match_resize
from ..qdq.matchers.select import match_select
from ..qdq.matchers.softmax import match_softmax
from ..qdq.matchers.take import match_take
from ..qdq.matchers.topk import match_topk
from ..qdq.matchers.transposed_conv2d import match_conv2d_transpose
from ..qdq.runtime_inputs import dynamic_members
from ..qdq.tensor_ids import fused_tensors, tensors_of_variables, with_tensor_ids
from ..qdq.values import constant_value
from ..target import BATCH_MATMUL, COMPARE, ELEMENTWISE, ELEMENTWISE_PAIR, SELECT, OpSupport, TargetDescription
from ..target.precision import Precision
from .blocks import split_blocks
from .hoist import hoist_quantize
from .sink import sink_dequantize
from .zero_points import share_zero_points

Matcher = Callable[[DataflowView, Var, OpSupport], Region | Rejection]


_BATCH_MATMUL = "octavo.batch_matmul"


_LOOKUP = "octavo.lookup"


_PAIR_LOOKUP = "octavo.pair_lookup"


_COMPARE = "octavo.compare"


_LOGICAL = "octavo.logical"


_SELECT = "octavo.select"


_TABLES: dict[str, str] = {
    _BATCH_MATMUL: BATCH_MATMUL,
    _LOOKUP: ELEMENTWISE,
    _PAIR_LOOKUP: ELEMENTWISE_PAIR,
    _COMPARE: COMPARE,
    _LOGICAL: COMPARE,
    _SELECT: SELECT,
}
"""What a target must offer for these composites, whatever the op that they start from."""


_COMPUTE: tuple[tuple[str, tuple[str, ...], Matcher], ...] = (
    ("octavo.conv2d", ("nn.conv2d",), match_conv2d),
    ("octavo.conv2d_transpose", ("nn.conv2d_transpose",), match_conv2d_transpose),
    ("octavo.matmul", ("matmul",), match_matmul),
    (_BATCH_MATMUL, ("matmul",), match_batch_matmul),
    ("octavo.add", ("add",), match_add),
    ("octavo.add", ("add",), match_pairwise),
    ("octavo.mul", ("multiply",), match_pairwise),
    ("octavo.sub", ("subtract",), match_pairwise),
    ("octavo.max", ("maximum",), match_pairwise),
    ("octavo.min", ("minimum",), match_pairwise),
    ("octavo.pool2d", ("nn.avg_pool2d", "nn.adaptive_avg_pool2d", "mean", "nn.max_pool2d"), match_pool2d),
    ("octavo.reduce", REDUCTIONS, match_reduce),
    ("octavo.place", ("argmax", "argmin"), match_place),
    ("octavo.softmax", ("nn.softmax",), match_softmax),
    ("octavo.log_softmax", ("nn.log_softmax",), match_softmax),
    ("octavo.layer_norm", ("nn.layer_norm",), match_layer_norm),
    ("octavo.group_norm", ("nn.group_norm",), match_group_norm),
    ("octavo.concat", ("concat",), match_concat),
    ("octavo.move", MOVE_OPS, match_move),
    ("octavo.gather", GATHER_OPS, match_gather),
    ("octavo.take", ("take",), match_take),
    ("octavo.topk", ("topk",), match_topk),
    ("octavo.resize", ("image.resize2d",), match_resize),
    (_LOOKUP, (*ELEMENTWISE_OPS, *CLAMPS), match_lookup),
    (_PAIR_LOOKUP, (*ELEMENTWISE_OPS, PRELU), match_pair_lookup),
    ("octavo.l2_normalize", ("divide",), match_l2_normalize),
    ("octavo.move", ("quantize",), match_requantize),
    # Results of one op that leads to several: each is a table.
    (_LOOKUP, ("quantize",), match_lookup),
    (_PAIR_LOOKUP, ("quantize",), match_pair_lookup),
    # Where no table holds a comparison and what is chosen by it together.
    (_COMPARE, COMPARE_OPS, match_compare),
    (_LOGICAL, LOGICAL_OPS, match_logical),
    (_SELECT, ("where",), match_select),
)


# Only what the compute rules left: a quantize or dequantize that they fused costs nothing.
_EDGES: tuple[tuple[str, tuple[str, ...], Matcher], ...] = (
    ("octavo.quantize", ("quantize",), match_quantize),
    ("octavo.dequantize", ("dequantize",), match_dequantize),
)


# What no integer rule took; not for vendors, whose targets say what integers they compute.
_FLOAT: tuple[Rule, ...] = (
    Rule(composite="octavo.float_conv2d", ops=("nn.conv2d",), match=match_float_conv2d),
    Rule(composite="octavo.float_conv2d_transpose", ops=("nn.conv2d_transpose",), match=match_float_conv2d_transpose),
    Rule(composite="octavo.float_matmul", ops=("matmul",), match=match_float_matmul),
    Rule(composite="octavo.float_batch_matmul", ops=("matmul",), match=match_float_batch_matmul),
    Rule(composite="octavo.float_softmax", ops=("nn.softmax",), match=match_float_softmax),
    Rule(composite="octavo.float_layer_norm", ops=("nn.layer_norm",), match=match_float_layer_norm),
    Rule(composite="octavo.float_group_norm", ops=("nn.group_norm",), match=match_float_group_norm),
    Rule(composite="octavo.float_mean", ops=("mean", "nn.adaptive_avg_pool2d"), match=match_float_mean),
    Rule(composite="octavo.float_concat", ops=("concat",), match=match_float_concat),
    Rule(composite="octavo.float_norm", ops=("nn.batch_norm",), match=match_float_norm),
    Rule(composite="octavo.float_elementwise", ops=CHAINED, match=match_float_elementwise),
    Rule(composite=OBSERVE, ops=(OBSERVE,), match=match_observe),
)


def rules_for(
    target: TargetDescription,
    table: tuple[tuple[str, tuple[str, ...], Matcher], ...],
    held: Mapping[str, str],
    ids: Collection[str],
    sources: Mapping[str, str] | None,
) -> list[Rule]:
    """Bind the matchers to what the target supports; `held` resolves the ids in what they attach (see tensor_ids.py).

    A composite also keeps the `ids` that it fuses, as its attribute "tensor_ids".
    """

    def bind(composite: str, matcher: Matcher) -> Callable[[DataflowView, Var], Region | Rejection]:
        def match(view: DataflowView, core: Var) -> Region | Rejection:
            name = op_name(view.definition(core))
            support = target.support(_TABLES.get(composite) or name)
            if support is None:
                return Rejection(reason=f"target {target.name} has no integer {name}")
            found = matcher(view, core, support)
            if isinstance(found, Rejection):
                return found
            fused = fused_tensors(view, found, ids, sources)
            attrs = with_tensor_ids(found.attrs, held)
            return replace(found, attrs={**attrs, "tensor_ids": fused} if fused else attrs)

        return match

    return [Rule(composite=composite, ops=ops, match=bind(composite, matcher)) for composite, ops, matcher in table]


def _is_repeatable(view: DataflowView, var: Var) -> bool:
    """Return whether a value may be computed inside a composite and outside: dequantize, tuples, and constants."""
    value = view.definition(var)
    if call_to(value, "dequantize") is not None or isinstance(value, relax.Tuple):
        return True
    return constant_value(view, var) is not None


def _describe(region: Region) -> dict[str, Any]:
    """Return the attributes from which a back end reads the composite's op."""
    return write_op(region.form, region.core.name)


def _repeatable_in(view: DataflowView) -> Repeatable:
    """Return what says of a value of this function whether it may be computed inside a composite of integers and outside."""
    shared = dynamic_members(view) | centered_members(view)
    return lambda view, var: var in shared or _is_repeatable(view, var)


def _canonical(module: tvm.IRModule) -> tvm.IRModule:
    return sink_dequantize(hoist_quantize(share_zero_points(split_to_slices(split_blocks(normalizations_as_sums(module))))))


def integer_claims(module: tvm.IRModule, target: TargetDescription) -> Claims:
    """Return the integer ops that `partition_quantized` outlines, without outlining them; quantize and dequantize are none."""
    view = DataflowView(_canonical(module)["main"])
    return claim(view, rules_for(target, _COMPUTE, {}, (), None), repeatable=_repeatable_in(view))


def partition_quantized(
    module: tvm.IRModule,
    target: TargetDescription,
    ids: Collection[str] = (),
    *,
    with_float: bool = False,
    sources: Mapping[str, str] | None = None,
    precision: Precision | None = None,
) -> Partition:
    """Outline the integer regions of a QDQ module whose constants are bound.

    `ids` are the source model's TensorIds: the quantize_info of a composite names tensors by these where it can. `sources` says
    of variables that hold some of a tensor's pixels which variable of the source holds them all (see carry_stride.py), and of
    rounded ones which variable they round. `precision` says to what the module was downcast.

    Rounds: ops first, then (`with_float`) the float ops with weights that they left, then the quantize and dequantize that
    remain at the edges. Rejections say of each float op why it is no integer op; composites of all rounds are in `regions`.
    """
    module = _canonical(module)
    view = DataflowView(module["main"])
    held = tensors_of_variables(view, ids, sources)
    compute = partition(
        module, rules_for(target, _COMPUTE, held, ids, sources), repeatable=_repeatable_in(view), describe=_describe
    )
    float_rules = (*(half_rules(precision) if precision else ()), *_FLOAT) if with_float else ()
    floats = partition(
        compute.module,
        float_rules,
        repeatable=lambda view, var: _is_repeatable(view, var) or is_widening(view, var),
        describe=_describe,
    )
    edges = partition(floats.module, rules_for(target, _EDGES, held, ids, sources), repeatable=_is_repeatable, describe=_describe)
    integer = {region.core.name for region in (*compute.regions.values(), *edges.regions.values())}
    regions = {**compute.regions, **floats.regions, **edges.regions}
    rejections = {name: why for name, why in {**compute.rejections, **edges.rejections}.items() if name not in integer}
    return Partition(module=edges.module, regions=regions, rejections=rejections)
