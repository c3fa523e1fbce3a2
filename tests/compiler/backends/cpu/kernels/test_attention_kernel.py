"""Attention in one kernel: bit for bit what its steps give one after the other, whatever its sizes, and however heads lie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_runner import EACH_ISA, Case, check
from open_kernels import check_open, results_of
from tvm.script.ir_builder import tirx as T

from machine_isas import each_isa
from octavo.compiler.backends.cpu.kernels import (
    AVX512_VNNI,
    AVX_VNNI,
    GENERIC,
    AttentionSpec,
    BatchMatmulSpec,
    FloatAttentionSpec,
    FloatBatchMatmulSpec,
    FloatOutput,
    FloatSoftmaxSpec,
    Kernel,
    Output,
    QuantizeSpec,
    SoftmaxAddend,
    attention,
    batch_matmul,
    float_attention,
    float_batch_matmul,
    float_softmax,
)
from octavo.compiler.backends.cpu.kernels.language.vectors import prim_func
from octavo.compiler.backends.cpu.kernels.matmuls.masked_columns import MaskedColumns
from octavo.compiler.codegen.sharing import shared_kernel
from octavo.ir.composites.matrix_view import MatrixView
from octavo.numerics import dynamic
from octavo.numerics.quantized.matmul import row_batch_matmul
from octavo.runtime.size import Size

HEADS = (0, 2, 1, 3)
"""Heads behind the tokens in memory."""
KEYS = (0, 2, 3, 1)
"""The same, of keys that are transposed."""

every_isa = pytest.mark.parametrize("isa", each_isa((AVX512_VNNI, AVX_VNNI)))


def spec_of(shape: tuple[int, int, int, int, int, int], axes: Any = (None, None, None, None), **how: Any) -> AttentionSpec:
    """Attention of so many batches, heads, rows, columns, features of keys and of values."""
    batch, heads, rows, columns, width, features = shape
    shapes = ((rows, width), (width, columns), (columns, features), (rows, features))
    views = [view_of((batch, heads, *each), lying) for each, lying in zip(shapes, axes, strict=True)]
    parameters = ((rows, 2), (2, columns), (2, features))
    of = [view_of((batch, heads, *each), lying) for each, lying in zip(parameters, axes[:3], strict=True)]
    q, k, v, y = views
    made: Any = {"a_zero_point": 0, "b_zero_point": 0, "multiplier": 1.0, "by_row": True}
    shares, of_rows = (MatrixView.plain((batch, heads, rows, each)) for each in (columns, 2))
    scores = BatchMatmulSpec(a=q, b=k, y=shares, output=FloatOutput(), parameters=(of[0], of[1]), **made)
    output = FloatOutput(low=-3, high=2.5)
    weighted = BatchMatmulSpec(a=shares, b=v, y=y, output=output, parameters=(of_rows, of[2]), **made)
    return AttentionSpec(scores=scores, weighted=weighted, **how)


def view_of(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> MatrixView:
    return MatrixView.plain(shape) if axes is None else MatrixView(shape=shape, axes=axes)


def lying(values: np.ndarray, view: MatrixView) -> np.ndarray:
    """Values of a view as memory has them."""
    return np.ascontiguousarray(values.transpose(np.argsort(view.axes)))


def quantized(values: np.ndarray, view: MatrixView, of: MatrixView, along: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers and parameters of rows along an axis, as memory has them."""
    moved = np.moveaxis(values, along, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    parameters = dynamic.dynamic_parameters(rows, dynamic.PER_ROW)
    integers = dynamic.dynamic_quantize(rows, parameters, dynamic.PER_ROW).reshape(moved.shape)
    pairs = np.moveaxis(parameters.reshape(*moved.shape[:-1], 2), -1, along)
    return lying(np.moveaxis(integers, -1, along), view), lying(pairs, of)


def values_of(rng: np.random.Generator, spec: AttentionSpec | FloatAttentionSpec) -> list[np.ndarray]:
    """Real queries, keys and values, and the addend where there is one: most of its columns are masked."""
    drawn = [rng.normal(size=view.shape).astype(np.float32) * rng.choice((0.1, 1, 4)) for view in spec.views[:3]]
    if spec.addend is not None:
        own = spec.addend.own
        drawn.append(np.where(rng.random(own) < 0.4, np.float32(-3e38), rng.normal(size=own)).astype(np.float32))
    return drawn


def read_by(spec: AttentionSpec, q: np.ndarray, k: np.ndarray, v: np.ndarray, *addend: np.ndarray) -> tuple[np.ndarray, ...]:
    """What the kernel reads of real values."""
    sides = zip((q, k, v), spec.views[:3], spec.parameters, (-1, -2, -2), strict=True)
    return (*(each for side in sides for each in quantized(*side)), *addend)


def expected_of(spec: AttentionSpec, q: np.ndarray, k: np.ndarray, v: np.ndarray, *addend: np.ndarray) -> np.ndarray:
    """The steps one after the other: the products' oracle, and the kernel of softmax between them."""
    scores = row_batch_matmul(q, k)
    softmax = FloatSoftmaxSpec(rows=math.prod(scores.shape[:-1]), columns=scores.shape[-1], addend=spec.addend)
    (shares,) = results_of([float_softmax(softmax, isa=GENERIC)], [[scores, *addend]])
    return lying(row_batch_matmul(shares.reshape(scores.shape), v, low=-3, high=2.5), spec.views[3])


def masked(shape: tuple[int, ...], own: tuple[int, ...], factor: float | None) -> SoftmaxAddend:
    return SoftmaxAddend(shape=shape, own=own, factor=factor)


SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (1, 2, 3, 15, 8, 5),
    (2, 1, 12, 16, 20, 16),
    (1, 3, 13, 17, 32, 33),
    (2, 2, 16, 64, 64, 64),
    (1, 2, 29, 65, 24, 40),
    (3, 1, 7, 130, 17, 18),
    (1, 4, 25, 200, 32, 32),
]


