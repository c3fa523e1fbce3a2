"""Paddings of open sizes are filled and copied in vectors; what is copied by another condition stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te as _te
from tvm import tirx

from octavo.compiler.backends.cpu.copy_rows import copy_rows

T: Any = tirx
te: Any = _te


def padding(*, before: int, after: int, below: int) -> tvm.IRModule:
    """Return a function of planes with `before` and `after` elements around each row, and rows above and `below`; some fewer."""
    planes, height, width = (T.Var(name, "int64") for name in ("planes", "height", "width"))
    x: Any = te.placeholder((planes, height, width), name="x")

    def element(plane: Any, row: Any, column: Any) -> Any:
        is_row = T.all(row >= 1, row - 1 < height)
        is_column = T.all(column >= before, T.LE(column - before + 1, width))
        return T.if_then_else(T.all(is_row, is_column), x[plane, row - 1, column - before], T.FloatImm("float32", 2.0))

    y = te.compute((planes, height + 1 + below, width + before + after), element, name="y")
    return tvm.IRModule({"main": te.create_prim_func([x, y]).with_attr("global_symbol", "main")})


@pytest.mark.parametrize(("before", "after", "below"), [(0, 1, 1), (3, 0, 2), (1, 2, -1)])
def test_planes_are_filled_and_rows_copied(before: int, after: int, below: int) -> None:
    made: Any = copy_rows(padding(before=before, after=after, below=below))
    text = str(made)
    assert "if_then_else" not in text
    assert "T.Ramp" in text
    run: Any = tvm.compile(made, target=tvm.target.Target("llvm"))["main"]
    for height, width in ((1, 1), (2, 3), (3, 4), (4, 7), (3, 8), (2, 9), (5, 21)):
        x = np.arange(2 * height * width, dtype=np.float32).reshape(2, height, width)
        y = np.pad(x, ((0, 0), (1, max(below, 0)), (before, after)), constant_values=2.0)[:, : height + 1 + below]
        result = tvm.runtime.tensor(np.zeros(y.shape, np.float32))
        run(tvm.runtime.tensor(x), result)
        np.testing.assert_array_equal(result.numpy(), y, err_msg=f"{height}x{width}")


def test_a_triangle_is_not_cut() -> None:
    size = T.Var("size", "int64")
    x: Any = te.placeholder((size, size), name="x")
    y = te.compute((size, size), lambda i, j: T.if_then_else(j <= i, x[i, j], T.FloatImm("float32", 0.0)))
    given = tvm.IRModule({"main": te.create_prim_func([x, y])})
    assert copy_rows(given).same_as(given)


def test_what_is_transposed_has_loops_for_one_turn() -> None:
    size = T.Var("size", "int64")
    x: Any = te.placeholder((size, 3, 5), name="x")
    y = te.compute((3, 5, size), lambda i, j, k: x[k, i, j], name="y")
    made: Any = copy_rows(tvm.IRModule({"main": te.create_prim_func([x, y]).with_attr("global_symbol", "main")}))
    assert "size == T.int64(1)" in str(made)
    run: Any = tvm.compile(made, target=tvm.target.Target("llvm"))["main"]
    for count in (1, 2, 9):
        values = np.arange(15 * count, dtype=np.float32).reshape(count, 3, 5)
        result = tvm.runtime.tensor(np.zeros((3, 5, count), np.float32))
        run(tvm.runtime.tensor(values), result)
        np.testing.assert_array_equal(result.numpy(), values.transpose(1, 2, 0))
