"""Placement: which ops run in integers on a target, and with what in the same kernel. Decides; computes and rewrites nothing.

An op that multiplies by constant weights, or multiplies two activations, pulls its inputs into integers. Any other op that the
target supports stays in integers where all its data already is: it never costs a quantization, nor the precision of a float
tensor, just to run itself. Every op left float has a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tvm import relax
from tvm.relax import Var

from ...graph.dataflow import DataflowView, op_name, operand_vars, static_shape
from ...identity import TensorId, TensorTable
from ...target import BATCH_MATMUL, ELEMENTWISE, ELEMENTWISE_PAIR, TargetDescription
from ..plan import FloatOp
from ..ranges import QuantScheme
from ..recipe import Recipe
from ..weights.constants import Constants, root_of
from .candidates import Candidates, computed_of_inputs
from .layer import NORMS, Declined, Layer, Placement
from .limits import beyond_limits
from .named_ops import NamedOps
from .reasons import together, without_range


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
    targets
        Who may take an op, in the order in which they choose.
    preferred
        The dtype of activations that no target restricts.
    declined
        By an op's variable why targets do not take it, by their names: they are not asked again.
    unlike_plan
        Where somebody has decided which layers there are: says why a layer that a target could take is none of them, or None.
        What is worth while in integers is not judged then.
    """

    view: DataflowView
    constants: Constants
    tensors: TensorTable
    exclusion: NamedOps
    targets: Sequence[TargetDescription]
    recipe: Recipe
    preferred: str
    has_range: Callable[[Var], bool]
    refuse: Callable[[Layer], str | None]
    declined: Declined = field(default_factory=dict[Var, dict[str, str]])
    unlike_plan: Callable[[Layer], str | None] | None = None
    reasons: dict[Var, str] = field(default_factory=dict[Var, str])

    def place(self) -> Placement:
        """Decide for every op of the function."""
        candidates = self._candidates()
        integer, floats = self._keep(candidates)
        if self.unlike_plan is None:
            self._revise(candidates, integer)
            floats |= self._float_results(candidates, integer)
        layers = tuple(replace(layer, leaves_float=layer.output in floats) for layer in candidates if layer.output in integer)
        made = frozenset(layer.output for layer in layers if not layer.leaves_float)
        read = {var for layer in layers for var in layer.inputs}
        return Placement(layers=layers, made=made, quantized=made | read, float_ops=self._float_ops(layers))

    def _candidates(self) -> list[Layer]:
        """Return every op that could run in integers if its inputs were; note the reason of every other."""
        taken: set[Var] = set()
        found: list[Layer] = []
        computed, is_wide = computed_of_inputs(self.view, self.constants), self._is_wide()
        finders = [
            Candidates(
                view=self.view,
                constants=self.constants,
                target=target,
                recipe=self.recipe,
                computed=computed,
                is_wide=is_wide,
            )
            for target in self.targets
        ]
        for binding in self.view.bindings:
            var = binding.var
            if var in taken or not isinstance(binding.value, relax.Call) or self.constants.find(var) is not None:
                continue
            layer = self._first(finders, var)
            if isinstance(layer, str):
                self.reasons[var] = layer
                continue
            taken.update(layer.members)
            excluded = self._excluded(layer)
            if excluded is not None:
                self.reasons[var] = excluded
                continue
            found.append(layer)
        return found

    def _first(self, finders: list[Candidates], var: Var) -> Layer | str:
        """Return the op for the first target that takes it, or why none does."""
        reasons = dict(self.declined.get(var, {}))
        for finder in finders:
            name = finder.target.name
            if name not in reasons:
                layer = finder.find(var)
                reason = layer if isinstance(layer, str) else beyond_limits(self.view, layer, name)
                if isinstance(layer, Layer) and reason is None:
                    layer = replace(layer, taker=name)
                    reason = None if self.unlike_plan is None else self.unlike_plan(layer)
                    if reason is None:
                        return layer
                reasons[name] = reason or ""
        return together(reasons)

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
        return integer, floats

    def _revise(self, candidates: list[Layer], integer: set[Var]) -> None:
        """Leave normalizations float that only float ops read, and make moves integer that only integer ops read."""
        for layer in candidates:
            readers = (other for other in candidates if other.output in integer and layer.output in other.inputs)
            if layer.support.op in NORMS and layer.output in integer and next(readers, None) is None:
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
        return QuantScheme(dtype=self.preferred).num_bits > 8

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
        floats = (
            [] if layer.pulls or self.unlike_plan is not None else [data.name for data in layer.inputs if data not in integers]
        )
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