def forms() -> Iterator[tuple[Any, Any, Any]]:
    """Sizes, each with one way in which heads are moved, and with one kind of mask or none."""
    moved = ((None,) * 4, (HEADS, KEYS, HEADS, HEADS), (HEADS, None, None, None), ((0, 1, 3, 2), KEYS, (1, 0, 2, 3), HEADS))
    for number, shape in enumerate(SHAPES):
        batch, heads, rows, columns = shape[:4]
        owns = [(columns,), (batch, 1, 1, columns), (1, 1, rows, columns), (batch, heads, rows, columns)]
        addend = masked((batch, heads, rows, columns), owns[number % 4], (None, 0.25)[number % 2]) if number % 3 else None
        yield shape, moved[number % 4], addend


FORMS = list(forms())


@every_isa
def test_sizes_masks_and_heads(rng: np.random.Generator, isa: str) -> None:
    cases: list[Case] = []
    for number, (shape, axes, addend) in enumerate(FORMS):
        spec = spec_of(shape, axes, addend=addend, threads=1 + number % 2)
        values = values_of(rng, spec)
        kernel = attention(spec, isa=isa)
        cases.append(Case(kernel=kernel, inputs=read_by(spec, *values), expected=expected_of(spec, *values), about=spec))
    check(cases)


@every_isa
def test_what_is_not_finite_and_rows_of_nothing(rng: np.random.Generator, isa: str) -> None:
    spec = spec_of((1, 2, 14, 21, 16, 9), addend=masked((1, 2, 14, 21), (14, 21), None))
    q, k, v, addend = values_of(rng, spec)
    q[0, 0, 3, 5], q[0, 0, 9], k[0, 1, 2, 7], v[0, 0, 4, 2], v[0, 1] = np.nan, 0, np.inf, -np.inf, 0
    addend[5], addend[6] = -np.inf, -3e38
    inputs, expected = read_by(spec, q, k, v, addend), expected_of(spec, q, k, v, addend)
    assert np.isnan(expected).any()
    assert np.isfinite(expected).any()
    check([Case(kernel=attention(spec, isa=isa), inputs=inputs, expected=expected, about=spec)])


