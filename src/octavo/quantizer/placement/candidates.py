"""Candidates: what one target could run in integers of a function, op by op, if all data were. It keeps and refuses none of them.

An op comes with what runs in the same kernel: its bias, a clamp, the elementwise ops that one table stands for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import relax
from tvm.relax import Expr, Var

from ...ir.graph.constants import Constant, Constants
from ...ir.graph.dataflow import DataflowView, call_to, dtype_of, op_name, operand_vars, static_shape
from ...ir.graph.weighted import WEIGHTED, Weighted, bias_operand, gathered, recurrent, stacked, weighted
from ...ir.qdq.functions import function_of_one, is_elementwise
from ...numerics import BATCH_MATMUL_MAX_INNER
from ...runtime.size import is_open
from ...target import (
    BATCH_MATMUL,
    ELEMENTWISE,
    ELEMENTWISE_PAIR,
    GATHERED_MATMUL,
    RECURRENCE,
    SELECT,
    STACKED_MATMUL,
    OpSupport,
    TargetDescription,
)
from ...target.op_facts import CLAMPS, NORMS, PLACES
from .inputs import PlanInputs
from .layer import Layer
from .reasons import cost

_SPATIAL = ({2, 3}, {1, 2})
"""Axes of rows and columns in NCHW and NHWC."""

_EXTREMES = ("maximum", "minimum")
_OF_ONE = ("take", *NORMS)
"""Ops whose operands but for the first are no activations: indices, factors and addends."""
_KINDS = {"where": SELECT}
"""What targets call ops, where it is not the op's own name."""
_CONDITIONS = {"where": 1}
"""How many operands of an op, which come first, are no activations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """Finds what a target could run in integers; `computed` are the inputs of the function and all that is computed of them."""

    inputs: PlanInputs
    target: TargetDescription
    computed: frozenset[Var]

    def find(self, var: Var) -> Layer | str:
        """Return the op at a variable with what runs in its kernel, or why the target has none."""
        layer = self._find(var)
        if isinstance(layer, Layer) and self.target.op_by_op and not layer.moves and not self._is_source(layer.output):
            return f"it is a step within an op of the source, and {self.target.name} runs whole ones"
        return layer

    def _is_source(self, var: Var) -> bool:
        return var.name in self.inputs.form.model.tensors

    def _is_included(self, op: str, members: list[str]) -> bool:
        """Return whether an op is to be integer though the recipe keeps its kind float."""
        return self.inputs.override(op, members).exclude is False

    def _ends(self, var: Var) -> bool:
        """Return whether no kernel goes on behind a variable."""
        return self.target.op_by_op and self._is_source(var)

    def _find(self, var: Var) -> Layer | str:
        value: Any = self.inputs.form.view.definition(var)
        name = op_name(value)
        kind, op = self._kind(value)
        support = self.target.support(kind)
        table = self._table(var, name, support)
        if table is not None:
            return table
        if kind in self.target.never:
            return f"the description of {self.target.name} keeps {kind} float (never)"
        if support is None or name in ("quantize", "dequantize"):
            return f"{self.target.name} has no integer {kind}"
        kept = (*self.inputs.recipe.float_ops, *((BATCH_MATMUL,) if self.inputs.recipe.is_weight_only else ()))
        if not {name, kind}.isdisjoint(kept) and not self._is_included(kind, [var.name]):
            return f"the recipe keeps {kind} float"
        if name in _EXTREMES:
            # Of operands with parameters of their own it is a table: the result needs a range that holds both.
            support = self.target.support(ELEMENTWISE_PAIR)
            if support is None:
                return f"{self.target.name} has no integer {kind} of operands that differ in scale and zero point"
        reason = self._unlike_recipe(support)
        if reason is not None:
            return reason
        if kind in (*WEIGHTED, RECURRENCE):
            read_weight = recurrent if kind == RECURRENCE else weighted
            found = read_weight(self.inputs.form.constants, value)
            if isinstance(found, str):
                return found
            op = found
        operands = activation_operands(self.inputs.form.view, value)[: 1 if op is not None or name in _OF_ONE else None]
        operands = operands[_CONDITIONS.get(name, 0) :]
        constants = self._constant_operands(support, operands) if op is None else ()
        read = [operand for operand in operands if not constants or self.inputs.form.constants.find(operand) is None]
        of_table = bool(constants) and name == "take"
        made = self._values_of(var) if name == "topk" else var
        reason = self._table_reason(constants) if of_table else self._operands(name, made, read)
        reason = reason or self._of_normalization(var, name, value)
        if reason is not None:
            return reason
        inputs = tuple(self.inputs.form.view.root_of(data) for operand in read for data in operand_vars(operand))
        core = (var,) if made is None or made.same_as(var) else (var, made)
        layer = replace(self._with_fused(support, core, inputs, op), constants=constants)
        if not constants or len(read) != len(inputs):
            return layer
        variables, after = iter(range(len(inputs))), iter(range(len(inputs), len(operands)))
        order = tuple(next(variables if self.inputs.form.constants.find(operand) is None else after) for operand in operands)
        return replace(layer, order=order)

    def _kind(self, value: Any) -> tuple[str, Weighted | None]:
        """Return what targets call an op, and how it reads weights of several matrices where it is a product by such.

        A target that has none of these may take them as an operand of a product of two activations, as plans of before do.
        """
        name, form, plan = op_name(value), self.inputs.form, self.inputs.followed
        op = gathered(form.view, form.constants, value)
        if op is not None and self.target.support(GATHERED_MATMUL) is not None:
            return GATHERED_MATMUL, op
        op = stacked(form.constants, value)
        is_former = op is not None and plan is not None and plan.multiplies(op.weight.name)
        if op is not None and not is_former and self.target.support(STACKED_MATMUL) is not None:
            return STACKED_MATMUL, op
        if self._is_product(value):
            return BATCH_MATMUL, None
        return (_KINDS.get(name, name) if op is None else STACKED_MATMUL), None

    def _constant_operands(self, support: OpSupport, operands: list[Expr]) -> tuple[Constant, ...]:
        """Return the operands that are constants of the model as it holds them, where the target's op takes such."""
        if not support.weights:
            return ()
        found = [self.inputs.form.constants.find(operand) for operand in operands]
        constants = tuple(constant for constant in found if constant is not None)
        is_moved = support.op != BATCH_MATMUL and any(constant.moves for constant in constants)
        return () if is_moved or any(not constant.shape for constant in constants) else constants

    def _is_product(self, value: Any) -> bool:
        """Return whether a call multiplies two activations, of sums that an integer accumulator holds.

        What is computed of constants alone is none: the angles of rotary positions, say, whose last digits count. A constant on
        the left counts as one, if it is no column: that makes no sum; so do several matrices on the right.
        """
        if op_name(value) != "matmul" or not all(
            self.computed.issuperset(operand_vars(arg)) or self._is_factor(arg, place) for place, arg in enumerate(value.args)
        ):
            return False
        shapes = [static_shape(arg) for arg in value.args]
        sums = [shape[-1] for shape in shapes if shape is not None and len(shape) >= 2 and 0 not in shape]
        return len(sums) == 2 and (is_open(sums[0]) or sums[0] <= BATCH_MATMUL_MAX_INNER)

    def _is_factor(self, expr: Expr, place: int) -> bool:
        """Return whether an expression is a constant that a product of two activations can have on the left or the right."""
        support, found = self.target.support(BATCH_MATMUL), self.inputs.form.constants.find(expr)
        if support is None or not support.weights or found is None:
            return False
        return len(found.shape) > 2 if place else not found.moves and found.shape[-1:] > (1,)

    def _table(self, var: Var, name: str, support: OpSupport | None) -> Layer | None:
        """Return the function of one tensor that starts here, if the target has tables and no kernel of the op alone does it."""
        one, pair = (self.target.support(kind) for kind in (ELEMENTWISE, ELEMENTWISE_PAIR))
        if one is None or self._unlike_recipe(one) is not None:
            return None
        with_rows = pair is not None and self._unlike_recipe(pair) is None and not self.inputs.is_wide
        found = function_of_one(self.inputs.form.view, self.inputs.form.constants, var, with_rows=with_rows, ends_at=self._ends)
        if found is None or (support is not None and len(found.members) == 1 and name in CLAMPS):
            return None
        members = found.members
        names = {op_name(self.inputs.form.view.definition(member)) for member in members}
        if not names.isdisjoint(self.target.never):
            return None
        if not names.isdisjoint(self.inputs.recipe.float_ops) and not self._is_included(
            one.op, [member.name for member in members]
        ):
            return None
        kind = pair if found.has_rows and pair is not None else one
        return Layer(support=kind, core=var, output=members[-1], inputs=(found.source,), members=members)

    def _unlike_recipe(self, support: OpSupport) -> str | None:
        if self.inputs.recipe.activation_dtype not in (None, *support.activations):
            allowed = ", ".join(support.activations)
            return f"{self.target.name} runs it on {allowed}; the recipe asks for {self.inputs.recipe.activation_dtype}"
        weight = support.tensor("weight")
        if support.op not in (*WEIGHTED, RECURRENCE) or not weight.dtypes:
            return None
        if self.inputs.recipe.weight_dtype not in weight.dtypes:
            allowed = ", ".join(weight.dtypes)
            return f"{self.target.name} runs it with {allowed} weights; the recipe asks for {self.inputs.recipe.weight_dtype}"
        if "symmetric" not in (weight.schemes or ()):
            return f"{self.target.name} runs it with asymmetric weights only"
        return None

    def _values_of(self, var: Var) -> Var | None:
        """Return the values of a topk, which may give their places, too; None where nobody reads them."""
        if isinstance(var.ty, relax.TensorType):
            return var
        users = [(user, self.inputs.form.view.definition(user)) for user in self.inputs.form.view.users(var)]
        return next((user for user, value in users if isinstance(value, relax.TupleGetItem) and value.index == 0), None)

    def _operands(self, name: str, result: Var | None, operands: list[Expr]) -> str | None:
        """Return why the operands of an op, or its result, keep it float, or None."""
        if result is None:
            return "nobody reads its values, and their places are found in float"
        if dtype_of(result) != "float32" and name not in PLACES:
            return f"its result is {dtype_of(result) or 'no tensor'}, expected float32"
        if not operands or any(self.inputs.form.constants.is_constant(operand) for operand in operands):
            return "one of its operands is a constant"
        shapes = [static_shape(operand) for operand in operands]
        if static_shape(result) is None or None in shapes:
            return "its shape is symbolic"
        return None

    def _table_reason(self, constants: tuple[Constant, ...]) -> str | None:
        """Return why the table whose rows are taken stays float: its other readers would have it rounded as they need it."""
        view = self.inputs.form.view
        others = [
            user for table in constants for user in view.users(table.root) if call_to(view.definition(user), "take") is None
        ]
        return f"its table {constants[0].name} is read by {others[0].name}, too" if others else None

    def _of_normalization(self, var: Var, name: str, value: Any) -> str | None:
        """Return why a mean that is met by what it is the mean of stays float; over rows and columns it may be a gate's."""
        if name != "mean" or not value.attrs.keepdims:
            return None
        rank = len(static_shape(value) or ())
        if rank == 4 and {int(axis) % 4 for axis in value.attrs.axis or ()} in _SPATIAL:
            return None
        if not any(is_elementwise(self.inputs.form.view.definition(user)) for user in self.inputs.form.view.users(var)):
            return None
        size = cost([*operand_vars(value), var])
        return (
            "it is a mean that keeps its axes, as normalizations take it, whose steps need more than 8 bits: they run in float, "
            f"{size} a call for this one without a product; layer and group normalization as one op are integer"
        )

    def _with_fused(self, support: OpSupport, core: tuple[Var, ...], inputs: tuple[Var, ...], op: Weighted | None) -> Layer:
        """Extend an op over the bias and activation behind it, as far as the target fuses them and nobody reads between.

        `core` is the variable of its call, and that of its result where the call gives several.
        """
        members, fused, bias = [*core], list[str](), None
        while (user := self.inputs.form.view.only_user(members[-1])) is not None and not self._ends(members[-1]):
            value = self.inputs.form.view.definition(user)
            name = op_name(value)
            if not fused and op is not None and "bias" in support.fusions:
                bias = bias_operand(self.inputs.form.view, self.inputs.form.constants, value, members[-1], op)
            if bias is not None and not fused:
                fused.append("bias")
            elif name in CLAMPS and name in support.fusions and name not in self.target.never:
                fused.append(name)
            else:
                break
            members.append(user)
            if fused[-1] != "bias":
                break
        return Layer(
            support=support,
            core=core[0],
            output=members[-1],
            inputs=inputs,
            members=tuple(members),
            fused=tuple(fused),
            op=op,
            bias=bias,
        )


def computed_of_inputs(view: DataflowView, constants: Constants) -> frozenset[Var]:
    """Return the inputs and every variable that is computed of them."""
    found = {param for param in view.function.params if constants.find(param) is None}
    for binding in view.bindings:
        if not found.isdisjoint(operand_vars(binding.value)):
            found.add(binding.var)
    return frozenset(found)


def activation_operands(view: DataflowView, value: Any) -> list[Expr]:
    """Return the tensors that a call reads, the fields of tuples, too; shapes and other plain arguments are left out."""
    operands: list[Expr] = []
    for arg in value.args:
        definition = view.definition(arg)
        operands.extend(definition.fields if isinstance(definition, relax.Tuple) else [arg])
    return [operand for operand in operands if isinstance(operand.ty, relax.TensorType)]
