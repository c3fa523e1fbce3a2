"""evaluate: two models on the same samples, and what the second one's outputs are worth against the first one's.

Samples are read once and nothing of them is kept but what layers are compared on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..compiler.target_choice import TargetLike
from ..errors import DataError, OctavoError
from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView, call_to
from ..numerics.arrays import Array
from ..numerics.statistics.error_sums import ErrorSums
from ..runtime.inputs import first_state, split_batch
from ..runtime.shapes import without_sizes
from .advice import by_blame, verdict_of
from .inference_model import InferenceModel, Port, converted, paired
from .language import LanguageEvaluator
from .layer_errors import LayerError, layer_errors
from .load_inference_model import Subject, load_inference_model
from .task_evaluators import ClassificationEvaluator, Decisions, ImageEvaluator, Metric, TaskEvaluator
from .tasks import evaluators_of
from .verdict import Verdict

LAYER_SAMPLES = 4
"""What layers are compared on: each takes several runs."""
_WORST = 8
_SEVERAL = 2
_OTHER_NAMES = "the others are the file's own: compare the plan (octavo quantize --save-plan) in its place to see all"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputEvaluation:
    """One output of the candidate against the reference's, over all samples.

    Parameters
    ----------
    sqnr_db, max_abs_error, cosine
        In real numbers: integers are dequantized first.
    psnr_db
        Of a picture, its peak being the width of the reference's range.
    agreement, top5_agreement, decides, kl_divergence
        How often both decide the same, and what they decide: see `task_evaluators.Decisions`.
    """

    name: str
    shape: tuple[int, ...]
    sqnr_db: float
    max_abs_error: float
    cosine: float
    psnr_db: float | None = None
    agreement: float | None = None
    top5_agreement: float | None = None
    decides: str = ""
    kl_divergence: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleEvaluation:
    """One run: its number, the least SQNR of its outputs in dB, and the classes that both name."""

    number: int
    sqnr_db: float
    reference_class: int | None = None
    candidate_class: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How good a model is against another one.

    Parameters
    ----------
    reference, candidate
        What was compared.
    samples
        Runs of either.
    outputs
        In the order of the reference's.
    metric, top5
        What labels say (of language the tokens themselves), and of classes how often each model has the label among its first
        five; None without labels.
    worst
        Runs of another class first, then by SQNR.
    layers
        What `layer_errors` returns, worst first; () where the two share no tensors by name, or it was not asked for.
    verdict
        In words, with what to do next.
    notes
        What could not be measured, and why; where a runtime's own kernels are off from its exact evaluation.
    """

    reference: str
    candidate: str
    samples: int
    task: str
    outputs: tuple[OutputEvaluation, ...]
    metric: Metric | None
    top5: tuple[float, float] | None
    worst: tuple[SampleEvaluation, ...]
    layers: tuple[LayerError, ...] = field(repr=False)
    verdict: Verdict
    notes: tuple[str, ...]

    @property
    def sqnr_db(self) -> float:
        """Of the worst output."""
        return min((-math.inf if math.isnan(each.sqnr_db) else each.sqnr_db for each in self.outputs), default=math.inf)

    @property
    def agreement(self) -> float | None:
        """Of the output that agrees least; None where nothing is decided."""
        return min((each.agreement for each in self.outputs if each.agreement is not None), default=None)

    def missed(
        self,
        *,
        min_agreement: float | None = None,
        min_sqnr: float | None = None,
        max_drop: float | None = None,
        max_kl: float | None = None,
    ) -> tuple[str, ...]:
        """Return which demands are not met, in words.

        Raises
        ------
        DataError
            There is nothing to hold a demand against.
        """
        found: list[str] = []
        if min_agreement is not None:
            if self.agreement is None:
                raise DataError("no output decides anything: there is no agreement to demand; name the task")
            if self.agreement < min_agreement:
                found.append(f"agreement {self.agreement:.4f} is below {min_agreement:g}")
        if min_sqnr is not None and not self.sqnr_db >= min_sqnr:
            found.append(f"SQNR {self.sqnr_db:.1f} dB is below {min_sqnr:g} dB")
        if max_drop is not None:
            if self.metric is None:
                raise DataError("without labels there is no drop to bound: give them")
            if self.metric.drop > max_drop:
                loses = "rises" if self.metric.lower_is_better else "drops"
                found.append(f"{self.metric.name} {loses} by {self.metric.drop:.4f}{self.metric.unit}, more than {max_drop:g}")
        if max_kl is not None:
            divergence = max((each.kl_divergence for each in self.outputs if each.kl_divergence is not None), default=None)
            if divergence is None:
                raise DataError("no output has shares of a next token: a KL divergence is of task language")
            if not divergence <= max_kl:
                found.append(f"KL divergence {divergence:.4f} is more than {max_kl:g}")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; what is not finite is None."""
        return _plain(without_sizes({**asdict(self), "sqnr_db": self.sqnr_db, "agreement": self.agreement}))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def evaluate(
    reference: Subject,
    candidate: Subject,
    data: Any,
    *,
    labels: Any = None,
    task: str = "auto",
    first_class: int = 0,
    state: Mapping[str, str] | None = None,
    layers: int | None = None,
    target: TargetLike = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Compare two models that run: a float one and a quantized one, two quantized ones, Octavo and another runtime.

    Parameters
    ----------
    reference, candidate
        Each a Model, an Executable, a path (.onnx, .tflite, or an executable), or a path in another runtime, which is evaluated
        exactly: "onnxruntime:m.onnx", "litert:m.tflite". The candidate may be a plan, or its path (.json), of the reference.
    data
        Batches as `octavo.profile` takes them, of either model: what the other one takes is made of it, with the scales of
        integer inputs.
    labels
        A class for each sample; of a sequence one for each step, below 0 where there is none; of a detector rows of sample,
        class, left, top, right, bottom in pixels; of masks a class for each pixel; of images the images that they should be.
    task
        "classification" (or "keywords"), "sequence" (a class at each step), "language" (the next token at each step; data are
        tokens, [windows, tokens] or those of whole texts, or all inputs), "detection:FORM" (yolox, yolov5, yolov8, ssd),
        "segmentation", "image", "tensor" for errors alone. By "auto" rows of scores decide classes, at each step where they are
        shares, and pictures of the size of the input are images or masks.
    first_class
        Added to labels: 1 for a network whose class 0 is the background and labels that start at 0.
    state
        Inputs that are an output of the run before, {output: input}; they start as the source states, or zeros, and are left out
        of the data.
    layers
        How many samples layers are compared on where both models have tensors of the same names; 0: none. None: a few, where the
        outputs are not good.
    target, threads
        As `octavo.compile` takes them, for models that Octavo compiles.
    progress
        Called after each sample with the number of samples so far.

    Returns
    -------
    Evaluation
        Figures of each output, what labels say, worst samples, layers by name, and a verdict.

    Raises
    ------
    DataError
        Data or labels that fit neither model; an unknown task.
    ModelError
        Models of other inputs or outputs; a runtime that is not installed.
    """
    first = load_inference_model(reference, target=target, threads=threads, label="reference")
    second = load_inference_model(candidate, target=target, threads=threads, label="candidate", float_model=first.model)
    given = None if labels is None else np.asarray(labels)
    evaluators = evaluators_of(task, first.inputs, first.outputs, given, first_class, carried=dict(state or {}))
    comparison = _Comparison(first, second, evaluators, dict(state or {}))
    for evaluator in evaluators.values():
        if isinstance(evaluator, LanguageEvaluator):
            data = evaluator.followed(data)
    for number, (arrays, source) in enumerate(_samples(first, second, data, dict(state or {}))):
        comparison.add(arrays, source, keeps=number < (LAYER_SAMPLES if layers is None else layers))
        if progress is not None:
            progress(number + 1)
    if not comparison.runs:
        raise DataError("there are no samples to compare on: give at least one")
    return comparison.result(task, wants_layers=layers is not None)


