"""Layers of a quantized file: paired with the float model's by the names of its source, where they are the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_nets import OnnxWriter

import octavo
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.plan.plan import QuantizedModel
from reference_sessions import reference_session

UNEVEN = (2.0 ** np.arange(-4, 4)).astype(np.float32)


def alike_names() -> Any:
    """Tensors of three shapes whose names differ behind a ";", as converters of fused ops write them."""
    net, rng = OnnxWriter(), np.random.default_rng(1)
    weights = [net.value(f"w{i}", rng.standard_normal((8, size, 1, 1)).astype(np.float32)) for i, size in enumerate((3, 16))]
    made = net.node("Relu", [net.node("Conv", ["x", weights[0]], "n;conv")], "n;conv:0")
    shape = net.value("shape", np.array([1, 16, 3, 6], np.int64))
    split = net.node("Reshape", [made, shape], "n;conv:1")
    net.node("Conv", [split, weights[1]], "y")
    return net.model({"x": [1, 3, 6, 6]}, {"y": [1, 8, 3, 6]})


def uneven_channels() -> Any:
    """Two convolutions between which channels are of unlike ranges."""
    net, rng = OnnxWriter(), np.random.default_rng(1)
    first = net.value("first", rng.standard_normal((8, 3, 3, 3)).astype(np.float32) * UNEVEN[:, None, None, None])
    second = net.value("second", rng.standard_normal((8, 8, 1, 1)).astype(np.float32) / UNEVEN[None, :, None, None])
    net.node("Conv", [net.node("Relu", [net.node("Conv", ["x", first], "c")], "r"), second], "y")
    return net.model({"x": [1, 3, 8, 8]}, {"y": [1, 8, 6, 6]})


def values_of(path: Path, names: list[str], samples: np.ndarray) -> dict[str, np.ndarray]:
    """Compute tensors of a file in ONNX Runtime."""
    proto = onnx.load(path)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name != "y")
    onnx.save(proto, path.with_suffix(".all.onnx"))
    session = reference_session(path.with_suffix(".all.onnx"), optimized=False, threads=1)
    rows = [session.run(names, {"x": row[None]}) for row in samples]
    return {name: np.concatenate([row[place] for row in rows]) for place, name in enumerate(names)}


def files(network: Any, folder: Path, recipe: octavo.Recipe) -> tuple[octavo.Model, QuantizedModel, np.ndarray]:
    """Write m.onnx and int8.onnx."""
    onnx.save(network, folder / "m.onnx")
    model = octavo.load(folder / "m.onnx")
    samples = np.random.default_rng(2).standard_normal((12, *model.tensors[model.input_ids[0]].shape[1:])).astype(np.float32)
    quantized = octavo.quantize(model, octavo.profile(model, samples, keep_samples=12), recipe=recipe)
    octavo.export_onnx(quantized, folder / "int8.onnx")
    return model, quantized, samples


@pytest.mark.parametrize("network", [alike_names, uneven_channels])
def test_errors_of_a_file_s_layers_are_those_of_onnx_runtime(network: Callable[[], Any], tmp_path: Path) -> None:
    recipe = octavo.Recipe(equalization="none", min_sqnr=None)  # or r stays float: it is what rounding costs most there
    model, _, samples = files(network(), tmp_path, recipe)
    found = {row.source_name: row.sqnr_db for row in octavo.evaluate(model, tmp_path / "int8.onnx", samples, layers=12).layers}
    names = [name for name in found if name != "x"]
    assert {"r"} <= set(names) if network is uneven_channels else {"n;conv:0", "n;conv:1"} <= set(names)
    floats, ints = (values_of(tmp_path / file, names, samples) for file in ("m.onnx", "int8.onnx"))
    expected = {name: sqnr_db(floats[name], ints[name]) for name in names}
    assert {name: found[name] for name in names} == pytest.approx(expected, abs=0.01)


def test_equalized_tensors_are_named_so_and_compared_as_they_were(tmp_path: Path) -> None:
    model, quantized, samples = files(uneven_channels(), tmp_path, octavo.Recipe())
    assert quantized.plan.equalization.factors.keys() == {"c", "r"}
    made = {name for node in onnx.load(tmp_path / "int8.onnx").graph.node for name in node.output}
    assert "r_divided" in made
    assert made.isdisjoint({"c", "r"})
    expected = {row.id: row.sqnr_db for row in octavo.layer_errors(model, quantized, samples)}
    found = {row.id: row.sqnr_db for row in octavo.layer_errors(model, octavo.load(tmp_path / "int8.onnx"), samples)}
    assert found.keys() == expected.keys() >= {"x", "r"}
    assert found == pytest.approx(expected, abs=1e-3)


def test_metadata_that_others_wrote_is_refused(tmp_path: Path) -> None:
    model, _, samples = files(uneven_channels(), tmp_path, octavo.Recipe())
    proto = onnx.load(tmp_path / "int8.onnx")
    [entry] = proto.metadata_props
    for text in ("[]", "{", '{"r_divided": {"source": "r", "shape": [3], "factors": [1.0]}}'):
        entry.value = text
        onnx.save(proto, tmp_path / "other.onnx")
        with pytest.raises(octavo.OctavoError, match=r"metadata octavo\.divided is not what octavo quantize writes"):
            octavo.layer_errors(model, octavo.load(tmp_path / "other.onnx"), samples)
