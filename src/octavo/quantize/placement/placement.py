"""Placement: which ops run in integers on a target, and with what in the same kernel. Decides; computes and rewrites nothing.

An op that multiplies by constant weights, or multiplies two activations, pulls its inputs into integers. Any other op that the
target supports stays in integers where all its data already is: it never costs a quantization, nor the precision of a float
tensor, just to run itself. Every op left float has a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tvm import relax
from tvm.relax import Expr, Var

from ...graph.dataflow import DataflowView, dtype_of, op_name, operand_vars, static_shape
from ...identity import TensorId, TensorTable
from ...numerics import BATCH_MATMUL_MAX_INNER
from ...ops import CLAMPS
from ...target import BATCH_MATMUL, ELEMENTWISE, ELEMENTWISE_PAIR, OpSupport, TargetDescription
from ..plan import FloatOp
from ..ranges import QuantScheme
from ..recipe import Recipe
from ..weights.constants import Constant, Constants, root_of
from ..weights.convolution import WEIGHTED, Weighted, bias_operand, weighted
from .elementwise import function_of_one, is_elementwise
from .exclusion import Exclusion
from .layer import Layer, Placement
from .limits import beyond_limits
from .reasons import cost, without_range

_SPATIAL = ({2, 3}, {1, 2})
"""Axes of rows and columns in NCHW and NHWC."""

_EXTREMES = ("maximum", "minimum")
_NORMS = ("nn.layer_norm", "nn.group_norm")
"""Normalizations over axes of one sample."""
_OF_ONE = ("take", *_NORMS)
"""Ops whose operands but for the first are no activations: indices, factors and addends."""


@dataclass(kw_only=True, slots=True)
class Placer:
    """Finds the integer ops of one function.

    Parameters
    ----------
    tensors
        Of the source.
    exclusion
        Says which ops the recipe leaves in float by name.
    has_range
        Says of a variable whether the profile holds a range for it.
    refuse
        Says of a layer why it must stay float for its numbers' sake, or None.
    """

    view: DataflowView
    constants: Constants
    tensors: TensorTable
    exclusion: Exclusion
    target: TargetDescription
    recipe: Recipe
    has_range: Callable[[Var], bool]
    refuse: Callable[[Layer], str | None]
    reasons: dict[Var, str] = field(default_factory=dict[Var, str])
    _computed: set[Var] = field(default_factory=set[Var])

    def place(self) -> Placement:
        """Decide for every op of the function."""
        self._computed = _computed_of_inputs(self.view, self.constants)
        candidates = self._candidates()
        integer, floats = self._keep(candidates)
        floats |= self._float_results(candidates, integer)
        layers = tuple(replace(layer, leaves_float=layer.output in floats) for layer in candidates if layer.output in integer)
        made = frozenset(layer.output for layer in layers if not layer.leaves_float)
        read = {var for layer in layers for var in layer.inputs}
        return Placement(layers=layers, made=made, quantized=made | read, float_ops=self._float_ops(layers))

    def _candidates(self) -> list[Layer]:
        """Return every op that could run in integers if its inputs were; note the reason of every other."""
        taken: set[Var] = set()
        found: list[Layer] = []
        for binding in self.view.bindings:
            var = binding.var
            if var in taken or not isinstance(binding.value, relax.Call) or self.constants.find(var) is not None:
                continue
            layer = self._candidate(var)
            if isinstance(layer, str):
                self.reasons[var] = layer
                continue
            taken.update(layer.members)
            reason = self._excluded(layer) or beyond_limits(self.view, layer, self.target.name)
            if reason is not None:
                self.reasons[var] = reason
                continue
            found.append(layer)
        return found

    def _candidate(self, var: Var) -> Layer | str:
        value: Any = self.view.definition(var)
        name = op_name(value)
        kind = BATCH_MATMUL if self._is_product(value) else name
        support = self.target.support(kind)
        table = self._table(var, name, support)
        if table is not None:
            return table
        if kind in self.target.never:
            return f"the description of {self.target.name} keeps {kind} float (never)"
        if support is None or name in ("quantize", "dequantize"):
            return f"{self.target.name} has no integer {kind}"
        if not {name, kind}.isdisjoint(self.recipe.float_ops):
            return f"the recipe keeps {kind} float"
        if name in _EXTREMES:
            # Of operands with parameters of their own it is a table: the result needs a range that holds both.
            support = self.target.support(ELEMENTWISE_PAIR)
            if support is None:
                return f"{self.target.name} has no integer {kind} of operands that differ in scale and zero point"
        reason = self._unlike_recipe(support)
        if reason is not None:
            return reason
        op: Weighted | None = None
        if kind in WEIGHTED:
            found = weighted(self.constants, value)
            if isinstance(found, str):
                return found
            op = found
        operands = activation_operands(self.view, value)[: 1 if op is not None or name in _OF_ONE else None]
        constants = self._constant_operands(support, operands) if op is None else ()
        read = [operand for operand in operands if not constants or self.constants.find(operand) is None]
        reason = self._operands(value, read) or self._of_normalization(var, name, value)
        if reason is not None:
            return reason
        inputs = tuple(root_of(self.view, data) for operand in read for data in operand_vars(operand))
        layer = replace(self._with_fused(support, var, inputs, op), constants=constants)
        if not constants or len(read) != len(inputs):
            return layer
        variables, after = iter(range(len(inputs))), iter(range(len(inputs), len(operands)))
        order = tuple(next(variables if self.constants.find(operand) is None else after) for operand in operands)
        return replace(layer, order=order)

    def _constant_operands(self, support: OpSupport, operands: list[Expr]) -> tuple[Constant, ...]:
        """Return the operands that are constants of the model as it holds them, where the target's op takes such."""
        if not support.weights:
            return ()
        found = [self.constants.find(operand) for operand in operands]
        constants = tuple(constant for constant in found if constant is not None)
        return () if any(constant.moves or not constant.shape for constant in constants) else constants

    def _is_product(self, value: Any) -> bool:
        """Return whether a call multiplies two activations, of sums that an integer accumulator holds.

        What is computed of constants alone is none: the angles of rotary positions, say, whose last digits count.
        """
        if op_name(value) != "matmul" or not all(self._computed.issuperset(operand_vars(arg)) for arg in value.args):
            return False
        shapes = [static_shape(arg) for arg in value.args]
        sums = [shape[-1] for shape in shapes if shape is not None and len(shape) >= 2 and 0 not in shape]
        return len(sums) == 2 and sums[0] <= BATCH_MATMUL_MAX_INNER

    def _table(self, var: Var, name: str, support: OpSupport | None) -> Layer | None:
        """Return the function of one tensor that starts here, if the target has tables and no kernel of the op alone does it."""
        one, pair = (self.target.support(kind) for kind in (ELEMENTWISE, ELEMENTWISE_PAIR))
        if one is None or self._unlike_recipe(one) is not None:
            return None
        with_rows = pair is not None and self._unlike_recipe(pair) is None and not self._is_wide()
        found = function_of_one(self.view, self.constants, var, with_rows=with_rows)
        if found is None or (support is not None and len(found.members) == 1 and name in CLAMPS):
            return None
        members = found.members
        names = {op_name(self.view.definition(member)) for member in members}
        if not names.isdisjoint((*self.recipe.float_ops, *self.target.never)):
            return None
        kind = pair if found.has_rows and pair is not None else one
        return Layer(support=kind, core=var, output=members[-1], inputs=(found.source,), members=members)

    def _unlike_recipe(self, support: OpSupport) -> str | None:
        if self.recipe.activation_dtype not in (None, *support.activations):
            allowed = ", ".join(support.activations)
            return f"{self.target.name} runs it on {allowed}; the recipe asks for {self.recipe.activation_dtype}"
        weight = support.tensor("weight")
        if support.op not in WEIGHTED or not weight.dtypes:
            return None
        if self.recipe.weight_dtype not in weight.dtypes:
            allowed = ", ".join(weight.dtypes)
            return f"{self.target.name} runs it with {allowed} weights; the recipe asks for {self.recipe.weight_dtype}"
        if "symmetric" not in (weight.schemes or ()):
            return f"{self.target.name} runs it with asymmetric weights only"
        return None

    def _operands(self, value: Any, operands: list[Expr]) -> str | None:
        """Return why the operands keep an op float, or None."""
        if dtype_of(value) != "float32":
            return f"its result is {dtype_of(value) or 'no tensor'}, expected float32"
        if not operands or any(self.constants.is_constant(operand) for operand in operands):
            return "one of its operands is a constant"
        shapes = [static_shape(operand) for operand in operands]
        if static_shape(value) is None or None in shapes:
            return "its shape is symbolic"
        return None

    def _of_normalization(self, var: Var, name: str, value: Any) -> str | None:
        """Return why a mean that is met by what it is the mean of stays float; over rows and columns it may be a gate's."""
        if name != "mean" or not value.attrs.keepdims:
            return None
        rank = len(static_shape(value) or ())
        if rank == 4 and {int(axis) % 4 for axis in value.attrs.axis or ()} in _SPATIAL:
            return None
        if not any(is_elementwise(self.view.definition(user)) for user in self.view.users(var)):
            return None
        size = cost([*operand_vars(value), var])
        return (
            "it is a mean that keeps its axes, as normalizations take it, whose steps need more than 8 bits: they run in float, "
            f"{size} a call for this one without a product; layer and group normalization as one op are integer"
        )

    def _with_fused(self, support: OpSupport, core: Var, inputs: tuple[Var, ...], op: Weighted | None) -> Layer:
        """Extend an op over the bias and activation behind it, as far as the target fuses them and nobody reads between."""
        members, fused, bias = [core], list[str](), None
        while (user := self.view.only_user(members[-1])) is not None:
            value = self.view.definition(user)
            name = op_name(value)
            if not fused and op is not None and "bias" in support.fusions:
                bias = bias_operand(self.view, self.constants, value, members[-1], op)
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
            core=core,
            output=members[-1],
            inputs=inputs,
            members=tuple(members),
            fused=tuple(fused),
            op=op,
            bias=bias,
        )

    def _excluded(self, layer: Layer) -> str | None:
        hit = self.exclusion.hit(layer.support.op, [var.name for var in layer.members])
        return None if hit is None else f"the recipe excludes {hit}"

    def _keep(self, candidates: list[Layer]) -> tuple[set[Var], set[Var]]:
        """Return the outputs of the candidates that run in integers, and those of them that stay float for want of a range."""
        integer: set[Var] = set()
        floats: set[Var] = set()
        pulled: set[Var] = set()
        for layer in candidates:
            made = integer - floats
            reason = self._no_range(layer, made) or self._not_worth(layer, made | pulled) or self.refuse(layer)
            if reason is None:
                integer.add(layer.output)
                pulled.update(layer.inputs)
                if self._may_leave_float(layer) and not self.has_range(layer.output):
                    floats.add(layer.output)
            else:
                self.reasons[layer.core] = reason
        for layer in candidates:
            readers = (other for other in candidates if other.output in integer and layer.output in other.inputs)
            if layer.support.op in _NORMS and layer.output in integer and next(readers, None) is None:
                integer.discard(layer.output)
                self.reasons[layer.core] = "only float ops read its result, which 8 bits would only make coarser"
        # Backwards: moving data before an integer op is cheaper in integers, and the Q then sits at the graph's edge.
        inputs_of = {layer.output: layer for layer in candidates}
        for layer in reversed(candidates):
            if layer.output in integer or not layer.moves or not all(map(self.has_range, layer.inputs)):
                continue
            readers = [inputs_of[out] for out in integer if layer.output in inputs_of[out].inputs]
            count = sum(reader.inputs.count(layer.output) for reader in readers)
            is_inner = count == len(self.view.users(layer.output)) and not self.view.is_returned(layer.output)
            if readers and is_inner and self.refuse(layer) is None:
                integer.add(layer.output)
                self.reasons.pop(layer.core, None)
        return integer, floats

    def _float_results(self, candidates: list[Layer], integer: set[Var]) -> set[Var]:
        """Return the products of activations whose results only float ops read; tables and moves between leave `integer`, too.

        Scores of attention are such where softmax is float: in float they keep what 8 bits would lose.
        """
        readers: dict[Var, list[Layer]] = {}
        for layer in candidates:
            for data in dict.fromkeys(layer.inputs) if layer.output in integer else ():
                readers.setdefault(data, []).append(layer)

        def between(var: Var) -> list[Layer] | None:
            """Return the layers that lead from `var` to float ops, None where one leads to an op that is better in integers."""
            found: list[Layer] = []
            for reader in readers.get(var, ()):
                passes = self._passes(var, reader)
                behind = between(reader.output) if passes else None
                if behind is None:
                    return None
                found.extend((reader, *behind))
            return found

        result: set[Var] = set()
        for layer in candidates:
            if layer.output not in integer or layer.support.op != BATCH_MATMUL or not self._may_leave_float(layer):
                continue
            passed = between(layer.output)
            if passed is not None:
                result.add(layer.output)
                integer.difference_update(reader.output for reader in passed)
                self.reasons.update({reader.core: f"only float ops read what follows from {layer.name}" for reader in passed})
        return result

    def _may_leave_float(self, layer: Layer) -> bool:
        """Return whether a product can end in float32, which those of 16 bits cannot."""
        return layer.may_leave_float and not self._is_wide()

    def _is_wide(self) -> bool:
        return QuantScheme(dtype=self.recipe.preferred_dtype(self.target)).num_bits > 8  # tables of rows have 256 entries each

    def _passes(self, data: Var, layer: Layer) -> bool:
        """Return whether a layer may as well work on `data` in float: with constants alone, or a move that adds nothing."""
        if self.view.is_returned(layer.output):
            return False
        if layer.support.op in (ELEMENTWISE, ELEMENTWISE_PAIR) or layer.constants:
            return len(layer.inputs) == 1
        if not layer.moves or len(layer.inputs) != 1:
            return False
        before, after = static_shape(data), static_shape(layer.output)
        return before is not None and after is not None and prod(after) <= prod(before)

    def _no_range(self, layer: Layer, integer: set[Var]) -> str | None:
        needed = [data for data in layer.inputs if data not in integer]
        if not layer.moves and not self._may_leave_float(layer):
            needed.append(layer.output)
        missing = [var for var in needed if not self.has_range(var)]
        touched = (*layer.inputs, layer.output)
        return without_range(self.view, self.tensors, missing, touched, multiplies=layer.pulls) if missing else None

    def _not_worth(self, layer: Layer, integers: set[Var]) -> str | None:
        """Return which inputs keep an op float: it would have to quantize them for itself alone."""
        floats = [] if layer.pulls else [data.name for data in layer.inputs if data not in integers]
        if not floats:
            return None
        return f"its input {', '.join(floats)} is float, and quantizing it for this op alone would cost more than it saves"

    def _float_ops(self, layers: tuple[Layer, ...]) -> tuple[FloatOp, ...]:
        integer = {var for layer in layers for var in layer.members}
        result: list[FloatOp] = []
        for binding in self.view.bindings:
            var = binding.var
            if var in integer or not isinstance(binding.value, relax.Call) or self.constants.find(var) is not None:
                continue
            reason = self.reasons.get(var) or self._reason_of_owner(var)
            result.append(FloatOp(op=op_name(binding.value), tensor=TensorId(var.name), reason=reason))
        return tuple(result)

    def _reason_of_owner(self, var: Var) -> str:
        """Return the reason of the op whose kernel `var` would have been part of."""
        for data in operand_vars(self.view.definition(var)):
            root = root_of(self.view, data)
            if root in self.reasons:
                return f"it follows {root.name}, which stays float: {self.reasons[root]}"
        return "the op before it stays float"


def _computed_of_inputs(view: DataflowView, constants: Constants) -> set[Var]:
    """Return the inputs and every variable that is computed of them."""
    found = {param for param in view.function.params if constants.find(param) is None}
    for binding in view.bindings:
        if not found.isdisjoint(operand_vars(binding.value)):
            found.add(binding.var)
    return found


def activation_operands(view: DataflowView, value: Any) -> list[Expr]:
    """Return the tensors that a call reads, tuples opened; shapes and other plain arguments are left out."""
    opened: list[Expr] = []
    for arg in value.args:
        definition = view.definition(arg)
        opened.extend(definition.fields if isinstance(definition, relax.Tuple) else [arg])
    return [operand for operand in opened if isinstance(operand.ty, relax.TensorType)]
