"""Outline the float ops that have kernels of their own, with the elementwise ops behind them, as composite functions.

Before::

    y = R.nn.conv2d(x, w); z = R.nn.relu(y)

After::

    z = cls.octavo_float_conv2d_z(x)          # a private function with the attributes Composite and octavo.op

Not for vendors, whose targets say what integers they compute. Where the host is a device without such kernels, observers of
tensors alone are outlined. Requires that what can be integer is outlined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tvm
from tvm.relax import Expr, Var

from ...errors import CompileError
from ...ir.graph.dataflow import BodyWriter, DataflowView, Renewed, op_name, static_shape, view_of_main, with_values
from ...ir.graph.observe import OBSERVE
from ...ir.graph.places import COUNTED
from ...ir.graph.places import NAME as PLACES
from ...ir.graph.recurrence import NAME as RECURRENCE
from ...ir.graph.recurrence import Recurrence, read_recurrence
from ...ir.graph.recurrence_steps import write_steps
from ...ir.graph.rules import Rule, partition
from ...ir.graph.suppression import NAME as SUPPRESSION
from ...ir.identity.naming import NameSupply
from ...ir.qdq.matchers.conv.float_conv2d import match_float_conv2d, match_float_conv2d_transpose, match_float_matmul
from ...ir.qdq.matchers.elementwise.float_chain import CHAINED
from ...ir.qdq.matchers.elementwise.float_elementwise import match_float_elementwise, match_mixed_elementwise
from ...ir.qdq.matchers.float_norms import (
    match_float_group_norm,
    match_float_layer_norm,
    match_float_softmax,
    match_masked_softmax,
    match_scaled_softmax,
)
from ...ir.qdq.matchers.half_float import half_rules, is_widening
from ...ir.qdq.matchers.matmul import match_float_batch_matmul
from ...ir.qdq.matchers.move.concat import match_float_concat, match_float_norm
from ...ir.qdq.matchers.observe import match_observe
from ...ir.qdq.matchers.places import match_places
from ...ir.qdq.matchers.recurrence import match_float_recurrence
from ...ir.qdq.matchers.reduce import FLOAT_REDUCTIONS, match_float_reduce
from ...ir.qdq.matchers.suppression import match_suppression
from ...runtime.size import is_open
from .context import PartitionContext
from .target_rules import describe, is_repeatable

OBSERVERS: tuple[Rule, ...] = (Rule(composite=OBSERVE, ops=(OBSERVE,), match=match_observe),)
FLOAT: tuple[Rule, ...] = (
    Rule(composite="octavo.float_conv2d", ops=("nn.conv2d",), match=match_float_conv2d),
    Rule(composite="octavo.float_conv2d_transpose", ops=("nn.conv2d_transpose",), match=match_float_conv2d_transpose),
    Rule(composite="octavo.float_matmul", ops=("matmul",), match=match_float_matmul),
    Rule(composite="octavo.float_batch_matmul", ops=("matmul",), match=match_float_batch_matmul),
    *(
        Rule(composite="octavo.float_softmax", ops=("nn.softmax", "nn.log_softmax"), match=match)
        for match in (match_scaled_softmax, match_masked_softmax, match_float_softmax)  # what a product took is not there
    ),
    Rule(composite="octavo.float_layer_norm", ops=("nn.layer_norm",), match=match_float_layer_norm),
    Rule(composite="octavo.float_group_norm", ops=("nn.group_norm",), match=match_float_group_norm),
    Rule(composite="octavo.float_reduce", ops=FLOAT_REDUCTIONS, match=match_float_reduce),
    Rule(composite="octavo.float_concat", ops=("concat",), match=match_float_concat),
    Rule(composite="octavo.float_recurrence", ops=(RECURRENCE,), match=match_float_recurrence),
    Rule(composite="octavo.float_suppression", ops=(SUPPRESSION,), match=match_suppression),
    Rule(composite="octavo.places", ops=(PLACES,), match=match_places),
    Rule(composite="octavo.float_norm", ops=("nn.batch_norm",), match=match_float_norm),
    Rule(composite="octavo.mixed_elementwise", ops=CHAINED, match=match_mixed_elementwise),
    Rule(composite="octavo.float_elementwise", ops=CHAINED, match=match_float_elementwise),
    *OBSERVERS,
)


def outline_float(module: tvm.IRModule, context: PartitionContext) -> tvm.IRModule:
    """Outline the float ops that have kernels of their own, with the elementwise ops behind them, as composite functions."""
    own = FLOAT if context.float_kernels else OBSERVERS
    module = module if context.float_kernels else _with_steps(module)
    rules = (*(half_rules(context.precision) if context.precision else ()), *own)
    found = partition(module, rules, repeatable=_is_repeatable, describe=describe)
    context.regions |= found.regions
    _check_own_ops(DataflowView(found.module["main"]), {name: each.reason for name, each in found.rejections.items()})
    return found.module


def _with_steps(module: tvm.IRModule) -> tvm.IRModule:
    """Write out recurrences of a known number of steps, for which there is no kernel."""
    view = view_of_main(module)
    names, found = NameSupply(view.variables), dict[Var, Callable[[BodyWriter, Renewed], Any]]()
    for binding in view.bindings:
        if op_name(binding.value) != RECURRENCE:
            continue
        what, operands = read_recurrence(binding.value)
        shape = static_shape(binding.var)
        if not what.rounded and shape is not None and not is_open(shape[0]):
            found[binding.var] = partial(_steps_of, what, operands, f"{binding.var.name}_step", names)
    return with_values(module, view, found)


def _steps_of(
    what: Recurrence, operands: Mapping[str, Expr], name: str, names: NameSupply, writer: BodyWriter, renewed: Renewed
) -> Any:
    given = {each: renewed(operand) for each, operand in operands.items()}
    return write_steps(what, given, lambda value: writer.emit(names.fresh(name), value))


def _check_own_ops(view: DataflowView, reasons: Mapping[str, str]) -> None:
    """Raise CompileError for an op of Octavo's that is left: TVM has none such."""
    for binding in view.bindings:
        if op_name(binding.value) == RECURRENCE:
            name = binding.var.name
            raise CompileError(
                f"{name}: the steps of a recurrent layer are one op; "
                f"{reasons.get(name, 'only CPUs have kernels for any number of them')}; fix the number: "
                'sizes={"NAME": N} in Python, --size NAME=N on the command line'
            )
        if op_name(binding.value) in COUNTED:
            raise CompileError(
                f"{binding.var.name}: {reasons.get(binding.var.name, 'only CPUs have kernels for results that data counts')}; "
                "fix its sizes, or cut the model ahead of it"
            )


def _is_repeatable(view: DataflowView, var: Var) -> bool:
    return is_repeatable(view, var) or is_widening(view, var)
