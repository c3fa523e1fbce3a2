"""Average pooling's other roundings: kernels equal the oracle on every sum that a window can have around every tie."""

import itertools

import numpy as np
import pytest
from allpairspy import AllPairs
from kernel_runner import EACH_ISA, HOST_ISAS, Case, baseline_target, check, part

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import Pool2dSpec
from octavo.compiler.backends.cpu.kernels.pool.pool2d import HALF_AWAY_MAX_WINDOW
from octavo.errors import CompileError
from octavo.ir.composites.outputs import Output

CHANNELS = 2000


def spec_of(size, rounding, zero_points, **fields):
    return Pool2dSpec(
        kind="avg",
        batch=1,
        in_height=size[0],
        in_width=size[1],
        channels=CHANNELS,
        kernel=size,
        out_height=1,
        out_width=1,
        input_zero_point=zero_points[0],
        output=Output(zero_point=zero_points[1]),
        rounding=rounding,
        **fields,
    )


def case(spec, isa):
    rng = np.random.default_rng(spec.kernel[0])
    # Values within two steps of one another, so that sums fall on ties and right beside them.
    base = rng.integers(2, 254, (1, 1, 1, CHANNELS))
    x = (base + rng.integers(-2, 3, (1, *spec.kernel, CHANNELS))).astype(np.uint8)
    expected = numerics.avg_pool2d(
        x,
        kernel=spec.kernel,
        out_shape=(1, 1),
        multiplier=spec.multiplier,
        input_zero_point=spec.input_zero_point,
        zero_point=spec.output.zero_point,
        rounding=spec.rounding,
    )
    return Case(kernel=kernels.pool2d(spec, isa=isa), inputs=(x,), expected=expected, about=spec)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_half_away(isa):
    sizes = [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (4, 4), (5, 5), (7, 7), (8, 8), (16, 16), (15, 17), (64, 64), (63, 65)]
    work = [(size, (0, 128)[i % 2]) for i, size in enumerate(sizes)] + [((2, 2), 128), ((63, 65), 128)]
    check(case(spec_of(size, "half_away", (zero, zero)), isa) for size, zero in part(work, isa))


@pytest.mark.parametrize("isa", EACH_ISA)
def test_half_even_stored(isa):
    points = [(0, 0), (0, 3), (128, 131), (131, 128), (255, 1), (7, 255)]
    work = AllPairs([points, [(1, 2), (2, 2), (4, 4)], [1.0, 0.5, 1.3]])
    check(
        case(spec_of(size, "half_even_stored", zeros, multiplier=multiplier), isa)
        for zeros, size, multiplier in part(list(work), isa)
    )


@pytest.mark.parametrize("isa", [HOST_ISAS[0], "baseline"])
def test_float_mean(isa):
    """Vectors with a value beside a tie are summed in float32; counts differ at the border."""
    rng = np.random.default_rng(5)

    def cases():
        channel_counts, points = itertools.cycle([70, 17, 1]), itertools.cycle([(9, 200, 0), (131, 128, 128), (0, 1, 0)])
        work = itertools.product([(2, 2), (3, 3), (1, 4)], [1.0, 0.31])
        for number, (kernel, ratio) in enumerate(work):
            channels, (zero, out_zero, relabelling) = next(channel_counts), next(points)
            parameters = numerics.FloatMeanParameters(
                in_scale=0.0371,
                input_zero_point=zero,
                out_scale=float(np.float32(0.0371) / np.float32(ratio)),
                zero_point=out_zero,
                relabelling=relabelling,
            )
            output = Output(zero_point=out_zero, qmin=3, qmax=250)
            window = {"kernel": kernel, "padding": (1, 0, 0, 1), "count_include_pad": number % 2 == 0}
            x = rng.integers(0, 256, (1, 7, 8, channels)).astype(np.uint8)
            size = (9 - kernel[0], 10 - kernel[1])
            spec = Pool2dSpec(
                kind="avg",
                batch=1,
                in_height=7,
                in_width=8,
                channels=channels,
                out_height=size[0],
                out_width=size[1],
                input_zero_point=zero,
                multiplier=float(parameters.ratio),
                output=output,
                float_mean=parameters,
                **window,
            )
            taps = {"kernel": kernel, "window": numerics.Window(padding=window["padding"])}
            taps |= {"count_include_pad": window["count_include_pad"], "out_shape": size}
            expected = numerics.float_avg_pool2d(x, parameters, qmin=3, qmax=250, **taps)
            yield Case(
                kernel=kernels.pool2d(spec, isa="generic" if isa == "baseline" else isa),
                inputs=(x,),
                expected=expected,
                about=spec,
            )

    check(cases(), baseline_target() if isa == "baseline" else None)


def test_half_away_refuses_what_it_cannot_round():
    for fields in ({"multiplier": 0.5}, {}):
        size = (2, 2) if fields else (HALF_AWAY_MAX_WINDOW, 2)
        with pytest.raises(CompileError, match="half_away"):
            kernels.pool2d(spec_of(size, "half_away", (0, 0), **fields), isa="generic")
