"""Bilinear resizing against its oracle, bit for bit: up, down, to one pixel and from one, channels around the vector width."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from kernel_runner import EACH_ISA, GENERIC, Case, baseline_target, check, few, part

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import FloatResizeSpec, ResizeSpec
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.ir.composites.outputs import Output
from octavo.ir.composites.reduction import OpenTaps
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR
from octavo.ir.graph.sizes import buffers_and_dimensions
from octavo.runtime.llvm_host import host_target
from octavo.runtime.size import Size

SIZES = [((5, 7), (10, 14)), ((8, 9), (5, 3)), ((1, 1), (3, 4)), ((6, 7), (1, 1)), ((4, 3), (4, 3))]
MODES = ("half_pixel", "align_corners", "asymmetric")
CHANNELS = itertools.cycle((1, 3, 15, 16, 17, 33, 64, 65, 130))
ZEROS, OUT_SCALES = itertools.cycle((0, 131, 255)), itertools.cycle((0.0371, 0.0371, 0.021))


def cases(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    work = [(*sizes, mode, rounding, 1) for sizes in SIZES for mode in MODES for rounding in ("half_up", "half_even")]
    for before, after, mode, rounding, threads in [*part(work, isa, 5), ((30, 30), (60, 60), "half_pixel", "half_up", 2)]:
        channels = next(CHANNELS)
        x = rng.integers(0, 256, (2, *before, channels)).astype(np.uint8)
        rows, columns = (numerics.linear_taps(a, b, mode) for a, b in zip(before, after, strict=True))
        spec = ResizeSpec(
            batch=2,
            in_height=before[0],
            in_width=before[1],
            channels=channels,
            rows=rows,
            columns=columns,
            rounding=rounding,
            threads=threads,
        )
        expected = numerics.resize_bilinear(x, rows, columns, rounding=rounding)
        about = (before, after, mode, rounding, channels)
        yield Case(kernel=kernels.resize_bilinear(spec, isa=isa), inputs=(x,), expected=expected, about=about)

    for before, after, mode, threads in [(*sizes, MODES[i % 3], 1) for i, sizes in enumerate(SIZES)] + [
        ((9, 7), (31, 20), MODES[0], 2)
    ]:
        channels, zero = next(CHANNELS), next(ZEROS)
        x = rng.integers(0, 256, (2, *before, channels)).astype(np.uint8)
        rows, columns = (numerics.float_taps(a, b, mode) for a, b in zip(before, after, strict=True))
        scales = {"in_scale": 0.0371, "input_zero_point": zero, "out_scale": next(OUT_SCALES)}
        spec = FloatResizeSpec(
            batch=2,
            in_height=before[0],
            in_width=before[1],
            channels=channels,
            rows=rows,
            columns=columns,
            output=Output(zero_point=zero, qmin=5, qmax=250),
            cuts_off=channels % 2 == 1,
            threads=threads,
            **scales,
        )
        bounds = {"zero_point": zero, "qmin": 5, "qmax": 250}
        expected = numerics.float_resize_bilinear(x, rows, columns, cuts_off=spec.cuts_off, **bounds, **scales)
        about = (before, after, mode, "float32", channels)
        yield Case(kernel=kernels.float_resize_bilinear(spec, isa=isa), inputs=(x,), expected=expected, about=about)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_equals_the_oracle(rng: np.random.Generator, isa: str) -> None:
    check(cases(rng, isa))


def test_same_bits_on_the_baseline(rng: np.random.Generator) -> None:
    check(few(cases(rng, GENERIC), 3), baseline_target())


@pytest.mark.parametrize("mode", [*MODES, "pytorch_half_pixel"])
def test_open_taps_are_those_of_each_size(mode: str) -> None:
    taps = OpenTaps(extent=Size.named("before"), out_extent=Size.named("after"), mode=mode)
    made = {
        "linear": kernels.linear_taps(taps, isa=GENERIC),
        "places": kernels.float_tap_places(taps, isa=GENERIC),
        "weights": kernels.float_tap_weights(taps, isa=GENERIC),
    }
    library = llvm_module({name: kernel.func.with_attr(KERNEL_ATTR, name) for name, kernel in made.items()}, host_target())
    for before, after in itertools.product((1, 2, 3, 7, 13, 64, 333), (1, 2, 5, 13, 14, 127, 640)):
        sizes = {"before": before, "after": after}
        linear, real = numerics.linear_taps(before, after, mode), numerics.float_taps(before, after, mode)
        wanted = {
            "linear": np.array([linear.first, linear.second, linear.fractions], np.int32),
            "places": np.array([real.first, real.second], np.int32),
            "weights": np.array([real.first_weights, real.second_weights], np.float32),
        }
        for name, kernel in made.items():
            got = tvm.runtime.tensor(np.zeros(wanted[name].size, wanted[name].dtype))
            _, dimensions = buffers_and_dimensions(kernel.func)
            library[name](*(sizes[str(var.name)] for var in dimensions), got)
            np.testing.assert_array_equal(got.numpy().reshape(after, -1).T, wanted[name], err_msg=f"{name} {sizes}")
