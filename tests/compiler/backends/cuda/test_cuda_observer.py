"""The GPU's observer against the CPU's, exactly: every statistic is a count or a value of the data, whatever the order."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from cuda_emulator import Call, Check, Emulator
from cuda_units import Unit
from hypothesis import given
from hypothesis import strategies as st

from octavo.compiler.backends.cpu.kernels import ObserveSpec as HostSpec
from octavo.compiler.backends.cpu.kernels import observe as host_observe
from octavo.compiler.backends.cuda.compiler import DEVICE
from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.backends.cuda.kernels.observer.observe import ObserveSpec, observe
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.errors import ExecutableError
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR
from octavo.numerics.statistics.observer_state import COUNTS_SIZE, empty_ranges, total_counts
from octavo.runtime.llvm_host import host_target

Array = np.ndarray[Any, Any]

# One element; one channel; channels last and first, in fours and not; several blocks; as many channels as there may be.
SPECS = [
    ObserveSpec(outer=outer, channels=channels, inner=inner)
    for outer, channels, inner in (
        *((1, 1, 1), (7, 1, 1), (4099, 1, 1), (40000, 1, 1)),
        *((5, 7, 1), (70, 24, 1), (3, 4096, 1), (900, 33, 1)),
        *((2, 3, 5), (2, 20, 17), (1, 31, 16), (2, 4, 8192)),
    )
]
SM_61 = ISAS["cuda.sm_61"]


class Observers:
    """The kernels of specs, of the GPU in the emulator or of this machine's CPU."""

    def __init__(self, specs: Sequence[ObserveSpec], *, check: Check = "none", device: Path = DEVICE) -> None:
        self._kernels = {spec: observe(spec, SM_61) for spec in specs}
        self._emulator = Emulator(list(self._kernels.values()), check=check, device=device)
        self._order = list(specs)
        functions: dict[str, Any] = {}
        for number, spec in enumerate(specs):
            host = HostSpec(outer=spec.outer, channels=spec.channels, inner=spec.inner)
            functions[f"observe{number}"] = host_observe(host, isa="generic").func.with_attr(KERNEL_ATTR, f"observe{number}")
        self._library = llvm_module(functions, host_target())

    def of_gpu(self, spec: ObserveSpec, samples: Sequence[Array], seed: int = 0) -> tuple[Array, Array]:
        """Ranges and counts after the kernel saw the samples, one after the other."""
        buffers = [*samples, empty_ranges(spec.channels), np.zeros(COUNTS_SIZE, np.int32)]
        first = len(samples)
        calls = [Call(kernel=self._kernels[spec], arguments=((number, 0), (first, 0), (first + 1, 0))) for number in range(first)]
        found = self._emulator.run(calls, [each.view(np.uint8) for each in buffers], [first, first + 1], seed)
        return found[0].view(np.float32), found[1].view(np.int32)

    def of_cpu(self, spec: ObserveSpec, samples: Sequence[Array]) -> tuple[Array, Array]:
        function = self._library[f"observe{self._order.index(spec)}"]
        ranges, counts = tvm.runtime.tensor(empty_ranges(spec.channels)), tvm.runtime.tensor(np.zeros(COUNTS_SIZE, np.int32))
        for sample in samples:
            function(tvm.runtime.tensor(sample), ranges, counts, tvm.runtime.tensor(np.zeros(1, np.int32)))
        return ranges.numpy(), counts.numpy()


@cache
def observers() -> Observers:
    return Observers(SPECS)


def differences(found: tuple[Array, Array], expected: tuple[Array, Array]) -> list[str]:
    """What differs: which zero is the least of both is left open, and which table counts."""
    alike = {
        "ranges": np.array_equal(found[0], expected[0]),
        "first that is not finite": found[1][0] == expected[1][0],
        "counts": np.array_equal(total_counts(found[1]), total_counts(expected[1])),
    }
    return [name for name, is_alike in alike.items() if not is_alike]


def awkward(spec: ObserveSpec, seed: int, palette: Sequence[float]) -> Array:
    """Values of the whole range of float32, or of a palette where there is one."""
    rng = np.random.default_rng(seed)
    if palette:
        return rng.choice(np.array(palette, np.float32), spec.size)
    values = rng.integers(0, 2**32, spec.size, np.uint32).view(np.float32)
    some = np.array([0.0, -0.0, 1e-45, -1e-45, 2.0**-22, 2.0**8, np.finfo(np.float32).max, 1.0, -1.0], np.float32)
    values[::3] = rng.choice(some, values[::3].size)
    return values


PALETTES = st.lists(st.floats(width=32), max_size=4)
"""Constants among them, NaN, infinities, denormals; empty: all of float32."""


