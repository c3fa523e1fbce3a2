"""The control block: what the threads that share a program's calls tell each other, as places in words of 8 bytes.

`compiler.codegen.worker_pool_code` is the code that reads and writes it, `worker_pool` the threads that run that code.
"""

from __future__ import annotations

from dataclasses import dataclass

WORK = "octavo_worker_work"
DISMISS = "octavo_worker_dismiss"
"""Functions of the code: a worker's life, and what ends it."""

LINE = 8

TASKS = 0
"""Index in control: how many tasks a call has, the caller's among them."""

DISMISSED = 1

CALL = LINE
"""The number of the latest call, from 1 on."""

RESTING = 2 * LINE
"""Index in control: how many workers sleep until there is a call."""

SLEEPING = 3 * LINE
"""Index in control: how many tasks sleep within a call."""

ENDED = 4 * LINE

SPENT = ENDED + 1
"""Indices in control: when the latest call ended and how long it took, in cycles of the machine's clock."""

POINTERS = 5 * LINE

TENSOR_WORDS = 6
"""Words of a DLTensor, as which pointers are kept: the only struct of pointers that TIR can read and write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where things are in the control block, in words of 8 bytes, for `tasks` at most, so many pointers and so many units."""

    tasks: int
    pointers: int
    units: int

    @property
    def first_unit(self) -> int:
        """Index of the first unit's word."""
        return POINTERS + -(-self.pointers * TENSOR_WORDS // LINE) * LINE

    @property
    def words(self) -> int:
        """Words of the whole block."""
        return self.first_unit + self.units * LINE


def control_layout(tasks: int, inputs: int, outputs: int, units: int) -> Layout:
    """Return the layout for a program's calls: pointers to its inputs, constants, workspace and outputs."""
    return Layout(tasks=tasks, pointers=inputs + 2 + outputs, units=units)
