"""Roofline: how much of the core's peak each layer of a model reaches, measured inside the running model.

The peak is that of this machine and moment: multiply-accumulates of a second in a loop on registers alone, dot products of bytes
for integer layers, fused multiply-adds for float ones. One thread.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from ...compiler.backends.cpu.context import PlacedKernel
from ...compiler.backends.cpu.link import link
from ...compiler.backends.cpu.lowering import Lowered
from ...compiler.backends.cpu.peaks import PeakLoop, float_peak_loop, integer_peak_loop
from ...compiler.backends.op_records import OpRecord
from ...compiler.codegen.layer_clock import timed_calls
from ...compiler.codegen.tir_passes import llvm_module
from ...compiler.explanation import shown_names
from ...compiler.partition.pipeline import lower
from ...compiler.target_choice import ResolvedTarget, TargetLike, check_is_host, check_runs_here, resolve_target
from ...compiler.text_table import markdown_table
from ...errors import CompileError
from ...ir.graph import Model
from ...ir.graph.inputs import check_fixed, random_inputs
from ...profiling.model_profile import Profile
from ...quantizer.compile import prepared
from .bench import processor_name

ROUNDS = 15
_COPIED_BYTES = 1 << 26
"""No cache of a core holds as much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTime:
    """One call of a kernel within the model.

    Parameters
    ----------
    kernel
        Its name, or that of the function that TVM made.
    tensor
        The tensor that it writes.
    integer
        Whether it computes in integers.
    macs
        Multiply-accumulates; 0 for what has no weights.
    microseconds
        Median time.
    share
        Of the peak; None without multiply-accumulates or without a known peak.
    size
        Bytes of all that it reads and writes once: inputs, constants, results.
    source_name
        The source's own name of the tensor, "" where it has none.
    """

    kernel: str
    tensor: str
    integer: bool
    macs: int
    microseconds: float
    share: float | None
    size: int = 0
    source_name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """The layers in the order they run.

    Peaks are in GMAC/s, None where the machine has no instruction that we know of; `memory_peak` is in GB/s, read and written by
    a copy too large for the caches.
    """

    model: str
    processor: str
    integer_peak: float | None
    float_peak: float
    layers: tuple[LayerTime, ...]
    memory_peak: float = 0.0

    @property
    def weighted_share(self) -> float | None:
        """Share of the peak over all layers with multiply-accumulates: the time they would need at the peak over their own."""
        weighted = [layer for layer in self.layers if layer.share is not None]
        spent = sum(layer.microseconds for layer in weighted)
        return sum((layer.share or 0.0) * layer.microseconds for layer in weighted) / spent if spent else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "weighted_share": self.weighted_share}

    def to_markdown(self) -> str:
        """Return the peaks, a table of the layers and their total."""
        rows = [
            (
                layer.kernel,
                layer.tensor,
                f"{layer.microseconds:.1f}",
                f"{layer.macs / layer.microseconds / 1e3:.1f}" if layer.macs else "",
                "" if layer.share is None else f"{layer.share:.0%}",
            )
            for layer in self.layers
        ]
        integer = "" if self.integer_peak is None else f"{self.integer_peak:.0f} GMAC/s in 8-bit integers, "
        peaks = f"peak of one core: {integer}{self.float_peak:.1f} in float32"
        total = sum(layer.microseconds for layer in self.layers)
        share = "" if self.weighted_share is None else f", layers with weights at {self.weighted_share:.0%} of the peak"
        table = markdown_table(("kernel", "tensor", "us", "GMAC/s", "of peak"), rows, numbers=(2, 3, 4), names=(1,))
        return f"{self.model} on {self.processor}; {peaks}\n\n{table}\n\n{total / 1e3:.3f} ms in all{share}"


def roofline(
    model: Model,
    name: str,
    *,
    rounds: int = ROUNDS,
    target: TargetLike = None,
    precision: str | None = None,
    profile: Profile | None = None,
) -> Roofline:
    """Measure each call of a model on one thread, on random inputs; target, precision and profile as `compile` takes them.

    Raises
    ------
    ModelError
        The model leaves sizes open.
    CompileError
        The model cannot be compiled, or runs on TVM's virtual machine, whose calls cannot be timed one by one.
    """
    chosen = resolve_target(target)
    check_is_host(chosen, "table of layers")
    check_runs_here(chosen)
    check_fixed(model, "layers are timed on a model")
    model, wanted = prepared(model, chosen, precision, profile)
    lowered = lower(model.bound(), chosen.host, chosen.isas, 1, model.tensors, wanted, backends=chosen.backends)
    return roofline_of(lowered, model, name, rounds=rounds, chosen=chosen)


