"""Rows over their norm, logarithms of softmax and layer normalizations, around the vector width and at the edges, bit for bit."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_runner import EACH_ISA, Case, baseline_target, check, few, part

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import (
    GENERIC,
    ChannelGroups,
    GroupNormSpec,
    L2NormalizeSpec,
    LayerNormSpec,
    SoftmaxSpec,
)
from octavo.ir.composites.outputs import Output

WORK = [*((5, columns, 1) for columns in (1, 2, 15, 64, 65, 300)), (900, 70, 2)]
OUTPUTS = (Output(zero_point=0), Output(zero_point=128, qmin=128), Output(zero_point=240, qmin=3, qmax=250))


def values(rng: np.random.Generator, rows: int, columns: int, zero_point: int) -> np.ndarray:
    spread = rng.choice([1, 4, 255], (rows, 1))
    x = np.clip(zero_point + rng.integers(-spread, spread + 1, (rows, columns)), 0, 255).astype(np.uint8)
    x[0] = zero_point
    return x


def norms(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    outputs = itertools.cycle(OUTPUTS)
    for (rows, columns, threads), fixed in part(list(itertools.product(WORK, (None, "int8", "uint8"))), isa, 4):
        zero, out_scale = int(rng.integers(0, 256)), float(np.float32(rng.uniform(0.004, 0.01)))
        x = values(rng, rows, columns, zero)
        output = Output(zero_point=128) if fixed else next(outputs)
        common = {"rows": rows, "columns": columns, "input_zero_point": zero, "out_scale": out_scale}
        spec = L2NormalizeSpec(**common, output=output, fixed=fixed, threads=threads)
        if fixed is None:
            bounds = {"zero_point": output.zero_point, "qmin": output.qmin, "qmax": output.qmax}
            expected = numerics.l2_normalize(x, input_zero_point=zero, out_scale=out_scale, **bounds)
        elif fixed == "uint8":
            expected = numerics.l2_normalize_fixed(x, input_zero_point=zero)
        else:
            signed = numerics.l2_normalize_fixed((x.astype(np.int16) - 128).astype(np.int8), input_zero_point=zero - 128)
            expected = (signed.astype(np.int16) + 128).astype(np.uint8)
        yield Case(kernel=kernels.l2_normalize(spec, isa=isa), inputs=(x,), expected=expected, about=spec)


def logarithms(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    outputs = itertools.cycle(OUTPUTS)
    for (rows, columns, threads), scale in part(list(itertools.product(WORK, (0.01, 0.2, 50.0))), isa, 4):
        x, output, out_scale = values(rng, rows, columns, 200), next(outputs), float(rng.choice([1 / 16, 0.02, 0.5]))
        spec = SoftmaxSpec(rows=rows, columns=columns, scale=scale, out_scale=out_scale, output=output, threads=threads)
        bounds = {"zero_point": output.zero_point, "qmin": output.qmin, "qmax": output.qmax}
        expected = numerics.log_softmax(x, scale=scale, out_scale=out_scale, **bounds)
        yield Case(kernel=kernels.log_softmax(spec, isa=isa), inputs=(x,), expected=expected, about=spec)


def layer_norms(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    outputs = itertools.cycle(OUTPUTS)
    for (rows, columns, threads), epsilon in part(list(itertools.product(WORK, (1e-5, 0.0))), isa, 3):
        x, output = values(rng, rows, columns, int(rng.integers(0, 256))), next(outputs)
        common = {"scale": float(rng.choice([1e-3, 0.05, 4.0])), "epsilon": epsilon, "out_scale": float(rng.choice([0.01, 0.04]))}
        gamma, beta = (rng.standard_normal(columns).astype(np.float32) for _ in range(2))
        spec = LayerNormSpec(rows=rows, columns=columns, **common, output=output, threads=threads)
        bounds = {"zero_point": output.zero_point, "qmin": output.qmin, "qmax": output.qmax}
        expected = numerics.layer_norm(x, **common, gamma=gamma, beta=beta, **bounds)
        yield Case(kernel=kernels.layer_norm(spec, gamma=gamma, beta=beta, isa=isa), inputs=(x,), expected=expected, about=spec)


def group_norms(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    shapes = [(2, 7, 6, 2, 1), (1, 33, 7, 7, 2), (2, 5, 96, 6, 2), (1, 20, 320, 20, 2), (1, 65, 40, 1, 1), (3, 40_000, 3, 1, 2)]
    outputs = itertools.cycle(OUTPUTS)
    for (images, pixels, channels, groups, threads), epsilon in part(list(itertools.product(shapes, (1e-5, 0.0))), isa, 3):
        output = next(outputs)
        x = values(rng, images * pixels, channels, 250).reshape(images, pixels, channels)
        if epsilon == 0.0:
            x[0] = 255
        common = {"scale": float(rng.choice([1e-3, 0.05, 4.0])), "epsilon": epsilon, "out_scale": float(rng.choice([0.01, 0.04]))}
        gamma, beta = (rng.standard_normal(channels).astype(np.float32) for _ in range(2))
        channel_groups = ChannelGroups(images=images, pixels=pixels, channels=channels, groups=groups, threads=threads)
        bounds = {"zero_point": output.zero_point, "qmin": output.qmin, "qmax": output.qmax}
        expected = numerics.group_norm(x, groups=groups, **common, gamma=gamma, beta=beta, **bounds)
        kernel = kernels.group_norm(
            GroupNormSpec(groups=channel_groups, **common, output=output), gamma=gamma, beta=beta, isa=isa
        )
        yield Case(kernel=kernel, inputs=(x,), expected=expected, about=(channel_groups, common))


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize("cases", [norms, logarithms, layer_norms, group_norms])
def test_equals_the_oracle(rng: np.random.Generator, cases, isa: str) -> None:
    check(cases(rng, isa))


@pytest.mark.parametrize("cases", [norms, logarithms, layer_norms, group_norms])
def test_same_bits_on_the_baseline(rng: np.random.Generator, cases) -> None:
    check(few(cases(rng, GENERIC), 2), baseline_target())
