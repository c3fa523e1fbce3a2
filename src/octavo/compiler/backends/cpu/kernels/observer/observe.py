"""The observer: reads a float32 tensor once and adds to its statistics (`numerics.statistics.observer_state`).

It may clamp what it read. One entrance for every instruction set; the scalar loop of this file defines what the others compute,
bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tvm.script.ir_builder import tirx as B

from ......ir.graph.kernel_attributes import IN_PLACE_ATTR
from ......numerics.statistics.observer_state import COUNTS_SIZE
from ..language.isa import checked_isa
from ..language.kernel import Kernel
from ..language.vectors import Buffer, prim_func, writes_bodies
from .statistics import ObserveSpec, Statistics, clamped
from .x86_observe import VectorObserver


def observe(spec: ObserveSpec, *, isa: str) -> Kernel:
    """Return the kernel (x float32, ranges float32 (2 C), counts int32) -> x clamped, or an int32 (1,) where nothing clamps.

    It writes to `ranges` and `counts`, though they come as inputs.

    Raises
    ------
    TargetError
        If the ISA is unknown.
    """
    return _observe(spec, isa, writes_bodies())


@lru_cache(maxsize=128)
def _observe(spec: ObserveSpec, isa: str, _has_body: bool) -> Kernel:
    """Return the kernel of `observe`, one for all tensors of a size: a network that is profiled calls one for each tensor."""
    if checked_isa(isa).family != "x86":
        return _kernel_of(spec, lambda x, statistics, out: _emit_scalar(spec, x, statistics, out), isa)
    return _kernel_of(spec, VectorObserver(spec, isa=isa).emit, isa)


def _kernel_of(spec: ObserveSpec, body: Callable[[Buffer, Statistics, Buffer], None], isa: str) -> Kernel:
    """Return the kernel whose statements `body`(x, statistics, out) emits."""
    out: tuple[str, int, str] = ("out", spec.size, "float32") if spec.clamps else ("nothing", 1, "int32")

    def emit(x: Buffer, ranges: Buffer, counts: Buffer, result: Buffer) -> None:
        body(x, Statistics(spec=spec, ranges=ranges, counts=counts), result)
        if not spec.clamps:
            B.buffer_store(result, B.int32(0), [0])

    buffers = [("x", spec.size, "float32"), ("ranges", 2 * spec.channels, "float32"), ("counts", COUNTS_SIZE, "int32"), out]
    func: Any = prim_func(buffers, emit)
    return Kernel(name="observe", isa=isa, func=func.with_attr(IN_PLACE_ATTR, 1) if spec.clamps else func)


def _emit_scalar(spec: ObserveSpec, x: Buffer, statistics: Statistics, out: Any) -> None:
    with (
        B.serial(0, spec.outer) as outer,
        B.serial(0, spec.channels) as channel,
        B.serial(0, spec.inner) as inner,
    ):
        index = B.Bind((outer * spec.channels + channel) * spec.inner + inner)
        value = B.Bind(x[index])
        statistics.add(value, index, channel)
        if spec.clamps:
            B.buffer_store(out, clamped(value, spec), [index])
