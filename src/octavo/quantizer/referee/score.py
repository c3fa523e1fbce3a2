"""How far outputs are from the float model's, as data, and what one plan gains over another. It runs nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...ir.graph.dataflow import DataflowView, call_to, computed_results, dtype_of, operand_vars, static_shape
from ...ir.graph.moving import call_behind_views
from ...numerics.arrays import Array
from ...numerics.statistics.metrics import ratio_db
from ...runtime.shapes import fits
from ...runtime.size import is_open

USELESS = 1.0
"""Of an output's power: with an error of as much it says no more than zeros would."""
_DB = 10 / math.log(10)
_LEAST = 1e-6
"""Of a plan's error: a sample that has less has next to none."""
_MIN_PROBABILITY = 1e-6
"""What is less likely is no part of the comparison: nobody reads it, and integers make it 0."""


def in_db(error: float) -> float:
    """Return the signal to noise ratio of outputs with an error, in shares of their power."""
    return math.inf if error == 0 else -math.inf if math.isinf(error) else -10 * math.log10(error)


def said_alone(error: float) -> str:
    """Say what the outputs keep where one tensor is rounded."""
    left = f"leaves {in_db(error):.1f} dB" if error < math.inf else "makes of the outputs what is not finite"
    return f"rounding it to 8 bits, and nothing else, {left}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """What one plan's error is below another's, in dB, and the standard error of that over samples.

    Parameters
    ----------
    db, standard_error
        Of the errors of all samples together; single samples may decide these.
    typical_db, typical_error
        Of a sample's error: the mean over samples.
    """

    db: float
    standard_error: float
    typical_db: float
    typical_error: float

    def __neg__(self) -> Gain:
        """Return what the other plan's error is below this one's."""
        return replace(self, db=-self.db, typical_db=-self.typical_db)

    def is_certain(self, errors: float = 1.0) -> bool:
        """Return whether it is a gain by more than so many standard errors, or the typical sample's by twice as many.

        What single samples decide, others would decide otherwise; where few have large errors, what most gain tells more.
        """
        is_certain = self.db > errors * self.standard_error or self.typical_db > 2 * errors * self.typical_error
        return self.db > 0 and is_certain


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Score:
    """Errors of a plan.

    Parameters
    ----------
    errors
        float64 [outputs, samples]: power of an output's error on a sample, in shares of that output's mean power over those that
        were looked at together; inf where it is not finite.
    agreement
        Share of the samples of which outputs [1, classes] name the float model's class, in [0; 1]; None without such.
    """

    errors: npt.NDArray[np.float64]
    agreement: float | None = None

    @staticmethod
    def of_all(scores: Sequence[Score]) -> Score:
        """Return the score on the samples of several."""
        known = [(each.agreement, each.errors.shape[1]) for each in scores if each.agreement is not None]
        agreement = sum(share * count for share, count in known) / sum(count for _, count in known) if known else None
        return Score(errors=np.concatenate([each.errors for each in scores], axis=1), agreement=agreement)

    @property
    def error(self) -> float:
        """Of the worst output, in shares of its power."""
        return float(self.errors.mean(axis=1).max(initial=0.0))

    @property
    def sqnr_db(self) -> float:
        """Signal to noise ratio of the worst output."""
        return in_db(self.error)

    def gain_over(self, other: Score) -> Gain:
        """Return what this plan gains over another one, both on the same samples: each by its worst output of those that differ.

        What an output has with either plan alike, as one of zeros that no plan gives, must not hide what others gain.

        Standard errors are the jackknife's (Efron and Stein, The Jackknife Estimate of Variance, 1981).
        """
        differ = (self.errors != other.errors).any(axis=1)
        mine, others = self._worst(differ), other._worst(differ)
        first, second = (float(each.sum()) for each in (mine, others))
        if first == second or not (first and second) or math.isinf(max(first, second)):
            db = 0.0 if first == second else math.copysign(math.inf, second - first)
            return Gain(db=db, standard_error=0.0, typical_db=db, typical_error=0.0)
        count = mine.size
        least = _LEAST * max(first, second) / count
        ratios = _DB * np.log(np.maximum(others, least) / np.maximum(mine, least))
        if count == 1:
            return Gain(db=float(ratios[0]), standard_error=math.inf, typical_db=float(ratios[0]), typical_error=math.inf)
        without = _DB * np.log(np.maximum(second - others, least) / np.maximum(first - mine, least))
        return Gain(
            db=_DB * math.log(second / first),
            standard_error=float(without.std() * math.sqrt(count - 1)),
            typical_db=float(ratios.mean()),
            typical_error=float(ratios.std(ddof=1) / math.sqrt(count)),
        )

    def _worst(self, among: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        errors = self.errors[among]
        return errors[np.argmax(errors.mean(axis=1))] if errors.size else np.zeros(0)


def sqnr_by_result(
    view: DataflowView, floats: Sequence[Sequence[Array]], results: Sequence[Sequence[Array]]
) -> list[float | None]:
    """Return the signal to noise ratio of each result in dB, of a softmax that of its scores; None of one that is not float.

    Parameters
    ----------
    view
        Of the float model.
    floats, results
        What the float model and the quantized one gave, sample by sample.
    """
    softmaxes = softmaxes_of(view, computed_results(view))
    powers = zip(*(error_powers(softmaxes, real) for real in floats), strict=True)
    noises = zip(*(error_powers(softmaxes, real, made) for real, made in zip(floats, results, strict=True)), strict=True)
    return [None if None in power else ratio_db(sum(power), sum(noise)) for power, noise in zip(powers, noises, strict=True)]


def compared(view: DataflowView) -> list[Var]:
    """Return what tells how good a model's results are: these, and of one of integers the reals that they are chosen by."""
    return [_real_behind(view, var) for var in computed_results(view)]


