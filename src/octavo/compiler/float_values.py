"""The values of a float model's tensors on samples. It runs models, and keeps the last one's program and first results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import tvm
from tvm_ffi import structural_equal

from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView, operand_vars
from ..ir.graph.results import with_results
from ..numerics.arrays import Array
from ..runtime.heap import trim_heap
from ..runtime.runner import Runner, runner_of
from ..target import TargetDescription
from .backends.cpu.link import link
from .backends.cpu.lowering import lower_composites
from .backends.cpu.storage import TO_NCHW
from .codegen.generate import generate
from .partition.pipeline import partition_module

_KEPT = 16
"""Samples whose results are kept: as many as say whether two models compute the same."""
_MAX_KEPT = 2**26
"""Bytes of a model's constants up to which results are kept, with the model that they are of."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Program:
    """A model that returns its own results and then variables of these names, `stored` in NHWC of NCHW or not."""

    model: Model
    names: tuple[str, ...]
    runner: Runner
    stored: tuple[bool, ...]

    def on(self, samples: Iterable[Sequence[Array]]) -> Iterator[tuple[Sequence[Array], list[Array], list[Array]]]:
        """Yield each sample, the results, and the variables in the order of their names, in memory that the next overwrites."""
        given: list[Any] = []
        prepared: Any = None
        for arrays in samples:
            if prepared is None:
                given = [tvm.runtime.tensor(np.array(array, order="C")) for array in arrays]
                prepared = self.runner.prepare(given)
            for tensor, array in zip(given, arrays, strict=True):
                np.copyto(np.from_dlpack(tensor), array)
            prepared.run()
            values = [np.from_dlpack(value) for value in prepared.results()]
            count = len(values) - len(self.names)
            kept = zip(values[count:], self.stored, strict=True)
            results = [value.copy() for value in values[:count]]
            yield arrays, results, [value.transpose(TO_NCHW) if is_nhwc else value for value, is_nhwc in kept]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Results:
    """What a model gave for its first samples."""

    model: Model
    samples: list[Sequence[Array]] = field(default_factory=list[Sequence[Array]])
    results: list[list[Array]] = field(default_factory=list[list[Array]])


class FloatValues:
    """Computes variables of float models.

    One that is asked for again, whoever asks, is not built again: to lower and compile a large model takes as long as to run it
    on many samples.

    Parameters
    ----------
    host, isas, llvm
        Who computes it here.
    """

    def __init__(self, host: TargetDescription, isas: tuple[str, ...], llvm: tvm.target.Target) -> None:
        self._host, self._isas, self._llvm = host, isas, llvm
        self._last: _Program | None = None
        self._results: _Results | None = None
        self._lock = Lock()

    def results(self, model: Model, samples: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Return a model's results sample by sample; those of few that it ran on last, and began with, are known."""
        known = self._results
        if known is not None and _begins_with(known.samples, samples) and _is_same(known.model, model):
            return known.results[: len(samples)]
        return [results for results, _ in self.on(model, [], samples)]

    def on(
        self, model: Model, names: Sequence[str], samples: Iterable[Sequence[Array]]
    ) -> Iterator[tuple[list[Array], list[Array]]]:
        """Yield for each sample the model's results, and the values of variables in the order of their names.

        Those lie in memory as kernels keep them, and as the next sample overwrites it: their strides may be those of NHWC.

        Parameters
        ----------
        samples
            The model's inputs, sample by sample.
        """
        program = self._program(model, names)
        places = [program.names.index(name) for name in names]
        known = self._results = _Results(model=model) if model.constant_bytes <= _MAX_KEPT else None
        for arrays, results, values in program.on(samples):
            if known is not None and len(known.samples) < _KEPT:
                known.samples.append(arrays)
                known.results.append(results)
            yield results, [values[place] for place in places]

    def forget(self) -> None:
        """Let the last program go, which holds the model's constants once more. The results of few samples stay known."""
        with self._lock:
            self._last = None

    def _program(self, model: Model, names: Sequence[str]) -> _Program:
        with self._lock:
            last = self._last
            if last is None or not set(names) <= set(last.names) or not _is_same(last.model, model):
                self._last = last = None  # its constants need not be there beside the next one's
                self._last = last = self._compiled(model, tuple(dict.fromkeys(names)))
                trim_heap(model.constant_bytes)
            return last

    def _compiled(self, model: Model, names: tuple[str, ...]) -> _Program:
        parts = partition_module(with_results(model.bound(), names, keep=True), self._host)
        returned = len(operand_vars(DataflowView(parts["main"]).result))
        lowered = lower_composites(parts, self._host, self._isas, 1, stored_from=returned - len(names))
        linked = link(lowered, self._llvm)

        with tvm.transform.PassContext(opt_level=3):
            made = runner_of(generate(linked, self._llvm))
        return _Program(model=model, names=names, runner=made, stored=lowered.stored)


def _begins_with(known: Sequence[Sequence[Array]], samples: Sequence[Sequence[Array]]) -> bool:
    """Return whether these samples, or more, begin with those very arrays."""
    return len(known) >= len(samples) and all(one is other for one, other in zip(known, samples, strict=False))


def _is_same(one: Model, other: Model) -> bool:
    """Return whether two models compute the same in variables of the same names."""
    if one is other:
        return True
    return (
        _names(one) == _names(other)
        and one.params.keys() == other.params.keys()
        and all(np.array_equal(value, other.params[name]) for name, value in one.params.items())
        and structural_equal(one.module, other.module)
    )


def _names(model: Model) -> list[str]:
    return [binding.var.name for binding in DataflowView(model.module["main"]).bindings]