def _samples(
    first: InferenceModel, second: InferenceModel, data: Any, state: Mapping[str, str]
) -> Iterator[tuple[list[Array], InferenceModel]]:
    """Yield the samples of one run each, and the model whose inputs they fit: the first where both do."""
    listed: Iterable[Any] = [data] if isinstance(data, np.ndarray | Mapping) else data
    source: InferenceModel | None = None
    for index, batch in enumerate(listed):
        if source is None:
            source = _fitting(first, second, batch, state, f"batch {index}")
        specs = [spec for spec in source.specs if spec.source_name not in state.values()]
        for arrays in split_batch(specs, batch, where=f"batch {index}"):
            yield arrays, source


def _fitting(first: InferenceModel, second: InferenceModel, batch: Any, state: Mapping[str, str], where: str) -> InferenceModel:
    refused: DataError | None = None
    for model in (first, second):
        try:
            next(split_batch([spec for spec in model.specs if spec.source_name not in state.values()], batch, where=where))
        except DataError as error:
            refused = refused or error
        else:
            return model
    assert refused is not None
    raise refused


class _Comparison:
    """Runs both models sample by sample, and keeps sums."""

    def __init__(
        self,
        first: InferenceModel,
        second: InferenceModel,
        evaluators: Mapping[tuple[int, ...], TaskEvaluator],
        state: Mapping[str, str],
    ) -> None:
        self._first, self._second, self._evaluators = first, second, evaluators
        self._inputs = paired(first.inputs, second.inputs, "inputs")
        self._outputs = paired(first.outputs, second.outputs, "outputs")
        self._states = [_State(model, state) for model in (first, second)]
        self._sums = [ErrorSums() for _ in first.outputs]
        self._rows: list[SampleEvaluation] = []
        self._kept: list[dict[str, Array]] = []
        self._unusual = _Unusual()
        self.runs = 0

    def add(self, arrays: Sequence[Array], source: InferenceModel, *, keeps: bool) -> None:
        """Run one sample."""
        by_name = dict(zip([port.name for port in source.inputs if port.name not in self._states[0].inputs], arrays, strict=True))
        own, other = self._arguments(by_name, source)
        if keeps:
            self._kept.append({port.name: value for port, value in zip(self._first.inputs, own, strict=True)})
        made = [self._states[0].run(own, self._unusual), self._states[1].run(other, self._unusual)]
        real = [port.real(value) for port, value in zip(self._first.outputs, made[0], strict=True)]
        found = [self._second.outputs[place].real(made[1][place]) for place in self._outputs]
        ratios: list[float] = []
        for port, sums, expected, value in zip(self._first.outputs, self._sums, real, found, strict=True):
            if expected.shape != value.shape:
                raise DataError(
                    f"output {port.name} has shape {list(expected.shape)} in one model, {list(value.shape)} in the other"
                )
            pair = ErrorSums()
            pair.add(expected, value)
            sums.add_sums(pair)
            ratios.append(pair.sqnr_db)
        for places, evaluator in self._evaluators.items():
            evaluator.add([real[place] for place in places], [found[place] for place in places])
        self._rows.append(self._row(ratios))
        self.runs += 1

    def _arguments(self, by_name: Mapping[str, Array], source: InferenceModel) -> tuple[list[Array], list[Array]]:
        """Return what each model takes, of values by the names of the one that they fit; state is what each carries itself."""
        own: list[tuple[Port, Array]] = []
        other: list[tuple[Port, Array]] = []
        for port, place in zip(self._first.inputs, self._inputs, strict=True):
            theirs = self._second.inputs[place]
            from_port = port if source is self._first else theirs
            if port.name not in self._states[0].inputs:
                value = by_name[from_port.name]
                own.append((port, converted(value, port, from_port)))
                other.append((theirs, converted(value, theirs, from_port)))
        return self._states[0].arguments(own), self._states[1].arguments(other)

    def _of_classes(self) -> Iterator[ClassificationEvaluator]:
        return (each for each in self._evaluators.values() if isinstance(each, ClassificationEvaluator))

    def _row(self, ratios: Sequence[float]) -> SampleEvaluation:
        evaluator = next(self._of_classes(), None)
        named = (None, None) if evaluator is None else tuple(int(each[0, 0]) for each in evaluator.classes[-1])
        worst = min((-math.inf if math.isnan(each) else each for each in ratios), default=math.inf)
        return SampleEvaluation(number=self.runs, sqnr_db=worst, reference_class=named[0], candidate_class=named[1])

    def result(self, task: str, *, wants_layers: bool) -> Evaluation:
        """Return what all samples come to."""
        decisions = {place: evaluator.decisions() for places, evaluator in self._evaluators.items() for place in places[:1]}
        metrics = [metric for evaluator in self._evaluators.values() if (metric := evaluator.metric()) is not None]
        evaluator = next((each for each in self._of_classes() if each.labels is not None), None)
        outputs = tuple(
            _output(port.name, port.shape, sums, decisions.get(place, Decisions()), _is_picture(self._evaluators.get((place,))))
            for place, (port, sums) in enumerate(zip(self._first.outputs, self._sums, strict=True))
        )
        metric = metrics[0] if metrics else None
        verdict = verdict_of(task, outputs, metric, (), self.runs, evaluator)
        layers, notes = self._layers() if wants_layers or verdict.level != "good" else ((), [])
        return Evaluation(
            reference=self._first.label,
            candidate=self._second.label,
            samples=self.runs,
            task=task,
            outputs=outputs,
            metric=metric,
            top5=None if evaluator is None else evaluator.top5(),
            worst=tuple(sorted(self._rows, key=_worst_first)[:_WORST]),
            layers=layers,
            verdict=verdict_of(task, outputs, metric, layers, self.runs, evaluator),
            notes=(*self._unusual.notes(), *_guessed(task, outputs), *notes),
        )

    def _layers(self) -> tuple[tuple[LayerError, ...], list[str]]:
        if not self._kept or self._first.model is None or self._second.model is None:
            return (), []
        try:
            found = layer_errors(self._first.model, self._second.model, self._kept)
            count = sum(call_to(each.value, "quantize") is not None for each in _bindings(self._second.model))
            few = f"layers: {len(found)} of {count} quantized tensors have names of the reference, {_OTHER_NAMES}"
            return by_blame(found), [few] if 2 * len(found) < count else []
        except OctavoError as error:
            return (), [f"layers are not compared: {error}"]