@given(spec=st.sampled_from(SPECS), palettes=st.lists(PALETTES, min_size=1, max_size=2), seed=st.integers(0, 2**32 - 1))
def test_statistics_are_those_of_the_cpu(spec: ObserveSpec, palettes: list[list[float]], seed: int) -> None:
    samples = [awkward(spec, seed + number, palette) for number, palette in enumerate(palettes)]
    assert differences(observers().of_gpu(spec, samples, seed % 5), observers().of_cpu(spec, samples)) == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_value_that_is_not_finite_is_found(value: float) -> None:
    for spec in SPECS:
        for place in {0, spec.size // 2, spec.size - 1}:
            x = awkward(spec, place, [1.0, -2.5])
            x[place:] = value
            found = observers().of_gpu(spec, [x])
            assert found[1][0] == spec.size - place
            assert differences(found, observers().of_cpu(spec, [x])) == []


def test_every_code_is_counted() -> None:
    codes = np.arange(2**15, dtype=np.uint32) << np.uint32(17)
    spec = ObserveSpec(outer=codes.size, channels=1, inner=1)
    _, counts = Observers([spec]).of_gpu(spec, [codes.view(np.float32)])
    assert np.array_equal(total_counts(counts), np.ones(codes.size))


@pytest.mark.parametrize("check", ["races", "addresses"])
def test_threads_do_not_disturb_each_other(check: Check) -> None:
    few = SPECS[4:6] + SPECS[8:10]
    watched = Observers(few, check=check)
    for seed, spec in enumerate(few):
        x = awkward(spec, seed, [])
        assert differences(watched.of_gpu(spec, [x], seed), watched.of_cpu(spec, [x])) == []


FAULTS = [
    ("if (bits >= 0) {\n    atomicMin", "if (true) {\n    atomicMin"),
    ("if (bits >= 0) {\n    atomicMax", "if (true) {\n    atomicMax"),
    ("  pass_count();\n      code = found;", "  code = found;"),
    ("  pass_range();\n      channel = of;", "  channel = of;"),
    ("is_negative * P::window + at", "at"),
    ("at >= 0 && at < P::window", "at >= 0 && at <= P::window"),
    (">= INFINITE) {", "> INFINITE) {"),
    ("item / P::inner % P::channels", "item % P::channels"),
    ("P::first_code + i % P::window", "i % P::window"),
    ("maximum(left, int(P::items - item))", "int(P::items - item)"),
    ("raise(ranges + P::channels + i, greatest[i]);", "ranges[P::channels + i] = greatest[i];"),
]


@pytest.mark.parametrize(("there", "instead"), FAULTS)
def test_a_planted_fault_is_found(there: str, instead: str, tmp_path: Path) -> None:
    shutil.copytree(DEVICE, tmp_path / "device")
    header = tmp_path / "device" / "observe.cuh"
    text = header.read_text()
    assert there in text
    header.write_text(text.replace(there, instead, 1))
    few = [SPECS[1], SPECS[3], SPECS[5], SPECS[9]]
    faulty = Observers(few, device=tmp_path / "device")
    samples = [[], [-0.5, -3.0], [1.0, 2.0, np.inf], [np.nan]]
    given = [(spec, [awkward(spec, 0, palette), awkward(spec, 1, palette)]) for spec in few for palette in samples]
    assert any(differences(faulty.of_gpu(*each), faulty.of_cpu(*each)) for each in given)


def test_the_barrier_is_needed(tmp_path: Path) -> None:
    shutil.copytree(DEVICE, tmp_path / "device")
    header = tmp_path / "device" / "observe.cuh"
    for turn in (0, 1):
        parts = (DEVICE / "observe.cuh").read_text().split("  __syncthreads();\n")
        assert len(parts) == 3
        header.write_text("  __syncthreads();\n".join(parts[: turn + 1]) + "  __syncthreads();\n".join(parts[turn + 1 :]))
        with pytest.raises(ExecutableError, match="data race"):
            Observers(SPECS[5:6], check="races", device=tmp_path / "device").of_gpu(SPECS[5], [awkward(SPECS[5], 0, [])], 1)


@pytest.mark.parametrize("isa", ISAS.values(), ids=ISAS)
def test_it_compiles_for_every_gpu_without_spills(isa: Any) -> None:
    kernels = [observe(spec, isa) for spec in SPECS]
    assert max(kernel.shared_bytes for kernel in kernels) <= isa.shared_bytes_of_block
    own = kernels[list(ISAS.values()).index(isa) % 2 :: 2]  # each spec for an older chip and a newer one
    usage = Unit(own, isa).usage.values()
    assert len(usage) == len(own)
    assert not any(each.spill_bytes or each.stack_bytes for each in usage)
    assert max(each.registers for each in usage) <= 32
