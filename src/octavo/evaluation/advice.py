"""The verdict of an evaluation: which figures decide, and which command helps against what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from ..ir.identity import readable_name
from .layer_errors import LayerError
from .task_evaluators import ClassificationEvaluator, Metric
from .verdict import WORDS, Level, Verdict, better, decibels, level_of_agreement, level_of_drop, level_of_sqnr, worse

_FEW = 30
"""Samples below which shares say little."""
_CHANCE = 0.5
"""A reference that is right less often than this may be fed what it was not trained on."""
_NAMED = 3
_COARSE_DB = 30.0
"""A tensor that keeps more than this has no scale to blame, however much a finer one would bring."""


def has_scale_to_blame(layer: LayerError) -> bool:
    """Return whether a tensor's scale is at fault for an error that counts."""
    return layer.has_unfit_scale and layer.local_sqnr_db < _COARSE_DB


def by_blame(layers: Sequence[LayerError]) -> tuple[LayerError, ...]:
    """Return layers in the order that they deserve a look: scales to blame first, then by the error that arises in them."""
    blamed = [layer for layer in layers if has_scale_to_blame(layer)]
    return (*blamed, *sorted((each for each in layers if not has_scale_to_blame(each)), key=lambda each: each.local_sqnr_db))


class _Output(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def sqnr_db(self) -> float: ...
    @property
    def agreement(self) -> float | None: ...
    @property
    def decides(self) -> str: ...


def verdict_of(
    task: str,
    outputs: Sequence[_Output],
    metric: Metric | None,
    layers: Sequence[LayerError],
    samples: int,
    evaluator: ClassificationEvaluator | None,
) -> Verdict:
    """Return what the figures come to: labels decide, then what the outputs decide, then their signal to noise ratio."""
    levels: list[Level] = [_level(task, output) for output in outputs]
    level = worse(levels)
    worst = next((output for found, output in zip(levels, outputs, strict=True) if found == level), None)
    if metric is not None and not metric.unit:
        level = level_of_drop(metric.drop)
    said = [f"{WORDS[level]} on {samples} samples"]
    if metric is not None:
        said.append(f"{metric.name} {_amount(metric, metric.candidate)} from {_amount(metric, metric.reference)}")
    if worst is not None:
        said.append(_of_output(worst, len(outputs)))
    if outputs and all(output.sqnr_db == math.inf for output in outputs):
        said = [f"equal on {samples} samples"]
    advice = tuple(_advice(task, level, outputs, metric, layers, samples, evaluator))
    return Verdict(level=level, text="; ".join(said), advice=advice)


def _level(task: str, output: _Output) -> Level:
    by_error = level_of_sqnr(output.sqnr_db)
    if output.agreement is None:
        return by_error
    decided = level_of_agreement(output.agreement)
    # Of an output that was only guessed to hold scores either figure may be the one that counts.
    return better(decided, by_error) if task == "auto" else decided


def _of_output(output: _Output, count: int) -> str:
    what = "its output" if count == 1 else f"the worst output, {output.name},"
    agreed = "" if output.agreement is None else f", {output.decides} as the reference's in {100 * output.agreement:.1f}%"
    return f"{what} {'is' if output.sqnr_db == math.inf else 'has'} {decibels(output.sqnr_db)}{agreed}"


def _amount(metric: Metric, value: float) -> str:
    return f"{value:.2f}{metric.unit}" if metric.unit else f"{100 * value:.1f}%"


def _advice(
    task: str,
    level: Level,
    outputs: Sequence[_Output],
    metric: Metric | None,
    layers: Sequence[LayerError],
    samples: int,
    evaluator: ClassificationEvaluator | None,
) -> list[str]:
    found: list[str] = []
    if any(math.isnan(output.sqnr_db) for output in outputs):
        found.append("an output holds NaN or infinity: octavo profile counts them for each tensor of the float model")
    if metric is not None and not metric.unit and metric.reference < _CHANCE:
        found.append(_of_reference(metric, evaluator))
    if level != "good":
        unfit = [layer for layer in layers if has_scale_to_blame(layer)][:_NAMED]
        if unfit:
            names = ", ".join(readable_name(layer.source_name, layer.id) for layer in unfit)
            found.append(f"scales do not fit what these samples give at {names}: profile on samples like these, quantize again")
        elif layers:
            name = readable_name(layers[0].source_name, layers[0].id)
            found.append(f"most of the error of a layer arises at {name} ({layers[0].op or 'input'})")
        found.append(
            "octavo causes FLOAT --profile profile.json says which rounding costs most; octavo quantize FLOAT --profile "
            "profile.json --fix applies what helps"
        )
    # A sample of language is as many steps as it has tokens.
    if samples < _FEW and task != "language" and level_is_shared(outputs, metric):
        found.append(f"{samples} samples say little of shares: give at least {_FEW}, better some hundred")
    if level == "good" and not found:
        found.append("octavo compile makes it an executable, octavo bench says how fast it is")
    return found


def level_is_shared(outputs: Sequence[_Output], metric: Metric | None) -> bool:
    """Return whether shares of samples are said."""
    return metric is not None or any(output.agreement is not None for output in outputs)


def _of_reference(metric: Metric, evaluator: ClassificationEvaluator | None) -> str:
    said = f"the reference itself has {_amount(metric, metric.reference)}: are the samples preprocessed as it was trained"
    if evaluator is not None and (shifted := evaluator.shifted()) != evaluator.first_class:
        return f"{said}? With labels that begin at class {shifted} (--first-class {shifted}) it is right more often"
    return f"{said}, and the labels its own?"
