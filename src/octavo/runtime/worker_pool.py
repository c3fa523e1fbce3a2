"""WorkerPool: the threads that share the calls of one program, and their control block. `worker_pool_code` is what they run.

The workers are Python threads that stay in native code, outside Python's global lock, until they are dismissed: when the pool is
no longer used, and when Python exits. They sleep between calls.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from .control_block import DISMISS, SLEEPING, TASKS, WORK, Layout
from .cores import cores


class WorkerPool:
    """Workers for one call at a time.

    Parameters
    ----------
    library
        A tvm.runtime.Module with the code of a worker pool.
    layout
        Of the control block.
    """

    def __init__(self, library: Any, layout: Layout) -> None:
        self.control: Any = tvm.runtime.tensor(np.zeros(layout.words, np.int64))
        """What the entry takes."""
        tasks = min(layout.tasks, cores())
        self._numbers: npt.NDArray[np.int64] = np.from_dlpack(self.control)
        work: Callable[..., None] = library[WORK]
        threads = [Thread(target=work, args=(self.control, task), name=f"octavo-{task}", daemon=True) for task in range(1, tasks)]
        for thread in threads:
            thread.start()
        self._numbers[TASKS] = tasks
        weakref.finalize(self, _dismiss, library[DISMISS], self.control, threads)
        _POOLS.add(self)

    def work_alone(self) -> None:
        """Let every further call be the caller's own work: the workers are gone, none is to be woken."""
        self._numbers[[TASKS, SLEEPING]] = 1, 0


_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _dismiss(dismiss: Callable[[Any], None], control: Any, threads: Sequence[Thread]) -> None:
    dismiss(control)
    for thread in threads:
        thread.join()


def _work_alone() -> None:
    for pool in list(_POOLS):
        pool.work_alone()


# A forked process has none of its parent's threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_work_alone)
