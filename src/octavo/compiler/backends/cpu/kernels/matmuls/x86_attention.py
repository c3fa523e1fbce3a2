"""Attention through VNNI: scores, softmax and the product with the values for some rows at a time; no scores are written.

    for each matrix:   pack k and v        (where there are few rows and columns, loops of their own)
      for each 12 rows:   scores = q @ k;   their exponentials and sums;   integers of the quotients;   y = integers @ v

Columns at both ends that are masked for all of these rows are left out.

Queries, keys and values were quantized at run time, each row of q, each column of k and of v by itself, and so are the rows of
the softmax, here; or all of them have constant parameters. Every value is that of the kernels of its steps: `batch_matmul`,
`float_softmax`, `dynamic_quantize`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ......ir.composites.matrix_view import MatrixView
from ......ir.composites.outputs import FloatOutput
from ......runtime.shapes import limits, surpasses
from ......runtime.size import dimension, is_open
from ..language.float_function import ElementMath
from ..language.isa import AVX512_VNNI, AVX_VNNI
from ..language.kernel import Kernel
from ..language.partial import has_masks, load_first
from ..language.vectors import Buffer, Expr, chunked, load, prim_func, splat, store, where_at_least
from ..language.x86.narrow import narrowed
from ..norms.float_softmax import SoftmaxAddend, addend_start
from ..quantization.quantize import QuantizeSpec
from .batch_product import LANES, Operand, PanelPlace, columns_of, tile_for
from .masked_columns import CHUNK, SCORE_LIMIT, MaskedColumns, largest_scale
from .score_block import Range, ScoreBlock
from .spec import BatchMatmulSpec, known_result
from .x86_int8_batch_matmul import MAX_INNER, BytesProduct, Int8Product
from .x86_row_batch_matmul import RowInt8Product

ATTENTION, KNOWN_ATTENTION = "attention.rows", "attention"

_ROWS, _OPEN_ROWS = 12, 8
"""Rows of a block, so few that their scores stay in the nearest cache. The last block ends with the last row and may compute some
again."""

_CHUNK_STEPS = CHUNK // 4
"""Steps of the second product: an instruction sums four columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """softmax(q (..., rows, width) @ k (..., width, columns)) @ v (..., columns, features), the scores with their addend.

    `scores` and `weighted` are the two products; what lies between them is no tensor, so its views say shapes alone. `shares`
    says what the softmax is quantized to; None where all is quantized at run time, and both products are `by_row`.
    """

    scores: BatchMatmulSpec
    weighted: BatchMatmulSpec
    shares: QuantizeSpec | None = None
    addend: SoftmaxAddend | None = None
    threads: int = 1

    @property
    def views(self) -> tuple[MatrixView, MatrixView, MatrixView, MatrixView]:
        """How q, k, v and the result lie."""
        return self.scores.a, self.scores.b, self.weighted.b, self.weighted.y

    @property
    def parameters(self) -> tuple[MatrixView, ...]:
        """How the parameters of q's rows lie, and those of the columns of k and of v; none where they are constants."""
        if self.shares is not None:
            return ()
        assert self.scores.parameters is not None, "rows have parameters"
        assert self.weighted.parameters is not None, "columns have parameters"
        return *self.scores.parameters, self.weighted.parameters[1]


def takes_attention(width: int, columns: int, *, isa: str) -> bool:
    """Return whether an ISA has the kernel, for heads of this width and so many columns."""
    return isa in (AVX512_VNNI, AVX_VNNI) and not surpasses(width, MAX_INNER) and not surpasses(columns, MAX_INNER)


def attention(spec: AttentionSpec, *, addend: npt.NDArray[np.float32] | None = None, isa: str) -> Kernel:
    """Return the kernel of integers and parameters of q, k and v; the addend is the next argument, or the constant `addend`."""
    arguments: list[tuple[str, int, str]] = []
    q, k, v, y = spec.views
    for number, (name, view) in enumerate((("q", q), ("k", k), ("v", v))):
        arguments.append((name, view.size, "uint8"))
        arguments += [(f"{name}_parameters", each.size, "float32") for each in spec.parameters[number : number + 1]]
    if spec.addend is not None:
        arguments.append(("addend", math.prod(spec.addend.own), "float32"))
    arguments.append(("y", y.size, _result_dtype(spec)))
    constants = () if addend is None else (addend.reshape(-1),)
    func = prim_func(arguments, _Attention(spec, isa).emit)
    if isa == AVX_VNNI:
        func = narrowed(func, isa)
    most = limits((q.shape[-1], MAX_INNER), (k.shape[-1], MAX_INNER))
    name = ATTENTION if spec.shares is None else KNOWN_ATTENTION
    return Kernel(name=name, isa=isa, func=func, constants=constants, limits=most)


