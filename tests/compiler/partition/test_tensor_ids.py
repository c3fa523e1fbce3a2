"""Identity through quantizing and lowering: a source tensor is found again in what the kernels say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import octavo
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.compiler.backends.cpu.link import link
from octavo.compiler.partition.pipeline import integer_regions, lower
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A float ONNX network with batch norm, quantized: the profile, the model, and its exported QDQ file."""
    rng = np.random.default_rng(0)
    constants = {
        "w": (rng.standard_normal((8, 3, 3, 3)) / 5).astype(np.float32),
        "gamma": rng.uniform(0.5, 1.5, 8).astype(np.float32),
        "beta": rng.standard_normal(8).astype(np.float32),
        "mean": rng.standard_normal(8).astype(np.float32),
        "var": rng.uniform(0.5, 1.5, 8).astype(np.float32),
        "w2": (rng.standard_normal((4, 8, 1, 1)) / 3).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["in/x", "w"], ["conv:0"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["conv:0", "gamma", "beta", "mean", "var"], ["block/bn"]),
        helper.make_node("Relu", ["block/bn"], ["block/relu"]),
        helper.make_node("Conv", ["block/relu", "w2"], ["head"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("in/x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("head", onnx.TensorProto.FLOAT, [1, 4, 8, 8])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    folder = tmp_path_factory.mktemp("identity")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "net.onnx"))
    loaded = octavo.load(folder / "net.onnx")
    profile = octavo.profile(loaded, [rng.standard_normal((1, 3, 8, 8)).astype(np.float32) for _ in range(8)])
    result = octavo.quantize(loaded, profile)
    octavo.export_onnx(result, folder / "net.int8.onnx")
    return profile, result, folder / "net.int8.onnx"


def infos(module: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Every function of a module that has a quantize_info, and this."""
    found = [function for _, function in module.functions_items() if function.attrs and "quantize_info" in function.attrs]
    return [(function, function.attrs["quantize_info"]) for function in found]


def fused(module: Any) -> set[tuple[str, ...]]:
    """What the functions of a module name as fused."""
    found = [function.attrs for function, _ in infos(module)]
    return {tuple(str(tensor) for tensor in attrs["tensor_ids"]) for attrs in found if "tensor_ids" in attrs}


def final_module(model: Any) -> Any:
    target = host_target()
    return link(lower(model.bound(), CPU, isas_of(target), 1, model.tensors), target)


@pytest.mark.parametrize("name", ["in/x", "block/relu"])
def test_a_tensor_is_found_by_its_onnx_name_in_the_final_module(quantized: tuple[Any, Any, Path], name: str) -> None:
    """With the parameters that the exported file holds for it."""
    _, model, path = quantized
    tensor = model.tensors.find(name)
    entries = [
        entry
        for _, info in infos(final_module(model))
        for role, entry in info.items()
        if role.startswith(("input", "output")) and not isinstance(entry, str) and entry["id"] == tensor
    ]
    assert entries, "no kernel reads or writes it"
    graph = onnx.load(str(path)).graph
    initializers = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    [node] = [node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0].startswith(name)]
    scale, zero_point = initializers[node.input[1]], initializers[node.input[2]]
    for entry in entries:
        assert np.float32(entry["scale"]) == scale
        assert int(entry["zero_point"]) == int(zero_point)
        assert str(entry["dtype"]) == str(zero_point.dtype)
        # The bounds of a result include its relu: zero is the least real then.
        assert int(entry["qmin"]) in (0, int(zero_point))
        assert int(entry["qmax"]) == 255


def test_the_statistics_of_every_quantized_tensor_are_found_by_quantize_info(quantized: tuple[Any, Any, Path]) -> None:
    profile, model, _ = quantized
    asked = 0
    for _, info in infos(final_module(model)):
        for role, entry in info.items():
            if role.startswith(("input", "output")) and not isinstance(entry, str):
                if entry["dtype"] == "float32":
                    continue  # what no integer op reads has no scale
                statistics = profile[entry["id"]]
                width = max(statistics.maximum, 0.0) - min(statistics.minimum, 0.0)
                assert np.isclose(width / 255, float(entry["scale"]), rtol=1e-5)
                asked += 1
    assert asked >= 4


def test_a_composite_keeps_the_ids_that_it_swallows(quantized: tuple[Any, Any, Path]) -> None:
    """The convolution's own output is gone with the batch norm folded into it; what the block still computes is named."""
    _, model, _ = quantized
    ids = {name: model.tensors.find(name) for name in ("conv:0", "block/bn", "block/relu", "head")}
    partition = integer_regions(model.bound(), CPU, model.tensors)
    kept = fused(partition.module)
    assert (ids["block/bn"], ids["block/relu"]) in kept
    assert [fold.gone for fold in model.plan.folds] == [ids["conv:0"]]
    assert kept == fused(final_module(model))
