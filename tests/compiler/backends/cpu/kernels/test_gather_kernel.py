"""Movement by indices: slices, padding, repetition and what no step describes, against the oracle bit for bit."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from kernel_runner import HOST_ISAS, SIZES, Case, check
from open_kernels import check_open

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import GatherSpec
from octavo.ir.composites.movement import AxisMap, IndexRun, Outside, full_axis, padded_axis
from octavo.ir.graph.sizes import buffers_and_dimensions
from octavo.runtime.size import is_open


def maps_of(rng: np.random.Generator, extent: int) -> list[tuple[int, ...]]:
    whole = tuple(range(extent))
    return [
        whole,
        whole[extent // 3 :],
        whole[1::2] or whole,
        whole[::-1],
        (-1,) * 2 + whole + (-1,),
        tuple(np.repeat(whole, 2).tolist()),
        tuple(rng.integers(0, extent, extent + 1).tolist()),
        (-1, extent - 1, 0, -1),
    ]


def cases(rng: np.random.Generator) -> Iterator[Case]:
    shapes = [*((size,) for size in SIZES[:-2]), (2, 3, 4, 5), (1, 7, 6, 17), (3, 65)]
    work = [
        (shape, maps, 1)
        for number, shape in enumerate(shapes)  # every second kind of map for one axis, all for several
        for maps in list(zip(*map(partial(maps_of, rng), shape), strict=True))[number % 2 :: 2 if len(shape) == 1 else 1]
    ]
    both = itertools.product(*(maps_of(rng, extent)[:6] for extent in (4, 70)))
    work += [((4, 70), maps, 1) for maps in itertools.islice(both, 0, None, 5)]
    large = [((1, 56, 57, 19), 2), ((50_000,), 2)]
    work += [
        (shape, maps, threads)
        for shape, threads in large
        for maps in list(zip(*map(partial(maps_of, rng), shape), strict=True))[::2]
    ]
    for number, (shape, maps, threads) in enumerate(work):  # each third on every ISA
        x = rng.integers(0, 256, shape).astype(np.uint8)
        spec, expected = GatherSpec(shape=shape, maps=maps, fill=9, threads=threads), numerics.gather(x, maps, 9)
        for isa in HOST_ISAS if number % 3 == 0 else HOST_ISAS[:1]:
            about = (isa, shape, threads, [len(m) for m in maps])
            yield Case(kernel=kernels.gather(spec, isa=isa), inputs=(x,), expected=expected, about=about)


def padded_by_channel(rng: np.random.Generator) -> Iterator[Case]:
    for channels, threads in zip((1, 15, 16, 17, 63, 64, 65, 129), itertools.cycle((1, 2)), strict=False):
        shape = (2, 13, 11, channels)
        x = rng.integers(0, 256, shape).astype(np.uint8)
        fill = tuple(rng.integers(0, 256, channels).tolist())
        maps = ((0, 1), (-1, *range(13), -1, -1), (-1, -1, *range(11)), tuple(range(channels)))
        spec, expected = GatherSpec(shape=shape, maps=maps, fill=fill, threads=threads), numerics.gather(x, maps, fill)
        for isa in HOST_ISAS:
            yield Case(kernel=kernels.gather(spec, isa=isa), inputs=(x,), expected=expected, about=(isa, shape, threads))


def test_padding_of_each_channel_by_its_own_number(rng: np.random.Generator) -> None:
    check(padded_by_channel(rng))


def test_equals_the_oracle(rng: np.random.Generator) -> None:
    check(cases(rng))


def open_axis(kind: str, extent: int) -> AxisMap:
    """Indices of an axis of a size that may be open: all, padded, a slice by steps, backwards, each twice."""
    if kind == "padded":
        return padded_axis(extent, 1, 2)
    runs = {
        "whole": IndexRun(count=extent),
        "slice": IndexRun(count=(extent + 1) // 2, step=2),
        "from the third": IndexRun(count=extent - 2, start=2),
        "backwards": IndexRun(count=extent, start=extent - 1, step=-1),
        "twice": IndexRun(count=extent * 2, repeat=2),
    }
    run = runs[kind]
    if is_open(extent):
        return run
    return tuple(run.start + run.step * (place // run.repeat) for place in range(run.count))


@pytest.mark.parametrize("kind", ["whole", "padded", "slice", "from the third", "backwards", "twice"])
@pytest.mark.parametrize("other", ["whole", "padded", "twice"])
def test_open_axes_give_the_bytes_of_each_size(rng: np.random.Generator, kind: str, other: str) -> None:
    for channels, threads in ((3, 1), (64, 2)):

        def make(size: Callable[[str], Any], channels: int = channels, threads: int = threads) -> kernels.Kernel:
            shape = size("n"), size("h"), size("w"), channels
            maps = (full_axis(shape[0]), open_axis(kind, shape[1]), open_axis(other, shape[2]), full_axis(channels))
            return kernels.gather(GatherSpec(shape=shape, maps=maps, fill=7, threads=threads), isa=HOST_ISAS[0])

        sizes = [{"n": n, "h": h, "w": w} for n, h, w in ((1, 3, 1), (2, 4, 5), (1, 17, 8))]
        check_open(make, sizes, lambda kernel: [rng.integers(0, 256, elements(kernel), dtype=np.uint8)])


@pytest.mark.parametrize("outside", ["edge", "reflect", "wrap"])
def test_what_is_around_open_axes_is_as_numpy_pads(rng: np.random.Generator, outside: Outside) -> None:
    """Also by more than an axis has, and twice an axis behind it, as it is tiled; with the channels last, and first."""
    sizes = [{"h": h, "w": w} for h, w in ((1, 1), (3, 2), (17, 80))]
    for order in ((0, 1, 2), (2, 0, 1), (2, 1, 0)):

        def make(size: Callable[[str], Any], order: tuple[int, ...] = order) -> kernels.Kernel:
            shape = size("h"), size("w"), 19
            maps = (padded_axis(shape[0], 5, 2, outside), padded_axis(shape[1], 0, shape[1] * 2, outside), full_axis(19))
            lying: Any = [tuple(each[axis] for axis in order) for each in (shape, maps)]
            return kernels.gather(GatherSpec(shape=lying[0], maps=lying[1]), isa=HOST_ISAS[0])

        check_open(make, sizes, lambda kernel: [rng.integers(0, 256, elements(kernel), dtype=np.uint8)])


def test_open_channels_first(rng: np.random.Generator) -> None:
    def make(size: Callable[[str], Any]) -> kernels.Kernel:
        shape = 3, size("h"), size("w")
        maps = (full_axis(3), open_axis("padded", shape[1]), open_axis("slice", shape[2]))
        return kernels.gather(GatherSpec(shape=shape, maps=maps, fill=7), isa=HOST_ISAS[0])

    sizes = [{"h": h, "w": w} for h, w in ((1, 1), (4, 65), (17, 8))]
    check_open(make, sizes, lambda kernel: [rng.integers(0, 256, elements(kernel), dtype=np.uint8)])


def elements(kernel: kernels.Kernel) -> int:
    buffers, _ = buffers_and_dimensions(kernel.func)
    return int(buffers[0].ty.shape[0])
