"""The observer against NumPy, exactly: every statistic is an integer or a value of the data, whatever the instruction set."""

from __future__ import annotations

import math
import re
from functools import cache

import numpy as np
import pytest
import tvm
from kernel_runner import Compiled

from machine_isas import EVERY_ISA
from octavo.compiler.backends.cpu.kernels import AVX2, AVX_VNNI, ObserveSpec, observe
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR
from octavo.numerics.statistics.histogram import Histogram
from octavo.numerics.statistics.observer_state import COUNTS_SIZE, empty_ranges, first_non_finite, table, total_counts
from octavo.runtime.llvm_host import host_target
from octavo.runtime.size import Size

SHAPES = [  # outer, channels, inner
    *[(1, 1, 1), (17, 1, 1), (1, 1, 17), (5, 7, 1), (2, 3, 5), (1, 31, 16), (2, 20, 17)],
    *[(33, 3, 1), (70, 24, 1), (300, 16, 1), (40, 144, 1), (9, 320, 1), (6, 257, 1), (3, 8191, 1), (2, 4, 4099)],
]
BOUNDS = [(-math.inf, math.inf), (0.0, 6.0), (0.0, math.inf), (-math.inf, 0.25), (-1.5, 1.25)]


@cache
def built(spec: ObserveSpec, isa: str) -> tvm.runtime.Function:
    return Compiled({"main": observe(spec, isa=isa).func}, host_target())["main"]