def _real_behind(view: DataflowView, var: Var) -> Var:
    """Return the nearest tensor of reals that a result is made of, such as an argmax of them: itself where it is none."""
    found = var
    while not dtype_of(found).startswith("float"):
        read = [] if isinstance(value := view.definition(found), Var) else operand_vars(value)
        if not read:
            return var
        found = next((each for each in read if dtype_of(each).startswith("float")), read[0])
    return found


def softmaxes_of(view: DataflowView, results: Iterable[Var]) -> list[Any]:
    """Return of each of these variables the call of a softmax that it is, or a view of; None of others."""
    return [call_behind_views(view, var, "nn.softmax") for var in results]


def error_powers(softmaxes: Sequence[Any], real: Sequence[Array], made: Sequence[Array] | None = None) -> list[float | None]:
    """Return the power of each result of one sample, or of its error, of a softmax that of its scores; None of one not float.

    Parameters
    ----------
    softmaxes
        Of the results; see `softmaxes_of`.
    real, made
        What the float model and the quantized one gave; without that it is the power of the float model's.
    """
    found: list[float | None] = []
    for index, softmax in enumerate(softmaxes):
        values = [each[index] for each in (real, made) if each is not None]
        if not np.issubdtype(values[0].dtype, np.floating):
            found.append(None)
            continue
        if softmax is not None:
            shape, axis = static_shape(softmax) or values[0].shape, int(softmax.attrs.axis)
            if fits(values[0].shape, shape):
                shape = values[0].shape
            elif sum(map(is_open, shape)) == 1:
                shape = tuple(-1 if is_open(dim) else dim for dim in shape)
            if not any(map(is_open, shape)):  # else a view hides the sizes: the shares themselves are compared
                values = [_scores(value.reshape(shape), axis) for value in values]
        error = values[0] if made is None else np.subtract(values[1], values[0], dtype=np.float64)
        found.append(float(np.sum(np.square(error, dtype=np.float64))))
    return found


def counted(view: DataflowView, inputs: Collection[Var]) -> list[bool]:
    """Return which results count by themselves; all where none would.

    Not those that append to an input, and that others are made of: what is wrong with a cache of keys and values is in what the
    model makes of them, and hundreds of them would hide what it says.
    """
    found = [not _is_cache(view, view.root_of(var), inputs) for var in computed_results(view)]
    return found if any(found) else [True] * len(found)


def _is_cache(view: DataflowView, var: Var, inputs: Collection[Var]) -> bool:
    joined = call_to(view.definition(var), "concat")
    return joined is not None and bool(view.users(var)) and any(view.root_of(each) in inputs for each in operand_vars(joined))


def same_class(real: Sequence[Array], made: Sequence[Array]) -> float | None:
    """Return 1 where all results [1, classes] of a sample name the same class, 0 where one does not; None without any."""
    pairs = [
        (x, y) for x, y in zip(real, made, strict=True) if x.dtype.kind == "f" and x.ndim == 2 and x.shape[0] == 1 < x.shape[1]
    ]
    return min((float(x.argmax() == y.argmax()) for x, y in pairs), default=None)


def _scores(probabilities: Array, axis: int) -> Array:
    """Return what a softmax made these of, but for the number that it leaves out of account: their mean is 0 here."""
    scores = np.log(np.maximum(probabilities.astype(np.float64), _MIN_PROBABILITY))
    return scores - scores.mean(axis=axis, keepdims=True)
