"""The float32 convolution and matmul kernels against sums in float64, at the rounding that float32 sums may have."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import tvm
from kernel_runner import EACH_ISA, GUARD, Compiled, baseline_target, host_target, part

from octavo.compiler.backends.cpu.kernels import GENERIC, FloatConv2dSpec, Kernel, fits, float_conv2d, float_matmul
from octavo.errors import TargetError
from octavo.numerics.floats.half import round_half

EPSILON = 2.0**-23


def spec_of(
    size: tuple[int, int], channels: tuple[int, int], kernel: tuple[int, int] = (1, 1), **options: object
) -> FloatConv2dSpec:
    return FloatConv2dSpec(
        **{
            "batch": 1,
            "in_height": size[0],
            "in_width": size[1],
            "in_channels": channels[0],
            "out_channels": channels[1],
            "kernel": kernel,
            **options,
        }
    )


def reference(spec: FloatConv2dSpec, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64, and the greatest error of a float32 sum of the same terms."""
    top, left, bottom, right = spec.padding
    padded = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    group_in, group_out = spec.in_channels // spec.groups, spec.out_channels // spec.groups
    total = np.zeros((spec.batch, spec.out_height, spec.out_width, spec.out_channels))
    magnitude = total + np.abs(bias)
    total = total + bias
    for i, j in itertools.product(range(spec.kernel[0]), range(spec.kernel[1])):
        rows = slice(i * spec.dilation[0], i * spec.dilation[0] + (spec.out_height - 1) * spec.strides[0] + 1, spec.strides[0])
        columns = slice(j * spec.dilation[1], j * spec.dilation[1] + (spec.out_width - 1) * spec.strides[1] + 1, spec.strides[1])
        window = padded[:, rows, columns]
        for group in range(spec.groups):
            inside = slice(group * group_in, (group + 1) * group_in)
            outside = slice(group * group_out, (group + 1) * group_out)
            total[..., outside] += window[..., inside] @ weight[i, j, :, outside].astype(np.float64)
            magnitude[..., outside] += np.abs(window[..., inside]) @ np.abs(weight[i, j, :, outside]).astype(np.float64)
    terms = spec.kernel[0] * spec.kernel[1] * group_in + 1
    return np.clip(total, spec.low, spec.high), terms * EPSILON * magnitude


def operands(rng: np.random.Generator, spec: FloatConv2dSpec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = rng.normal(size=(spec.batch, spec.in_height, spec.in_width, spec.in_channels)).astype(np.float32)
    weight = rng.normal(size=(*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)).astype(np.float32)
    return x, weight, rng.normal(size=spec.out_channels).astype(np.float32)


def run_all(
    kernels: list[Kernel], inputs: list[np.ndarray | tuple[np.ndarray, ...]], sizes: list[int], target: tvm.target.Target
) -> list[np.ndarray]:
    functions = {f"kernel_{i}": kernel.func for i, kernel in enumerate(kernels)}
    library = Compiled(functions, target)
    results = []
    for name, kernel, given, size in zip(functions, kernels, inputs, sizes, strict=True):
        filler = np.full(size + GUARD, 77, np.float32)
        storage = tvm.runtime.tensor(filler)
        operands = given if isinstance(given, tuple) else (given,)
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(value).ravel()) for value in (*operands, *kernel.constants)]
        library[name](*tensors, storage._create_view((size,), "float32"))
        got = storage.numpy()
        assert np.array_equal(got[size:], filler[size:]), f"written behind the end: {kernel.name}"
        results.append(got[:size])
    return results


def check(rng: np.random.Generator, specs: list[FloatConv2dSpec], isa: str, target: tvm.target.Target | None = None) -> None:
    given = [operands(rng, spec) for spec in specs]
    kernels = [float_conv2d(spec, weight=w, bias=b, isa=isa) for spec, (_, w, b) in zip(specs, given, strict=True)]
    expected = [reference(spec, *ops) for spec, ops in zip(specs, given, strict=True)]
    got = run_all(kernels, [x for x, _, _ in given], [value.size for value, _ in expected], target or host_target())
    for spec, result, (value, bound) in zip(specs, got, expected, strict=True):
        assert (np.abs(result - value.ravel()) <= bound.ravel() + EPSILON * np.abs(value.ravel())).all(), spec


