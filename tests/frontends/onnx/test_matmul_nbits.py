"""ONNX Runtime's MatMulNBits, and DequantizeLinear in blocks of 4 bits: what they become, and what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.errors import CompileError, UnsupportedOpError
from reference_sessions import reference_session

N = 24


def packed(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Two values to a byte along the last axis, the first in the low half; an odd one alone."""
    wide = np.concatenate([values, np.zeros((*values.shape[:-1], values.shape[-1] % 2), np.uint8)], axis=-1)
    return wide[..., ::2] | (wide[..., 1::2] << 4)


def net(
    rng: np.random.Generator, inputs: int, block: int, *, points: bool, bias: bool, accuracy: int = 0, signed: bool = False
) -> onnx.ModelProto:
    blocks = -(-inputs // block)
    constants: dict[str, npt.NDArray[Any]] = {
        "B": packed(rng.integers(0, 16, (N, blocks, block)).astype(np.uint8)),
        "scales": rng.uniform(0.01, 0.1, N * blocks).astype(np.float32),
    }
    if signed:  # as ONNX Runtime's symmetric quantizer writes them
        constants["scales"][::3] *= -1
        constants["scales"][::7] = 0
    names = ["x", "B", "scales"]
    if points:
        constants["points"] = packed(rng.integers(0, 16, (N, blocks)).astype(np.uint8)).reshape(-1)
        names.append("points")
    if bias:
        names += [""] * (5 - len(names))
        constants["bias"] = rng.normal(size=N).astype(np.float32)
        names.append("bias")
    attrs = {"K": inputs, "N": N, "bits": 4, "block_size": block, "accuracy_level": accuracy}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attrs)
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, N])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize(("inputs", "block"), [(64, 32), (256, 128), (96, 32), (80, 32), (64, 16)])
def test_it_computes_what_onnx_runtime_does(
    inputs: int, block: int, points: bool, bias: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    onnx.save(net(rng, inputs, block, points=points, bias=bias, signed=bias), tmp_path / "m.onnx")
    model = octavo.load(tmp_path / "m.onnx")
    [op] = octavo.explain(model).ops if inputs % block == 0 else [None]
    assert op is None or op.kernel == f"block_matmul.float32 {block}"
    x = rng.normal(size=(2, 3, inputs)).astype(np.float32)
    [want] = reference_session(tmp_path / "m.onnx").run(None, {"x": x})
    [found] = octavo.compile(model)(x).values()
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-6 * float(np.abs(want).max()))


