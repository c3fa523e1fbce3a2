"""A module built to be run on samples here, by who looks at values: nothing is saved, bound or timed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm

from ..ir.graph.lineage import lineage_paused
from ..numerics.arrays import Array, Samples
from ..runtime.runner import runner_of
from .codegen.generate import generate
from .partition.pipeline import linked, lower
from .target_choice import ResolvedTarget


class ModuleRunner:
    """A module, partitioned or not, whose constants are bound.

    Kernels of one form are compiled once, and those of a model that was built before are kept on disk.
    """

    def __init__(self, module: tvm.IRModule, target: ResolvedTarget) -> None:
        with lineage_paused():
            lowered = lower(module, target.host, target.isas, 1, backends=target.backends)
            self._run = runner_of(generate(linked(lowered, target.llvm), target.llvm))

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the results of one sample, as views of memory that the next overwrites."""
        given = self._run([tvm.runtime.tensor(np.asarray(array, order="C")) for array in arrays])
        return [np.from_dlpack(value) for value in given]

    def results(self, samples: Samples) -> list[list[Array]]:
        """Return the results sample by sample."""
        return [[value.copy() for value in self(arrays)] for arrays in samples]
