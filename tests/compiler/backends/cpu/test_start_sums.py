"""Reductions that TVM writes give what they start from along an open axis that has no elements, and not what memory held."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

import octavo
from octavo.compiler.backends.cpu.start_sums import start_sums
from reference_sessions import reference_session


@I.ir_module
class Before:
    @T.prim_func(s_tir=True)
    def total(x_handle: T.handle, y_handle: T.handle):
        n, s = T.int64(), T.int64()
        x = T.match_buffer(x_handle, (n, s), "int32")
        y = T.match_buffer(y_handle, (n,), "int32")
        for i, k in T.grid(n, s):
            with T.sblock("sum"):
                v, r = T.axis.remap("SR", [i, k])
                with T.init():
                    y[v] = 0
                y[v] = y[v] + x[v, r]


@I.ir_module
class Expected:
    @T.prim_func(s_tir=True)
    def total(x_handle: T.handle, y_handle: T.handle):
        n, s = T.int64(), T.int64()
        x = T.match_buffer(x_handle, (n, s), "int32")
        y = T.match_buffer(y_handle, (n,), "int32")
        for i in range(n):
            with T.sblock("sum_init"):
                v = T.axis.spatial(n, i)
                y[v] = 0
            for k in range(s):
                with T.sblock("sum_update"):
                    v, r = T.axis.remap("SR", [i, k])
                    y[v] = y[v] + x[v, r]


def test_a_reduction_starts_before_its_loop() -> None:
    tvm.ir.assert_structural_equal(start_sums(Before), Expected)
    assert start_sums(Expected).same_as(Expected)


REDUCED = """<ir_version: 9, opset_import: ["" : 18]> reduced (int32[n,s] x, int32[s,4] w) =>
(int32[n] total, int32[n] product, int32[n,4] rows, float[n] part, int32[t] columns)
<int64[1] axis = {1}, int64[1] first = {0}> {
    total = ReduceSum <keepdims = 0> (x, axis)
    product = ReduceProd <keepdims = 0> (x, axis)
    rows = MatMul (x, w)
    floats = Cast <to = 1> (x)
    part = ReduceProd <keepdims = 0> (floats, axis)
    columns = ReduceSum <keepdims = 0> (x, first)
}"""


@pytest.mark.parametrize("columns", [0, 1, 7])
def test_an_axis_that_may_be_empty(rng: np.random.Generator, columns: int) -> None:
    proto = onnx.parser.parse_model(REDUCED)
    executable, session = octavo.compile(octavo.load(proto, sizes={"s": (0, None)})), reference_session(proto)
    inputs = {
        "x": rng.integers(-4, 5, (40, columns)).astype(np.int32),
        "w": rng.integers(-4, 5, (columns, 4)).astype(np.int32),
    }
    expected = session.run(None, inputs)
    for size in (3, columns):  # memory that a call before it has written
        executable({"x": np.full((40, size), 7, np.int32), "w": np.full((size, 4), 7, np.int32)})
    for name, want in zip(executable(inputs), expected, strict=True):
        np.testing.assert_array_equal(executable(inputs)[name], want, err_msg=name)
