"""Products of two variable matrices by tiles: `device/batch_matmul_gemm.cuh`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ......ir.composites.weighted import BatchMatmulOp
from ...isa import Isa
from ...kernel import BYTES, Argument, Kernel, Number
from ..language.axes import dense_steps
from ..language.calls import Input, KernelCall
from .gemm import Tiling, padded_columns
from .output import Output, output_of
from .tile_choice import Product, TilingChoice

_AXES = 4
TRANSPOSING_DEPTH = 64
"""Of a tile of which B's part is transposed as it is loaded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """One of the two matrices of every batch, as it lies; numbers count elements.

    Parameters
    ----------
    dtype, zero_point
        Of its integers, int8 or uint8.
    pitch
        From one row to the next: rows of `a` and of `b`, or of b's transpose, are dense.
    steps
        From one index of a batch axis to the next, 0 where it broadcasts.
    """

    dtype: str
    zero_point: int
    pitch: int
    steps: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchMatmulSpec:
    """a @ b for each of the `batches`; y is dense.

    Parameters
    ----------
    batches
        Sizes of the batch axes, at most four.
    b_is_transposed
        Whether b lies as (columns, depth), its rows columns of the product.
    """

    batches: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    a: Operand
    b: Operand
    b_is_transposed: bool
    output: Output


def can_read(axes: tuple[int, ...], *, is_b: bool) -> bool:
    """Return whether a product reads an operand whose axes are these of what lies in memory: rows, or columns of b, lie dense."""
    last = len(axes) - 1
    return last < _AXES + 2 and (axes[-1] == last or (is_b and axes[-2] == last))


def batch_matmul_spec(
    op: BatchMatmulOp, a_axes: tuple[int, ...] | None = None, b_axes: tuple[int, ...] | None = None
) -> BatchMatmulSpec:
    """Return a product's spec: a is (..., rows, depth), b (..., depth, columns).

    Both lie dense, or with their axes in another order: `a_axes` and `b_axes` say which of memory's each of them is.
    """
    a, b, shape = op.a.tensor.shape, op.b.tensor.shape, op.y.shape
    *batches, rows, columns = shape
    a_steps, b_steps = _lying_steps(a, a_axes), _lying_steps(b, b_axes)
    own = [_batch_steps(each, lying, len(batches)) for each, lying in ((a, a_steps), (b, b_steps))]
    sizes, steps = _merged(tuple(batches), own)
    is_transposed = b_axes is not None and b_axes[-1] != len(b_axes) - 1
    pitch = b_steps[-1] if is_transposed else b_steps[-2]
    points = [int(np.ravel(each.tensor.params.zero_point)[0]) for each in (op.a, op.b)]
    return BatchMatmulSpec(
        batches=sizes,
        rows=rows,
        columns=columns,
        depth=a[-1],
        a=Operand(dtype=op.a.tensor.params.dtype, zero_point=points[0], pitch=a_steps[-2], steps=steps[0]),
        b=Operand(dtype=op.b.tensor.params.dtype, zero_point=points[1], pitch=pitch, steps=steps[1]),
        b_is_transposed=is_transposed,
        output=output_of(op, columns),
    )


def _lying_steps(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return an operand's steps along its axes, which are these of what lies in memory."""
    if axes is None:
        return dense_steps(shape)
    lying = dense_steps([shape[axes.index(axis)] for axis in range(len(axes))])
    return tuple(lying[axis] for axis in axes)


def _batch_steps(shape: tuple[int, ...], steps: tuple[int, ...], axes: int) -> tuple[int, ...]:
    """Return the steps along as many batch axes of an operand whose last two axes are its matrices'."""
    own = [0 if size == 1 else step for size, step in zip(shape[:-2], steps[:-2], strict=True)]
    return (0,) * (axes - len(own)) + tuple(own)


