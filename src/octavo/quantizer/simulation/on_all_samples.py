"""What several parameters of the same activations do, from a few samples to all of them. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...numerics import QuantParams

Array = npt.NDArray[np.float64]
Shifts = dict[Var, npt.NDArray[np.float32]]


@dataclass(kw_only=True, slots=True, eq=False)
class Trials:
    """Several parameters of the same activations, and what they were seen to do.

    Parameters
    ----------
    params
        Of each try.
    tensor_errors
        Of each try how far it moves its tensors, sample by sample: power of what they are off.
    errors, powers
        By the numbers of samples that were computed to their end: powers of what outputs are off, (tries, outputs), and of
        outputs, (outputs,).
    """

    params: list[dict[Var, QuantParams]]
    tensor_errors: list[list[float]] = field(init=False)
    errors: dict[int, Array] = field(default_factory=dict[int, Array])
    powers: dict[int, Array] = field(default_factory=dict[int, Array])
    _shifts: list[dict[Var, list[npt.NDArray[np.float32]]]] = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing seen."""
        self.tensor_errors, self._shifts = [[] for _ in self.params], [{} for _ in self.params]

    @property
    def variables(self) -> tuple[Var, ...]:
        """The activations."""
        return tuple(self.params[0])

    def add_shift(self, number: int, var: Var, shift: npt.NDArray[np.float32]) -> None:
        """Add what one sample of a tensor is off on average, channel by channel, by a try's number."""
        self._shifts[number].setdefault(var, []).append(shift)

    def shifts(self) -> list[Shifts]:
        """What tensors are off on average over samples, of each try."""
        return [
            {var: np.asarray(np.mean(each, axis=0, dtype=np.float32)) for var, each in shifts.items()} for shifts in self._shifts
        ]

    def is_far(self, sample: int, kept: int) -> bool:
        """Return whether the last try moves a sample further than it does any of the first, which are `kept`."""
        return self.tensor_errors[-1][sample] > max(self.tensor_errors[-1][:kept])

    def add(self, sample: int, errors: Array, powers: Array) -> None:
        """Add what a sample's outputs are off, (tries, outputs), and their power, (outputs,)."""
        self.errors[sample], self.powers[sample] = errors, powers

    def on_all(self, kept: int) -> Iterator[tuple[Array, Array]]:
        """Yield for each try the powers of what the outputs are off, and of outputs, over all samples, both (outputs,)."""
        others = [sample for sample in range(len(self.tensor_errors[0])) if sample not in self.errors]
        powers = _total(self.powers.values()) + len(others) / kept * _total([self.powers[sample] for sample in range(kept)])
        for number, own in enumerate(self.tensor_errors):
            seen, by_kept = sum(own[:kept]), _total([self.errors[sample][number] for sample in range(kept)])
            share = sum(own[sample] for sample in others) / seen if seen else 0.0
            yield _total([each[number] for each in self.errors.values()]) + share * by_kept, powers


def _total(arrays: Iterable[Array]) -> Array:
    return np.sum(list(arrays), axis=0)
