"""Convolutions whose batch, height and width are known only when they run give the bits of those made for these sizes."""

from dataclasses import replace

import numpy as np
import pytest
from conv2d_cases import INPUT_ZERO_POINTS, OUTPUTS, Layers, of_sizes, open_layer, opened
from emulated_kernels import MACHINES, RISCV, call_of, check_emulated
from kernel_runner import EACH_ISA, EACH_NARROW_ISA, HOST_ISAS, Case, check
from open_kernels import check_sizes
from test_float_conv2d_kernels import operands, run_all, spec_of

from octavo.compiler.backends.cpu.kernels import ARM_DOTPROD, ARM_I8MM, ARM_NEON, AVX2, GENERIC, float_conv2d
from octavo.runtime.llvm_host import host_target

SAME = {"padding": (1, 1, 1, 1)}
WINDOWS = (
    ((3, 16), (3, 3), {"strides": (2, 2), "padding": (0, 1, 2, 1)}),
    ((16, 33), (3, 3), SAME),
    ((20, 24), (5, 3), {"padding": (2, 2, 4, 3), "dilation": (1, 2)}),
    ((17, 20), (1, 1), {"strides": (2, 1)}),
    ((12, 24), (3, 3), {"groups": 2, **SAME}),
    ((8, 40), (1, 1), {}),
    ((17, 17), (3, 3), {"groups": 17, **SAME}),
    ((40, 40), (5, 5), {"groups": 40, "strides": (1, 2), "padding": (2, 3, 2, 1), "threads": 2}),
    ((3, 6), (3, 2), {"groups": 3, "padding": (1, 0, 1, 1)}),
    ((32, 40), (3, 3), {"threads": 2, **SAME}),
)
"""Channels, kernel and further attributes; each padding leaves outputs of any image."""

SIZES = ((1, 1, 1), (2, 5, 3), (1, 2, 9), (1, 13, 18), (3, 4, 4))
"""Batch, height, width: smaller than the window, than a tile, and larger."""


def cases(isa: str, seed: int) -> list[Case]:
    """Each kind of window at one of the sizes."""
    layers, found = Layers(seed), []
    for number, (channels, kernel, window) in enumerate(WINDOWS):
        batch, *size = SIZES[(number + seed) % len(SIZES)]
        found.append(layers.case(layers.spec(tuple(size), channels, kernel, batch=batch, **window), isa, is_open=True))
    return found


@pytest.mark.parametrize("isa", [*EACH_ISA, *EACH_NARROW_ISA])
def test_integers(isa: str) -> None:
    check(cases(isa, 40))


@pytest.mark.parametrize("isa", [ARM_NEON, ARM_DOTPROD, ARM_I8MM])
def test_integers_on_arm(isa: str) -> None:
    check_emulated([call_of(case) for case in cases(isa, 41)[::3]], MACHINES[isa])


def test_integers_on_riscv() -> None:
    check_emulated([call_of(case) for case in cases(GENERIC, 42)[::4]], RISCV)


def test_asymmetric_weights_of_many_channels() -> None:
    layers = Layers(43)
    specs = [layers.spec((5, 6), (64, 48), (3, 3), batch=2, **SAME), layers.spec((4, 3), (64, 48), (3, 3), **SAME)]
    check([layers.case(spec, isa, w_zero_point=-128, is_open=True) for spec in specs for isa in HOST_ISAS])


@pytest.mark.parametrize("isa", [*EACH_ISA, *EACH_NARROW_ISA])
def test_depthwise_rows_around_a_strip(isa: str) -> None:
    """Of 1 output to several strips, weights with and without a zero point, whole and in a copy of padded rows."""
    layers, found = Layers(44), []
    for channels in (8, 96):
        for width, weight_zero_point in ((1, 0), (2, -128), (3, 5), (4, -128), (5, 0), (13, 127)):
            spec = layers.spec((4, width), (channels, channels), (3, 3), batch=2, groups=channels, **SAME)
            found.append(layers.case(spec, isa, w_zero_point=weight_zero_point, is_open=True))
    for width in (1, 4, 7):
        spec = layers.spec((5, width), (64, 64), (5, 5), groups=64, padding=(2, 2, 2, 2))
        found.append(layers.case(spec, isa, w_zero_point=0, is_open=True))
    check(found)


@pytest.mark.needs_isa("x86.avx2")
@pytest.mark.parametrize(
    ("number", "window"), list(enumerate([{}, {"threads": 2}, {"strides": (2, 2)}, {"batch": 3, "padding": (1, 1, 0, 2)}]))
)
def test_minimal_filtering(number: int, window: dict[str, object]) -> None:
    """Images smaller than a tile of outputs, around whole tiles, and of several blocks of these, by one kernel."""
    layers = Layers(45 + number)
    spec = layers.spec((4, 8), (64, 72), (3, 3), **{"padding": (1, 1, 1, 1), **window})
    spec = replace(spec, input_zero_point=INPUT_ZERO_POINTS[number % 3], output=OUTPUTS[number])
    w = layers.rng.integers(-40, 41, (3, 3, 64, 72)).astype(np.int8)
    images = (1, 1), (2, 3), (4, 8), (5, 9), (12, 16), (13, 70)
    kernel, calls = open_layer(spec, AVX2, w, 0, [(spec.batch, *image) for image in images], layers)
    assert kernel.name.startswith("conv2d.winograd")
    check_sizes(kernel, calls)


@pytest.mark.needs_isa("x86.avx2")
@pytest.mark.parametrize("threads", [1, 2])
def test_pointwise_layers_read_bytes_of_weights(threads: int) -> None:
    """Around the pixels from which on a panel is widened for its tiles, with parts of tiles and several blocks behind."""
    layers = Layers(49)
    spec = layers.spec((4, 8), (80, 40), (1, 1), threads=threads)
    w = layers.rng.integers(-128, 128, (1, 1, 80, 40)).astype(np.int8)
    images = (1, 1), (1, 2), (3, 5), (3, 8), (5, 5), (7, 7), (31, 67)
    kernel, calls = open_layer(spec, AVX2, w, 0, [(batch, *image) for batch in (1, 3) for image in images], layers)
    assert kernel.constants[0].dtype == np.int8
    check_sizes(kernel, calls)


@pytest.mark.parametrize("isa", [*EACH_ISA, *EACH_NARROW_ISA])
def test_floats(rng: np.random.Generator, isa: str) -> None:
    """Sums in the very order of the kernel of these sizes."""
    kernels, inputs, sizes = [], [], []
    for number, (channels, kernel, window) in enumerate(WINDOWS):
        batch, *size = SIZES[number % len(SIZES)]
        spec = spec_of(tuple(size), channels, kernel, batch=batch, **window)
        if spec.groups == 3:
            continue  # TVM's own: more outputs than inputs of a group
        x, weight, bias = operands(rng, spec)
        made = [float_conv2d(each, weight=weight, bias=bias, isa=isa) for each in (spec, opened(spec))]
        kernels += [made[0], of_sizes(made[1], spec)]
        inputs += [x, x]
        sizes += [batch * spec.out_height * spec.out_width * spec.out_channels] * 2
    results = run_all(kernels, inputs, sizes, host_target())
    for number, (known, found) in enumerate(zip(results[::2], results[1::2], strict=True)):
        assert np.array_equal(known, found), (number, kernels[2 * number].name)
