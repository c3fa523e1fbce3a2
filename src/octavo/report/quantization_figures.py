"""What the page of a quantized model shows, measured: outputs, layers, causes, worst samples. It lays out nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..compiler.compile import compile_model, explained_without_code
from ..compiler.explanation import Explanation, output_specs
from ..compiler.target_choice import ResolvedTarget, TargetLike, resolve_target
from ..errors import ProfileError, QuantizationError
from ..evaluation.evaluate import LAYER_SAMPLES
from ..evaluation.layer_errors import LayerError, errors_on
from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView
from ..ir.graph.inputs import input_specs
from ..ir.graph.model import checked_model
from ..ir.identity import TensorId
from ..numerics.arrays import Array, Samples
from ..profiling import Profile, samples_of
from ..quantizer.causes import RootCause, table
from ..quantizer.causes.table import plan_of
from ..quantizer.compile import explain
from ..quantizer.plan.plan import QuantizedModel
from ..quantizer.programs import Programs
from ..quantizer.referee import Referee, sqnr_by_result
from ..quantizer.referee.rounding import NOTHING
from ..quantizer.search import SearchResult, read_search
from ..runtime.executable import Executable
from ..runtime.inputs import split_batches
from .quantized_layers import FloatOpFigures, WeightFigures, bytes_of, float_ops_of, time_shares, weights_of
from .thumbnail import thumbnail


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputFigures:
    """One output of a model against the float model's.

    Parameters
    ----------
    sqnr_db
        Signal to noise ratio over all samples in dB, of a softmax that of its scores, of integers that of the reals that they are
        chosen by; None of integers that another's hardware gives.
    agreement
        Share of the samples with the same class; None where the output has no scores of classes.
    """

    name: str
    shape: tuple[int, ...]
    sqnr_db: float | None
    agreement: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantFigures:
    """One form of the model: the float one, or the quantized one.

    Parameters
    ----------
    name
        What it is.
    outputs
        In the order of the model; () of the float model.
    weight_bytes
        Of its constants in the model: int8 ones one byte each, narrower ones as many bits as they have.
    packed_bytes
        Of the constants of its kernels, which are laid out for this machine, and padded.
    time
        Modelled, as a share of the float model's.
    """

    name: str
    outputs: tuple[OutputFigures, ...]
    weight_bytes: int
    packed_bytes: int
    time: float

    @property
    def sqnr_db(self) -> float | None:
        """Of the worst output; None without a float one."""
        found = [each.sqnr_db for each in self.outputs if each.sqnr_db is not None]
        return min(found, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFigures:
    """One sample: its number among those measured, the least SQNR of its outputs in dB, the classes named, and its picture.

    The picture is a data URI, "" of what is no image.
    """

    number: int
    sqnr_db: float
    float_class: int | None
    quantized_class: int | None
    picture: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizationFigures:
    """All that was measured of a quantized model.

    Parameters
    ----------
    variants
        The float model, and the model as its plan has it.
    worst
        The samples with the least SQNR, those whose class is another first.
    layers
        What `layer_errors` returns for a few samples; () where nothing can be compared.
    weights
        By the outputs of the layers that have some.
    times
        Share of the modelled time that each op takes, by its result.
    float_ops
        What stays float, what costs most first.
    profile
        The model's.
    causes
        What `root_causes` returns; () where the model cannot be simulated.
    notes
        What could not be measured, and why.
    """

    model: Model
    quantized: QuantizedModel
    samples: int
    variants: tuple[VariantFigures, ...]
    worst: tuple[SampleFigures, ...]
    layers: tuple[LayerError, ...]
    weights: Mapping[TensorId, WeightFigures]
    times: Mapping[str, float]
    float_ops: tuple[FloatOpFigures, ...]
    profile: Profile
    causes: tuple[RootCause, ...]
    search: SearchResult | None
    summary: str
    notes: tuple[str, ...]


def quantization_figures(
    model: Model,
    quantized: QuantizedModel,
    profile: Profile,
    *,
    data: Any = None,
    search: str | Path | None = None,
    target: TargetLike = None,
    worst: int = 16,
    programs: Programs | None = None,
) -> QuantizationFigures:
    """Measure a quantized model against the float one.

    Parameters
    ----------
    model, quantized, profile
        The float model, what `octavo.quantize` made of it, and its profile.
    data
        Batches as `octavo.profile` takes them; by default the samples that the profile keeps.
    search
        Folder of an `octavo.search` of the model.
    target
        As `quantized` was quantized for. A back end's own code runs; what Octavo's kernels compute is simulated by the referee.
    worst
        How many samples are listed.
    programs
        Of the model, where quantizing left some.

    Raises
    ------
    ProfileError
        There is no data, and the profile keeps no samples.
    QuantizationError
        `search` is no folder of a search of this model.
    """
    specs = input_specs(checked_model(model))
    results: Samples = ()
    if data is None:
        samples: Samples = samples_of(model, profile)
        results = profile.kept_results
        if not samples:
            raise ProfileError("the profile keeps no samples to compare on: give data, or profile with keep_samples=64")
    else:
        samples = split_batches(specs, data)
    found = None if search is None else read_search(Path(search), model.fingerprint)
    names = [spec.source_name for spec in specs]
    batches = [dict(zip(names, arrays, strict=True)) for arrays in samples]
    programs = programs or Programs.of_model(model, quantized.plan)
    notes: list[str] = []
    few = samples[:: max(len(samples) // LAYER_SAMPLES, 1)][:LAYER_SAMPLES]
    # First what compiles most: the others run that, too.
    layers = _unless_refused(notes, lambda: errors_on(model, quantized, few, programs=programs))
    measured = _Measured(model, quantized, batches, results, target, programs)
    explanation = measured.explanation
    causes = _unless_refused(notes, lambda: tuple(table(model, quantized, samples, programs)))
    return QuantizationFigures(
        model=model,
        quantized=quantized,
        samples=len(samples),
        variants=measured.variants,
        worst=measured.worst(worst),
        layers=layers,
        weights=weights_of(model, quantized, programs),
        times=time_shares(explanation),
        float_ops=float_ops_of(explanation),
        profile=profile,
        causes=causes,
        search=found,
        summary=explanation.summary,
        notes=tuple(notes),
    )


_Batches = Sequence[Mapping[str, Array]]


def _unless_refused(notes: list[str], measure: Any) -> tuple[Any, ...]:
    try:
        return measure()
    except QuantizationError as error:
        notes.append(str(error))
        return ()


class _Measured:
    """What a model and its quantized form give on samples, and what becomes of their ops.

    Parameters
    ----------
    floats
        What the model gives, () where that is not known.
    """

    def __init__(
        self, model: Model, quantized: QuantizedModel, batches: _Batches, floats: Samples, target: TargetLike, programs: Programs
    ) -> None:
        self._batches, self._specs, self._view = batches, output_specs(model), DataflowView(model.module["main"])
        self._quantized, self._floats, chosen = quantized, floats, resolve_target(target)
        ops, packed_bytes = explained_without_code(model)
        self._cycles = Explanation(ops=ops).cycles
        self._float = VariantFigures(
            name="float", outputs=(), weight_bytes=model.constant_bytes, packed_bytes=packed_bytes, time=1.0
        )
        try:
            self._simulate(quantized, chosen, programs)
        except NotImplementedError:
            self._floats = self._floats or self._run(compile_model(model))
            executable = compile_model(quantized, target=chosen)
            self.explanation, self._packed_bytes = explain(executable), executable.weight_bytes
            self._results = self._run(executable)

    def _simulate(self, quantized: QuantizedModel, target: ResolvedTarget, programs: Programs) -> None:
        """Take what the referee's program gives; NotImplementedError where others compute than Octavo's kernels."""
        if target.backends or target.device is not None:
            raise NotImplementedError("others' kernels")
        simple, plan = programs.equalized(plan_of(quantized))
        referee = Referee(programs.rounded(simple, plan), [[*batch.values()] for batch in self._batches])
        is_known = self._floats and all(spec.dtype.startswith("float") for spec in self._specs)
        self._floats = self._floats if is_known else referee.results(NOTHING)
        self._results = referee.results(referee.rounding(plan))
        ops, self._packed_bytes = explained_without_code(quantized, target)
        self.explanation = Explanation(ops=ops)

    @property
    def variants(self) -> tuple[VariantFigures, VariantFigures]:
        """The float model and the quantized one."""
        ratios = sqnr_by_result(self._view, self._floats, self._results)
        outputs = [
            OutputFigures(name=spec.source_name, shape=spec.shape, sqnr_db=ratio, agreement=self._agreement(place))
            for place, (spec, ratio) in enumerate(zip(self._specs, ratios, strict=True))
        ]
        found = VariantFigures(
            name="quantized",
            outputs=tuple(outputs),
            weight_bytes=bytes_of(self._quantized),
            packed_bytes=self._packed_bytes,
            time=self.explanation.cycles / self._cycles,
        )
        return self._float, found

    def _run(self, executable: Executable) -> Samples:
        return [[np.array(value) for value in executable(batch).values()] for batch in self._batches]

    def _classes(self, results: Samples, place: int) -> list[int] | None:
        """Return the class that each sample's output names; None where it is no row of scores."""
        values = [each[place] for each in results]
        is_scores = all(value.dtype.kind == "f" and value.ndim == 2 and value.shape[0] == 1 < value.shape[1] for value in values)
        return [int(value.argmax()) for value in values] if is_scores else None

    def _agreement(self, place: int) -> float | None:
        expected, found = self._classes(self._floats, place), self._classes(self._results, place)
        return None if expected is None or found is None else float(np.mean(np.equal(expected, found)))

    def worst(self, count: int) -> tuple[SampleFigures, ...]:
        """Return the samples that the form measured last gets least right."""
        expected, found = self._classes(self._floats, 0), self._classes(self._results, 0)
        rows: list[SampleFigures] = []
        for number, (real, made) in enumerate(zip(self._floats, self._results, strict=True)):
            ratios = [each for each in sqnr_by_result(self._view, [real], [made]) if each is not None]
            rows.append(
                SampleFigures(
                    number=number,
                    sqnr_db=min(ratios, default=math.inf),
                    float_class=None if expected is None else expected[number],
                    quantized_class=None if found is None else found[number],
                    picture="",
                )
            )
        rows.sort(key=lambda row: (row.float_class == row.quantized_class, row.sqnr_db, row.number))
        return tuple(replace(row, picture=self._picture(row.number)) for row in rows[:count])

    def _picture(self, number: int) -> str:
        """Return the first input of a sample that is an image."""
        return next(filter(None, map(thumbnail, self._batches[number].values())), "")
