"""Softmax of rows, and its logarithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ......ir.composites.normalization import SoftmaxOp
from ......numerics import log_softmax_parameters
from ......numerics.quantized.softmax import softmax_table
from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number

_WARP = 32
_LONG_ROW = 256
"""Columns beyond which a row has more threads than a warp."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of a tensor, and the threads that take them: `threads` for each, `of_block` rows in a block."""

    rows: int
    columns: int
    threads: int
    of_block: int

    @staticmethod
    def of(rows: int, columns: int) -> Rows:
        """Return a warp for each of several short rows, a block for each long one."""
        if columns <= _LONG_ROW:
            return Rows(rows=rows, columns=columns, threads=_WARP, of_block=min(4, rows))
        return Rows(rows=rows, columns=columns, threads=8 * _WARP, of_block=1)

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a block."""
        return self.threads * self.of_block, 1, 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return -(-self.rows // self.of_block), 1, 1

    @property
    def parameters(self) -> dict[str, Number]:
        """Members of the structure P."""
        sizes: dict[str, Number] = {"rows": self.rows, "columns": self.columns}
        return {**sizes, "threads_of_row": self.threads, "rows_of_block": self.of_block}


def softmax(op: SoftmaxOp, rows: Rows, isa: Isa) -> BoundKernel:
    """Return the kernel of a softmax, or of its logarithm, over rows that lie together."""
    scale = float(np.float32(op.x.params.scale) * np.float32(op.beta))
    if op.is_log:
        found = log_softmax_parameters(scale, float(op.y.tensor.params.scale), rows.columns)
        factors = {"distance_factor": found.distance_factor, "log_factor": found.log_factor, "log_of_one": found.log_of_one}
        return _kernel(
            "log_softmax", op, rows, factors, {"exponentials": found.exponentials, "logarithms": found.logarithms}, isa
        )
    exponentials = softmax_table(scale, rows.columns)
    return _kernel("softmax", op, rows, {"y_scale": _result_scale(op)}, {"exponentials": exponentials}, isa)


def _kernel(
    name: str,
    op: SoftmaxOp,
    rows: Rows,
    parameters: Mapping[str, Number],
    tables: Mapping[str, npt.NDArray[np.int32]],
    isa: Isa,
) -> BoundKernel:
    params = op.y.tensor.params
    kernel = Kernel(
        name=name,
        header="softmax.cuh",
        function=name,
        parameters={
            **rows.parameters,
            **parameters,
            "zero_point": int(params.zero_point),
            "qmin": op.y.qmin,
            "qmax": op.y.qmax,
        },
        types={"X": op.x.params.dtype, "Y": params.dtype},
        arguments=(
            Argument(name="x", dtype=op.x.params.dtype),
            *(Argument(name=table, dtype="int32") for table in tables),
            Argument(name="y", dtype=params.dtype, writes=True),
        ),
        grid=rows.grid,
        block=rows.block,
        shared_bytes=4 * rows.block[0],
        isa=isa.name,
    )
    return kernel, tuple(tables.values())


def _result_scale(op: SoftmaxOp) -> float:
    """Return the real value of a step; with "integer_inverse_scale" one that goes into 1 a whole number of times."""
    scale = np.float32(op.y.tensor.params.scale)
    if op.rounding != "integer_inverse_scale":
        return float(scale)
    steps = np.floor(np.float32(1) / scale)
    return float(np.float32(1) / steps) if steps >= 1 else float(scale)
