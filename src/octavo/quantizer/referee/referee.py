"""Scores plans of one model by the error of its outputs on samples. It proposes nothing, and changes no plan."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ...compiler.target_choice import ResolvedTarget, resolve_target
from ...errors import QuantizationError
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, operand_vars
from ...numerics.arrays import Array, Samples
from ...profiling import Profile
from ..corrections.correct import samples_of
from ..corrections.error import compared_results, same_class
from ..plan.plan import QuantizationPlan, QuantizedModel
from ..simplify import simplify
from .rounded_program import RoundedProgram
from .rounding import NOTHING, Rounding, constants_of, rounding_of
from .score import Score


class Referee:
    """Says how far the outputs of a model are off if it is quantized by a plan.

    Parameters
    ----------
    simple
        The float model, simplified and not equalized.
    plan
        The one that rounds most: others may round fewer tensors than this one, and any of them otherwise.
    samples
        The model's inputs, sample by sample, that nothing of the plans was fitted to; one at least.
    target
        Whose kernels run it here.
    threads
        How many samples run at once.

    Raises
    ------
    NotImplementedError
        TVM's virtual machine alone can run the model.
    QuantizationError
        There are no samples.
    """

    def __init__(
        self, simple: Model, plan: QuantizationPlan, samples: Samples, target: ResolvedTarget, *, threads: int = 1
    ) -> None:
        if not samples:
            raise QuantizationError("there are no samples to score plans on: profile with keep_samples")
        self._simple, self._samples = simple, samples
        self._view = DataflowView(simple.module["main"])
        self._results = [self._view.root_of(var).name for var in operand_vars(self._view.result)]
        layers = [str(layer.output) for layer in plan.layers]
        per_row = [str(name) for layer in plan.layers for name in layer.per_row]
        names = [*map(str, plan.activations), *per_row, *layers, *self._results]
        self._threads = threads
        exchanged = {name for own in constants_of(simple, plan).values() for name in own}
        self._program = RoundedProgram(simple, names, exchanged, target)
        self._floats = self._run(NOTHING)

    def score(self, plan: QuantizationPlan) -> Score:
        """Return how far the outputs are off with a plan, which has the integers of its weights and biases."""
        found = self._run(rounding_of(self._simple, plan))
        pairs = [pair for pair in compared_results(self._view, self._floats, found) if pair is not None]
        return Score(errors=np.array([_errors(*pair) for pair in pairs]), agreement=same_class(self._floats, found))

    def _run(self, rounding: Rounding) -> list[list[Array]]:
        prepared = self._program.prepare(rounding, self._results)
        with ThreadPoolExecutor(self._threads) as beside:
            return list(beside.map(lambda arrays: self._program.run(prepared, arrays, self._results), self._samples))


def _errors(floats: Sequence[Array], found: Sequence[Array]) -> list[float]:
    exact = [np.ravel(value).astype(np.float64) for value in floats]
    power = sum(float(value @ value) for value in exact) / len(exact)
    noise = [float(np.sum(np.square(np.ravel(other) - value))) for value, other in zip(exact, found, strict=True)]
    if not power:
        return [float("inf") if each else 0.0 for each in noise]
    return [each / power if np.isfinite(each) else float("inf") for each in noise]


def score_of(model: Model, quantized: QuantizedModel, profile: Profile) -> Score | None:
    """Return how far outputs are off on the samples that a profile keeps; None without such, or where nothing can run it here."""
    samples = samples_of(model, profile)
    if not samples:
        return None
    try:
        simple, _ = simplify(model)
        return Referee(simple, quantized.plan, samples, resolve_target(None)).score(quantized.plan)
    except NotImplementedError:
        return None