def _bindings(model: Model) -> Sequence[Any]:
    return DataflowView(model.module["main"]).bindings


def _output(name: str, shape: tuple[int, ...], sums: ErrorSums, decisions: Decisions, is_picture: bool) -> OutputEvaluation:
    return OutputEvaluation(
        name=name,
        shape=shape,
        sqnr_db=sums.sqnr_db,
        max_abs_error=sums.largest,
        cosine=sums.cosine,
        psnr_db=sums.psnr_db if is_picture else None,
        agreement=decisions.agreement,
        top5_agreement=decisions.top5_agreement,
        decides=decisions.what,
        kl_divergence=decisions.kl_divergence,
    )


def _guessed(task: str, outputs: Sequence[OutputEvaluation]) -> list[str]:
    """Say of a model with several rows of numbers that nobody knows them to be scores: they may be coordinates, too."""
    names = [output.name for output in outputs if output.decides == "class"]
    if task != "auto" or len(names) < _SEVERAL:
        return []
    return [
        f"{', '.join(names)} are taken for scores of classes, by their shapes: if they are not, --task tensor compares values"
    ]


def _is_picture(evaluator: TaskEvaluator | None) -> bool:
    return isinstance(evaluator, ImageEvaluator)


def _worst_first(row: SampleEvaluation) -> tuple[bool, float, int]:
    return row.reference_class == row.candidate_class, row.sqnr_db, row.number


