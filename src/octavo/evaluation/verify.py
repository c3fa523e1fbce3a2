"""Checking a Lineage against values: every tensor claimed to be alive is computed in the source module and in the final one.

The final module is read as it stands, without anything the Lineage knows; only which variable holds a tensor, and how, is taken
from it. Links to values that quantization changed are checked step by step against the quantized model, those to few bits that
drifted against the source (evaluation/tensorwise_model.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import Var

from ..errors import ModelError
from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView, call_to
from ..ir.graph.evaluate import Evaluator, external_modules
from ..ir.graph.fixed_sizes import at_sizes, same_variables
from ..ir.graph.inputs import input_specs
from ..ir.graph.lineage import Lineage
from ..ir.graph.model import checked_model
from ..ir.graph.value_graph import GraphReader, functions_of
from ..ir.graph.value_numbers import ValueNumbers
from ..ir.identity import TensorId, TensorState
from ..ir.identity.relation import Relation, agree
from ..ir.qdq.results import QuantizedVariable, quantized_variables
from ..numerics.arrays import Array
from ..numerics.statistics.metrics import max_abs_error, sqnr_db
from ..runtime.inputs import split_batch
from ..runtime.llvm_host import host_target
from ..runtime.shapes import dimension_places, read_sizes
from .tensorwise_model import TensorwiseModel, differences, is_like

_EXACT_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageCheck:
    """What comparing values says of one tensor's link.

    Parameters
    ----------
    id, source_name
        The tensor.
    state
        What the lineage claims.
    is_compared
        Whether a variable or a constant was claimed to hold it, and both values could be computed.
    is_right
        Whether the values agree, within what sums in another order may change; where a float type of fewer bits is on the way, in
        each element, or where it drifted through many layers, in each element of what the source makes of the values that the
        final module has for the tensors before it. Where a step
        announced the link because it changed values (floats to integers), two things must hold. What the quantized model, whose
        variables bear the source's names, makes of the values that the final module has for the tensors before it is in the
        final module, but for one quantization step of rounding. And what it makes of the float model's values is the float
        model's tensor: the error, of the values without their mean, is a quarter of the signal's power at most, which no other
        tensor comes near to. Errors do not add up from layer to layer in either, so noise is no excuse. Where the lineage saw
        no quantized model, the second must hold of the final module's values. False where a variable was claimed and could not
        be computed; True where nothing was claimed.
    is_integer
        Whether integers hold it in the final module; they are compared as the numbers they stand for.
    steps_off
        Largest difference, in quantization steps, to what the quantized model makes of the final module's values; None where
        that was not compared.
    max_abs_error
        Largest difference to the value that the claim promises; 0 where nothing was compared.
    sqnr_db
        Signal to noise ratio in dB, inf for equal values and where nothing was compared. Of integers it is the error of all
        quantization up to there, whether the link is right or not.
    """

    id: TensorId
    source_name: str
    state: TensorState
    is_compared: bool
    is_right: bool
    is_integer: bool = False
    steps_off: float | None = None
    max_abs_error: float = 0.0
    sqnr_db: float = float("inf")


def verify_lineage(
    model: Model, final_module: tvm.IRModule, batch: Array | Mapping[str, Array], *, lineage: Lineage | None = None
) -> tuple[LineageCheck, ...]:
    """Compute every tensor claimed to be alive in the source and in the final module, and compare them through the claim.

    Parameters
    ----------
    model
        The source of the tensors.
    final_module
        What passes made of it, composites and kernels included.
    batch
        An array or {input name: array}; the first dimension may be a multiple of the model's.
    lineage
        The claims: a Lineage of `model` that saw the passes. Without it the final module is followed in one step.

    Returns
    -------
    tuple
        One LineageCheck for each TensorId, in the order of the source.

    Raises
    ------
    ModelError
        If the lineage ended with another module.
    DataError
        A batch that does not fit the model.
    """
    checked_model(model)
    target = host_target()
    if lineage is None:
        lineage = Lineage(model, target=target)
        lineage.record("all passes", final_module)
    elif not lineage.ends_with(final_module):
        raise ModelError("the lineage ended with another module than the one to verify; give the module that its last pass made")
    cut = list(split_batch(input_specs(model), batch, where="batch"))
    places = dimension_places([spec.shape for spec in input_specs(model)]) if cut else {}
    sizes = read_sizes(places, [array.shape for array in cut[0]]) if cut else {}
    if sizes:  # a batch is one run, and a claim may name shapes: it is made at the batch's sizes
        lineage = lineage.probed_with({str(tensor): array for tensor, array in zip(model.input_ids, cut[0], strict=True)})
    comparison = _Comparison(model, final_module, lineage, target, sizes)
    runs = [comparison.run(arrays) for arrays in cut]
    return tuple(
        _check(model, tensor, state, [run[tensor] for run in runs if tensor in run], lineage)
        for tensor, state in lineage.states.items()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """One tensor's value as the claim promises it and as the final module has it; of an announced link, what was proved.

    Parameters
    ----------
    is_asked
        Whether the quantized model can say that it is this tensor.
    is_proved
        Whether it does; None where it was not asked.
    """

    expected: Array
    now: Array
    is_integer: bool = False
    is_asked: bool = False
    is_proved: bool | None = None
    steps_off: float | None = None


def _check(model: Model, tensor: TensorId, state: TensorState, pairs: list[_Pair], lineage: Lineage) -> LineageCheck:
    steps = [pair.steps_off for pair in pairs if pair.steps_off is not None]
    common: dict[str, Any] = {
        "id": tensor,
        "source_name": model.tensors[tensor].source_name,
        "state": state,
        "is_compared": bool(pairs),
        "is_integer": any(pair.is_integer for pair in pairs),
        "steps_off": max(steps) if steps else None,
    }
    if not pairs:
        return LineageCheck(is_right=not state.is_alive, **common)
    if any(pair.expected.shape != pair.now.shape for pair in pairs):
        return LineageCheck(is_right=False, max_abs_error=np.inf, sqnr_db=-np.inf, **common)
    expected = np.concatenate([pair.expected.reshape(-1) for pair in pairs])
    now = np.concatenate([pair.now.reshape(-1) for pair in pairs])
    same = np.isinf(expected) & (expected == now)  # as masks of attention hold
    expected, now = np.where(same, 0, expected), np.where(same, 0, now)
    if state.evidence == "announced":
        proofs = [pair.is_proved for pair in pairs]
        is_right = all(proofs) if None not in proofs else False not in proofs and is_like(expected, now)
    else:
        tolerance = lineage.tolerance(tensor)
        is_right = all(pair.is_proved or agree(pair.expected, pair.now, tolerance) for pair in pairs)
    error, ratio = max_abs_error(expected, now), sqnr_db(expected, now)
    return LineageCheck(is_right=is_right, max_abs_error=error, sqnr_db=ratio, **common)


class _Comparison:
    """The tensors of both modules, computed on inputs."""

    def __init__(
        self,
        model: Model,
        final_module: tvm.IRModule,
        lineage: Lineage,
        target: tvm.target.Target,
        sizes: Mapping[str, int],
    ) -> None:
        self._model = model
        self._lineage = lineage
        self._target = target
        # Both modules are read as they stand, under numbers that no pass and no claim had a part in.
        self._numbers = ValueNumbers()
        externs = lineage.steps[-1].externs
        self._externals = external_modules(final_module)
        reader = GraphReader(self._numbers, at_sizes(externs, sizes), by_meaning=False)
        self._functions = at_sizes(functions_of(model.bound()), sizes)
        source_graph = reader.read(self._functions, lineage.entry, {})
        final_functions = functions_of(final_module)
        final_at_sizes = at_sizes(final_functions, sizes)
        final_graph = reader.read(final_at_sizes, lineage.entry, {})
        original = same_variables(final_at_sizes[lineage.entry], final_functions[lineage.entry])
        quantized: dict[Var, dict[str, QuantizedVariable]] = {}
        for each in quantized_variables(final_module, lineage.entry, externs):
            quantized.setdefault(each.var, {})[each.tensor] = each
        claims = {tensor: state for tensor, state in lineage.states.items() if state.is_alive and state.position is not None}
        self._start = {place.name: place.number for place in source_graph.places if place.name in claims}
        self._now: dict[TensorId, int] = {}
        self._integers: dict[TensorId, QuantizedVariable] = {}
        for tensor, state in claims.items():
            assert state.position is not None
            place = final_graph.places[state.position]
            self._now[tensor] = place.number
            if state.evidence == "announced" and original.get(place.var) in quantized:
                candidates = quantized[original[place.var]]
                self._integers[tensor] = candidates.get(tensor) or next(iter(candidates.values()))
        self._quantized = at_sizes({"": _quantized_function(lineage)}, sizes)[""]
        self._tensorwise: TensorwiseModel | None = None
        self._source: TensorwiseModel | None = None

    def run(self, arrays: Sequence[Array]) -> dict[TensorId, _Pair]:
        """Return the promised and the actual value of each tensor that is claimed to be alive."""
        evaluator = Evaluator(self._numbers, dict(enumerate(arrays)), self._target, self._externals)
        values = evaluator.get([*self._start.values(), *self._now.values()])
        pairs: dict[TensorId, _Pair] = {}
        shapes: dict[TensorId, tuple[int, ...]] = {}
        for tensor, state in self._lineage.states.items():
            params = self._model.params
            original = params.get(tensor) if tensor in params else values.get(self._start.get(tensor, -1))
            constant = self._lineage.constant(tensor)
            value = constant if constant is not None else values.get(self._now.get(tensor, -1))
            if original is None or value is None:
                continue
            pairs[tensor] = self._pair(tensor, state, original, value)
            shapes[tensor] = original.shape
        asked = {tensor: pair for tensor, pair in pairs.items() if pair.is_asked and tensor in self._start}
        if self._quantized is not None and asked:
            pairs |= self._proved(arrays, asked)
        return pairs | self._recheck_drifted(arrays, pairs, shapes)

    def _recheck_drifted(
        self, arrays: Sequence[Array], pairs: Mapping[TensorId, _Pair], shapes: Mapping[TensorId, tuple[int, ...]]
    ) -> dict[TensorId, _Pair]:
        """Ask the source, step by step, where few bits drifted: a deep network of them has no element that must agree."""
        claims = {
            tensor: self._lineage[tensor]
            for tensor, pair in pairs.items()
            if tensor in self._start and pair.expected.shape == pair.now.shape
        }
        tolerances = {
            tensor: self._lineage.tolerance(tensor) for tensor, state in claims.items() if state.evidence != "announced"
        }
        few = {tensor: share for tensor, share in tolerances.items() if share > _EXACT_TOLERANCE}
        if all(agree(pairs[tensor].expected, pairs[tensor].now, share) for tensor, share in few.items()):
            return {}
        if self._source is None:
            function = self._functions[self._lineage.entry]
            self._source = TensorwiseModel(function, few, self._target, tolerances=few)
        now = {tensor: claims[tensor].relation.undo(pairs[tensor].now, shapes[tensor]) for tensor in self._source.given}
        found = differences(self._source, arrays, now)
        return {tensor: replace(pairs[tensor], is_proved=True) for tensor, difference in found.items() if difference.is_none}

    def _pair(self, tensor: TensorId, state: TensorState, original: Array, value: Array) -> _Pair:
        if state.evidence != "announced":
            return _Pair(expected=state.relation.apply(original), now=value)
        # The quantized model has tensors as equalization scaled them.
        scaled = replace(state.relation, permutation=None, shape=None, shift=0)
        original = scaled.apply(original).astype(original.dtype) if scaled.is_scaled else original
        quantized = self._integers.get(tensor)
        if quantized is None:
            arranged = Relation(permutation=state.relation.permutation)
            now = arranged.undo(value, original.shape).astype(value.dtype) if value.size == original.size else value
        else:
            now = quantized.integers(value) if original.dtype.kind in "iu" else quantized.reals(value)
        # In the source's layout; only a reduction's axes of size 1 may be there or not.
        now = now.reshape(original.shape) if now.size == original.size else now
        if now.dtype.kind in "iu" and original.dtype.kind == "f":  # integers of which nothing says what they stand for
            return _Pair(expected=original, now=now, is_proved=False)
        is_asked = original.dtype.kind == "f" and now.shape == original.shape
        return _Pair(expected=original, now=now, is_integer=value.dtype.kind in "iu", is_asked=is_asked)

    def _proved(self, arrays: Sequence[Array], asked: Mapping[TensorId, _Pair]) -> dict[TensorId, _Pair]:
        """Ask the quantized model which of the links are right."""
        if self._tensorwise is None:
            self._tensorwise = TensorwiseModel(self._quantized, asked, self._target)
        # It may have rows as images of one row.
        now = {tensor: self._tensorwise.shaped(tensor, pair.now) for tensor, pair in asked.items()}
        expected = {tensor: self._tensorwise.shaped(tensor, pair.expected) for tensor, pair in asked.items()}
        found, of_floats = differences(self._tensorwise, arrays, now), self._tensorwise.run(arrays, expected)
        return {
            tensor: replace(
                asked[tensor],
                is_proved=difference.is_none and is_like(expected[tensor], of_floats[tensor]),
                steps_off=difference.steps,
            )
            for tensor, difference in found.items()
        }


def _quantized_function(lineage: Lineage) -> Any:
    """Return the entry function of the quantized model that a lineage saw being made, None if it saw none."""
    for step in lineage.steps:
        function = step.by_name().get(lineage.entry) if step.announced is not None else None
        if isinstance(function, relax.Function):
            calls = (call_to(binding.value, "quantize") for binding in DataflowView(function).bindings)
            if any(call is not None for call in calls):
                return function
    return None
