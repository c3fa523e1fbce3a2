"""Convolutions, and products with constant weights as convolutions of one tap: which kernel, cut into which tiles.

Two kernels compute any convolution: the product of matrices by tiles (`conv2d_gemm`; tensor cores where there are, else DP4A),
and dot products straight from global memory (`conv2d_dot`). The first one computes whole tiles: a group of few output channels,
or few pixels, fills little of one. Its clocks are those of `tile_choice`. The second one computes what is asked for, and reads
operands anew for every four products: the model counts one instruction for each load and product of a thread, a warp's at half
the rate of DP4A, and no less than the latency of one thread's loads.
"""

from __future__ import annotations

from ...isa import Isa
from ...kernel import BYTES
from ..language.calls import KernelCall
from ..matmuls.tile_choice import START, Product, TilingChoice
from .conv2d_dot import channels_of_thread, dot_conv2d
from .conv2d_gemm import depth_of, gemm_conv2d, gemm_takes, vector_bytes
from .spec import Conv2dSpec

_LOADS_IN_FLIGHT = 4
_LOAD_LATENCY = 200.0
"""Loads of one thread that wait together, and clocks of each, most of them from the first-level cache."""


def product_of(spec: Conv2dSpec) -> Product:
    """Return a convolution as the product of matrices that the tiled kernel computes."""
    group_in = spec.in_channels // spec.groups
    return Product(
        rows=spec.pixels,
        columns=spec.out_channels // spec.groups,
        depth=depth_of(spec),
        groups=spec.groups,
        vector=vector_bytes(group_in),
        result_bytes=BYTES[spec.output.dtype],
        has_sums=spec.has_weight_zero_point,
    )


def dot_clocks(spec: Conv2dSpec, isa: Isa) -> float:
    """Return the clocks of the kernel without tiles by the model."""
    channels = channels_of_thread(spec)
    quads = spec.kernel[0] * spec.kernel[1] * -(-spec.in_channels // spec.groups // 4)
    loads = quads * (channels + (1 if spec.in_channels // spec.groups % 4 == 0 else 4))
    warps = -(-spec.pixels * -(-spec.out_channels // channels) // 32)
    busy = warps * 32 * (loads + quads * channels) / (isa.dot_multiply_adds / 4) * 2
    return START + max(busy / isa.multiprocessors, loads / _LOADS_IN_FLIGHT * _LOAD_LATENCY)


def conv2d(spec: Conv2dSpec, isa: Isa, choice: TilingChoice | None = None) -> tuple[KernelCall, ...]:
    """Return the launches that suit a convolution on chips of an ISA; without a `choice` its tiles are the model's."""
    if not gemm_takes(spec):
        return dot_conv2d(spec, isa)
    product, choice = product_of(spec), choice or TilingChoice(isa=isa)
    tiling, clocks = choice.best(product)
    if dot_clocks(spec, isa) < clocks:
        return dot_conv2d(spec, isa)
    return choice.noted(product, tiling, gemm_conv2d(spec, isa, tiling))