def _result_dtype(spec: AttentionSpec) -> str:
    return "float32" if isinstance(spec.weighted.output, FloatOutput) else "uint8"


_MATH = ElementMath(LANES)


class _KnownProduct(Int8Product):
    """A product with constant zero points, whose columns are summed once for all blocks of rows."""

    def pack(self, b: Buffer, at: Expr) -> Operand:
        """Emit the packing of one matrix of b, and what each column and the zero points take off."""
        packed = super().pack(b, at)
        terms = T.alloc_buffer((dimension(self.vectors * LANES),), "int32")

        def keep(place: PanelPlace) -> None:
            for vector, each in enumerate(super(_KnownProduct, self)._prepare(packed, place)):
                store(terms, (place.first + vector) * LANES, each, LANES)

        self.for_panels(keep)
        return packed, terms

    def _prepare(self, packed: Operand, place: PanelPlace) -> tuple[Expr, ...]:
        """Emit the loads of what the panel's columns take off."""
        _, terms = packed
        return tuple(T.Bind(load(terms, (place.first + vector) * LANES, LANES)) for vector in range(place.vectors))


class _Scores(BytesProduct):
    """The first product: its results, with their addend, lie in rows of whole vectors, beside the largest value of each lane.

    Lanes that are no columns are minus infinity.
    """

    def __init__(self, *views: MatrixView, addend: SoftmaxAddend | None, **how: Any) -> None:
        super().__init__(*views, **how)
        self._before = addend
        self._within: Range | None = None

    def keeps(self, largest: Buffer, addend: Buffer | None, row: Expr, within: Range | None) -> None:
        """Take the buffer of the largest values, that of the addend, which of all rows the first one is, and the columns."""
        self._largest, self._addend, self._row, self._within = largest, addend, row, within

    def panel_range(self, count: Expr, vectors: int) -> tuple[Expr, Expr]:
        """Return those of the columns that count."""
        if self._within is None:
            return super().panel_range(count, vectors)
        panels = CHUNK // LANES // vectors
        first, last = self._within
        return first * panels, T.Bind(T.min(last * panels, count))

    def _put(self, y: Buffer, at: Expr, first: Expr, results: list[list[Expr]], place: PanelPlace) -> None:
        results = [[T.Bind(result) for result in vectors] for vectors in results]

        def put(columns: Callable[[int], Expr]) -> None:
            for number, vectors in enumerate(results):
                self._put_row(
                    y, at, T.Bind(first + number), [*zip(vectors, map(columns, range(place.vectors)), strict=True)], place
                )

        if isinstance(place.columns, int):
            put(lambda vector: columns_of(place, vector))
            return
        with T.If(place.columns == place.vectors * LANES):
            with T.Then():
                put(lambda _: LANES)
            with T.Else():
                put(lambda vector: columns_of(place, vector))

    def _put_row(self, y: Buffer, at: Expr, row: Expr, vectors: list[tuple[Expr, Expr]], place: PanelPlace) -> None:
        """Emit the vectors of one row, each with how many of its lanes are columns."""
        target = T.Bind(at + row * self.y.strides[-2] + place.column)
        before = None if self._before is None else T.Bind(addend_start(self._before, self._row + row) + place.column)
        most = load(self._largest, row * LANES, LANES)
        for vector, (result, valid) in enumerate(vectors):
            score = T.Bind(self._score(result, before, vector, valid))
            store(y, target + vector * LANES, score, LANES)
            most = T.max(most, score)
        store(self._largest, row * LANES, most, LANES)

    def _score(self, result: Expr, before: Expr | None, vector: int, valid: Expr) -> Expr:
        """Return a vector of results with their addend."""
        if self._before is not None and before is not None:
            added, factor = self._added(before + vector * LANES, valid), self._before.factor
            return result + added if factor is None else _MATH.fused(result, _MATH.constant(factor), added)
        if isinstance(valid, int) and valid == LANES:
            return result
        lanes = T.Ramp(T.int32(0), T.int32(1), LANES)
        return T.Select(lanes < splat(T.int32(0) + valid, LANES), result, splat(T.float32(-math.inf), LANES))

    def _added(self, start: Expr, valid: Expr) -> Expr:
        """Return a vector of the addend; beside minus infinity any result counts for nothing."""
        if isinstance(valid, int) and valid == LANES:
            return load(self._addend, start, LANES)
        staged = T.alloc_buffer((LANES,), "float32", scope="local")
        load_first(staged, 0, self._addend, start, LANES, valid, T.float32(-math.inf), isa=self.isa)
        return load(staged, 0, LANES)


