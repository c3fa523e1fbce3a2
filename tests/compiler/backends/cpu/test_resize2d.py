"""Float resizing, which TVM writes: pixels of open sizes are found in 32 bits, and are those that each size alone takes."""

from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from onnx import TensorProto, helper
from tvm import relax
from tvm.tirx import Cast

import octavo
from octavo.compiler.backends.cpu.legalize import legalizations
from plain_code import plain_code

MODES = (
    ("nearest", "asymmetric", {"nearest_mode": "floor"}),
    ("nearest", "half_pixel", {"nearest_mode": "round_prefer_floor"}),
    ("linear", "half_pixel", {}),
    ("linear", "align_corners", {}),
    ("linear", "asymmetric", {}),
)

SIZES = ((1, 1), (3, 5), (8, 4), (17, 33))


def resized(mode: str, coordinates: str, attributes: dict[str, str]) -> octavo.Model:
    """A network that resizes x to the size of y."""
    shapes = {"x": [1, 3, "h", "w"], "y": [1, 3, "H", "W"]}
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Shape", ["y"], ["size"]),
        helper.make_node(
            "Resize", ["x", "", "", "size"], ["z"], mode=mode, coordinate_transformation_mode=coordinates, **attributes
        ),
        helper.make_node("Add", ["z", "y"], ["sum"]),
    ]
    taken = helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1, 3, None, None])
    graph = helper.make_graph(nodes, "g", given, [taken])
    return octavo.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize(("mode", "coordinates", "attributes"), MODES)
def test_an_open_size_takes_the_pixels_of_each(
    mode: str, coordinates: str, attributes: dict[str, str], rng: np.random.Generator
) -> None:
    model = resized(mode, coordinates, attributes)
    executable = octavo.compile(model)
    for height, width in SIZES:
        for factor in (1, 3):
            sizes = {"h": height, "w": width, "H": factor * height, "W": factor * width + 1}
            data = {
                "x": rng.normal(size=(1, 3, height, width)).astype(np.float32),
                "y": rng.normal(size=(1, 3, sizes["H"], sizes["W"])).astype(np.float32),
            }
            module = relax.transform.BindSymbolicVars(sizes)(model.module)
            with plain_code():
                alone = octavo.compile(replace(model, module=module, sizes={}))
            assert executable(data)["sum"].tobytes() == alone(data)["sum"].tobytes(), sizes


@pytest.mark.parametrize(("mode", "coordinates", "attributes"), MODES)
def test_no_pixel_is_found_in_64_bits(mode: str, coordinates: str, attributes: dict[str, str]) -> None:
    module = relax.transform.LegalizeOps(legalizations())(resized(mode, coordinates, attributes).module)
    function = next(each for var, each in module.functions_items() if var.name_hint.startswith("resize"))
    kinds: set[tuple[str, str]] = set()
    tvm_ffi.structural_walk(function.body, (Cast, lambda node: kinds.add((str(node.ty.dtype), str(node.value.ty.dtype)))))
    assert ("int32", "float32") in kinds
    assert not kinds & {("int64", "float32"), ("float32", "int64")}