class _State:
    """One model, and what it carries from run to run."""

    def __init__(self, model: InferenceModel, state: Mapping[str, str]) -> None:
        self._model = model
        outputs = {port.name: place for place, port in enumerate(model.outputs)}
        inputs = {port.name: port for port in model.inputs}
        for name, where, kind in [(key, outputs, "output") for key in state] + [(key, inputs, "input") for key in state.values()]:
            if name not in where:
                raise DataError(f"state names {kind} {name}, which {model.label} does not have; it has {', '.join(where)}")
        self._places = {into: outputs[name] for name, into in state.items()}
        self._states = [inputs[name].spec for name in self._places]
        self._values: dict[str, Array] | None = None
        self.inputs = frozenset(self._places)

    def arguments(self, given: Sequence[tuple[Port, Array]]) -> list[Array]:
        """Return all inputs in order: these, and what those of state take next."""
        if self._values is None:
            self._values = first_state(self._states, [port.spec for port, _ in given], [value for _, value in given])
        values = self._values | {port.name: value for port, value in given}
        return [values[port.name] for port in self._model.inputs]

    def run(self, arrays: Sequence[Array], unusual: _Unusual) -> list[Array]:
        """Run once and keep the state."""
        results = self._model.run(arrays)
        if self._model.run_usual is not None:
            unusual.add(self._model, results, self._model.run_usual(arrays))
        self._values = {name: results[place] for name, place in self._places.items()}
        return results


class _Unusual:
    """Counts what runtimes' own defaults give other than their exact evaluation."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int, float, str]] = {}

    def add(self, model: InferenceModel, exact: Sequence[Array], usual: Sequence[Array]) -> None:
        """Compare one run."""
        other, total, most, note = self._counts.get(model.label, (0, 0, 0.0, model.usual_note))
        for a, b in zip(exact, usual, strict=True):
            difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
            other, total, most = (
                other + int((difference > 0).sum()),
                total + a.size,
                max(most, float(difference.max(initial=0.0))),
            )
        self._counts[model.label] = (other, total, most, note)

    def notes(self) -> list[str]:
        """Say what differs."""
        return [
            f"{label}: {other} of {total} output values of its default session differ from its exact evaluation, by {most:.3g} "
            f"at most: {note}"
            for label, (other, total, most, note) in self._counts.items()
            if other
        ]
