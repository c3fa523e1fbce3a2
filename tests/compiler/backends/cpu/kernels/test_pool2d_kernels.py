"""Average, global average and max pooling: every kernel equals its oracle bit for bit."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_runner import EACH_ISA, GENERIC, HOST_ISAS, Case, baseline_target, check, part

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import Pool2dSpec
from octavo.errors import CompileError
from octavo.ir.composites.outputs import Output

OUTPUTS = (Output(zero_point=0), Output(zero_point=255), Output(zero_point=128, qmin=100, qmax=200))
MULTIPLIERS = tuple(float(np.float32(m)) for m in (1.0, 0.5, 1.3, 0.01, 1000.0))


def shape(
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    *,
    ceil: bool = False,
) -> dict[str, object]:
    """Return the fields of a window over an image of `size`; `ceil` adds the row and column that ceil mode would."""
    out = [
        (size[i] + padding[i] + padding[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // strides[i] + 1 + (1 if ceil else 0)
        for i in range(2)
    ]
    return {
        "in_height": size[0],
        "in_width": size[1],
        "kernel": kernel,
        "strides": strides,
        "padding": padding,
        "dilation": dilation,
        "out_height": out[0],
        "out_width": out[1],
    }


WINDOWS = (
    shape((4, 5), (2, 2), (2, 2)),
    shape((6, 7), (3, 3), (1, 1), (1, 1, 1, 1)),
    shape((7, 6), (3, 2), (2, 3), (0, 1, 2, 0)),
    shape((7, 7), (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
    shape((5, 5), (3, 3), (2, 2), ceil=True),
    shape((4, 4), (1, 1)),
    shape((3, 3), (5, 5), (1, 1), (2, 2, 2, 2)),
    shape((2, 2), (2, 2), (3, 3), (2, 2, 0, 0)),  # windows wholly in the padding
)
CHANNELS = (1, 3, 15, 16, 17, 33, 63, 64, 65, 129)


def case(rng: np.random.Generator, spec: Pool2dSpec, isa: str) -> Case:
    x = rng.integers(0, 256, (spec.batch, spec.in_height, spec.in_width, spec.channels)).astype(np.uint8)
    out = spec.output
    window = {
        "kernel": spec.kernel,
        "window": numerics.Window(strides=spec.strides, padding=spec.padding, dilation=spec.dilation),
        "out_shape": (spec.out_height, spec.out_width),
        "qmin": out.qmin,
        "qmax": out.qmax,
    }
    if spec.kind == "max":
        expected = numerics.max_pool2d(x, **window)
    else:
        expected = numerics.avg_pool2d(
            x,
            **window,
            count_include_pad=spec.count_include_pad,
            multiplier=spec.multiplier,
            input_zero_point=spec.input_zero_point,
            zero_point=out.zero_point,
        )
    return Case(kernel=kernels.pool2d(spec, isa=isa), inputs=(x,), expected=expected, about=spec)


def average_specs(isa: str) -> Iterator[Pool2dSpec]:
    channels, batches = itertools.cycle(CHANNELS), itertools.cycle((1, 1, 2))
    settings = zip(itertools.cycle(MULTIPLIERS), itertools.cycle(itertools.product((0, 255, 7), OUTPUTS)), strict=True)
    for window, include, _ in part(list(itertools.product(WINDOWS, (False, True), range(2))), isa):
        multiplier, (zero_point, output) = next(settings)
        yield Pool2dSpec(
            kind="avg",
            batch=next(batches),
            channels=next(channels),
            count_include_pad=include,
            multiplier=multiplier,
            input_zero_point=zero_point,
            output=output,
            **window,
        )


def large_specs(kind: str, threads: int) -> Iterator[Pool2dSpec]:
    """Work enough for two threads: shared by rows, and by channels where there is one pixel."""
    for window, channels in (
        (shape((15, 14), (3, 3), (1, 1), (1, 1, 1, 1)), 33),
        (shape((7, 7), (7, 7)), 1280),
        (shape((7, 7), (7, 7)), 1281),
        (shape((13, 13), (13, 13), (1, 1), (1, 1, 1, 1), (1, 1)), 129),
    ):
        yield Pool2dSpec(kind=kind, batch=1, channels=channels, input_zero_point=3, output=OUTPUTS[0], threads=threads, **window)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_average(rng: np.random.Generator, isa: str) -> None:
    check(case(rng, spec, isa) for spec in average_specs(isa))


@pytest.mark.parametrize("isa", EACH_ISA)
def test_maximum(rng: np.random.Generator, isa: str) -> None:
    check(
        case(rng, dataclasses.replace(spec, kind="max", multiplier=1.0), isa)
        for spec in itertools.islice(average_specs(isa), 0, None, 2)
    )


@pytest.mark.parametrize("isa", EACH_ISA)
def test_large(rng: np.random.Generator, isa: str) -> None:
    work = [*large_specs("avg", 2), *large_specs("max", 2), *itertools.islice(large_specs("avg", 1), 1, 3)]
    check(case(rng, spec, isa) for spec in work)


def test_same_bits_without_fused_multiply_add(rng: np.random.Generator) -> None:
    check((case(rng, spec, GENERIC) for spec in average_specs(GENERIC)), baseline_target())


def test_every_channel_count_of_a_global_average(rng: np.random.Generator) -> None:
    window = shape((3, 5), (3, 5))
    specs = [
        Pool2dSpec(kind="avg", batch=1, channels=c, multiplier=0.5, input_zero_point=200, output=Output(zero_point=100), **window)
        for c in CHANNELS
    ]
    check(case(rng, spec, HOST_ISAS[0]) for spec in specs)
    assert kernels.pool2d(specs[0], isa=GENERIC).name == "global_avg_pool2d"


def test_window_too_large_for_int32() -> None:
    spec = Pool2dSpec(kind="avg", batch=1, channels=1, input_zero_point=0, output=OUTPUTS[0], **shape((4096, 4096), (4096, 4096)))
    with pytest.raises(CompileError, match="4096x4096"):
        kernels.pool2d(spec, isa=GENERIC)
