"""What a kernel is: a PrimFunc, its constants and its name. It knows neither a spec nor a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import tvm

from ......runtime.size import Size
from ....tunable import Tunable


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kernel:
    """A compiled-to-be kernel.

    Parameters
    ----------
    name
        Says what runs, for people: "conv2d.pointwise 6x4".
    isa
        One of `isa.KNOWN_ISAS`.
    func
        PrimFunc over flat one-dimensional buffers: the activation inputs, then `constants`, then the output.
    constants
        Packed weights, folded biases, multipliers: one-dimensional arrays, passed after the activations.
    tunable
        How it walks its work, where there is a choice.
    limits
        Open sizes up to which it is exact, each with the most that it may be.
    """

    name: str
    isa: str
    func: tvm.tirx.PrimFunc
    constants: tuple[npt.NDArray[Any], ...] = ()
    tunable: Tunable | None = None
    limits: tuple[tuple[Size, int], ...] = ()
