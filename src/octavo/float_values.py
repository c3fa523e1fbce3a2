"""The values of a float model's tensors on samples. It runs models, keeps the program of the last one, and no values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm_ffi import structural_equal

from .backends.cpu.link import link
from .backends.cpu.lowering import lower_composites
from .backends.cpu.storage import TO_NCHW
from .build import generate, runner_of
from .graph import Model
from .graph.dataflow import DataflowView, operand_vars
from .graph.results import with_results
from .heap import trim_heap
from .partition.pipeline import partition_module
from .target import TargetDescription

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Program:
    """A model that returns its own results and then variables of these names, `stored` in NHWC of NCHW or not."""

    model: Model
    names: tuple[str, ...]
    run: Any
    stored: tuple[bool, ...]

    def on(self, samples: Iterable[Sequence[Array]]) -> Iterator[tuple[list[Array], list[Array]]]:
        """Yield of each sample the results, and the variables in the order of their names, in memory that the next overwrites."""
        given: list[Any] = []
        prepared: Any = None
        for arrays in samples:
            if prepared is None:
                given = [tvm.runtime.tensor(np.array(array, order="C")) for array in arrays]
                prepared = self.run.prepare(given)
            for tensor, array in zip(given, arrays, strict=True):
                np.copyto(np.from_dlpack(tensor), array)
            prepared.run()
            values = [np.from_dlpack(value) for value in prepared.results()]
            count = len(values) - len(self.names)
            kept = zip(values[count:], self.stored, strict=True)
            results = [value.copy() for value in values[:count]]
            yield results, [value.transpose(TO_NCHW) if is_nhwc else value for value, is_nhwc in kept]


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
        self._lock = Lock()

    def on(
        self, model: Model, names: Sequence[str], samples: Iterable[Sequence[Array]], *, also: Sequence[str] = ()
    ) -> Iterator[tuple[list[Array], list[Array]]]:
        """Yield for each sample the model's results, and the values of variables in the order of their names.

        Those lie in memory as kernels keep them, and as the next sample overwrites it: their strides may be those of NHWC.

        Parameters
        ----------
        samples
            The model's inputs, sample by sample.
        also
            Other variables that the program is to return, for who asks for them later.
        """
        program = self._program(model, names, also)
        places = [program.names.index(name) for name in names]
        for results, values in program.on(samples):
            yield results, [values[place] for place in places]

    def forget(self) -> None:
        """Let the last program go, which holds the model's constants once more."""
        with self._lock:
            self._last = None

    def _program(self, model: Model, names: Sequence[str], also: Sequence[str]) -> _Program:
        with self._lock:
            last = self._last
            if last is None or not set(names) <= set(last.names) or not _is_same(last.model, model):
                self._last = last = None  # its constants need not be there beside the next one's
                self._last = last = self._compiled(model, tuple(dict.fromkeys((*names, *also))))
                trim_heap(model.constant_bytes)
            return last

    def _compiled(self, model: Model, names: tuple[str, ...]) -> _Program:
        parts = partition_module(with_results(model.bound(), names, keep=True), self._host)
        returned = len(operand_vars(DataflowView(parts["main"]).result))
        lowered = lower_composites(parts, self._host, self._isas, 1, stored_from=returned - len(names))
        run = runner_of(generate(link(lowered, self._llvm), self._llvm))
        return _Program(model=model, names=names, run=run, stored=lowered.stored)


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
