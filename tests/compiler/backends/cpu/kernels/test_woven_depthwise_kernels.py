"""Depthwise convolutions for AVX2 that weave rows in pairs give the bits of the oracle, whatever rows and columns meet."""

import itertools

import numpy as np
import pytest
from conv2d_cases import Layers
from kernel_runner import check

from machine_isas import each_isa
from octavo.compiler.backends.cpu.kernels import AVX2, Conv2dSpec, target_for
from octavo.compiler.backends.cpu.kernels.depthwise.x86.woven_depthwise import takes_woven_rows
from octavo.runtime.llvm_host import host_target

on_avx2 = pytest.mark.parametrize("isa", each_isa([AVX2]))

CHANNELS = (16, 17, 48, 31, 64, 65, 80, 127, 32, 144, 16, 48)
"""Blocks of 16 with each kind of rest, which is written out apart: most windows have none."""


def check_woven(isa: str, specs: list[Conv2dSpec], layers: Layers) -> None:
    assert all(takes_woven_rows(spec) for spec in specs)
    check([layers.case(spec, isa) for spec in specs], target_for(AVX2, host_target()))


def depthwise(layers: Layers, size: tuple[int, int], channels: int, kernel: tuple[int, int], **window: object) -> Conv2dSpec:
    return layers.spec(size, (channels, channels), kernel, groups=channels, **window)


@on_avx2
def test_channels_windows_and_strides(isa: str) -> None:
    layers = Layers(1)
    kernels = ((3, 3), (2, 2), (5, 5), (3, 1), (4, 3), (2, 7), (5, 2))
    sizes = ((7, 7), (8, 5), (9, 11), (6, 9), (12, 8))
    strides = ((1, 1), (2, 2), (1, 2), (3, 1), (2, 3))
    paddings = ((1, 1, 1, 1), (0, 0, 0, 0), (0, 0, 1, 1), (2, 1, 0, 1), (1, 0, 2, 2))
    turns = [itertools.cycle(each) for each in (kernels, sizes, strides, paddings)]
    specs = []
    for number, channels in enumerate(CHANNELS):
        kernel, size, stride, padding = (next(turn) for turn in turns)
        if number % 5 == 4:  # other paddings with each stride, and then other sizes
            next(turns[3 if number < 9 else 1])
        specs.append(depthwise(layers, size, channels, kernel, strides=stride, padding=padding, batch=1 + number % 2))
    check_woven(isa, specs, layers)


@on_avx2
def test_padding_of_whole_rows_and_of_none(isa: str) -> None:
    """Pairs of which either row, both or none are padding; taps far from each other in a row."""
    layers = Layers(2)
    paddings = ((3, 2, 3, 2), (4, 0, 1, 5), (2, 3, 2, 0), (3, 0, 3, 3))
    specs = [depthwise(layers, (5, 7), 32 + number % 2, (4, 3), padding=padding) for number, padding in enumerate(paddings)]
    specs += [
        depthwise(layers, (1, 9), 16, (3, 3), padding=(2, 1, 2, 1)),
        depthwise(layers, (6, 12), 48, (3, 3), dilation=(1, 3)),
    ]
    check_woven(isa, specs, layers)


@on_avx2
def test_blocks_of_rows_and_threads(isa: str) -> None:
    layers = Layers(3)
    window = {"padding": (1, 1, 1, 1)}
    specs = [
        depthwise(layers, (61, 120), 65, (3, 3), threads=threads, strides=(stride, stride), **window)
        for threads, stride in ((1, 1), (2, 1), (3, 2))
    ]
    check_woven(isa, specs, layers)


@on_avx2
def test_any_window(isa: str, rng: np.random.Generator) -> None:
    layers, specs = Layers(5), list[Conv2dSpec]()
    for number in range(8):
        kernel = rows, columns = int(rng.integers(2, 6)), int(rng.integers(1, 6))
        size = int(rng.integers(rows, 14)), int(rng.integers(columns, 14))
        padding = tuple(int(rng.integers(taps)) for taps in (rows, columns, rows, columns))
        strides = tuple(map(int, rng.integers(1, 4, 2)))
        channels = 16 * int(rng.integers(1, 6)) + int(rng.integers(16)) * (number % 2)
        specs.append(depthwise(layers, size, channels, kernel, padding=padding, strides=strides))
    check_woven(isa, specs, layers)


def test_windows_of_one_row_or_of_rows_apart_are_not_woven() -> None:
    layers = Layers(4)
    assert not takes_woven_rows(depthwise(layers, (5, 9), 32, (1, 3)))
    assert not takes_woven_rows(depthwise(layers, (9, 9), 32, (3, 3), dilation=(2, 1)))
    assert not takes_woven_rows(depthwise(layers, (9, 9), 15, (3, 3)))
    assert not takes_woven_rows(depthwise(layers, (9, 9), 32, (7, 7)))
    assert not takes_woven_rows(layers.spec((9, 9), (32, 64), (3, 3), groups=32))
