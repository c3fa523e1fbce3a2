"""Kernels of bfloat16 and of float32 for ARM64 give their oracles' bits under QEMU."""

import itertools

import numpy as np
from emulated_kernels import NEON, aarch64, call_of, check_emulated
from kernel_runner import Case

from octavo.compiler.backends.cpu.kernels import (
    ARM_BF16,
    ARM_NEON,
    NO_SCHEDULES,
    Bfloat16Conv2dSpec,
    FloatConv2dSpec,
    Schedules,
    TileSchedule,
    bfloat16_conv2d,
    float_conv2d,
)
from octavo.numerics import Window
from octavo.numerics.floats.half import bfloat16_conv2d as oracle
from octavo.numerics.floats.half import bfloat16_depthwise as depthwise_oracle
from octavo.numerics.floats.half import bfloat16_odd_dot, from_half, to_half

BF16 = aarch64("max", mattr=["+dotprod", "+i8mm", "+bf16"])


def spec_of(
    size: tuple[int, int], channels: tuple[int, int], kernel: tuple[int, int] = (1, 1), **options: object
) -> Bfloat16Conv2dSpec:
    sizes = {"in_height": size[0], "in_width": size[1], "in_channels": channels[0], "out_channels": channels[1]}
    return Bfloat16Conv2dSpec(**{"batch": 1, "kernel": kernel, **sizes, **options})


def case(rng: np.random.Generator, spec: Bfloat16Conv2dSpec, scale: float = 1.0, schedules: Schedules = NO_SCHEDULES) -> Case:
    x = to_half(scale * rng.normal(size=(spec.batch, spec.in_height, spec.in_width, spec.in_channels)), "bfloat16")
    weight = rng.normal(size=(*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)).astype(np.float32)
    bias = rng.normal(size=spec.out_channels).astype(np.float32)
    window = Window(strides=spec.strides, padding=spec.padding, dilation=spec.dilation)
    halves, inputs = to_half(weight, "bfloat16"), [x]
    if spec.groups == spec.in_channels > 1:
        total = depthwise_oracle(x, halves, bias, window=window)
    else:
        total = oracle(x, halves, window=window, groups=spec.groups, dot=bfloat16_odd_dot) + bias
    if spec.adds:
        addend = rng.normal(size=total.shape).astype(np.float32)
        inputs.append(to_half(addend, "bfloat16") if spec.addend == "uint16" else addend)
        total = total + (from_half(inputs[1], "bfloat16") if spec.addend == "uint16" else addend)
    total = np.clip(total, np.float32(spec.low), np.float32(spec.high))
    expected = to_half(total, "bfloat16") if spec.output == "uint16" else total
    kernel = bfloat16_conv2d(spec, weight=weight, bias=bias, extension=ARM_BF16, schedules=schedules)
    return Case(kernel=kernel, inputs=tuple(inputs), expected=expected, about=spec)


def test_products_of_any_window(rng: np.random.Generator) -> None:
    same = {"padding": (1, 1, 1, 1)}
    specs = [
        *(spec_of((3, 5), sizes) for sizes in ((1, 33), (2, 17), (3, 16), (7, 15), (16, 40), (33, 64), (65, 3))),
        spec_of((9, 7), (3, 19), (3, 3), strides=(2, 2), **same),
        spec_of((8, 8), (17, 19), (3, 3), padding=(2, 0, 1, 2), dilation=(2, 2)),
        spec_of((7, 6), (12, 20), (3, 3), groups=4, output="float32", **same),
        spec_of((14, 6), (32, 40), adds=True, low=0.0, threads=3),
        spec_of((7, 7), (32, 40), (3, 3), adds=True, addend="float32", high=6.0, batch=2, **same),
        spec_of((9, 12), (17, 17), (3, 3), groups=17, strides=(2, 1), **same),
    ]
    cases = [case(rng, spec) for spec in specs]
    cases.append(case(rng, spec_of((4, 4), (64, 16)), scale=1e-38))  # products and sums among subnormal numbers
    assert check_emulated(map(call_of, cases), BF16) == len(cases)


def test_pixels_in_pairs(rng: np.random.Generator) -> None:
    """Copied by turns: of columns, and of windows side by side or one below the other, with some that are in no pair.

    Each window with two of the tiles; the outputs of the last vector are written out apart.
    """
    tiles, outputs = itertools.cycle([(4, 1), (2, 2), (1, 4), (2, 1)]), itertools.cycle([40, 16])
    same = {"padding": (1, 1, 1, 1)}
    cases = [case(rng, spec) for spec in (spec_of((9, 7), (12, 24)), spec_of((5, 5), (36, 40), batch=2, threads=2))]
    for inputs, kernel, window in (
        (12, (3, 3), same),
        (8, (3, 5), {"strides": (2, 1), "padding": (1, 2, 0, 1)}),
        (4, (3, 3), {"dilation": (1, 2), "strides": (1, 2)}),
    ):
        for _ in range(2):
            rows, columns = next(tiles)
            spec = spec_of((9, 11), (inputs, next(outputs)), kernel, **window)
            tunable = case(rng, spec).kernel.tunable
            assert tunable is not None
            measured = {tunable.key: TileSchedule(rows=rows, columns=columns, vectors=1)}
            cases.append(case(rng, spec, schedules=measured))
    assert check_emulated(map(call_of, cases), BF16) == len(cases)


def test_products_of_float32(rng: np.random.Generator) -> None:
    """Of integers, whose sums float32 holds in any order."""
    same = {"padding": (1, 1, 1, 1)}
    windows = [((3, 5), (1, 33), {}), ((5, 4), (7, 17), {}), ((9, 7), (3, 19), same), ((8, 8), (12, 24), {"groups": 2, **same})]
    cases: list[Case] = []
    for size, (inputs, outputs), options in windows:
        kernel, groups = (3, 3) if "padding" in options else (1, 1), options.get("groups", 1)
        sizes = {"batch": 2, "in_height": size[0], "in_width": size[1], "in_channels": inputs, "out_channels": outputs}
        spec = FloatConv2dSpec(**sizes, kernel=kernel, **options)
        x = rng.integers(-9, 10, (2, *size, inputs)).astype(np.float32)
        weight = rng.integers(-9, 10, (*kernel, inputs // groups, outputs)).astype(np.float32)
        bias = rng.integers(-9, 10, outputs).astype(np.float32)
        window = Window(padding=spec.padding)
        total = oracle(to_half(x, "bfloat16"), to_half(weight, "bfloat16"), window=window, groups=groups) + bias
        kernel_of = float_conv2d(spec, weight=weight, bias=bias, isa=ARM_NEON)
        cases.append(Case(kernel=kernel_of, inputs=(x,), expected=total, about=spec))
    assert check_emulated(map(call_of, cases), NEON) == len(cases)
