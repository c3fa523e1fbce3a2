"""Paddings of open sizes are filled and copied in vectors; what is copied by another condition stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as _relax
from tvm import te as _te
from tvm import tirx

from octavo.compiler.backends.cpu.copy_rows import copy_rows
from octavo.compiler.codegen.generate import generate
from octavo.compiler.codegen.objects import distinct_functions
from octavo.runtime.llvm_host import host_target
from octavo.runtime.runner import runner_of
from octavo.runtime.size import Size

T: Any = tirx
te: Any = _te
relax: Any = _relax


def padding(*, before: int, after: int, below: int, planes: int = 0) -> tvm.IRModule:
    """Return a call that puts `before` and `after` elements around each row, one row above and `below`; some fewer.

    With `planes`, so many of them more on the first axis, behind the others.
    """
    x = relax.Var("x", relax.TensorType([T.Var(name, "int64") for name in ("planes", "height", "width")], "float32"))

    def around(x: Any) -> Any:
        count, height, width = x.shape

        def element(plane: Any, row: Any, column: Any) -> Any:
            is_row = T.all(row >= 1, row - 1 < height, *([plane < count] if planes else []))
            is_column = T.all(column >= before, T.LE(column - before + 1, width))
            return T.if_then_else(T.all(is_row, is_column), x[plane, row - 1, column - before], T.FloatImm("float32", 2.0))

        return te.compute((count + planes, height + 1 + below, width + before + after), element, name="y")

    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit_te(around, x))
        builder.emit_func_output(y)
    return builder.get()


@pytest.mark.parametrize(("before", "after", "below", "planes"), [(0, 1, 1, 0), (3, 0, 2, 0), (1, 2, -1, 0), (1, 0, 1, 2)])
def test_planes_are_filled_and_rows_copied(before: int, after: int, below: int, planes: int) -> None:
    made: Any = copy_rows(padding(before=before, after=after, below=below, planes=planes))
    text = str(made)
    assert "if_then_else" not in text
    assert "T.Broadcast(T.float32(2.0), 8)" in text
    code = generate(made, host_target())
    assert code.workspace is not None, "no virtual machine"
    run = runner_of(code, [tuple(Size.named(name) for name in ("planes", "height", "width"))])
    for height, width in ((1, 1), (2, 3), (3, 4), (4, 7), (3, 8), (2, 9), (5, 21)):
        x = np.arange(2 * height * width, dtype=np.float32).reshape(2, height, width)
        y = np.pad(x, ((0, planes), (1, max(below, 0)), (before, after)), constant_values=2.0)[:, : height + 1 + below]
        [result] = run([tvm.runtime.tensor(x)])
        np.testing.assert_array_equal(result.numpy(), y, err_msg=f"{height}x{width}")


def test_paddings_of_different_sizes_share_one_kernel() -> None:
    one, other = (copy_rows(padding(before=each, after=1, below=1)) for each in (1, 2))
    kernels = [distinct_functions(each, host_target(), without=["main"]).values() for each in (one, other)]
    assert len({each.symbol for some in kernels for each in some}) == 1


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
