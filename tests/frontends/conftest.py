"""Fixtures of the frontends' tests: run a module as TVM alone would, without any stage of ours."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tvm_alone import tvm_alone


@pytest.fixture(scope="session")
def run() -> Callable[..., list[np.ndarray]]:
    """Compile a module with TVM's default pipeline and run it once."""
    return lambda module, *inputs: tvm_alone(module)(*inputs)


@pytest.fixture
def make_onnx() -> Callable[..., onnx.ModelProto]:
    """Build a checked ONNX model from nodes, input and output shapes and constants."""

    def make(
        nodes: list[onnx.NodeProto],
        inputs: dict[str, tuple[Any, ...]],
        outputs: dict[str, tuple[Any, ...] | None],
        constants: dict[str, np.ndarray] | None = None,
        opset: int = 17,
        domains: tuple[str, ...] = (),
        dtype: int = onnx.TensorProto.FLOAT,
    ) -> onnx.ModelProto:
        graph = onnx.helper.make_graph(
            nodes,
            "graph",
            [onnx.helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
            [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            [onnx.numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
        )
        opsets = [onnx.helper.make_opsetid("", opset), *(onnx.helper.make_opsetid(domain, 1) for domain in domains)]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)

    return make


@pytest.fixture(scope="session")
def expose() -> Callable[..., tvm.IRModule]:
    """Make a module whose main returns the variables of the given names, in order."""

    def rebuild(module: tvm.IRModule, names: list[str]) -> tvm.IRModule:
        main = relax.transform.ToNonDataflow()(module)["main"]
        bound = {binding.var.name: binding.var for block in main.body.blocks for binding in block.bindings}
        body = relax.BlockBuilder().normalize(relax.Tuple([bound[name] for name in names]))
        function = relax.Function(main.params, relax.SeqExpr(main.body.blocks, body), body.ty).with_attr("global_symbol", "main")
        return tvm.IRModule({"main": relax.BlockBuilder().normalize(function)})

    return rebuild
