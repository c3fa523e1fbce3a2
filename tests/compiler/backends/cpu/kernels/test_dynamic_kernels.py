"""Quantization at run time equals its oracle bit for bit: the parameters of each row, or column, and its integers."""

import numpy as np
import pytest
from kernel_runner import EACH_ISA, HOST_ISAS, SIZES, Case, baseline_target, check, part

from octavo.compiler.backends.cpu.kernels import (
    GENERIC,
    ColumnsSpec,
    DynamicSpec,
    column_parameters,
    column_quantize,
    dynamic_parameters,
    dynamic_quantize,
)
from octavo.numerics import dynamic

every_isa = pytest.mark.parametrize("isa", EACH_ISA)
EPS = 2.0**-12
STYLES = {
    "litert": "litert",
    "onnx": "onnx",
    "torch": dynamic.TorchStyle(dtype="uint8", qmin=0, qmax=255, eps=EPS),
    "torch-int8-narrow": dynamic.TorchStyle(dtype="int8", qmin=-64, qmax=63, eps=EPS),
    "torch-symmetric": dynamic.TorchStyle(dtype="int8", qmin=-127, qmax=127, eps=EPS, is_symmetric=True),
}
every_style = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)


def rows_of(size: int) -> np.ndarray:
    """Rows of both signs, one sign, zeros alone, a tiny and a huge range, and halves of a step."""
    rng = np.random.default_rng(size)
    rows = rng.normal(size=(14, size)).astype(np.float32)
    rows[1], rows[2], rows[3] = np.abs(rows[1]), -np.abs(rows[2]), 0
    rows[4] *= np.float32(1e-30)
    rows[5] *= np.float32(1e30)
    rows[6] += 100
    rows[7] = rng.integers(-255, 256, size) / 2
    rows[9, size // 2], rows[10, 0], rows[11, -1] = np.nan, np.inf, -np.inf
    rows[12, -1] = -np.float32(np.nan)
    rows[13, [0, -1]] = [3e38, -3e38]  # a range beyond float32 where they are two
    return rows


NOT_FINITE = slice(9, 13)


def cases(style: dynamic.DynamicStyle, isa: str, threads: int = 1, sizes: tuple[int, ...] = SIZES) -> list[Case]:
    found = []
    for size in sizes:
        x = rows_of(size)
        spec = DynamicSpec(rows=len(x), size=size, style=style, threads=threads)
        parameters = dynamic.dynamic_parameters(x, style)
        assert (parameters[:9, 0] > 0).all()
        assert np.isnan(parameters[NOT_FINITE, 0]).all()
        integers = dynamic.dynamic_quantize(x, parameters, style)
        found.append(Case(kernel=dynamic_parameters(spec, isa=isa), inputs=(x,), expected=parameters, about=(spec, "parameters")))
        found.append(Case(kernel=dynamic_quantize(spec, isa=isa), inputs=(x, parameters), expected=integers, about=spec))
    return found


def column_cases(isa: str, columns: int, threads: int = 1) -> list[Case]:
    """Two matrices whose columns are the rows of `rows_of`, as often as there are columns."""
    rows = np.resize(rows_of(19), (2 * columns, 19))
    x = np.ascontiguousarray(rows.reshape(2, columns, 19).transpose(0, 2, 1))
    parameters = dynamic.dynamic_parameters(rows, dynamic.PER_ROW)
    integers = dynamic.dynamic_quantize(rows, parameters, dynamic.PER_ROW).reshape(2, columns, 19).transpose(0, 2, 1)
    planes = np.ascontiguousarray(parameters.reshape(2, columns, 2).transpose(0, 2, 1))
    spec = ColumnsSpec(batch=2, size=19, columns=columns, style=dynamic.PER_ROW, threads=threads)
    return [
        Case(kernel=column_parameters(spec, isa=isa), inputs=(x,), expected=planes, about=(spec, "parameters")),
        Case(kernel=column_quantize(spec, isa=isa), inputs=(x, planes), expected=np.ascontiguousarray(integers), about=spec),
    ]


@every_isa
def test_columns(isa: str) -> None:
    check(each for columns in part((1, 7, 14, 16, 17, 40), isa) for each in column_cases(isa, columns))


def test_columns_on_threads_and_without_fused_multiply_add() -> None:
    check(column_cases(HOST_ISAS[0], 4000, threads=2))
    check(column_cases(GENERIC, 33), baseline_target())


@every_style
def test_over_sizes(style: dynamic.DynamicStyle) -> None:
    first = list(STYLES.values()).index(style) % 2  # neighbours in the list share the sizes
    check(case for isa in HOST_ISAS for case in cases(style, isa, sizes=part(SIZES[first::2], isa)))


@every_isa
@every_style
def test_threads(isa: str, style: dynamic.DynamicStyle) -> None:
    check(cases(style, isa, threads=2, sizes=(5000,)))


@every_style
def test_targets_without_fused_multiply_add(style: dynamic.DynamicStyle) -> None:
    check(cases(style, GENERIC, sizes=(1, 16, 19)), baseline_target())


@every_style
def test_an_error_of_half_a_step_and_an_exact_zero(style: dynamic.DynamicStyle) -> None:
    x = rows_of(100)[:9]
    parameters = dynamic.dynamic_parameters(x, style)
    real = (dynamic.dynamic_quantize(x, parameters, style) - parameters[:, 1:]) * parameters[:, :1]
    # The zero point is rounded, so an end of the range may lie half a step outside.
    assert (np.abs(real - x) <= 1.01 * parameters[:, :1]).all()
    assert (real[3] == 0).all()