class _Weighted(BytesProduct):
    """The second product: of integers that lie in rows of whole vectors, 0 behind the last column."""

    def __init__(self, *views: MatrixView, **how: Any) -> None:
        super().__init__(*views, **how)
        self._in_place = True
        self.within: Range | None = None

    def step_range(self) -> tuple[Expr, Expr]:
        """Return those of the columns that count."""
        if self.within is None:
            return super().step_range()
        first, last = self.within
        return first * _CHUNK_STEPS, T.Bind(T.min(last * _CHUNK_STEPS, self.steps))

    def sum_range(self, vectors: Expr) -> tuple[Expr, Expr]:
        """Return those of the columns that count."""
        return super().sum_range(vectors) if self.within is None else self.within

    def _source(self, a: Buffer, at: Expr) -> tuple[Buffer, Expr, Expr, Expr]:
        pitch = self.a.strides[-2]
        return a, at, pitch, pitch


class _RowScores(_Scores, RowInt8Product):
    """Scores of rows and columns that were quantized at run time."""


class _RowWeighted(_Weighted, RowInt8Product):
    """The second product of these."""


class _KnownScores(_Scores, _KnownProduct):
    """Scores of constant parameters."""


class _KnownWeighted(_Weighted, _KnownProduct):
    """The second product of these."""


