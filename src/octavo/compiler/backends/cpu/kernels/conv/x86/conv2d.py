"""Which x86 kernel computes a convolution or a matmul."""

from __future__ import annotations

from dataclasses import replace

from .......runtime.shapes import evaluated
from .......runtime.size import names_in
from .....tunable import Tunable, check_schedule
from ...depthwise.x86.vnni_depthwise import VnniDepthwise
from ...depthwise.x86.word_depthwise import WordDepthwise
from ...depthwise.x86.woven_depthwise import WovenDepthwise, takes_woven_rows
from ...language.isa import AVX2
from ...language.kernel import Kernel
from ...language.schedule import NO_SCHEDULES, BilinearSchedule, Schedules, TileSchedule
from ..loops.gemm_loops import ALTERNATIVE_CYCLES
from ..loops.packing import Weights
from ..schedule_key import schedule_key
from ..spec import Conv2dSpec, gemm_kind
from .bilinear.open_strassen import OpenDense
from .bilinear.point_plan import PointPlan, total_cycles
from .bilinear.strassen import Strassen
from .bilinear.strassen_choice import StrassenPlan, strassen_plans
from .bilinear.winograd import Winograd
from .bilinear.winograd_choice import WinogradPlan, winograd_plans
from .cores import CORES
from .implicit_gemm import ImplicitGemm
from .word_gemm import WordGemm, direct_choice

LIKELY = 128
"""Rows and columns of a network's image for which kernels of open sizes are chosen where it matters."""


def conv2d_x86(spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> Kernel:
    """Return the kernel of a convolution."""
    if spec.groups == spec.in_channels > 1:
        name = f"depthwise.{spec.kernel[0]}x{spec.kernel[1]}"
        if isa == AVX2:
            kernel = WovenDepthwise if takes_woven_rows(spec) else WordDepthwise
            return kernel(spec, weights, schedules=schedules).build(name)
        return VnniDepthwise(spec, weights, isa=isa, schedules=schedules).build(name)
    if isa == AVX2:
        return _product_of_words(spec, weights, schedules, f"conv2d.{gemm_kind(spec)}")
    return ImplicitGemm(spec, weights, isa=isa, schedules=schedules).build(f"conv2d.{gemm_kind(spec)}")


def matmul_x86(spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> Kernel:
    """Return the kernel of a matmul, as a pointwise convolution over an image of one column."""
    if isa == AVX2:
        return _product_of_words(spec, weights, schedules, "matmul")
    return ImplicitGemm(spec, weights, isa=isa, schedules=schedules).build("matmul")


def _product_of_words(spec: Conv2dSpec, weights: Weights, schedules: Schedules, kind: str) -> Kernel:
    """Return the kernel for AVX2: one of fewer products where it is exact and estimated to take less time, else the plain one."""
    if names_in((spec.batch, spec.in_height, spec.in_width)):
        return _of_open_size(spec, weights, schedules, kind)
    plans: list[PointPlan] = [*winograd_plans(spec, CORES[AVX2]), *strassen_plans(spec, CORES[AVX2])]
    if not plans:
        return WordGemm(spec, weights, isa=AVX2, schedules=schedules).build(kind)
    key = schedule_key(spec, asymmetric=bool(weights.zero_points.any()))
    measured, (direct, tile) = schedules.get(key), direct_choice(spec)
    exact = [plan for plan in plans if total_cycles(plan) < ALTERNATIVE_CYCLES * direct and plan.is_exact(weights)]
    chosen = next((plan for plan in exact if total_cycles(plan) < direct), None)
    if isinstance(measured, BilinearSchedule):
        planned = next((each for plan in plans if (each := plan.scheduled(measured)) is not None), None)
        check_schedule(key, measured, fits=planned is not None)
        # Kernels of one key share a schedule; one whose weights are too large for it has its own.
        chosen = planned if planned is not None and planned.is_exact(weights) else chosen
        schedules = NO_SCHEDULES
    elif measured is not None:
        chosen = None
    others = [plan.schedule for plan in exact]
    if chosen is None:
        kernel = WordGemm(spec, weights, isa=AVX2, schedules=schedules).build(kind)
        assert kernel.tunable is not None
        return replace(kernel, tunable=Tunable.of(key, kernel.tunable.schedule, others, kernel.tunable.alternatives))
    plain = TileSchedule(rows=tile.rows, columns=tile.columns, vectors=tile.vectors)
    tunable = Tunable.of(key, chosen.schedule, others, chosen.other_blocks, [plain])
    return replace(_of_points(chosen, weights, kind), tunable=tunable)


def _of_open_size(spec: Conv2dSpec, weights: Weights, schedules: Schedules, kind: str) -> Kernel:
    """Return the kernel for AVX2 of an open size: the one that is best for an image of a size between small and large ones."""
    likely = replace(spec, batch=1, in_height=_likely(spec.in_height), in_width=_likely(spec.in_width))
    if min(likely.out_height, likely.out_width) > 0:
        direct, _ = direct_choice(likely)
        for plan in winograd_plans(likely, CORES[AVX2]):
            if total_cycles(plan) < direct and plan.is_exact(weights):
                return Winograd(plan, weights, spec).build("conv2d.winograd")
    return OpenDense(spec, weights, schedules).build(kind)


def _likely(size: int) -> int:
    return evaluated((size,), dict.fromkeys(names_in((size,)), LIKELY))[0]


def _of_points(plan: PointPlan, weights: Weights, kind: str) -> Kernel:
    """Return the kernel of a plan."""
    if isinstance(plan, WinogradPlan):
        return Winograd(plan, weights, plan.spec).build("conv2d.winograd")
    assert isinstance(plan, StrassenPlan), "plans are of two kinds"
    return Strassen(plan, weights, plan.spec).build(f"{kind}.strassen")
