"""What a convolution of bfloat16 is asked to compute. bfloat16 is uint16 in memory; sums are float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .float_spec import FloatConv2dSpec

StoredDtype = Literal["uint16", "float32"]
"""How a kernel reads or writes an activation: bfloat16, by its bits, or float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bfloat16Conv2dSpec(FloatConv2dSpec):
    """A convolution of bfloat16 inputs and weights; what is added and the result may be float32 instead."""

    addend: StoredDtype = "uint16"
    output: StoredDtype = "uint16"
