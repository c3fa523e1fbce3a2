"""A vendor's own scales: profile -> plan file, edited as JSON -> partition -> quantize_info -> C source that computes so."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import octavo
from octavo.ir.composites.attributes import read_composites

GENERATOR = Path(__file__).resolve().parents[2] / "examples" / "toynpu" / "generator.py"
NODES = """
a = Conv<pads=[1, 1, 1, 1]>(image, w1, b1) first = Relu(a)
c = Conv<pads=[1, 1, 1, 1]>(first, w2, b2) sum = Add(c, first) y = Conv(sum, w3, b3)
"""
SHAPES = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "b2": (8,), "w3": (4, 8, 1, 1), "b3": (4,)}
NAMES = ("image", "first", "sum")


def literal_npu() -> Any:
    """The toy NPU's generator with shifts and scales written into the C, where they are constants beside it otherwise."""
    spec = importlib.util.spec_from_file_location("toynpu_generator", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class LiteralNpu(module.ToyNpu):
        def __init__(self) -> None:
            self.sources: dict[str, str] = {}

        def code(self, composite: Any, inputs: Any, constants: dict[str, Any], call: str, **more: Any) -> Any:
            info = composite.quantize_info
            roles = [info[role] for role in info if role.startswith(("input", "output"))]
            said = [f"/* {each['id']}: scale {float(each['scale']).hex()}, zero point {each['zero_point']} */" for each in roles]
            if "shift" in constants:
                said.append(f"static const int32_t shift[] = {{{', '.join(map(str, constants['shift']))}}};")
            others = {name: value for name, value in constants.items() if name != "shift"}
            code = super().code(composite, inputs, others, "\n  ".join((*said, call)), **more)
            self.sources[info["output"]["id"]] = code.source.text.split("\nvoid ")[-1]
            return code

    return LiteralNpu()


@pytest.fixture(name="network")
def fixture_network(tmp_path: Path) -> tuple[octavo.Model, list[np.ndarray]]:
    rng = np.random.default_rng(7)
    graph = onnx.parser.parse_graph(f"net (float[1, 3, 10, 10] image) => (float[1, 4, 10, 10] y) {{ {NODES} }}")
    for name, shape in SHAPES.items():
        value = rng.normal(scale=1 / np.sqrt(np.prod(shape[1:]) or 1), size=shape).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx"
    )
    samples = [rng.normal(size=(1, 3, 10, 10)).astype(np.float32) for _ in range(24)]
    return octavo.load(tmp_path / "net.onnx"), samples


def test_a_vendor_s_scales_go_from_the_plan_file_to_the_c_source(network: Any, tmp_path: Path) -> None:
    model, samples = network
    npu, path = literal_npu(), tmp_path / "plan.json"
    profile = octavo.profile(model, samples[:8])
    octavo.quantize(model, profile, target=npu).plan.save(path)

    # The vendor: reads three entries of the profile by name, and writes scales of its own into the file.
    data = json.loads(path.read_text())
    ids = {entry["name"]: key for key, entry in data["activations"].items()}
    own: dict[str, float] = {}
    for name, wider in zip(NAMES, (4.0, 0.5, 2.0), strict=True):
        statistics = profile[ids[name]]
        own[ids[name]] = wider * float(2.0 ** np.ceil(np.log2(max(-statistics.minimum, statistics.maximum) / 127)))
        assert data["activations"][ids[name]]["scale"] != own[ids[name]], "it is no choice of Octavo's"
        data["activations"][ids[name]]["scale"] = own[ids[name]]
    path.write_text(json.dumps(data))

    quantized = octavo.quantize(model, plan=path, target=npu)
    composites = [each for each in read_composites(octavo.partition(quantized, target=npu)).values() if each.backend == "toynpu"]
    entries = [entry for each in composites for entry in each.quantize_info.values() if isinstance(entry, dict) and "id" in entry]
    for key, scale in own.items():
        assert {(entry["scale"], entry["zero_point"]) for entry in entries if entry["id"] == key} == {(scale, 0)}

    npu.sources.clear()
    executable = octavo.compile(quantized, target=npu)
    assert {op.isa for op in octavo.explain(executable).ops if op.macs} == {"toynpu"}
    said = [found for text in npu.sources.values() for found in re.findall(r"/\* (\w+): scale (\S+), zero point (\S+) \*/", text)]
    for key, scale in own.items():
        assert {(float.fromhex(number), point) for name, number, point in said if name == key} == {(scale, "0")}

    # Shifts follow from the numbers of the file, and from nothing else.
    scales = {key: np.array(entry["scale"]) for key, entry in (*data["activations"].items(), *data["weights"].items())}
    for layer in data["layers"]:
        text = npu.sources[layer["output"]]
        if layer["weight"] is not None:
            (array,) = re.findall(r"shift\[\] = \{(.*)\};", text)
            (read,) = layer["inputs"]
            expected = np.log2(scales[layer["output"]]) - np.log2(scales[read]) - np.log2(scales[layer["weight"]])
            assert [int(number) for number in array.split(",")] == expected.tolist()
        else:
            exponents = [int(np.log2(scales[key])) for key in (*layer["inputs"], layer["output"])]
            unit = min(exponents[:2])
            assert f", {', '.join(str(exponent - unit) for exponent in exponents)}, -128, 127);" in text

    simulation, plain = octavo.compile(quantized), octavo.compile(octavo.quantize(model, profile, target=npu))
    results = [[next(iter(run(sample).values())) for sample in samples] for run in (executable, simulation, plain)]
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2]), "the edit changes what is computed"
