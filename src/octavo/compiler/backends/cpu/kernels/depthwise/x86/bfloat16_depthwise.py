"""bfloat16 depthwise convolution: FloatDepthwise from 16 bits to 16 bits. Oracle: `numerics.floats.half.bfloat16_depthwise`.

vdpbf16ps would take two taps at once, but weaving them costs more than the multiply-add it saves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm.script.ir_builder import tirx as T

from .......numerics.floats.half import round_half
from ...conv.bfloat16_spec import Bfloat16Conv2dSpec
from ...conv.float_gemm import FloatArray
from ...language.kernel import Kernel
from ...language.vectors import Expr, load, store
from ...language.x86.bfloat16 import bring_along, rounded
from ...language.x86.vector import LANES
from ...quantization.half_cast import narrowed_bfloat16, widened
from ..float_depthwise import FloatDepthwise


class PlainBfloat16Depthwise(FloatDepthwise):
    """Emits one layer's PrimFunc for any CPU whose LLVM contracts products and sums."""

    spec: Bfloat16Conv2dSpec

    def __init__(self, spec: Bfloat16Conv2dSpec, weight: FloatArray, bias: FloatArray, *, columns: int) -> None:
        rounded_weight = np.asarray(round_half(weight, "bfloat16"))
        super().__init__(replace(spec, weight_dtype="bfloat16"), rounded_weight, bias, columns=columns)

    @property
    def _dtypes(self) -> tuple[str, str]:
        return "uint16", self.spec.output

    def _loaded(self, index: Expr, lanes: int) -> Expr:
        return widened(load(self.x, index, lanes), lanes, "bfloat16")

    def _rounded(self, value: Expr, lanes: int) -> Expr:
        return narrowed_bfloat16(T.Bind(value), lanes)

    def _store(self, index: Expr, value: Expr, lanes: int) -> None:
        store(self.out, index, self._rounded(value, lanes) if self.spec.output == "uint16" else value, lanes)


class Bfloat16Depthwise(PlainBfloat16Depthwise):
    """Emits one layer's PrimFunc for AVX-512 BF16, which rounds whole vectors itself."""

    def build(self, name: str, isa: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        kernel = super().build(name, isa)
        return replace(kernel, func=bring_along(kernel.func))

    def _rounded(self, value: Expr, lanes: int) -> Expr:
        return rounded(value) if lanes == LANES else super()._rounded(value, lanes)
