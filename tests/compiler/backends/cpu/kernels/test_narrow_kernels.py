"""Kernels for registers of 256 bits: the same bits, from code that has neither wider registers nor instructions that saturate."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
import tvm
from conv2d_cases import Layers, matmul_case
from kernel_runner import EACH_NARROW_ISA, Case, Compiled, check
from test_int16_conv2d_kernels import ROUNDINGS, convolution, extremes
from test_sum_output_kernels import sum_case, sum_case_of

from octavo.compiler.backends.cpu.kernels import AVX2, AVX_VNNI, Kernel, LookupSpec, lookup, target_for
from octavo.runtime.llvm_host import host_target

every_narrow = pytest.mark.parametrize("isa", EACH_NARROW_ISA)
SAME = (1, 1, 1, 1)
CPUS = {AVX_VNNI: "alderlake", AVX2: "haswell"}


def halved(work: list[Any], isa: str) -> list[Any]:
    """All of it for AVX2, which multiplies words; every second piece for AVX-VNNI, whose loops are those of 512 bits."""
    return work if isa == AVX2 else work[::2]


def convolutions(layers: Layers, isa: str) -> list[Case]:
    specs = [
        *(layers.spec((3, 5), pair) for pair in ((1, 17), (3, 65), (16, 127), (65, 3))),
        layers.spec((7, 9), (5, 33), (3, 3), padding=SAME, batch=2),
        layers.spec((9, 9), (64, 48), (3, 3), padding=SAME, strides=(2, 2)),
        layers.spec((6, 6), (24, 36), (3, 3), padding=SAME, groups=3),
    ]
    # Symmetric, asymmetric at both ends, and per axis: extra steps and window sums are paths of their own.
    zeros = (0, -128, "axis")
    points = [(spec, zeros[i % 3]) for i, spec in enumerate(specs[:4])]
    windows = [(spec, zeros[(i + j) % 3]) for i, spec in enumerate(specs[4:]) for j in range(2)]
    return [layers.case(spec, isa, w_zero_point=zero) for spec, zero in halved(points + windows, isa)]


def depthwise(layers: Layers, isa: str) -> list[Case]:
    windows = [((3, 3), (1, 1), SAME), ((3, 3), (2, 2), SAME), ((5, 5), (1, 1), (2, 2, 2, 2)), ((7, 1), (1, 1), (3, 0, 3, 0))]
    work = [(*window, c) for i, window in enumerate(windows) for c in ((3, 48), (96, 17))[i % 2]]
    return [
        layers.case(layers.spec((6, 7), (c, c), kernel, strides=strides, padding=padding, groups=c), isa)
        for kernel, strides, padding, c in halved(work, isa)
    ]


@every_narrow
def test_the_bits_of_the_oracle(isa: str) -> None:
    layers = Layers(7)
    dense = [matmul_case(layers, rows, features, 33, isa) for rows, features in ((1, 129), (4, 7))]
    check(convolutions(layers, isa) + depthwise(layers, isa) + dense, target_for(isa, host_target()))


EXTREMES = (-128, -127, -65, -64, -63, -1, 0, 1, 63, 64, 65, 127)
"""Weights, of which 64 and -64 are the last whose pairs a saturating product of bytes adds up correctly."""


def paired(layers: Layers, isa: str, w_zero_point: int, weights: np.ndarray, activations: np.ndarray) -> list[Case]:
    """A product and a depthwise convolution, each of every pair of activations by every pair of weights; the sums themselves."""
    x = np.stack(np.meshgrid(activations, activations), axis=-1).reshape(1, 1, -1, 2).astype(np.uint8)
    w = np.stack(np.meshgrid(weights, weights)).reshape(1, 1, 2, -1).astype(np.int8)
    w, x = np.concatenate([w, w[:, :, ::-1]], axis=2), np.concatenate([x, x], axis=3)  # 4 inputs: no pair is filled up
    of_taps = w[0, 0, :2].reshape(1, 2, 1, -1)
    of_channels = np.broadcast_to(x[..., :2].reshape(1, 1, -1, 1), (1, 1, x.shape[2] * 2, of_taps.shape[3])).copy()
    return [
        sum_case_of(layers.spec((1, x.shape[2]), (4, w.shape[3])), isa, x, w, w_zero_point),
        sum_case_of(
            layers.spec((1, of_channels.shape[2]), (w.shape[3],) * 2, (1, 2), groups=w.shape[3]),
            isa,
            of_channels,
            of_taps,
            w_zero_point,
        ),
    ]


@every_narrow
@pytest.mark.parametrize("w_zero_point", [0, 127])
def test_extremes_in_every_pairing(isa: str, w_zero_point: int) -> None:
    cases = paired(Layers(9), isa, w_zero_point, np.array(EXTREMES), np.array([0, 1, 127, 128, 254, 255]))
    check(cases, target_for(isa, host_target()))


@every_narrow
def test_own_loops(isa: str) -> None:
    layers, modes = Layers(11), itertools.cycle(["constant", "image"])
    specs = [
        layers.spec((9, 8), (5, 33), (3, 2), padding=(0, 2, 1, 0), batch=2),
        layers.spec((9, 8), (70, 70), (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), groups=70, batch=2, threads=2),
        layers.spec((9, 8), (5, 15), (3, 3), padding=SAME, strides=(2, 2), groups=5),
        layers.spec((9, 9), (33, 33), (7, 6), padding=(3, 3, 3, 3), groups=33),
        layers.spec((16, 16), (65, 17), strides=(2, 2)),
        layers.spec((40, 40), (64, 65), threads=2),
        layers.spec((28, 28), (64, 64), (3, 3), padding=SAME, threads=2),
    ]
    check([sum_case(layers, spec, isa, next(modes)) for spec in halved(specs, isa)], target_for(isa, host_target()))


@every_narrow
def test_16_bit_activations(isa: str) -> None:
    rng = np.random.default_rng(5)
    shape, weights = (1, 4, 5, 33), (3, 3, 33, 17)
    cases = [convolution(isa, rounding, rng, shape, weights, x=extremes(rng, shape), padding=SAME) for rounding in ROUNDINGS]
    check(cases, target_for(isa, host_target()))


@every_narrow
def test_elements_in_vectors_of_32(isa: str) -> None:
    rng = np.random.default_rng(6)
    cases = []
    for size in (31, 32, 33, 200):
        x, table = rng.integers(0, 256, size).astype(np.uint8), rng.integers(0, 256, 256).astype(np.uint8)
        kernel: Kernel = lookup(LookupSpec(size=size), table=table, isa=isa)
        cases.append(Case(kernel=kernel, inputs=(x,), expected=table[x], about=size))
    check(cases, target_for(isa, host_target()))


@every_narrow
def test_machine_code_for_a_cpu_of_that_kind(isa: str) -> None:
    layers = Layers(8)
    cases = [
        layers.case(layers.spec((14, 14), (64, 64)), isa, w_zero_point=0),
        layers.case(layers.spec((14, 14), (64, 64), (3, 3), padding=SAME, groups=64), isa, w_zero_point=0),
    ]
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": CPUS[isa]})
    functions = {f"kernel_{index}": case.kernel.func for index, case in enumerate(cases)}
    assembly = Compiled(functions, target).code.inspect_source("asm")
    assert "zmm" not in assembly
    assert ("vpdpbusd" in assembly) == (isa == AVX_VNNI)
    assert ("vpmaddwd" in assembly) == (isa == AVX2)
    assert not re.search(r"\bvpmaddubsw\b", assembly), "it saturates pairs of products"
