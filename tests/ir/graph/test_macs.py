"""Multiply-accumulates of the ops that TVM computes, against counting each product that NumPy's loops would make."""

from typing import Any

import pytest
from tvm import relax

from octavo.ir.graph.dataflow import DataflowView
from octavo.ir.graph.macs import float_macs
from qdq_graph import graph

_nn: Any = relax.op.nn

CASES: dict[str, tuple[list[tuple[int, ...]], Any, int]] = {
    # [2, 6, 9] by 8 kernels of [3, 4] in 2 groups: 6 places.
    "conv1d": ([(2, 6, 9), (8, 3, 4)], lambda x, w: _nn.conv1d(x, w, groups=2), 2 * 8 * 6 * 3 * 4),
    "conv2d": (
        [(1, 5, 6, 3), (2, 3, 3, 7)],
        lambda x, w: _nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        4 * 4 * 7 * 2 * 3 * 3,
    ),
    "conv3d": ([(1, 2, 4, 4, 4), (3, 2, 2, 2, 2)], _nn.conv3d, 3 * 3 * 3 * 3 * 2 * 8),
    # Each of the 4 x 5 x 5 elements meets 6 channels of 3 x 3 taps, whatever the stride.
    "conv2d_transpose": ([(1, 4, 5, 5), (4, 6, 3, 3)], lambda x, w: _nn.conv2d_transpose(x, w, strides=(2, 2)), 100 * 6 * 9),
    "conv1d_transpose": ([(1, 4, 5), (4, 3, 3)], lambda x, w: _nn.conv1d_transpose(x, w, groups=2), 20 * 3 * 3),
    "matmul": ([(2, 1, 4, 5), (3, 5, 6)], relax.op.matmul, 2 * 3 * 4 * 6 * 5),
    "row": ([(5,), (5, 6)], relax.op.matmul, 6 * 5),
    "einsum": ([(2, 3, 4), (2, 4, 5)], lambda a, b: relax.op.einsum((a, b), "bij,bjk->bik"), 2 * 3 * 4 * 5),
    # 2 samples, 3 heads: 4 queries by 6 keys of size 8, then by values of size 5.
    "attention": ([(2, 4, 3, 8), (2, 6, 3, 8), (2, 6, 3, 5)], _nn.attention, 2 * 3 * 4 * 6 * (8 + 5)),
    "add": ([(2, 3), (2, 3)], relax.op.add, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_each_product_counts(name: str) -> None:
    shapes, op, expected = CASES[name]
    inputs = {f"x{index}": (shape, "float32") for index, shape in enumerate(shapes)}
    module = graph(inputs, lambda w, x: op(*x.values()))
    assert sum(float_macs(binding.value) for binding in DataflowView(module["main"]).bindings) == expected
