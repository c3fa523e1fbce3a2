"""Attention through VNNI: scores, softmax and the product with the values for some rows at a time; no scores are written.

Between the products lie integers of the quotients. Columns at both ends that are masked for all of these rows are left out.

Queries, keys and values were quantized at run time, each row of q, each column of k and of v by itself, and so are the rows of
the softmax, here; or all of them have constant parameters. Every value is that of the kernels of its steps: `batch_matmul`,
`float_softmax`, `dynamic_quantize`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ......ir.composites.matrix_view import MatrixView
from ......ir.composites.outputs import FloatOutput
from ......runtime.shapes import limits, surpasses
from ......runtime.size import dimension, is_open
from ..language.isa import AVX512_VNNI, AVX_VNNI
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, load, prim_func, store
from ..language.x86.narrow import narrowed
from ..norms.float_softmax import SoftmaxAddend
from ..quantization.quantize import QuantizeSpec
from .attention_loops import AttentionLoops, Find, ScoreRows
from .batch_product import LANES, BatchProduct, Operand, PanelPlace, Tile
from .masked_columns import CHUNK, SCORE_LIMIT, MaskedColumns, largest_magnitude
from .score_block import IntegerBlock, Range, ScoreBlock
from .spec import BatchMatmulSpec, known_result
from .x86_int8_batch_matmul import MAX_INNER, BytesProduct, Int8Product
from .x86_row_batch_matmul import RowInt8Product

ATTENTION, KNOWN_ATTENTION = "attention.rows", "attention"

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


class _Weighted(BytesProduct):
    """The second product: of integers that lie in rows of whole vectors, 0 behind the last column."""

    def __init__(self, *views: MatrixView, **how: Any) -> None:
        super().__init__(*views, **how)
        self._in_place = True
        self.block: ScoreBlock | None = None

    def step_range(self) -> tuple[Expr, Expr]:
        """Return those of the columns that count."""
        within = self._within()
        if within is None:
            return super().step_range()
        first, last = within
        return first * _CHUNK_STEPS, T.Bind(T.min(last * _CHUNK_STEPS, self.steps))

    def sum_range(self, vectors: Expr) -> tuple[Expr, Expr]:
        """Return those of the columns that count."""
        return self._within() or super().sum_range(vectors)

    def _within(self) -> Range | None:
        return None if self.block is None else self.block.within

    def _source(self, a: Buffer, at: Expr) -> tuple[Buffer, Expr, Expr, Expr]:
        pitch = self.a.strides[-2]
        return a, at, pitch, pitch


class _RowScores(ScoreRows, RowInt8Product):
    """Scores of rows and columns that were quantized at run time."""


class _RowWeighted(_Weighted, RowInt8Product):
    """The second product of these."""


class _KnownScores(ScoreRows, _KnownProduct):
    """Scores of constant parameters."""


class _KnownWeighted(_Weighted, _KnownProduct):
    """The second product of these."""


class _Attention(AttentionLoops):
    """Emits the kernel."""

    def __init__(self, spec: AttentionSpec, isa: str) -> None:
        super().__init__(spec, isa)
        self._spec = spec

    def block_of(self, rows: int, columns: int, valid: Expr | None) -> IntegerBlock:
        """Return what becomes integers for so many rows."""
        return IntegerBlock(rows, columns, self._spec.shares, valid)

    def search_of(
        self, packed: tuple[Operand, Operand], products: tuple[ScoreRows, BatchProduct]
    ) -> Callable[[int], Find] | None:
        """Emit the largest scale of the keys, by which scores have a bound; return None where there is no need to search."""
        spec, (keys, _) = self._spec, packed
        if spec.addend is None or not self._is_searched():
            return None
        addend, of_keys = spec.addend, None
        if spec.shares is None:
            of_keys = largest_magnitude(keys[1], LANES, products[0].vectors, 2 * LANES)

        def search(rows: int) -> Find:
            masked = MaskedColumns(addend, rows, self.columns)

            def find(values: Buffer, row: Expr, q: Operand, q_start: Expr) -> Range:
                del q_start
                is_bounded = T.bool(True)
                if of_keys is not None:
                    _, of_q, start = q
                    largest = largest_magnitude(of_q, 1, rows, spec.parameters[0].strides[-2], start)
                    is_bounded = largest * of_keys * T.float32(self._bound(1.0)) <= T.float32(SCORE_LIMIT)
                return masked.found(values, row, is_bounded)

            return find

        return search

    def _is_searched(self) -> bool:
        """Return whether to look for masked columns: their integers are 0 then, and scores have a bound, or may have one."""
        spec, columns = self._spec, self.columns
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

    def products(self, block: ScoreBlock, views: Sequence[MatrixView], tile: Tile) -> tuple[ScoreRows, BatchProduct]:
        """Return what emits the two products of a block."""
        spec, (q, k, scores, shares, v, y) = self._spec, views
        how: dict[str, Any] = {"threads": spec.threads, "tile": tile}
        if spec.shares is not None:
            second = _KnownWeighted(shares, v, y, **_known(spec.weighted, _result_dtype(spec)), **how)
            second.block = block
            return _KnownScores(q, k, scores, **_known(spec.scores, "float32"), **how), second
        of_rows = MatrixView.plain((block.rows, 2))
        of_second = _of_rows(spec.weighted, (of_rows, *spec.parameters[2:]))
        second = _RowWeighted(shares, v, y, **of_second, **how)
        second.block = block
        return _RowScores(q, k, scores, **_of_rows(spec.scores, spec.parameters[:2]), **how), second


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
