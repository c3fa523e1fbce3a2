"""What a result's error is measured on: the scores, where a softmax hides them, in whatever shape they are returned."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from octavo.ir.graph.dataflow import DataflowView
from octavo.quantizer.referee.score import sqnr_by_result


def view(*, is_reshaped: bool) -> DataflowView:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.nn.relu(x), "scores"), axis=1), "classes")
            result = builder.emit(relax.op.reshape(result, (6,)), "flat") if is_reshaped else result
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    return DataflowView(builder.get()["main"])


@pytest.mark.parametrize("is_reshaped", [False, True])
def test_scores_are_compared_where_a_softmax_ends_the_model(is_reshaped: bool, rng: np.random.Generator) -> None:
    scores = [rng.normal(size=(1, 2, 3)) for _ in range(2)]
    scores[1] = scores[0] + 0.1 * scores[1]
    real, made = (np.exp(each) / np.exp(each).sum(axis=1, keepdims=True) for each in scores)
    centred, other = (each - each.mean(axis=1, keepdims=True) for each in scores)
    expected = 10 * np.log10((centred**2).sum() / ((centred - other) ** 2).sum())
    shape = (6,) if is_reshaped else (1, 2, 3)
    graph = view(is_reshaped=is_reshaped)
    assert sqnr_by_result(graph, [[real.reshape(shape)]], [[made.reshape(shape)]]) == pytest.approx([expected])