def _merged(sizes: tuple[int, ...], steps: list[tuple[int, ...]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return batch axes with those merged that follow each other in both operands."""
    merged: list[tuple[int, list[int]]] = []
    for size, *inner in zip(sizes, *steps, strict=True):
        if size == 1:
            continue
        if merged and all(outer == step * size for outer, step in zip(merged[-1][1], inner, strict=True)):
            merged[-1] = merged[-1][0] * size, inner
        else:
            merged.append((size, inner))
    return tuple(size for size, _ in merged), [tuple(each[number] for _, each in merged) for number in range(len(steps))]


def _vector(operand: Operand, row: int) -> int:
    """Return the bytes of one copy of an operand's rows, so many elements each; 1 where single ones are read."""
    common = math.gcd(row, operand.pitch, 16, *operand.steps)
    return common if common >= 4 else 1


def gemm_batch_matmul(spec: BatchMatmulSpec, isa: Isa, tiling: Tiling) -> tuple[KernelCall, ...]:
    """Return the launch of a product cut so."""
    assert len(spec.batches) <= _AXES, f"a product of {len(spec.batches)} batch axes that part"
    assert spec.b_is_transposed or tiling.tile[2] == TRANSPOSING_DEPTH, "B is transposed in tiles of one depth"
    (tile_m, tile_n, _), dtype = tiling.tile, spec.output.dtype
    axes = _AXES - len(spec.batches)
    batch: dict[str, Number] = {}
    for name, values, fill in (("batch", spec.batches, 1), ("a_step", spec.a.steps, 0), ("b_step", spec.b.steps, 0)):
        batch |= {f"{name}{number}": value for number, value in enumerate((fill,) * axes + values)}
    start = np.full(spec.columns, spec.depth * spec.a.zero_point * spec.b.zero_point, np.int32)
    zero_points = np.full(spec.columns, spec.b.zero_point, np.int32)
    constants = (start, spec.output.multiplier, spec.output.real_bias, zero_points)
    read = [("a", spec.a.dtype), ("b", spec.b.dtype), ("bias", "int32"), ("multiplier", "float32"), ("real_bias", "float32")]
    kernel = Kernel(
        name=f"batch_matmul_gemm{spec.output.suffix}",
        header="batch_matmul_gemm.cuh",
        function="batch_matmul_gemm",
        parameters={
            **spec.output.parameters,
            **spec.output.rows(spec.columns),
            **tiling.parameters(isa, BYTES[dtype], spec.columns),
            **batch,
            "result_rows": spec.rows,
            "result_columns": spec.columns,
            "depth": spec.depth,
            "a_pitch": spec.a.pitch,
            "b_pitch": spec.b.pitch,
            "a_vector": _vector(spec.a, spec.depth),
            "b_vector": _vector(spec.b, spec.depth if spec.b_is_transposed else spec.columns),
            "b_is_transposed": spec.b_is_transposed,
            "x_zero_point": spec.a.zero_point,
            "has_row_sums": spec.b.zero_point != 0,
            "has_column_sums": spec.a.zero_point != 0,
        },
        types={"X": spec.a.dtype, "W": spec.b.dtype, **spec.output.types},
        structures=spec.output.tail.structures(),
        arguments=(
            *(Argument(name=name, dtype=each) for name, each in (*read, ("zero_point", "int32"))),
            *spec.output.arguments(),
        ),
        grid=(-(-spec.rows // tile_m), -(-spec.columns // tile_n), math.prod(spec.batches)),
        block=(tiling.threads, 1, 1),
        shared_bytes=tiling.shared_bytes,
        isa=isa.name,
    )
    columns = (padded_columns(each, 1, tile_n) for each in constants)
    return (KernelCall(kernel=kernel, operands=(Input(0), Input(1), *columns, *spec.output.operands(2))),)


def batch_matmul(spec: BatchMatmulSpec, isa: Isa, choice: TilingChoice | None = None) -> tuple[KernelCall, ...]:
    """Return the launch that suits a product on chips of an ISA; without a `choice` its tiles are the model's."""
    product = Product(
        rows=spec.rows,
        columns=spec.columns,
        depth=spec.depth,
        groups=math.prod(spec.batches),
        vector=_vector(spec.a, spec.depth),
        result_bytes=BYTES[spec.output.dtype],
        can_split=False,
        depths=() if spec.b_is_transposed else (TRANSPOSING_DEPTH,),
        has_sums=spec.a.zero_point != 0 or spec.b.zero_point != 0,
    )
    choice = choice or TilingChoice(isa=isa)
    tiling, _ = choice.best(product)
    return choice.noted(product, tiling, gemm_batch_matmul(spec, isa, tiling))
