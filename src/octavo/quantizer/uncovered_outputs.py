"""Last layers of outputs that calibration hardly covers: they stay float where that takes next to no time. Nothing is run.

8 bits saturate what lies beyond the range that the samples showed. Whatever the distribution, the next sample exceeds the largest
value of n samples with a probability of 1 / (n + 1); how far it goes, samples do not say where what the network looks for is rare
(a score, say, that is low for all of them). No estimator of ranges can know. Of thousands of values one that saturates moves an
output little; in the last layers a few values make the output, and one such sample outweighs the rounding of hundreds.

Whether samples cover an output is seen in its own range: not where by the bootstrap, at 95%, an end may lie a tenth of the range
further out (numerics/statistics/convergence.py). Its last layers then stay float as far back as that is next to nothing of the
model's time, by the modelled cycles of `octavo explain`: what has no range does not saturate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm.relax import Expr, Var

from ..compiler.explanation import FLOAT_BYTES, FLOAT_MACS, memory_cycles, model_cycles
from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView, call_to, dtype_of, operand_vars, static_shape
from ..ir.graph.macs import float_macs
from ..ir.identity import TensorId, readable_name
from ..profiling import Profile, adequacy_of
from ..target.op_facts import WEIGHTED

_SHARE = 0.01
"""Of the model's modelled time in integers: what all that stays float for this may take. Timings differ by more."""


def uncovered_outputs(model: Model, profile: Profile) -> Mapping[TensorId, str]:
    """Return the activations that best stay float for outputs that the samples don't cover, each with the reason.

    Parameters
    ----------
    profile
        Of this model. An output of which it tells no range by buckets of samples has no such layers.
    """
    view = DataflowView(model.module["main"])
    found = _LastLayers(view, profile)
    if found.uncovered:
        for var in reversed(_computed(view, model.input_ids)):
            found.visit(var)
    return found.reasons


@dataclass(slots=True, eq=False)
class _LastLayers:
    """Tensors from uncovered outputs backwards whose readers are all such, as many as there is time for."""

    view: DataflowView
    profile: Profile
    uncovered: dict[Var, str] = field(init=False)
    """Outputs that are not covered, and tensors of their last layers, with what is said of the output."""
    reasons: dict[TensorId, str] = field(default_factory=dict[TensorId, str])
    _room: float = field(init=False)
    _floats: set[Var] = field(default_factory=set[Var])
    """Results of ops that are float for it."""

    def __post_init__(self) -> None:
        self.uncovered = {var: said for var in operand_vars(self.view.result) if (said := self._reason_uncovered(var))}
        self._room = _SHARE * model_cycles(self.view) if self.uncovered else 0.0

    def _reason_uncovered(self, var: Var) -> str:
        """Return what is said of an output that the samples don't cover, "" of one that they do."""
        known = self.profile.get(TensorId(var.name))
        found = None if known is None or dtype_of(var) != "float32" else adequacy_of(known)
        if known is None or found is None or found.convergence is None or found.convergence.covered:
            return ""
        name, reach = readable_name(known.source_name, known.id), found.convergence.reach
        return f"the output {name} may go {reach:.0%} of its range further than the samples show, which would saturate in 8 bits"

    def visit(self, var: Var) -> None:
        """Add a tensor to the last layers of its readers, if all of them are such, and there is time for its ops to be float."""
        readers = self.view.users(var)
        if var in self.uncovered or not readers or any(reader not in self.uncovered for reader in readers):
            return
        if dtype_of(var) != "float32" or self.view.is_returned(var):
            return
        # A product can end in float for nothing.
        is_product = call_to(self.view.definition(var), *WEIGHTED) is not None
        ops = {*readers, *(() if is_product else (var,))} - self._floats
        cycles = sum(_float_cycles(self.view, each) for each in ops)
        if cycles <= self._room:
            self._room -= cycles
            self._floats |= ops
            self.uncovered[var] = self.uncovered[readers[0]]
            self.reasons[TensorId(var.name)] = self.uncovered[var]


def _computed(view: DataflowView, inputs: Collection[str]) -> list[Var]:
    """Return what is computed from inputs, in order: not what is made of constants alone."""
    known = {var for var in view.function.params if var.name in inputs}
    found: list[Var] = []
    for binding in view.bindings:
        if any(var in known for var in operand_vars(binding.value)):
            known.add(binding.var)
            found.append(binding.var)
    return found


def _float_cycles(view: DataflowView, var: Var) -> float:
    """Return the modelled cycles of the op that makes a variable, in float: its products, and all that it reads and writes."""
    value = view.definition(var)
    operands: list[Expr] = list(value.args) if hasattr(value, "args") else []
    values = _values(var) + sum(map(_values, operands))
    return float_macs(value) / FLOAT_MACS + memory_cycles(FLOAT_BYTES * values)


def _values(value: Any) -> int:
    return prod(static_shape(value) or (0,))