class _Attention:
    """Emits the kernel."""

    def __init__(self, spec: AttentionSpec, isa: str) -> None:
        self._spec, self._tile = spec, tile_for(isa)
        self._rows, self._columns = spec.scores.rows, spec.scores.columns

    def emit(self, *buffers: Buffer) -> None:
        """Emit everything."""
        spec, kinds = self._spec, 1 if self._spec.shares is not None else 2
        *addends, y = buffers[3 * kinds :]
        (q, *of_q), (k, *of_k), (v, *of_v) = (buffers[number * kinds : (number + 1) * kinds] for number in range(3))

        def operand(values: Buffer, of: list[Buffer], at: Sequence[Expr]) -> Operand:
            return (values, *of, *at) if of else values

        def matrix(index: Expr, columns: int, valid: Expr | None) -> None:
            scores, weighted = self._products(ScoreBlock(1, columns, spec.shares, valid))
            q_at, k_at, v_at, y_at = scores.starts(index, *spec.views)
            of_at = scores.starts(index, *spec.parameters)
            keys, values = scores.pack(operand(k, of_k, of_at[1:2]), k_at), weighted.pack(operand(v, of_v, of_at[2:]), v_at)
            before = T.Bind(index * self._rows)
            is_searched = valid is None and self._is_searched()
            of_keys = largest_scale(keys[1], LANES, scores.vectors, 2 * LANES) if is_searched and of_k else None
            q_view, *_, y_view = spec.views

            def blocks(rows: int) -> None:
                block = ScoreBlock(rows, columns, spec.shares, valid)
                first, second = self._products(block)
                block.allocate()
                masked = MaskedColumns(spec.addend, rows, self._columns) if is_searched and spec.addend is not None else None
                with T.serial(0, -(-self._rows // rows)) as number:
                    start = T.Bind(T.min(number * rows, self._rows - rows))
                    block.begin()
                    of_start = [
                        T.Bind(at + start * of.strides[-2]) for at, of in zip(of_at[:1], spec.parameters[:1], strict=True)
                    ]
                    rows_of_q = operand(q, of_q, of_start)
                    row = T.Bind(before + start)
                    if masked is not None:
                        is_bounded = T.bool(True)
                        if of_keys is not None:
                            of_rows = largest_scale(of_q[0], 1, rows, spec.parameters[0].strides[-2], of_start[0])
                            is_bounded = of_rows * of_keys * T.float32(self._bound(1.0)) <= T.float32(SCORE_LIMIT)
                        block.within = second.within = masked.found(addends[0], row, is_bounded)
                    first.keeps(block.largest, addends[0] if addends else None, row, block.within)
                    first.emit_rows((rows_of_q, keys, block.scores), (T.Bind(q_at + start * q_view.strides[-2]), T.int32(0)))
                    block.quantize()
                    integers = operand(block.integers, [block.parameters] if of_q else [], [T.int32(0)])
                    second.emit_rows((integers, values, y), (T.int32(0), T.Bind(y_at + start * y_view.strides[-2])))

            if valid is not None:
                blocks(1)
            elif is_open(self._rows):
                where_at_least(self._rows, _OPEN_ROWS, lambda: blocks(_OPEN_ROWS), lambda: blocks(1))
            elif self._rows <= _ROWS:
                blocks(self._rows)
            else:
                blocks(min((_ROWS, _OPEN_ROWS), key=lambda rows: -(-self._rows // rows) * rows))

        self._for_matrices(matrix)

    def _is_searched(self) -> bool:
        """Return whether to look for masked columns: their integers are 0 then, and scores have a bound, or may have one."""
        spec, columns = self._spec, self._columns
        if spec.addend is None or not (is_open(columns) or columns > CHUNK):
            return False
        if spec.shares is None:
            return True
        assert isinstance(spec.scores.multiplier, float), "composition leaves fixed-point ones alone"
        return spec.shares.zero_point == 0 and self._bound(spec.scores.multiplier) <= SCORE_LIMIT

    def _bound(self, scale: float) -> float:
        """Return what no magnitude of a score surpasses, for a product of scales."""
        addend, inner = self._spec.addend, self._spec.scores.inner
        factor = 1.0 if addend is None or addend.factor is None else abs(addend.factor)
        return scale * factor * (MAX_INNER if is_open(inner) else inner) * 255**2

    def _for_matrices(self, body: Callable[[Expr, int, Expr | None], None]) -> None:
        """Emit body(index, columns, valid) for each matrix; where there are few rows, and columns for one vector, `valid` of it.

        A decoder's first tokens are that: what the loops over open columns compute before they begin takes longer than they do.
        """
        rows, columns = self._rows, self._columns
        product, _ = self._products(ScoreBlock(1, columns, self._spec.shares))
        has_few = is_open(columns) and (is_open(rows) or rows < _OPEN_ROWS) and has_masks(self._tile.isa, "uint8")

        def every(some: Callable[[Expr], None]) -> None:
            with chunked(math.prod(product.batch), product.threads) as index:
                some(index)

        def either(emit: Callable[[Callable[[Expr], None]], None]) -> None:
            with T.If(T.Or(T.int32(0) + columns > LANES, T.int32(0) + rows >= _OPEN_ROWS)):
                with T.Then():
                    emit(lambda index: body(index, columns, None))
                with T.Else():
                    valid = T.Bind(T.int32(0) + columns)
                    emit(lambda index: body(index, LANES, valid))

        if not has_few:
            every(lambda index: body(index, columns, None))
        elif product.threads == 1:
            either(every)
        else:  # threads share a kernel that is one parallel loop
            every(lambda index: either(lambda some: some(index)))

    def _products(self, block: ScoreBlock) -> tuple[_Scores, _Weighted]:
        """Return what emits the two products of a block of rows."""
        spec = self._spec

        def some(view: MatrixView) -> MatrixView:
            return replace(view, shape=(*view.shape[:-2], block.rows, view.shape[-1]), room=view.room or view.shape)

        rows = {vectors: _divisor(block.rows, most) for vectors, most in self._tile.rows.items()}
        how: dict[str, Any] = {"threads": spec.threads, "tile": replace(self._tile, rows=rows)}
        scores = MatrixView(shape=(block.rows, block.columns), axes=(0, 1), room=(block.rows, block.scores_pitch))
        integers = MatrixView(shape=(block.rows, self._columns), axes=(0, 1), room=(block.rows, block.pitch))
        q, k, v, y = spec.views
        k = replace(k, shape=(*k.shape[:-1], block.columns), room=k.room or k.shape)
        if spec.shares is None:
            first, second = _RowScores, _RowWeighted
            of_first = _of_rows(spec.scores, spec.parameters[:2])
            of_second = _of_rows(spec.weighted, (MatrixView.plain((block.rows, 2)), *spec.parameters[2:]))
        else:
            first, second = _KnownScores, _KnownWeighted
            of_first, of_second = _known(spec.scores, "float32"), _known(spec.weighted, _result_dtype(spec))
        made = first(some(q), k, scores, addend=spec.addend, **of_first, **how), second(integers, v, some(y), **of_second, **how)
        made[0].valid_columns = block.valid
        return made


def _known(spec: BatchMatmulSpec, out_dtype: str) -> dict[str, Any]:
    """Return what a product of constant parameters is made of beside views."""
    return {
        "zero_points": (spec.a_zero_point, spec.b_zero_point),
        "finish": partial(known_result, spec),
        "out_dtype": out_dtype,
    }


def _of_rows(spec: BatchMatmulSpec, parameters: tuple[MatrixView, ...]) -> dict[str, Any]:
    """Return the same of a product of rows and columns that were quantized at run time."""
    return {"parameters": parameters, "output": spec.output}


def _divisor(rows: int, most: int) -> int:
    """Return how many rows a tile has, `most` at most: a divisor of a block's, where that isn't much less."""
    found = next(each for each in range(min(rows, most), 0, -1) if rows % each == 0)
    return found if 2 * found > most else most
