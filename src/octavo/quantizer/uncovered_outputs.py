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

from collections.abc import Mapping

from tvm.relax import Expr, Var

from ..compiler.explanation import FLOAT_BYTES, FLOAT_MACS, memory_cycles, model_cycles
from ..ir.graph import Model
from ..ir.graph.constants import Constants
from ..ir.graph.dataflow import DataflowView, call_to, dtype_of, operand_vars
from ..ir.graph.macs import float_macs
from ..ir.identity import TensorId, readable_name
from ..profiling import Profile, adequacy_of
from ..target.op_facts import WEIGHTED
from .placement.candidates import computed_of_inputs
from .price import size_of

_SHARE = 0.01
"""Of the model's modelled time in integers: what all that stays float for this may take. Timings differ by more."""


def uncovered_outputs(model: Model, profile: Profile) -> Mapping[TensorId, str]:
    """Return the activations that best stay float for outputs that the samples don't cover, each with the reason.

    An output of which the profile tells no range by buckets of samples has no such layers.
    """
    view = DataflowView(model.module["main"])
    # Outputs that are not covered, and tensors of their last layers, with what is said of the output.
    uncovered = {var: said for var in operand_vars(view.result) if (said := _reason_uncovered(var, profile))}
    reasons: dict[TensorId, str] = {}
    floats: set[Var] = set()  # results of ops that are float for it
    room = _SHARE * model_cycles(view) if uncovered else 0.0
    computed = computed_of_inputs(view, Constants(view, model.params))
    for var in (binding.var for binding in reversed(view.bindings if uncovered else ())):
        readers = view.users(var)
        if var not in computed or var in uncovered or not readers or any(reader not in uncovered for reader in readers):
            continue
        if dtype_of(var) != "float32" or view.is_returned(var):
            continue
        # A product can end in float for nothing.
        is_product = call_to(view.definition(var), *WEIGHTED) is not None
        ops = {*readers, *(() if is_product else (var,))} - floats
        cycles = sum(_float_cycles(view, each) for each in ops)
        if cycles <= room:
            room -= cycles
            floats |= ops
            reasons[TensorId(var.name)] = uncovered[var] = uncovered[readers[0]]
    return reasons


def _reason_uncovered(var: Var, profile: Profile) -> str:
    """Return what is said of an output that the samples don't cover, "" of one that they do."""
    known = profile.get(TensorId(var.name))
    found = None if known is None or dtype_of(var) != "float32" else adequacy_of(known)
    if known is None or found is None or found.convergence is None or found.convergence.covered:
        return ""
    name, reach = readable_name(known.source_name, known.id), found.convergence.reach
    return f"the output {name} may go {reach:.0%} of its range further than the samples show, which would saturate in 8 bits"


def _float_cycles(view: DataflowView, var: Var) -> float:
    """Return the modelled cycles of the op that makes a variable, in float: its products, and all that it reads and writes."""
    value = view.definition(var)
    operands: list[Expr] = list(value.args) if hasattr(value, "args") else []
    values = size_of(var) + sum(map(size_of, operands))
    return float_macs(value) / FLOAT_MACS + memory_cycles(FLOAT_BYTES * values)
