"""Files with ONNX Runtime's own ops: which, what it computes of them, and what they are when loaded again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_nets import OnnxWriter

import octavo
from octavo.errors import QuantizationError
from octavo.ir.identity import TensorId
from octavo.quantizer.choices import Choices
from octavo.quantizer.quantize_graph import quantize_graph
from reference_sessions import reference_session

BLOCKS = octavo.Recipe(
    weight_bits=4, weight_block=32, bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None
)
ROWS = replace(BLOCKS, weight_bits=8, weight_block=None)


def net(path: Path, rng: np.random.Generator) -> Path:
    """A product with a bias behind it, one without, and a Gemm of a transposed weight with factors."""
    writer = OnnxWriter()
    writer.node("Add", [writer.node("MatMul", ["x", writer.constant("w1", 64, 30)], "d"), writer.constant("b", 30)], "e")
    writer.node("MatMul", ["x", writer.constant("w2", 64, 30)], "g")
    flat = writer.node("Reshape", ["x", writer.value("sizes", np.array([6, 64]))], "r")
    writer.node("Gemm", [flat, writer.constant("w3", 12, 64), writer.constant("c", 12)], "y", transB=1, alpha=0.5, beta=2.0)
    onnx.save(writer.model({"x": [2, 3, 64]}, {"e": [2, 3, 30], "g": [2, 3, 30], "y": [6, 12]}, 17), path)
    return path


@pytest.mark.parametrize(
    ("recipe", "op", "level"),
    [
        (BLOCKS, "MatMulNBits", 1),
        (replace(BLOCKS, block_activations="int8"), "MatMulNBits", 4),
        (replace(BLOCKS, weight_bits=3), "MatMulNBits", 1),
        (replace(BLOCKS, activation_dtype="uint8"), "MatMulNBits", 4),
        (ROWS, "DynamicQuantizeMatMul", None),
    ],
)
def test_it_computes_the_file(
    recipe: octavo.Recipe, op: str, level: int | None, rng: np.random.Generator, tmp_path: Path
) -> None:
    model = octavo.load(net(tmp_path / "float.onnx", rng))
    samples = list(rng.normal(size=(4, 2, 3, 64)).astype(np.float32))
    profile = octavo.profile(model, samples)
    changes = Choices(per_row={TensorId(name): "it is tried" for name in ("e", "g", "y")} if recipe is ROWS else {})
    quantized = quantize_graph(model, profile, recipe=recipe, changes=changes)
    octavo.export_onnx(quantized, tmp_path / "ours.onnx", ops="onnxruntime")
    nodes = [node for node in onnx.load(tmp_path / "ours.onnx").graph.node if node.domain]
    assert [node.op_type for node in nodes] == [op] * 3
    found = [{each.name: each.i for each in node.attribute}.get("accuracy_level") for node in nodes]
    assert found == [level] * 3
    session = reference_session(tmp_path / "ours.onnx")
    programs = [octavo.compile(quantized), octavo.compile(octavo.load(tmp_path / "ours.onnx"))]
    for x in samples:
        theirs = dict(zip(("e", "g", "y"), session.run(["e", "g", "y"], {"x": x}), strict=True))
        for program in programs:
            for name, value in program(x).items():
                # What either rounds of the activations: nothing at level 1, half a step of 8 bits for each of 64 inputs else.
                limit = 2e-5 if level == 1 else 2e-2
                np.testing.assert_allclose(theirs[name], value, rtol=0, atol=limit * float(np.abs(value).max()))


def test_other_ops_are_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    model = octavo.load(net(tmp_path / "float.onnx", rng))
    quantized = octavo.quantize(model, octavo.profile(model, [np.ones((2, 3, 64), np.float32)] * 4), recipe=ROWS)
    kind: Any = "tensorrt"
    with pytest.raises(QuantizationError, match="unknown ops 'tensorrt': choose from standard, onnxruntime"):
        octavo.export_onnx(quantized, tmp_path / "ours.onnx", ops=kind)
    assert not (tmp_path / "ours.onnx").exists()
