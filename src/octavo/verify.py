"""Checking a Lineage against values: every tensor claimed to be alive is computed in the source module and in the final one.

The final module is read as it stands, without anything the Lineage knows; only which variable holds a tensor, and how, is taken
from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from .errors import ModelError
from .graph import Model
from .graph.evaluate import Evaluator
from .graph.inputs import input_specs, split_batch
from .graph.lineage import Lineage
from .graph.value_graph import GraphReader, functions_of
from .graph.value_numbers import ValueNumbers
from .identity import TensorId, TensorState
from .identity.relation import agree
from .kernels import host_target
from .lower.results import HeldIntegers, held_integers
from .numerics.metrics import max_abs_error, sqnr_db
from .pipeline import checked_model

Array = npt.NDArray[Any]
_ANNOUNCED_SHARE = 0.25
_FEW_BITS_DB = 20.0
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
        each element, or but for errors of a hundredth of the power (through many layers single elements drift). Where a step
        announced the link because it changed values (floats to integers), whether they are that tensor's at all: the error, of
        the values without their mean, is a quarter of the signal's power at most, which no other tensor comes near to. False
        where a variable was claimed and could not be computed; True where nothing was claimed.
    is_integer
        Whether integers hold it in the final module; they are compared as the numbers they stand for.
    max_abs_error
        Largest difference to the value that the claim promises; 0 where nothing was compared.
    sqnr_db
        Signal to noise ratio in dB, inf for equal values and where nothing was compared.
    """

    id: TensorId
    source_name: str
    state: TensorState
    is_compared: bool
    is_right: bool
    is_integer: bool = False
    max_abs_error: float = 0.0
    sqnr_db: float = float("inf")


def verify_lineage(
    model: Model,
    final_module: tvm.IRModule,
    batch: Array | Mapping[str, Array],
    *,
    lineage: Lineage | None = None,
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
    comparison = _Comparison(model, final_module, lineage, target)
    runs = [comparison.run(arrays) for arrays in split_batch(input_specs(model), batch, where="batch")]
    return tuple(
        _check(model, tensor, state, [run[tensor] for run in runs if tensor in run], lineage, comparison.integers)
        for tensor, state in lineage.states.items()
    )


def _check(
    model: Model,
    tensor: TensorId,
    state: TensorState,
    pairs: list[tuple[Array, Array]],
    lineage: Lineage,
    integers: Collection[TensorId],
) -> LineageCheck:
    common: dict[str, Any] = {
        "id": tensor,
        "source_name": model.tensors[tensor].source_name,
        "state": state,
        "is_compared": bool(pairs),
        "is_integer": tensor in integers,
    }
    if not pairs:
        return LineageCheck(is_right=not state.is_alive, **common)
    if any(expected.shape != now.shape for expected, now in pairs):
        return LineageCheck(is_right=False, max_abs_error=np.inf, sqnr_db=-np.inf, **common)
    expected = np.concatenate([pair[0].reshape(-1) for pair in pairs])
    now = np.concatenate([pair[1].reshape(-1) for pair in pairs])
    if state.evidence == "announced":
        is_right = _is_of(expected, now)
    else:
        tolerance = lineage.tolerance(tensor)
        is_right = all(agree(want, got, tolerance) for want, got in pairs)
        if not is_right and tolerance > _EXACT_TOLERANCE:  # too few bits for every element of a deep network to agree
            mean = expected.astype(np.float64).mean()
            is_right = sqnr_db(expected.astype(np.float64) - mean, now.astype(np.float64) - mean) >= _FEW_BITS_DB
    error, ratio = max_abs_error(expected, now), sqnr_db(expected, now)
    return LineageCheck(is_right=is_right, max_abs_error=error, sqnr_db=ratio, **common)


def _is_of(expected: Array, now: Array) -> bool:
    """Return whether values changed by quantization can be those of a tensor; of a constant tensor the mean must tell."""
    signal = expected.astype(np.float64)
    noise = now.astype(np.float64) - signal
    spread = signal - signal.mean()
    if np.allclose(spread, 0):
        return bool(np.mean(np.abs(noise)) <= _ANNOUNCED_SHARE * np.abs(signal.mean()))
    return bool(np.sum((noise - noise.mean()) ** 2) <= _ANNOUNCED_SHARE * np.sum(spread**2))


class _Comparison:
    """The tensors of both modules, computed on inputs.

    Parameters
    ----------
    integers
        The ids whose values integers hold now.
    """

    def __init__(self, model: Model, final_module: tvm.IRModule, lineage: Lineage, target: tvm.target.Target) -> None:
        self._model = model
        self._lineage = lineage
        self._target = target
        # Both modules are read as they stand, under numbers that no pass and no claim had a part in.
        self._numbers = ValueNumbers()
        reader = GraphReader(self._numbers, lineage.steps[-1].externs, by_meaning=False)
        source_graph = reader.read(functions_of(model.bound()), lineage.entry, {})
        final_graph = reader.read(functions_of(final_module), lineage.entry, {})
        held = {each.var: each for each in held_integers(final_module, lineage.entry)}
        claims = {tensor: state for tensor, state in lineage.states.items() if state.is_alive and state.position is not None}
        self._start = {place.name: place.number for place in source_graph.places if place.name in claims}
        self._now: dict[TensorId, int] = {}
        self.integers: dict[TensorId, HeldIntegers] = {}
        for tensor, state in claims.items():
            assert state.position is not None
            place = final_graph.places[state.position]
            self._now[tensor] = place.number
            if state.evidence == "announced" and place.var in held:
                self.integers[tensor] = held[place.var]

    def run(self, arrays: Sequence[Array]) -> dict[TensorId, tuple[Array, Array]]:
        """Return the promised and the actual value of each tensor that is claimed to be alive."""
        evaluator = Evaluator(self._numbers, dict(enumerate(arrays)), self._target)
        values = evaluator.get([*self._start.values(), *self._now.values()])
        pairs: dict[TensorId, tuple[Array, Array]] = {}
        for tensor, state in self._lineage.states.items():
            params = self._model.params
            original = params.get(tensor) if tensor in params else values.get(self._start.get(tensor, -1))
            constant = self._lineage.constant(tensor)
            value = constant if constant is not None else values.get(self._now.get(tensor, -1))
            if original is None or value is None:
                continue
            held = self.integers.get(tensor)
            if held is None:
                pairs[tensor] = state.relation.apply(original), value
            else:  # in the source's layout; only a reduction's axes of size 1 may be there or not
                reals = held.reals(value)
                pairs[tensor] = original, reals.reshape(original.shape) if reals.size == original.size else reals
        return pairs
