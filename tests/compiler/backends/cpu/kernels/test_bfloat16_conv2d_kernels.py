"""The bfloat16 convolution and matmul kernels against their oracle, bit for bit."""

import itertools

import numpy as np
import pytest
from kernel_runner import Case, check

from octavo.compiler.backends.cpu.kernels import AVX512_BF16, Bfloat16Conv2dSpec, bfloat16_conv2d, bfloat16_matmul
from octavo.numerics import Window
from octavo.numerics.floats.half import bfloat16_conv2d as oracle
from octavo.numerics.floats.half import bfloat16_depthwise as depthwise_oracle
from octavo.numerics.floats.half import from_half, to_half

pytestmark = pytest.mark.needs_isa(AVX512_BF16)


def spec_of(
    size: tuple[int, int], channels: tuple[int, int], kernel: tuple[int, int] = (1, 1), **options: object
) -> Bfloat16Conv2dSpec:
    sizes = {"in_height": size[0], "in_width": size[1], "in_channels": channels[0], "out_channels": channels[1]}
    return Bfloat16Conv2dSpec(**{"batch": 1, "kernel": kernel, **sizes, **options})


def case(
    rng: np.random.Generator, spec: Bfloat16Conv2dSpec, x: np.ndarray | None = None, weight: np.ndarray | None = None
) -> Case:
    shape = (spec.batch, spec.in_height, spec.in_width, spec.in_channels)
    x = to_half(rng.normal(size=shape) if x is None else x, "bfloat16")
    if weight is None:
        weight = rng.normal(size=(*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)).astype(np.float32)
    bias = rng.normal(size=spec.out_channels).astype(np.float32)
    window = Window(strides=spec.strides, padding=spec.padding, dilation=spec.dilation)
    total = oracle(x, to_half(weight, "bfloat16"), window=window, groups=spec.groups) + bias
    inputs = [x]
    if spec.adds:
        addend = rng.normal(size=total.shape).astype(np.float32)
        inputs.append(to_half(addend, "bfloat16") if spec.addend == "uint16" else addend)
        total = total + (from_half(inputs[1], "bfloat16") if spec.addend == "uint16" else addend)
    total = np.clip(total, np.float32(spec.low), np.float32(spec.high))
    expected = to_half(total, "bfloat16") if spec.output == "uint16" else total
    kernel = bfloat16_conv2d(spec, weight=weight, bias=bias)
    return Case(kernel=kernel, inputs=tuple(inputs), expected=expected, about=spec)


def test_pointwise_channels_around_the_vector_and_the_pair(rng: np.random.Generator) -> None:
    sizes = (1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 127)
    check(case(rng, spec_of((3, 5), (inputs, outputs))) for inputs, outputs in zip(sizes, reversed(sizes), strict=True))


def test_windows_with_strides_padding_and_dilation(rng: np.random.Generator) -> None:
    shapes = list(itertools.product((1, 2, 3, 8, 17), ((3, 3), (1, 7), (5, 2))))[::2]
    options = (
        {},
        {"padding": (1, 1, 1, 1)},
        {"strides": (2, 2), "padding": (0, 0, 1, 2)},
        {"dilation": (2, 2), "padding": (2, 0, 1, 2)},
    )
    check(case(rng, spec_of((11, 13), (inputs, 19), kernel, **options[n % 4])) for n, (inputs, kernel) in enumerate(shapes))


def test_groups_and_batches(rng: np.random.Generator) -> None:
    specs = [
        spec_of((7, 6), (12, 20), (3, 3), groups=4, padding=(1, 1, 1, 1)),
        spec_of((7, 6), (10, 34), groups=2),
        spec_of((9, 9), (6, 16), (3, 3), batch=3, strides=(2, 1)),
    ]
    check(case(rng, spec) for spec in specs)


@pytest.mark.parametrize("threads", [1, 3])
def test_addends_clamps_and_results_at_any_thread_count(rng: np.random.Generator, threads: int) -> None:
    specs = [
        spec_of((14, 14), (32, 40), adds=True, low=0.0, threads=threads),
        spec_of((14, 14), (32, 40), (3, 3), padding=(1, 1, 1, 1), adds=True, addend="float32", threads=threads),
        spec_of((14, 14), (33, 23), (3, 3), low=0.0, high=6.0, output="float32", threads=threads),
        spec_of((40, 1), (65, 200), adds=True, output="float32", threads=threads),
    ]
    check(case(rng, spec) for spec in specs)


