"""bfloat16 convolution and matmul as an implicit matrix product: FloatGemm with steps of two channels.

    for each tile of pixels x vectors:   for each tap, for each pair of input channels:  acc[pixel][vector] += dot(pair, weights)

Sums are float32, so are bias, addend and clamp; the result is rounded as it is stored.
Oracle: `numerics.floats.half.bfloat16_conv2d`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......numerics.floats.half import to_half
from ...language.kernel import Kernel
from ...language.partial import load_partial
from ...language.vectors import Expr, load, store_partial
from ...language.x86.bfloat16 import bring_along, dot_pairs, rounded, widened
from ...language.x86.vector import LANES
from ..bfloat16_spec import Bfloat16Conv2dSpec
from ..float_gemm import FloatArray, FloatGemm
from ..loops.float_packing import pack_panels


class Bfloat16Gemm(FloatGemm):
    """Emits one layer's PrimFunc."""

    element_bytes = 2
    dtype = "uint16"
    step_elements = 2
    spec: Bfloat16Conv2dSpec

    def build(self, name: str, isa: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        kernel = super().build(name, isa)
        return replace(kernel, func=bring_along(kernel.func))

    @property
    def _addend_dtype(self) -> str:
        return self.spec.addend

    @property
    def _out_dtype(self) -> str:
        return self.spec.output

    def _packed(self, weight: FloatArray) -> npt.NDArray[Any]:
        """Return pairs of weights as int32, the first in the low half; an odd last one is paired with 0."""
        run, groups = self.geometry.reduction.run, self.geometry.groups
        bits = to_half(weight, "bfloat16").reshape(-1, run, weight.shape[3])
        bits = np.pad(bits, ((0, 0), (0, run % 2), (0, 0))).reshape(-1, 2, groups, weight.shape[3] // groups)
        pairs = bits[:, 0].astype(np.uint32) | (bits[:, 1].astype(np.uint32) << np.uint32(16))
        return pack_panels(pairs.view(np.int32), self.tile.vectors)

    def _loaded_weights(self, index: Expr, lanes: int = LANES) -> Expr:
        return load(self.weights, index, lanes)

    def _splat(self, source: Expr, element: Expr, taken: int) -> Expr:
        if taken == 1:
            return T.broadcast(T.cast(source[element], "int32"), LANES)
        return T.broadcast(T.reinterpret("int32", load(source, element, 2)), LANES)

    def _multiplied(self, acc: Expr, value: Expr, weights: Expr) -> Expr:
        return dot_pairs(acc, value, weights)

    def _added(self, value: Expr, place: Expr, valid: int) -> Expr:
        addend = load_partial(self.addend, place, LANES, valid, self.spec.addend)
        return value + (widened(addend) if self.spec.addend == "uint16" else addend)

    def _store(self, place: Expr, value: Expr, valid: int) -> None:
        result = rounded(value) if self.spec.output == "uint16" else value
        store_partial(self.out, place, result, LANES, valid, self.spec.output)