SPECS = [
    *(spec_of((5, 7), (c, d)) for c, d in ((1, 1), (3, 17), (16, 15), (33, 48), (64, 129), (2, 130))),
    *(spec_of((1, 1), (c, d)) for c, d in ((7, 5), (129, 33), (64, 1001))),
    spec_of((6, 5), (5, 20), batch=3),
    spec_of((9, 8), (3, 18), (3, 3), padding=(1, 1, 1, 1), strides=(2, 2), low=0.0),
    spec_of((9, 8), (5, 40), (3, 2), padding=(0, 1, 2, 0), dilation=(2, 1), batch=2, low=0.0, high=6.0),
    spec_of((11, 9), (4, 16), (5, 3), dilation=(1, 2), strides=(1, 2)),
    spec_of((14, 14), (32, 32), (3, 3), padding=(1, 1, 1, 1), high=1.0),
    spec_of((7, 7), (24, 70), (3, 3), padding=(1, 1, 1, 1)),
    spec_of((5, 17), (20, 33), (1, 7), padding=(0, 3, 0, 3), batch=2),
    spec_of((17, 5), (20, 33), (7, 1), padding=(3, 0, 3, 0)),
    spec_of((9, 9), (6, 20), (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), strides=(1, 2)),
    spec_of((8, 6), (8, 12), (1, 1), strides=(2, 2)),
    spec_of((8, 6), (12, 24), (3, 3), groups=4, padding=(1, 1, 1, 1)),
    spec_of((5, 6), (6, 12), (3, 3), groups=6, padding=(1, 1, 1, 1)),
    spec_of((2, 2), (3, 4), (5, 5), padding=(4, 4, 4, 4)),
]
DEPTHWISE = [
    *(spec_of((7, 9), (c, c), (3, 3), groups=c, padding=(1, 1, 1, 1)) for c in (2, 3, 15, 16, 17, 31, 48, 65)),
    spec_of((9, 15), (32, 32), (3, 3), groups=32, padding=(0, 0, 1, 1), strides=(2, 2), low=0.0, high=6.0),
    spec_of((8, 20), (20, 20), (5, 5), groups=20, padding=(2, 2, 2, 2), batch=2),
    spec_of((12, 11), (16, 16), (3, 3), groups=16, dilation=(2, 2), padding=(2, 2, 2, 2), strides=(1, 2)),
    spec_of((3, 2), (18, 18), (3, 5), groups=18, padding=(3, 6, 3, 6)),
    spec_of((40, 3), (16, 16), (33, 1), groups=16, padding=(16, 0, 16, 0)),
    spec_of((4, 90), (16, 16), (1, 70), groups=16),
]


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize("specs", [SPECS, DEPTHWISE], ids=["gemm", "depthwise"])
def test_convolutions_are_sums_in_float32(rng: np.random.Generator, specs: list[FloatConv2dSpec], isa: str) -> None:
    check(rng, part(specs, isa), isa)


def test_generic_kernels_need_no_vector_extension(rng: np.random.Generator) -> None:
    check(rng, SPECS[:4] + SPECS[10:12] + DEPTHWISE[:3], GENERIC, baseline_target())


