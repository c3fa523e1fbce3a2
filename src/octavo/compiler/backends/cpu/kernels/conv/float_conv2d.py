"""float32 convolution and matmul: one entrance for every instruction set.

It checks nothing of the graph and picks no ISA; the caller names one that its target has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ......numerics.floats.float_function import FloatFunction
from ......runtime.shapes import typical
from ......runtime.size import is_open, names_in
from ..depthwise.arm.float_depthwise import COLUMNS as ARM_COLUMNS
from ..depthwise.arm.float_depthwise import ArmFloatDepthwise
from ..depthwise.float_depthwise import FloatDepthwise
from ..language.isa import AVX512_VNNI, AVX_VNNI, checked_isa
from ..language.kernel import Kernel
from ..language.lane_order import LANES
from ..language.schedule import NO_SCHEDULES, Schedules
from ..observer.statistics import ObserveSpec
from .arm.float_gemm import PIXELS, ArmFloatGemm
from .float_gemm import FloatGemm
from .float_spec import FloatConv2dSpec
from .loops.tiles import Core, Tile
from .spec import gemm_kind
from .stored_weights import WeightDtype
from .x86.cores import CORES, FLOAT_256

GENERIC_PIXELS = 4
"""Pixels of a tile one vector wide; 16 lanes each, they fill 16 of NEON's 32 registers, or all of SSE's."""


AVX512_COLUMNS = 6
"""Columns of a depthwise tile: with a kernel row's weights and an input they fit 32 registers."""


def can_observe(spec: FloatConv2dSpec, *, isa: str) -> bool:
    """Return whether the kernel of `spec` can observe its own result, which costs less than an observer behind it."""
    if names_in((spec.in_height, spec.in_width)):
        return False
    if isa != AVX512_VNNI or spec.threads != 1 or spec.adds:
        return False
    channels = spec.out_channels if _is_depthwise(spec) else spec.out_channels // spec.groups
    return channels % LANES == 0


def float_conv2d(
    spec: FloatConv2dSpec,
    *,
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    isa: str,
    observe: ObserveSpec | None = None,
    schedules: Schedules = NO_SCHEDULES,
) -> Kernel:
    """Return a kernel of clamp(conv2d(x, weight) + bias), float32; with `spec.adds`, of clamp(conv2d(x, weight) + bias + addend).

    Each output is one sum in the order of rows, columns and channels of its window, so it depends neither on the tiles nor on
    `threads`; whether each product is rounded before it is added depends on the target (fused multiply-add). The addend follows x
    in the argument list; a depthwise kernel takes none. With `spec.function`, the result is that of the sum and the addend.

    Parameters
    ----------
    spec
        Shapes, padding, groups, clamp and threads.
    weight
        float32 HWIO: (kernel_h, kernel_w, in_channels / groups, out_channels); all of them in `spec.weight_dtype`.
    bias
        float32 (out_channels,).
    isa
        One of `KNOWN_ISAS`.
    observe
        Observes the sums, and clamps them instead of `spec`, which has no bounds then. The kernel takes ranges and counts behind
        x. Only where `can_observe`.
    schedules
        Those measured to be best, by key; a kernel that isn't among them chooses its own, and one that observes always does.

    Raises
    ------
    TargetError
        If the ISA is unknown.
    """
    checked_isa(isa)
    if _is_depthwise(spec):
        assert not spec.adds, "a depthwise kernel takes no addend"
        kind, columns = FloatDepthwise, AVX512_COLUMNS if isa == AVX512_VNNI else GENERIC_PIXELS
        if checked_isa(isa).family == "arm":
            kind, columns = ArmFloatDepthwise, ARM_COLUMNS
        name = f"float.depthwise.{spec.kernel[0]}x{spec.kernel[1]}"
        return kind(spec, weight, bias, columns=columns, observe=observe).build(name, isa)
    gemm = gemm_of(isa)(spec, weight, bias, tile=tile_of(spec, isa), core=core_of(isa), observe=observe, schedules=schedules)
    return gemm.build(f"float.{gemm_kind(spec)}", isa)


def float_matmul(
    *,
    rows: int,
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    low: float,
    high: float,
    threads: int,
    isa: str,
    adds: bool = False,
    function: FloatFunction | None = None,
    weight_dtype: WeightDtype = "float32",
    schedules: Schedules = NO_SCHEDULES,
) -> Kernel:
    """Return a kernel of clamp(x @ weight + bias), x float32 (rows, in_features), weight (in_features, out_features).

    With `adds`, of clamp(x @ weight + bias + addend); the addend (rows, out_features) follows x in the argument list. With
    `function`, of that function of the sum and the addend. `weight_dtype` holds every weight.

    Raises
    ------
    TargetError
        If the ISA is unknown.
    """
    checked_isa(isa)
    spec = FloatConv2dSpec(
        batch=1,
        in_height=rows,
        in_width=1,
        in_channels=weight.shape[0],
        out_channels=weight.shape[1],
        kernel=(1, 1),
        adds=adds,
        function=function,
        low=low,
        high=high,
        threads=threads,
        weight_dtype=weight_dtype,
    )
    matrix = weight[np.newaxis, np.newaxis]
    return gemm_of(isa)(spec, matrix, bias, tile=tile_of(spec, isa), core=core_of(isa), schedules=schedules).build(
        "float.matmul", isa
    )


def _is_depthwise(spec: FloatConv2dSpec) -> bool:
    return spec.groups == spec.in_channels == spec.out_channels > 1


def gemm_of(isa: str) -> type[FloatGemm]:
    """Return what emits products of matrices for an ISA."""
    return ArmFloatGemm if checked_isa(isa).family == "arm" else FloatGemm


def core_of(isa: str) -> Core:
    """Return what the tile is chosen for."""
    if checked_isa(isa).family != "x86":
        return CORES[AVX_VNNI]
    return CORES[AVX512_VNNI] if isa == AVX512_VNNI else FLOAT_256


def tile_of(spec: FloatConv2dSpec, isa: str) -> Tile | None:
    """Return the tile for a target with few registers; None lets the kernel choose."""
    if checked_isa(isa).family == "x86":
        return None
    pixels = PIXELS if checked_isa(isa).family == "arm" else GENERIC_PIXELS
    if gemm_kind(spec) == "pointwise":
        return Tile(rows=min(pixels, typical(spec.batch * spec.in_height * spec.in_width)), columns=1, vectors=1)
    return Tile(rows=1, columns=pixels if is_open(spec.out_width) else min(pixels, spec.out_width), vectors=1)
