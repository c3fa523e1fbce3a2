"""The benchmark of kinds of layers: every kind is a network, and a row has what each runtime takes for it."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

import layer_kinds
import octavo
from layer_kind_networks import KINDS
from reference_sessions import reference_session


def test_every_kind_is_a_network() -> None:
    for kind in KINDS.values():
        onnx.checker.check_model(layer_kinds.network(kind))


@pytest.mark.parametrize("name", ["matmul of a batch by constants", "conv volume 3x1x1"])
def test_a_row_compares_all_runtimes_in_both_forms(name: str) -> None:
    row = layer_kinds.looked_at(name, KINDS[name], seconds=0.01)
    assert len(row.times) == 6
    assert not row.notes
    assert 0 < row.ratio < math.inf
    assert not {"matmul", "nn.conv2d"} & {*row.floats}
    assert f" {row.ratio:.2f} |" in layer_kinds.table([row])


@pytest.mark.parametrize("shape", [(4, 5, 6), (1, 3, 1, 5, 6)])
def test_products_by_several_constant_matrices_equal_onnx_runtime(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    kind = layer_kinds.Kind(nodes="output = MatMul(x, w)", shape=shape, stem=False, constants={"w": (4, shape[-1], 7)})
    network, x = layer_kinds.network(kind), rng.standard_normal(shape).astype(np.float32)
    values = octavo.compile(octavo.load(network))(x)["output"]
    np.testing.assert_allclose(values, reference_session(network).run(None, {"input": x})[0], rtol=1e-5, atol=1e-5)
