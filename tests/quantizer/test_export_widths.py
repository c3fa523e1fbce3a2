"""16 and 4 bits in the ONNX file: its opset, what ONNX Runtime makes of it, and the same bytes when it comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_nets import attention, convolutional, normalized_rows, rows, upsampling

import octavo
from octavo.export.onnx.onnx_export import export_onnx
from octavo.ir.graph.inputs import input_specs
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.recipe import Recipe
from octavo.target.tensor_support import TensorSupport
from reference_sessions import reference_session

WIDE = TensorSupport(dtypes=("int16",))
TYPES = onnx.TensorProto


@pytest.fixture(name="exported", scope="module")
def fixture_exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from a network and a recipe to the quantized model, its file, and samples; profiles are shared."""
    folder, known = tmp_path_factory.mktemp("nets"), {}

    def export(net: Any, recipe: Recipe) -> tuple[Any, Path, list[np.ndarray]]:
        if net not in known:
            onnx.save(net(), folder / "float.onnx")
            model = octavo.load(folder / "float.onnx")
            samples = np.random.default_rng(4).standard_normal((12, *input_specs(model)[0].shape[1:])).astype(np.float32)
            known[net] = model, octavo.profile(model, samples, keep_samples=12), [row[None] for row in samples]
        model, profile, samples = known[net]
        # No corrections and factors, whose runs are compiled: a file holds whatever integers were chosen.
        recipe = replace(recipe, weight_rounding="nearest", bias_correction=False, equalization="none", min_sqnr=None)
        quantized = octavo.quantize(model, profile, recipe=recipe)
        export_onnx(quantized, folder / "quantized.onnx")
        return quantized, folder / "quantized.onnx", samples

    return export


def element_types(path: Path, op: str) -> dict[int, int]:
    """Count the element types of the zero points of Q or DQ nodes; a bias of int32 has none."""
    proto = onnx.load(path)
    types = {item.name: item.data_type for item in proto.graph.initializer}
    found = [types[node.input[2]] for node in proto.graph.node if node.op_type == op and len(node.input) > 2]
    return {each: found.count(each) for each in set(found)}


@pytest.mark.parametrize(
    ("net", "recipe", "opset"),
    [
        (convolutional, Recipe(activation_dtype="int8", weight_granularity="per_tensor", weight_bits=5), 17),
        (convolutional, Recipe(weight_bits={"conv1": 8, "*": 3}, weight_granularity="per_tensor", tensors={"sum": WIDE}), 21),
        (convolutional, Recipe(weight_bits=4, wide_activations=2, exclude=("conv3",), float_tensors=("pool",)), 21),
        (attention, Recipe(activation_dtype="int16", weight_bits=4), 21),
        (rows, Recipe(activation_dtype="int16", weight_bits=2), 21),
        (upsampling, Recipe(weight_bits=4), 21),
        (normalized_rows, Recipe(wide_activations=2), 21),
    ],
)
def test_onnx_runtime_and_octavo_compute_what_the_kernels_do(net: Any, recipe: Recipe, opset: int, exported: Any) -> None:
    quantized, path, samples = exported(net, recipe)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert [entry.version for entry in proto.opset_import] == [opset]
    assert proto.ir_version >= (10 if opset == 21 else 8)
    kernels, again = octavo.compile(quantized), octavo.compile(octavo.load(path))
    ours = [list(kernels(row).values()) for row in samples]
    for row, outputs in zip(samples, ours, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(outputs, again(row).values(), strict=True))
    for optimized in (False, True):
        session = reference_session(path, optimized=optimized, threads=1)
        theirs = [session.run(None, {session.get_inputs()[0].name: row}) for row in samples]
        for first, second in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True):
            # One step of 8 bits anywhere would leave less than 80 dB: those are all equal. A few of 16 bits differ by a step,
            # where sums in float32 fall on the other side of a rounding.
            assert sqnr_db(np.concatenate(first), np.concatenate(second)) > 95


def test_tensors_are_stored_in_the_widths_that_were_decided(exported: Any) -> None:
    quantized, path, _ = exported(convolutional, Recipe(weight_bits={"conv1": 8, "*": 4}, tensors={"sum": WIDE}))
    dtypes = [params.dtype for params in quantized.plan.activations.values()]
    wide, narrow = dtypes.count("int16"), dtypes.count("uint8")
    assert (wide > 0, wide + narrow) == (True, len(dtypes))
    assert element_types(path, "QuantizeLinear") == {TYPES.INT16: wide, TYPES.UINT8: narrow}
    weights = len(quantized.plan.weights)
    assert element_types(path, "DequantizeLinear") == {
        TYPES.INT16: wide,
        TYPES.UINT8: narrow,
        TYPES.INT8: 1,
        TYPES.INT4: weights - 1,
    }
    stored = {item.name: item for item in onnx.load(path).graph.initializer}
    four = [item for item in stored.values() if item.data_type == TYPES.INT4 and len(item.dims) > 1]
    assert all(len(item.raw_data or item.int32_data) <= (np.prod(item.dims) + 1) // 2 for item in four), "two to a byte"