@every_isa
@pytest.mark.parametrize("is_masked", [False, True])
def test_open_sizes(rng: np.random.Generator, isa: str, is_masked: bool) -> None:
    """One kernel for all rows and columns: fewer than a block, as many, more; fewer than a panel, and more; few of both."""

    def make(dim: Callable[[str], Any]) -> Any:
        rows, columns = dim("rows"), dim("columns")
        addend = masked((1, 2, rows, columns), (rows, columns), 0.5) if is_masked else None
        shape = (1, 2, rows, columns, 32, 16)
        return attention(spec_of(shape, (HEADS, KEYS, HEADS, HEADS), addend=addend), isa=isa)

    def draw(_: Any) -> tuple[np.ndarray, ...]:
        known = sizes[len(drawn)]
        addend = masked((1, 2, known["rows"], known["columns"]), (known["rows"], known["columns"]), 0.5) if is_masked else None
        spec = spec_of((1, 2, known["rows"], known["columns"], 32, 16), (HEADS, KEYS, HEADS, HEADS), addend=addend)
        drawn.append(known)
        values = values_of(rng, spec)
        mask = [spans(rng, known["rows"], known["columns"], len(drawn) % 4)] if is_masked else []
        return read_by(spec, *values[:3], *mask)

    drawn: list[Any] = []
    pairs = [(1, 1), (1, 40), (5, 7), (7, 16), (3, 17), (8, 16), (9, 31), (16, 32), (23, 33), (30, 100), (40, 130)]
    sizes = [dict(zip(("rows", "columns"), pair, strict=True)) for pair in pairs]
    check_open(make, sizes, draw)


def test_threads_share_open_sizes() -> None:
    """Few rows have loops of their own, within the one parallel loop that threads share."""
    rows, columns = Size.named("rows"), Size.named("columns")
    spec = spec_of((64, 64, rows, columns, 32, 32), (HEADS, KEYS, HEADS, HEADS))
    assert shared_kernel(attention(replace(spec, threads=2), isa=AVX512_VNNI).func) is not None


SPANS = [(20, 200), (37, 70), (150, 150), (9, 129)]
"""Rows and columns of more than a chunk."""


