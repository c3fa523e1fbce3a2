"""Checking a Lineage against values: every tensor claimed to be alive is computed in the source module and in the final one.

The final module is read as it stands, without anything the Lineage knows; only which variable holds a tensor, and how, is taken
from it.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from .numerics.metrics import max_abs_error, sqnr_db
from .pipeline import checked_model

Array = npt.NDArray[Any]


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
        Whether a variable or a constant was claimed to hold it, and both values could be computed. A tensor that became
        integers is not compared here: `octavo.layer_errors` measures how far those are off.
    is_right
        Whether the values agree, within what sums in another order (or a float type of fewer bits) may change; True where
        nothing was claimed.
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
    claims = lineage.states
    runs = [
        _compare(model, final_module, lineage, dict(enumerate(arrays)), target)
        for arrays in split_batch(input_specs(model), batch, where="batch")
    ]
    checks: list[LineageCheck] = []
    for tensor, state in claims.items():
        pairs = [run[tensor] for run in runs if tensor in run]
        checks.append(_check(model, tensor, state, pairs, lineage))
    return tuple(checks)


def _check(
    model: Model, tensor: TensorId, state: TensorState, pairs: list[tuple[Array, Array]], lineage: Lineage
) -> LineageCheck:
    name = model.tensors[tensor].source_name
    if not pairs:
        return LineageCheck(
            id=tensor,
            source_name=name,
            state=state,
            is_compared=False,
            is_right=not state.is_alive or state.evidence == "announced",
        )
    if any(expected.shape != now.shape for expected, now in pairs):
        return LineageCheck(
            id=tensor, source_name=name, state=state, is_compared=True, is_right=False, max_abs_error=np.inf, sqnr_db=-np.inf
        )
    tolerance = lineage.tolerance(tensor)
    expected = np.concatenate([pair[0].reshape(-1) for pair in pairs])
    now = np.concatenate([pair[1].reshape(-1) for pair in pairs])
    return LineageCheck(
        id=tensor,
        source_name=name,
        state=state,
        is_compared=True,
        is_right=all(agree(want, got, tolerance) for want, got in pairs),
        max_abs_error=max_abs_error(expected, now),
        sqnr_db=sqnr_db(expected, now),
    )


def _compare(
    model: Model, final_module: tvm.IRModule, lineage: Lineage, inputs: dict[int, Array], target: tvm.target.Target
) -> dict[TensorId, tuple[Array, Array]]:
    """Return the promised and the actual value of each tensor that is claimed to be alive."""
    claims = {tensor: state for tensor, state in lineage.states.items() if state.is_alive and state.evidence != "announced"}
    # Both modules are read as they stand, under numbers that no pass and no claim had a part in.
    numbers = ValueNumbers()
    reader = GraphReader(numbers, lineage.steps[-1].externs, by_meaning=False)
    source_graph = reader.read(functions_of(model.bound()), lineage.entry, {})
    final_graph = reader.read(functions_of(final_module), lineage.entry, {})
    start = {place.name: place.number for place in source_graph.places if place.name in claims}
    now = {tensor: final_graph.places[state.position].number for tensor, state in claims.items() if state.position is not None}
    values = Evaluator(numbers, inputs, target).get([*start.values(), *now.values()])
    pairs: dict[TensorId, tuple[Array, Array]] = {}
    for tensor, state in lineage.states.items():
        original = model.params.get(tensor) if tensor in model.params else values.get(start.get(tensor, -1))
        constant = lineage.constant(tensor)
        value = constant if constant is not None else values.get(now.get(tensor, -1))
        if original is not None and value is not None:
            pairs[tensor] = (state.relation.apply(original), value)
    return pairs