def test_depthwise_windows_and_channels(rng: np.random.Generator) -> None:
    found: list[Case] = []
    for n, channels in enumerate((3, 16, 17, 40, 64)):
        options = {"padding": (1, 1, 0, 1), "strides": (1 + n % 2, 1), "dilation": (1, 1 + n % 3 // 2)}
        output = "float32" if n == 3 else "uint16"
        spec = spec_of(
            (9, 12), (channels, channels), (3, 3), groups=channels, low=-1.0, output=output, threads=1 + n % 2, **options
        )
        x = to_half(rng.normal(size=(1, 9, 12, channels)), "bfloat16")
        weight = rng.normal(size=(3, 3, 1, channels)).astype(np.float32)
        bias = rng.normal(size=channels).astype(np.float32)
        total = np.maximum(depthwise_oracle(x, to_half(weight, "bfloat16"), bias, window=Window(**options)), np.float32(-1))
        expected = total if output == "float32" else to_half(total, "bfloat16")
        kernel = bfloat16_conv2d(spec, weight=weight, bias=bias)
        found.append(Case(kernel=kernel, inputs=(x,), expected=expected, about=spec))
    check(found)


def test_what_lies_behind_an_odd_window_is_not_read_into_it(rng: np.random.Generator) -> None:
    x = rng.normal(size=(1, 4, 5, 3))
    x[0, :, 3:] = np.inf  # windows of the first columns end right before it
    spec = spec_of((4, 3), (3, 16), (1, 3))
    wide = case(rng, spec_of((4, 5), (3, 16), (1, 3)), x=np.nan_to_num(x, posinf=1e30))
    check([wide, case(rng, spec, x=x[:, :, :3])])


def test_what_lies_between_dilated_taps_is_not_read_into_them(rng: np.random.Generator) -> None:
    options = {"strides": (1, 2), "dilation": (2, 2), "padding": (2, 0, 1, 2)}
    cases: list[Case] = []
    for kernel in ((1, 4), (3, 2), (2, 1)):
        x = rng.normal(size=(1, 6, 11, 3))
        x[:, :, 1::2] = np.nan  # no window reads an odd column
        cases.append(case(rng, spec_of((6, 11), (3, 16), kernel, **options), x=x))
        assert np.isfinite(from_half(cases[-1].expected, "bfloat16")).all()
    check(cases)


def test_numbers_that_leave_the_range(rng: np.random.Generator) -> None:
    x = np.array([2.0**127, -(2.0**127), 2.0**-120, 2.0**-127, 1e-30]).reshape(1, 5, 1, 1) * np.ones((1, 1, 1, 4))
    weight = (np.array([2.0, 2.0**-20, 1.0, 2.0**-8]).reshape(1, 1, 4, 1) * np.ones(16)).astype(np.float32)
    check([case(rng, spec_of((5, 1), (4, 16), output=output), x=x, weight=weight) for output in ("uint16", "float32")])


def test_matmul_rows_and_features(rng: np.random.Generator) -> None:
    cases: list[Case] = []
    for rows, inputs, outputs in ((1, 2048, 1000), (7, 33, 17), (128, 64, 100)):
        x, weight = to_half(rng.normal(size=(rows, inputs)), "bfloat16"), rng.normal(size=(inputs, outputs)).astype(np.float32)
        bias = rng.normal(size=outputs).astype(np.float32)
        total = oracle(x.reshape(1, rows, 1, inputs), to_half(weight, "bfloat16")[None, None]) + bias
        spec = spec_of((rows, 1), (inputs, outputs), threads=2)
        kernel = bfloat16_matmul(spec, weight=weight, bias=bias)
        cases.append(Case(kernel=kernel, inputs=(x,), expected=to_half(total, "bfloat16"), about=(rows, inputs, outputs)))
    check(cases)