def run(spec: ObserveSpec, isa: str, *samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ranges, counts and the last result after the kernel saw all samples."""
    function = built(spec, isa)
    ranges, counts = tvm.runtime.tensor(empty_ranges(spec.channels)), tvm.runtime.tensor(np.zeros(COUNTS_SIZE, np.int32))
    result = np.zeros(spec.size, np.float32) if spec.clamps else np.zeros(1, np.int32)
    out = tvm.runtime.tensor(result)
    for sample in samples:
        function(tvm.runtime.tensor(sample.reshape(-1)), ranges, counts, out)
    return ranges.numpy(), counts.numpy(), out.numpy()


def awkward_values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Values over the whole range of float32, zeros of both signs and denormals among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-148, 126, shape))
    flat = np.asarray(values, np.float32).reshape(-1)
    special = np.array([0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 6.0], np.float32)
    for index in range(0, flat.size, 4):
        flat[index] = special[(index // 4 + seed) % special.size]
    return flat.reshape(shape)


def check(spec: ObserveSpec, isa: str, data: np.ndarray) -> None:
    ranges, counts, _ = run(spec, isa, data)
    is_finite = np.isfinite(data)
    assert Histogram.of_codes(total_counts(counts)) == Histogram.of(data[is_finite])
    assert total_counts(counts).sum() == data.size
    least, greatest = np.where(is_finite, data, np.inf), np.where(is_finite, data, -np.inf)
    np.testing.assert_array_equal(ranges, np.concatenate([least.min(axis=(0, 2)), greatest.max(axis=(0, 2))]))
    source = data if not spec.plane else data.reshape(-1, spec.plane, spec.channels).transpose(0, 2, 1)
    bad = np.flatnonzero(~np.isfinite(source))
    assert first_non_finite(counts, spec.size) == (int(bad[0]) if bad.size else None)


HALVES = {AVX_VNNI: SHAPES[::2], AVX2: SHAPES[1::2]}
"""Two ISAs of one vector width, whose code differs in nothing here."""


@pytest.mark.parametrize(
    ("shape", "isa"),
    [
        pytest.param(shape, isa, marks=each.marks, id=f"{shape}-{isa}")
        for each in EVERY_ISA
        for (isa,) in [each.values]
        for shape in HALVES.get(isa, SHAPES)
    ],
)
def test_equals_numpy_and_finds_what_is_not_finite(shape: tuple[int, int, int], isa: str) -> None:
    spec = ObserveSpec(outer=shape[0], channels=shape[1], inner=shape[2])
    check(spec, isa, awkward_values(shape, 1))
    normal = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    check(spec, isa, normal)
    for value in (math.nan, math.inf, -math.inf):
        for place in {0, normal.size // 2, normal.size - 1}:
            bad = normal.copy()
            bad.reshape(-1)[place] = value
            check(spec, isa, bad)
    check(spec, isa, np.full(shape, np.nan, np.float32))


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_positions_are_those_of_the_source_layout(isa: str) -> None:
    spec = ObserveSpec(outer=2 * 15, channels=40, inner=1, plane=15)
    rng = np.random.default_rng(0)
    for _ in range(20):
        data = rng.standard_normal((30, 40, 1)).astype(np.float32)
        data.reshape(-1)[rng.integers(0, data.size, 3)] = math.inf
        check(spec, isa, data)


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_positions_in_images_of_any_size(isa: str) -> None:
    images, rows, columns = map(Size.named, ("images", "rows", "columns"))
    plane, rng = (rows + 1) // 2 * columns, np.random.default_rng(0)
    observer = observe(ObserveSpec(outer=images * plane, channels=40, inner=1, plane=plane), isa=isa).func
    library = llvm_module({"main": observer.with_attr(KERNEL_ATTR, "main")}, host_target())
    function, dimensions = library["main"], [str(each.name) for each in observer.params[3:-1]]
    for sizes in (
        {"images": 1, "rows": 1, "columns": 1},
        {"images": 3, "rows": 5, "columns": 4},
        {"images": 2, "rows": 8, "columns": 7},
    ):
        pixels = plane.evaluate(sizes)
        spec = ObserveSpec(outer=sizes["images"] * pixels, channels=40, inner=1, plane=pixels)
        data = rng.standard_normal((spec.outer, 40, 1)).astype(np.float32)
        data.reshape(-1)[rng.integers(0, data.size, 3)] = math.inf
        ranges, counts = tvm.runtime.tensor(empty_ranges(40)), tvm.runtime.tensor(np.zeros(COUNTS_SIZE, np.int32))
        out = tvm.runtime.tensor(np.zeros(1, np.int32))
        function(tvm.runtime.tensor(data.reshape(-1)), ranges, counts, *(sizes[name] for name in dimensions), out)
        expected = run(spec, isa, data)
        np.testing.assert_array_equal(ranges.numpy(), expected[0])
        np.testing.assert_array_equal(counts.numpy(), expected[1])


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_clamps_what_it_reads(low: float, high: float, isa: str) -> None:
    for shape in ((70, 24, 1), (3, 5, 50), (4, 257, 1)):
        spec = ObserveSpec(outer=shape[0], channels=shape[1], inner=shape[2], low=low, high=high)
        data = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
        ranges, _, out = run(spec, isa, data)
        assert ranges[0] == data[:, 0].min()
        if spec.clamps:
            np.testing.assert_array_equal(out, np.clip(data, low, high).reshape(-1))


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_runs_add_up(isa: str) -> None:
    spec = ObserveSpec(outer=50, channels=32, inner=1)
    samples = [awkward_values((50, 32, 1), seed) for seed in range(4)]
    ranges, counts, _ = run(spec, isa, *samples)
    everything = np.concatenate(samples)
    assert Histogram.of_codes(total_counts(counts)) == Histogram.of(everything)
    np.testing.assert_array_equal(ranges[:32], everything.min(axis=(0, 2)))


def test_counts_are_read_without_a_sign() -> None:
    counts = np.zeros(COUNTS_SIZE, np.int32)
    counts[[table(0) + 5, table(1) + 5]] = -1
    assert total_counts(counts)[5] == 2 * (2**32 - 1)


def test_avx2_codes_vectors_and_counts_in_memory() -> None:
    spec = ObserveSpec(outer=64, channels=96, inner=1, low=0.0, high=6.0)
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})
    code = Compiled({"main": observe(spec, isa=AVX2).func}, target).code
    assembly = code.inspect_source("asm")
    blocks = re.split(r"^\.LBB\w+:", assembly, flags=re.MULTILINE)
    (codes,) = [block for block in blocks if "vpackusdw" in block]
    assert codes.count("vpackusdw") == 2, "of two vectors of 16 values"
    assert not re.search(r"vpshufb|vpblend|vperm", codes)
    assert any(block.count("incl") == 32 for block in blocks), "an increment each, and nothing is compared"