def roofline_of(lowered: Lowered, model: Model, name: str, *, rounds: int = ROUNDS, chosen: ResolvedTarget) -> Roofline:
    """Measure each call of a model that was lowered for one thread of this machine; see `roofline`."""
    linked = link(lowered, chosen.llvm)
    calls = timed_calls(linked, chosen.llvm, list(random_inputs(model).values()))
    if calls is None:
        raise CompileError(f"{name}: its layers cannot be timed, for it runs on TVM's virtual machine (shapes are not static)")
    calls.run()
    spent = np.median(np.stack([calls.run() for _ in range(rounds)]), axis=0) / 1e3
    integers = integer_peak_loop(chosen.isas[0])
    # As the layers are compiled: for a CPU without a wider product, so that none takes this one's place.
    peaks = {True: None if integers is None else peak_of(integers, chosen.llvm), False: peak_of(float_peak_loop(), chosen.llvm)}
    records = {(record.tensor, record.kernel): record for record in lowered.records}
    names = {str(entry.id): entry.source_name for entry in model.tensors.values()} | shown_names(model)
    layers: list[LayerTime] = []
    for symbol, time_us in zip(calls.symbols, spent, strict=True):
        layer = _layer(symbol, float(time_us), records, lowered.kernels.get(symbol), peaks)
        layers.append(replace(layer, size=_size(linked, symbol), source_name=names.get(layer.tensor, "")))
    return Roofline(
        model=name,
        processor=processor_name(),
        integer_peak=peaks[True],
        float_peak=peaks[False] or 0.0,
        layers=tuple(layers),
        memory_peak=_copied(_COPIED_BYTES),
    )


def _size(linked: tvm.IRModule, symbol: str) -> int:
    """Return the bytes of the buffers that a function is called with; 0 of what is no function of the module."""
    found: Any = next((linked[var] for var in linked.get_global_vars() if var.name_hint == symbol), None)
    buffers = [] if found is None else [each for each in found.params if hasattr(each, "shape")]
    return sum(math.prod(int(size) for size in each.shape) * np.dtype(str(each.dtype)).itemsize for each in buffers)


def _copied(size: int) -> float:
    """Return the GB/s at which so many bytes are read and written by a copy, now."""
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    taken: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        np.copyto(target, source)
        taken.append(time.perf_counter() - start)
    return 2 * size / statistics.median(taken) / 1e9


def _layer(
    symbol: str,
    microseconds: float,
    records: dict[tuple[str, str], OpRecord],
    placed: PlacedKernel | None,
    peaks: dict[bool, float | None],
) -> LayerTime:
    """Describe one call; `placed` is None for a function that TVM made."""
    tensor = "" if placed is None else _output_tensor(placed)
    name = symbol.removeprefix("octavo_") if placed is None else placed.name
    # By both: an op may need other kernels before its own, which bring its inputs into form.
    record = records.get((tensor, name))
    macs, integer = (0, False) if record is None else (record.macs, record.integer)
    peak = peaks[integer]
    share = macs / microseconds / 1e3 / peak if macs and peak and microseconds else None
    return LayerTime(kernel=name, tensor=tensor, integer=integer, macs=macs, microseconds=microseconds, share=share)


def _output_tensor(placed: PlacedKernel) -> str:
    """Return the tensor that a kernel writes: its quantize_info says so; a float kernel's symbol ends in the name."""
    attrs: Any = placed.func.attrs
    info = attrs["quantize_info"] if attrs and "quantize_info" in attrs else {}
    if "output" in info:
        return str(info["output"]["id"])
    return placed.symbol.removeprefix("octavo_").split("_", 1)[-1]


def peak_of(loop: PeakLoop, target: Target) -> float:
    """Return the GMAC/s that a loop compiled for a target reaches on this machine, now."""
    call = llvm_module({"peak": loop.func}, target)["peak"]
    values, out = (tvm.runtime.tensor(np.zeros(size, loop.dtype)) for size in loop.sizes)
    taken: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call(values, out)
        taken.append(time.perf_counter() - start)
    # The median, as for the layers: both see the same clock and the same neighbours.
    return loop.macs / statistics.median(taken) / 1e9