@pytest.mark.parametrize(("level", "kind"), [(0, "bfloat16"), (1, "float32"), (2, "bfloat16"), (3, "bfloat16"), (4, "int8")])
def test_its_accuracy_level_says_how_exact_activations_are(
    level: int, kind: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    onnx.save(net(rng, 256, 64, points=True, bias=level % 2 == 0, accuracy=level), tmp_path / "m.onnx")
    model = octavo.load(tmp_path / "m.onnx")
    [op] = octavo.explain(model, block_activations="bfloat16").ops  # which counts where the file says nothing
    assert op.integer
    assert op.kernel == f"block_matmul.{kind.replace('bfloat16', 'int16')} 64"
    x = rng.normal(size=(2, 3, 256)).astype(np.float32)
    [want] = reference_session(tmp_path / "m.onnx").run(None, {"x": x})
    [found] = octavo.compile(model, block_activations="bfloat16")(x).values()
    # An activation in 8 bits is off by 1/254 of its block's largest at most, by some 1/500 of a normal distribution's.
    tolerance = {"float32": 2e-6, "bfloat16": 1e-4, "int8": 2e-2}[kind]
    np.testing.assert_allclose(found, want, rtol=0, atol=tolerance * float(np.abs(want).max()))


def test_what_activations_may_be(rng: np.random.Generator) -> None:
    model = octavo.load(net(rng, 64, 32, points=False, bias=False))
    with pytest.raises(CompileError, match="unknown block_activations 'int4': choose from float32, bfloat16, int8"):
        octavo.compile(model, block_activations="int4")


@pytest.mark.parametrize("kind", ["zero points in float", "order of inputs", "8 bits", "2 bits", "8 bits with zero points"])
def test_other_forms(kind: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """Against the definition: ONNX Runtime's kernels take some of these on GPUs alone."""
    bits = int(kind[0]) if kind[0].isdigit() else 4
    values, scales = rng.integers(0, 2**bits, (N, 64)).astype(np.uint8), rng.normal(size=(N, 2)).astype(np.float32)
    points: npt.NDArray[Any] = np.full((N, 2), 2 ** (bits - 1), np.uint8)
    blocks = np.arange(64) // 32
    parts = [values[:, place :: 8 // bits] << np.uint8(bits * place) for place in range(8 // bits)]
    constants = {"B": np.bitwise_or.reduce(parts).reshape(N, 2, -1), "scales": scales.reshape(-1)}
    names = ["x", "B", "scales"]
    if "zero points" in kind:
        points = rng.normal(size=(N, 2)).astype(np.float32) if "float" in kind else rng.integers(0, 256, (N, 2)).astype(np.uint8)
        constants["points"] = points if "float" in kind else points.reshape(-1)
        names.append("points")
    if "order" in kind:
        blocks = rng.integers(0, 2, 64)
        constants["order"] = blocks.astype(np.int32)
        names += ["", "order"]
    attrs = {"K": 64, "N": N, "bits": bits, "block_size": 32}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attrs)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, size]) for name, size in (("x", 64), ("y", N))]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "net", infos[:1], infos[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    x = rng.normal(size=(3, 64)).astype(np.float32)
    want = x @ ((values.astype(np.float32) - points.astype(np.float32)[:, blocks]) * scales[:, blocks]).T
    [found] = octavo.compile(octavo.load(tmp_path / "m.onnx"))(x).values()
    np.testing.assert_allclose(found, want, rtol=0, atol=3e-6 * float(np.abs(want).max()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 3}, "its attribute bits = 3 is none of 2, 4, 8"),
        ({"K": 128}, r"B uint8 \(24, 2, 16\) does not fit K 128, N 24, block_size 32"),
        ({"block_size": 0}, "does not fit K 64, N 24, block_size 0"),
    ],
)
def test_another_form_is_named(change: dict[str, int], message: str, rng: np.random.Generator, tmp_path: Path) -> None:
    model = net(rng, 64, 32, points=False, bias=False)
    for attribute in model.graph.node[0].attribute:
        attribute.i = change.get(attribute.name, attribute.i)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedOpError, match=message):
        octavo.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("dtype", ["INT4", "UINT4"])
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_blocked_dequantize_of_4_bits(axis: int, block: int, dtype: str, rng: np.random.Generator, tmp_path: Path) -> None:
    low, high = (-8, 8) if dtype == "INT4" else (0, 16)
    elem_type = getattr(TensorProto, dtype)
    shape, of_blocks = ((256, N), (256 // block, N)) if axis == 0 else ((N, 256), (N, 256 // block))
    points = rng.integers(low, high, of_blocks)
    initializers = [
        helper.make_tensor("w", elem_type, shape, rng.integers(low, high, shape).reshape(-1)),
        helper.make_tensor("z", elem_type, of_blocks, points.reshape(-1)),
        numpy_helper.from_array(rng.uniform(0.01, 0.1, of_blocks).astype(np.float32), "s"),
    ]
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=axis, block_size=block)]
    nodes += [helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0])] if axis else []
    nodes.append(helper.make_node("MatMul", ["x", "t" if axis else "d"], ["y"]))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [5, size]) for n, size in (("x", 256), ("y", N))]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    model = octavo.load(tmp_path / "m.onnx")
    [op] = octavo.explain(model).ops
    assert op.kernel == f"block_matmul.float32 {block}"
    x = rng.normal(size=(5, 256)).astype(np.float32)
    [want] = reference_session(tmp_path / "m.onnx", optimized=False).run(None, {"x": x})
    [found] = octavo.compile(model)(x).values()
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-6 * float(np.abs(want).max()))
