"""The values of a float model's tensors on samples. It runs the model and keeps nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from .backends.cpu.link import link
from .backends.cpu.lowering import lower_composites
from .build import generate, runner_of
from .graph import Model
from .graph.results import with_results
from .partition.pipeline import partition_module
from .target import TargetDescription

Array = npt.NDArray[Any]


def float_values(
    model: Model,
    names: Sequence[str],
    samples: Iterable[Sequence[Array]],
    *,
    host: TargetDescription,
    isas: tuple[str, ...],
    llvm: tvm.target.Target,
) -> Iterator[list[Array]]:
    """Yield for each sample the values of variables, in the order of their names; what these don't need is not computed.

    Parameters
    ----------
    samples
        The model's inputs, sample by sample.
    host, isas, llvm
        Who computes it here.
    """
    lowered = lower_composites(partition_module(with_results(model.bound(), names), host), host, isas, 1)
    run = runner_of(generate(link(lowered, llvm), llvm))
    for arrays in samples:
        results = run([tvm.runtime.tensor(np.asarray(array, order="C")) for array in arrays])
        yield [np.from_dlpack(result) for result in results]
