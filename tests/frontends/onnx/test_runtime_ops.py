"""ONNX Runtime's own ops: each with pairs of its inputs and attributes, of fixed and of open sizes, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from octavo.errors import UnsupportedOpError
from reference_sessions import reference_session
from runtime_op_cases import CACHES, CASES, Case, counts, grouped_case, real


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_onnx_runtime_does(name: str, rng: np.random.Generator, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "m.onnx"
    feeds = case.feeds(rng)
    onnx.save(case.model(feeds, rng), path)
    wanted = reference_session(path).run(None, feeds)
    model = octavo.load(path)
    names = [node.name for node in model.source.proto.graph.node if node.name]
    assert len(names) == len(set(names))  # or ONNX Runtime refuses what is exported
    found = octavo.compile(model)(feeds)
    for want, output in zip(wanted, filter(None, case.outputs), strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(found[output], want, rtol=0, atol=case.least * scale, err_msg=output)


ROWS = {"x": "B S 8"}
ROTATED = Case(
    op="Attention", inputs=ROWS, constants={"w": real(8, 24)}, order=["x", "w", ""], attrs={"num_heads": 2, "do_rotary": 1}
)
REFUSED = {
    "do_rotary = 1 is not supported; write a RotaryEmbedding": ROTATED,
    "k_quant_type = PER_TENSOR is not supported; compute with": grouped_case(
        "grows", "step", attrs={"k_quant_type": "PER_TENSOR"}
    ),
    "sliding_window_cache = 1 is not supported; use a cache": grouped_case("grows", "step", attrs={"sliding_window_cache": 1}),
    "'Affine' is none of Clip, .*export it unfused": Case(
        op="FusedGemm", inputs={"x": "S 8", "k": "8 S"}, attrs={"activation": "Affine"}
    ),
    "scale = 2.0 is not supported; scale the caches": Case(
        op="RotaryEmbedding", inputs={"x": "B S 16", "p": "1"}, constants=CACHES, attrs={"scale": 2.0}
    ),
    "its output 1 .*export the model for inference": Case(
        op="SkipLayerNormalization", inputs={**ROWS, "k": "B S 8"}, constants={"g": real(8)}, outputs=("y", "m")
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_supported_is_named(message: str, rng: np.random.Generator, tmp_path: Path) -> None:
    case = REFUSED[message]
    onnx.save(case.model(case.feeds(rng), rng), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedOpError, match=f"op com.microsoft.{case.op} .*{message}") as caught:
        octavo.load(tmp_path / "m.onnx")
    assert "\n" not in str(caught.value)


def test_a_past_may_be_empty(rng: np.random.Generator, tmp_path: Path) -> None:
    case = grouped_case("grows", "rows")
    onnx.save(case.model(case.feeds(rng), rng), tmp_path / "m.onnx")
    executable = octavo.compile(octavo.load(tmp_path / "m.onnx"))
    feeds = {**case.feeds(rng), "n": counts(2).reshape(1, 1), "t": counts(3)}
    feeds |= {name: np.zeros((1, 2, 0, 16), np.float32) for name in ("pk", "pv")}
    [want, *_] = reference_session(tmp_path / "m.onnx").run(None, feeds)
    np.testing.assert_allclose(executable(feeds)["y"], want, rtol=0, atol=2e-6)