def spans(rng: np.random.Generator, rows: int, columns: int, kind: int) -> np.ndarray:
    """A mask of what comes later, of a window, and of padding: some with a row that is masked as a whole, or with a NaN."""
    of_row, column = np.arange(rows)[:, None] + columns - rows, np.arange(columns)
    seen = ((column <= of_row) & (column > of_row - 40), (column <= of_row), (column < 3) & (of_row >= 0))[kind % 3]
    lowest = (-np.inf, np.finfo(np.float32).min, -1e9, -9.1e8)[kind % 4]
    mask = np.where(seen, rng.normal(size=(rows, columns)), lowest).astype(np.float32)
    if kind == 1:
        mask[rows // 2] = lowest
    if kind == 2:
        mask[rows - 1, columns - 1] = np.nan
    return mask


@every_isa
def test_columns_that_are_masked_change_nothing(rng: np.random.Generator, isa: str) -> None:
    """Those are left out; not where scores may be as large as what masks them."""
    cases: list[Case] = []
    for number, (kind, (rows, columns)) in enumerate(itertools.product(range(4), SPANS)):
        shape, factor = (1, 2, rows, columns), (None, -0.5)[number % 2]
        how: Any = {"addend": masked(shape, (rows, columns), factor)}
        spec = spec_of((*shape, 16, 8), (HEADS, KEYS, HEADS, HEADS), **how)
        q, k, v, _ = values_of(rng, spec)
        mask = spans(rng, rows, columns, kind)
        values = (q * np.float32((1, 1e10)[number % 5 == 0]), k, v, mask)
        kernel = attention(spec, isa=isa)
        cases.append(Case(kernel=kernel, inputs=read_by(spec, *values), expected=expected_of(spec, *values), about=spec))
        known = known_of((*shape, 16, 8), (None,) * 4, number, **how)
        integers = (*known_values(rng, known)[:3], mask)
        inputs, expected = known_inputs(known, *integers), known_expected(known, *integers)
        cases.append(Case(kernel=attention(known, isa=isa), inputs=inputs, expected=expected, about=known))
    check(cases)


@every_isa
def test_which_columns_are_masked(isa: str) -> None:
    """For each four rows, chunks [first; last) of 64 columns; all of them where a row has nothing but masked ones."""
    mask = np.full((12, 300), np.float32(-3e38))
    for row in range(12):
        mask[row, (70, 130, 0)[row // 4] : (200, 300, 65)[row // 4]] = row
    mask[8] = -np.inf
    addend = SoftmaxAddend(shape=(12, 300), own=(12, 300))

    def emit(source: Any, y: Any) -> None:
        columns = MaskedColumns(addend, 4, 300)
        with T.serial(0, 4) as block:
            found = columns.found(source, T.min(block * 4, 8), block < 3)
            for end in range(2):
                T.buffer_store(y, found[end], [block * 2 + end])

    func = prim_func([("x", mask.size, "float32"), ("y", 8, "int32")], emit)
    expected = np.array([1, 4, 2, 5, 0, 5, 0, 5], dtype=np.int32)
    check([Case(kernel=Kernel(name="masked columns", isa=isa, func=func), inputs=(mask,), expected=expected, about=mask.shape)])


def known_of(shape: tuple[int, int, int, int, int, int], axes: Any, number: int, **how: Any) -> AttentionSpec:
    """The same of tensors with constant parameters, whose zero points lie at both ends of the range and between."""
    batch, heads, rows, columns, width, features = shape
    shapes = ((rows, width), (width, columns), (columns, features), (rows, features))
    q, k, v, y = (view_of((batch, heads, *each), lying) for each, lying in zip(shapes, axes, strict=True))
    between = MatrixView.plain((batch, heads, rows, columns))
    zeros = [(0, 255, 3), (128, 128, 128), (255, 1, 0), (7, 130, 255)][number % 4]
    share_zero = (0, 0, 5)[number % 3]
    first: Any = {"a_zero_point": zeros[0], "b_zero_point": zeros[1], "multiplier": 2e-3 / width, "output": FloatOutput()}
    results = (Output(zero_point=9, qmin=3, qmax=250), FloatOutput(low=-1))
    second: Any = {"a_zero_point": share_zero, "b_zero_point": zeros[2], "multiplier": 0.01, "output": results[number % 2]}
    return AttentionSpec(
        scores=BatchMatmulSpec(a=q, b=k, y=between, **first),
        weighted=BatchMatmulSpec(a=between, b=v, y=y, **second),
        shares=QuantizeSpec(size=between.size, scale=0.003, zero_point=share_zero),
        **how,
    )


def known_values(rng: np.random.Generator, spec: AttentionSpec) -> tuple[np.ndarray, ...]:
    """Integers of q, k and v, and the addend where there is one: most of its columns are masked, a row is masked as a whole."""
    drawn = [rng.integers(0, 256, view.shape, dtype=np.uint8) for view in spec.views[:3]]
    if spec.addend is not None:
        own = spec.addend.own
        drawn.append(np.where(rng.random(own) < 0.4, np.float32(-3e38), rng.normal(size=own)).astype(np.float32))
        if len(own) > 1:
            drawn[-1][..., own[-2] // 2, :] = -np.inf
    return tuple(drawn)


def known_inputs(spec: AttentionSpec, *values: np.ndarray) -> tuple[np.ndarray, ...]:
    return (*(lying(each, view) for each, view in zip(values[:3], spec.views[:3], strict=True)), *values[3:])


def known_expected(spec: AttentionSpec, q: np.ndarray, k: np.ndarray, v: np.ndarray, *addend: np.ndarray) -> np.ndarray:
    """The kernels of the steps one after the other, of tensors as they lie."""
    plain = [MatrixView.plain(view.shape) for view in spec.views]
    first = replace(spec.scores, a=plain[0], b=plain[1])
    second = replace(spec.weighted, b=plain[2], y=plain[3])
    shape = first.y.shape
    softmax = FloatSoftmaxSpec(rows=math.prod(shape[:-1]), columns=shape[-1], addend=spec.addend, result=spec.shares)
    (scores,) = results_of([batch_matmul(first, isa=GENERIC)], [[q, k]])
    (shares,) = results_of([float_softmax(softmax, isa=GENERIC)], [[scores, *addend]])
    (results,) = results_of([batch_matmul(second, isa=GENERIC)], [[shares, v]])
    return lying(results.reshape(plain[3].shape), spec.views[3])


@every_isa
def test_constant_parameters(rng: np.random.Generator, isa: str) -> None:
    cases: list[Case] = []
    for number, (shape, axes, addend) in enumerate(FORMS):
        spec = known_of(shape, axes, number, addend=addend, threads=1 + number % 2)
        values = known_values(rng, spec)
        inputs, expected = known_inputs(spec, *values), known_expected(spec, *values)
        cases.append(Case(kernel=attention(spec, isa=isa), inputs=inputs, expected=expected, about=spec))
    check(cases)


@every_isa
def test_open_sizes_of_constant_parameters(rng: np.random.Generator, isa: str) -> None:
    def spec_for(rows: Any, columns: Any) -> AttentionSpec:
        addend = masked((1, 2, rows, columns), (rows, columns), None)
        return known_of((1, 2, rows, columns, 32, 16), (HEADS, KEYS, HEADS, None), 2, addend=addend)

    def make(dim: Callable[[str], Any]) -> Any:
        return attention(spec_for(dim("rows"), dim("columns")), isa=isa)

    def draw(_: Any) -> tuple[np.ndarray, ...]:
        spec = spec_for(*sizes[len(drawn)].values())
        drawn.append(spec)
        values = known_values(rng, spec)
        mask = spans(rng, *spec.scores.y.shape[-2:], len(drawn) % 4)
        return known_inputs(spec, *values[:3], mask)

    drawn: list[Any] = []
    pairs = [(1, 1), (1, 40), (3, 13), (7, 16), (8, 16), (9, 31), (23, 33), (30, 100), (40, 130)]
    sizes = [dict(zip(("rows", "columns"), pair, strict=True)) for pair in pairs]
    check_open(make, sizes, draw)


def real_of(shape: tuple[int, int, int, int, int, int], axes: Any, **how: Any) -> FloatAttentionSpec:
    """The same in float32, with a factor behind the first product."""
    batch, heads, rows, columns, width, features = shape
    shapes = ((rows, width), (width, columns), (columns, features), (rows, features))
    q, k, v, y = (view_of((batch, heads, *each), lying) for each, lying in zip(shapes, axes, strict=True))
    between = MatrixView.plain((batch, heads, rows, columns))
    scores = FloatBatchMatmulSpec(a=q, b=k, y=between, factor=0.3)
    return FloatAttentionSpec(scores=scores, weighted=FloatBatchMatmulSpec(a=between, b=v, y=y), **how)


def real_inputs(spec: FloatAttentionSpec, *values: np.ndarray) -> tuple[np.ndarray, ...]:
    return (*(lying(each, view).astype(np.float32) for each, view in zip(values[:3], spec.views[:3], strict=True)), *values[3:])


def real_expected(spec: FloatAttentionSpec, isa: str, *inputs: np.ndarray) -> np.ndarray:
    """The kernels of the steps one after the other."""
    q, k, v, *addend = inputs
    shape = spec.scores.y.shape
    softmax = FloatSoftmaxSpec(rows=math.prod(shape[:-1]), columns=shape[-1], addend=spec.addend)
    (scores,) = results_of([float_batch_matmul(spec.scores, isa=isa)], [[q, k]])
    (shares,) = results_of([float_softmax(softmax, isa=isa)], [[scores, *addend]])
    (results,) = results_of([float_batch_matmul(spec.weighted, isa=isa)], [[shares, v]])
    return results


@pytest.mark.parametrize("isa", EACH_ISA)
def test_float(rng: np.random.Generator, isa: str) -> None:
    """Sizes, masks and heads; the last form has what is not finite, too, and rows of nothing."""
    cases: list[Case] = []
    for number, (shape, axes, addend) in enumerate(FORMS):
        spec = real_of(shape, axes, addend=addend, threads=1 + number % 2)
        q, k, v, *mask = values_of(rng, spec)
        if number == len(FORMS) - 1:
            q[0, 0, 3, 5], k[0, 1, 2, 7], v[0, 0, 4, 2], v[0, 1] = np.nan, np.inf, -np.inf, 0
            mask[0][..., 5, :], mask[0][..., 6, :] = -np.inf, -3e38
        inputs = real_inputs(spec, q, k, v, *mask)
        expected = real_expected(spec, isa, *inputs)
        cases.append(Case(kernel=float_attention(spec, isa=isa), inputs=inputs, expected=expected, about=spec))
    check(cases)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_columns_that_are_masked_change_nothing_in_float(rng: np.random.Generator, isa: str) -> None:
    """Those are left out; not where scores may be as large as what masks them, or where a value is not finite."""
    cases: list[Case] = []
    for number in range(8):
        (rows, columns), factor = SPANS[number % 4], (None, -0.5)[number // 4]
        shape = (1, 2, rows, columns)
        spec = real_of((*shape, 16, 8), (HEADS, KEYS, HEADS, HEADS), addend=masked(shape, (rows, columns), factor))
        q, k, v, _ = values_of(rng, spec)
        if number == 4:
            q[0, 0, 2, 3] = 1e10
        if number == 5:
            v[..., 0, 0], v[..., -1, 0] = np.inf, np.nan
        inputs = real_inputs(spec, q, k, v, spans(rng, rows, columns, (number + number // 4) % 4))
        expected = real_expected(spec, isa, *inputs)
        cases.append(Case(kernel=float_attention(spec, isa=isa), inputs=inputs, expected=expected, about=spec))
    check(cases)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_open_sizes_in_float(rng: np.random.Generator, isa: str) -> None:
    def spec_for(rows: Any, columns: Any) -> FloatAttentionSpec:
        addend = masked((1, 2, rows, columns), (rows, columns), None)
        return real_of((1, 2, rows, columns, 24, 16), (HEADS, KEYS, HEADS, HEADS), addend=addend)

    def make(dim: Callable[[str], Any]) -> Any:
        return float_attention(spec_for(dim("rows"), dim("columns")), isa=isa)

    def draw(_: Any) -> tuple[np.ndarray, ...]:
        spec = spec_for(*sizes[len(drawn)].values())
        drawn.append(spec)
        values = values_of(rng, spec)
        return real_inputs(spec, *values[:3], spans(rng, *spec.scores.y.shape[-2:], len(drawn) % 4))

    drawn: list[Any] = []
    pairs = [(1, 1), (1, 40), (3, 13), (8, 16), (9, 31), (23, 33), (40, 130)]
    sizes = [dict(zip(("rows", "columns"), pair, strict=True)) for pair in pairs]
    check_open(make, sizes, draw)
