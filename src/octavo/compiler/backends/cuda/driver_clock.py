"""How long kernels of a module take on a GPU, by the driver's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .driver import DeviceCall, LoadedModule, Owned, checked

REPEATS = 20
"""Of a key's launches in one graph: to begin a graph takes the driver longer than some kernels run."""


class DriverClock:
    """A module on the first GPU, to be timed.

    Parameters
    ----------
    module
        What runs.
    keys
        What each launch of its plan is counted to; "" for nothing.
    inputs
        What its plan reads.
    """

    def __init__(self, module: LoadedModule, keys: Sequence[str], inputs: Sequence[npt.NDArray[Any]]) -> None:
        self._module = module
        self._cuda = cuda = module.cuda
        self._call = call = DeviceCall(module)
        outputs = [np.empty(size, np.uint8) for size in module.plan.output_sizes]
        call.run([np.ascontiguousarray(each) for each in inputs], outputs)  # now memory holds what kernels read
        self._graphs = {"": (call.graph, 1)}
        for key in dict.fromkeys(filter(None, keys)):
            launches = [launch for launch, of in zip(module.plan.launches, keys, strict=True) if of == key]
            self._graphs[key] = call.recorded(launches * REPEATS), REPEATS
        owned = Owned(self, module)
        flags = cuda.CUevent_flags.CU_EVENT_DEFAULT
        self._first, self._last = (
            owned.add(cuda.cuEventDestroy, checked(cuda.cuEventCreate(flags), "make an event")) for _ in range(2)
        )

    def burst(self, runs: int) -> dict[str, float]:
        """Return the mean microseconds of each key's launches, and of all under "": each so often, behind one untimed."""
        self._module.enter()
        return {key: self._timed(graph, runs) / repeats for key, (graph, repeats) in self._graphs.items()}

    def _timed(self, graph: Any, runs: int) -> float:
        cuda, stream = self._cuda, self._call.stream
        checked(cuda.cuGraphLaunch(graph, stream), "launch the kernels")
        checked(cuda.cuEventRecord(self._first, stream), "record an event")
        for _ in range(runs):
            checked(cuda.cuGraphLaunch(graph, stream), "launch the kernels")
        checked(cuda.cuEventRecord(self._last, stream), "record an event")
        checked(cuda.cuEventSynchronize(self._last), "run the kernels")
        return 1e3 * float(checked(cuda.cuEventElapsedTime(self._first, self._last), "tell the time")) / runs