@pytest.mark.parametrize("isa", EACH_ISA)
def test_threads_leave_every_bit(rng: np.random.Generator, isa: str) -> None:
    window = {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
    layers = [spec_of((20, 20), (32, 64)), *(spec_of((20, 20), (32, 32), **window, groups=groups) for groups in (1, 32))]
    specs = [replace(spec, threads=threads) for spec in part(layers[::-1], isa) for threads in (1, 2, 3)]
    kernels, inputs, sizes = [], [], []
    for first in range(0, len(specs), 3):
        x, weight, bias = operands(rng, specs[first])
        for spec in specs[first : first + 3]:
            kernels.append(float_conv2d(spec, weight=weight, bias=bias, isa=isa))
            inputs.append(x)
            sizes.append(spec.out_height * spec.out_width * spec.out_channels)
    got = run_all(kernels, inputs, sizes, host_target())
    for first in range(0, len(got), 3):
        assert np.array_equal(got[first], got[first + 1])
        assert np.array_equal(got[first], got[first + 2])


@pytest.mark.parametrize("isa", EACH_ISA)
def test_an_addend_is_added_before_the_clamp_and_changes_no_other_bit(rng: np.random.Generator, isa: str) -> None:
    specs = [replace(spec, low=-1.0, high=2.0) for spec in (SPECS[1], SPECS[3], SPECS[5], SPECS[10], SPECS[16])]
    specs += [replace(specs[3], threads=2, in_height=30, in_width=30)]
    for spec in part(specs, isa, 5):
        x, weight, bias = operands(rng, spec)
        plain = replace(spec, low=-math.inf, high=math.inf)
        kernels = [float_conv2d(each, weight=weight, bias=bias, isa=isa) for each in (plain, replace(spec, adds=True))]
        size = spec.batch * spec.out_height * spec.out_width * spec.out_channels
        addend = rng.normal(size=size).astype(np.float32)
        sums, got = run_all(kernels, [x, (x, addend)], [size, size], host_target())
        assert np.array_equal(got, np.clip(sums + addend, np.float32(-1), np.float32(2))), spec


HALVES = (SPECS[1], SPECS[9], SPECS[13], SPECS[19], DEPTHWISE[4], DEPTHWISE[1])


def check_half_weights(
    rng: np.random.Generator, dtype: str, isa: str, target: tvm.target.Target, specs: Sequence[FloatConv2dSpec]
) -> None:
    """Weights of 16 bits, the least numbers that these hold among them, give the bits of the same weights in float32."""
    for spec in specs:
        x, weight, bias = operands(rng, spec)
        weight = round_half(weight * rng.choice([1.0, 2.0**-20, -0.0], weight.shape), dtype)
        assert fits(weight, dtype)
        specs = (spec, replace(spec, weight_dtype=dtype))
        kernels = [float_conv2d(each, weight=weight, bias=bias, isa=isa) for each in specs]
        assert 2 * kernels[1].constants[0].nbytes == kernels[0].constants[0].nbytes
        size = spec.batch * spec.out_height * spec.out_width * spec.out_channels
        plain, half = run_all(kernels, [x, x], [size, size], target)
        assert plain.tobytes() == half.tobytes(), spec


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_16_bits_leave_every_bit(rng: np.random.Generator, dtype: str, isa: str) -> None:
    of_generic = HALVES[dtype == "float16" :: 2]  # whose code converts weights where it loads them
    check_half_weights(rng, dtype, isa, host_target(), of_generic if isa == GENERIC else HALVES)


def test_weights_of_float16_need_no_conversion_instruction(rng: np.random.Generator) -> None:
    check_half_weights(rng, "float16", GENERIC, baseline_target(), HALVES[::3])


def test_what_16_bits_hold() -> None:
    assert fits(np.array([1.5, -0.0, 2.0**-24, 65504], np.float32), "float16")
    for beyond in (2.0**-25, 65536, 1 + 2.0**-11, np.inf):
        assert not fits(np.array([beyond], np.float32), "float16")
    assert fits(np.array([1.5, -0.0, 2.0**-126, 2.0**127], np.float32), "bfloat16")
    for beyond in (2.0**-130, 1 + 2.0**-8, np.nan):
        assert not fits(np.array([beyond], np.float32), "bfloat16")


@pytest.mark.parametrize("isa", EACH_ISA)
def test_infinite_weights_meet_the_zeros_of_the_padding(rng: np.random.Generator, isa: str) -> None:
    spec = spec_of((4, 5), (2, 16), (3, 3), padding=(1, 1, 1, 1))
    x, weight, bias = operands(rng, spec)
    weight[0, 1, 0, 3] = np.inf
    (got,) = run_all([float_conv2d(spec, weight=weight, bias=bias, isa=isa)], [x], [4 * 5 * 16], host_target())
    assert np.array_equal(np.isnan(got.reshape(4, 5, 16)[..., 3]), np.repeat([[True], [False], [False], [False]], 5, axis=1))


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 100, 33), (37, 65, 16), (5, 1, 1)])
def test_matmul_is_a_sum_in_float32(rng: np.random.Generator, rows: int, inputs: int, outputs: int, isa: str) -> None:
    x, weight, bias = operands(rng, spec_of((rows, 1), (inputs, outputs)))
    kernel = float_matmul(rows=rows, weight=weight[0, 0], bias=bias, low=0.0, high=math.inf, threads=1, isa=isa)
    value, bound = reference(spec_of((rows, 1), (inputs, outputs), low=0.0), x, weight, bias)
    (got,) = run_all([kernel], [x], [value.size], host_target())
    assert (np.abs(got - value.ravel()) <= bound.ravel()).all()


def test_an_unknown_isa_is_refused() -> None:
    spec = spec_of((1, 1), (1, 1))
    with pytest.raises(TargetError, match=r"unknown ISA 'x86\.sse9'"):
        float_conv2d(spec, weight=np.ones((1, 1, 1, 1), np.float32), bias=np.zeros(1, np.float32), isa="x86.sse9")
