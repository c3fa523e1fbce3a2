"""Running models on samples: their results, and means of a float model's tensors by channel. It corrects nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from ..backends.cpu.link import link
from ..backends.cpu.lowering import lower_composites
from ..build import generate, runner_of
from ..float_values import FloatValues
from ..graph import Model
from ..target_choice import ResolvedTarget

Array = npt.NDArray[Any]
Samples = Sequence[Sequence[Array]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatRun:
    """What a model gave.

    Parameters
    ----------
    means
        float64 (channels,) of variables, over samples and all axes but one, by name.
    results
        The model's, sample by sample.
    """

    means: dict[str, npt.NDArray[np.float64]]
    results: list[list[Array]]


class Runner:
    """A partitioned module, built to be run on samples."""

    def __init__(self, parts: tvm.IRModule, target: ResolvedTarget) -> None:
        lowered = lower_composites(parts, target.host, target.isas, 1)
        self._run = runner_of(generate(link(lowered, target.llvm), target.llvm))

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the results of one sample, as views of memory that the next overwrites."""
        given = self._run([tvm.runtime.tensor(np.asarray(array, order="C")) for array in arrays])
        return [np.from_dlpack(value) for value in given]

    def results(self, samples: Samples) -> list[list[Array]]:
        """Return the results sample by sample."""
        return [[value.copy() for value in self(arrays)] for arrays in samples]


def run_float(model: Model, axes: Mapping[str, int], samples: Samples, floats: FloatValues) -> FloatRun:
    """Run a float model.

    Parameters
    ----------
    axes
        The variables whose means are wanted, each with the axis of its channels; -1: the last.
    samples
        The model's inputs, sample by sample.
    """
    sums: dict[str, Any] = dict.fromkeys(axes, 0.0)
    counts = dict.fromkeys(axes, 0)
    results: list[list[Array]] = []
    for own, values in floats.on(model, list(axes), samples):
        results.append(own)
        for (name, axis), value in zip(axes.items(), values, strict=True):
            others = tuple(each for each in range(value.ndim) if each != axis % value.ndim)
            sums[name] = sums[name] + value.sum(axis=others, dtype=np.float64)
            counts[name] += value.size // value.shape[axis]
    return FloatRun(means={name: sums[name] / counts[name] for name in axes}, results=results)
