"""Types of ops with layouts that were inferred before: those that TVM infers, whatever is another about a call."""

import itertools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm_ffi import structural_equal

from octavo.ir.graph.dataflow import normalized


def tensor(shape: Any) -> relax.TensorType:
    return relax.TensorType(shape, "float32")


def conv(shape: Any, **options: Any) -> Any:
    x = relax.Var("x", tensor(shape))
    weight = relax.const(np.zeros((8, 4, 3, 3), np.float32))
    return relax.op.nn.conv2d(x, weight, **options)


def test_types_are_those_that_tvm_infers() -> None:
    builder = relax.BlockBuilder()
    shapes = ((1, 4, 9, 9), (2, 4, 9, 9), (1, 4, 9, 8), (tvm.tirx.Var("n", "int64"), 4, 9, 9))
    options: tuple[dict[str, Any], ...] = (
        {},
        {"strides": (2, 2)},
        {"padding": (1, 1, 1, 1)},
        {"out_dtype": "float16"},
        {"out_layout": "NHWC"},
    )
    for _, shape, option in itertools.product(range(2), shapes, options):
        expected = builder.normalize(conv(shape, **option)).ty
        call = conv(shape, **option)
        found = normalized(builder, call)
        assert found.same_as(call)
        if all(isinstance(dim, int) for dim in shape):
            assert structural_equal(found.ty, expected)
        else:
            assert str(found.ty) == str(expected)


def test_other_ops_have_types_of_their_own() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor((1, 4, 8, 8)))
    for _ in range(2):
        pooled, half = (normalized(builder, relax.op.nn.max_pool2d(x, (2, 2), strides=(each, each))) for each in (1, 2))
        assert [int(dim) for dim in pooled.ty.shape.values] == [1, 4, 7, 7]
        assert [int(dim) for dim in half.ty.shape.values] == [1, 4, 4, 4]


def test_operands_that_are_calls_get_variables(rng: np.random.Generator) -> None:
    builder = relax.BlockBuilder()
    weight = relax.const(rng.normal(size=(8, 4, 3, 3)).astype(np.float32))
    x = relax.Var("x", tensor((1, 4, 8, 8)))
    with builder.function("main", [x]):
        found = normalized(builder, relax.op.nn.conv2d(relax.op.nn.relu(x), weight))
        assert isinstance(found.args[0], relax.Var)
        builder.emit_func_output(found)


def test_operands_that_do_not_fit_are_refused() -> None:
    for _ in range(2):
        with pytest.raises(Exception, match="channel"):
            normalized(relax.BlockBuilder(), conv((1, 5, 9, 9)))
