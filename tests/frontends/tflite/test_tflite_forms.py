"""Products whose scales LiteRT's own kernel does not read are those of its kernel that does."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import octavo
from litert_forms import other_form
from tflite_writer import Op, Tensor, write


def litert(content, x):
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.parametrize("columns", [1, 5, 16])
def test_int16_by_columns_of_a_scale_each(columns, rng, tmp_path):
    """LiteRT's BATCH_MATMUL gives zeros of more than one scale; its FULLY_CONNECTED of the same integers what Octavo gives."""
    scales = tuple(float(scale) for scale in rng.uniform(1e-4, 3e-4, columns))
    value = rng.integers(-127, 128, (24, columns)).astype(np.int8)
    weight = Tensor(name="w", shape=value.shape, dtype="int8", value=value, scale=scales, zero_point=(0,) * columns, axis=1)
    x = Tensor(name="x", shape=(7, 24), dtype="int16", scale=(3e-5,), zero_point=(0,))
    y = Tensor(name="y", shape=(7, columns), dtype="int16", scale=(2e-5,), zero_point=(0,))
    op = Op(name="BATCH_MATMUL", inputs=(0, 1), outputs=(2,), options_class="BatchMatMulOptions", options={})
    content = write([x, weight, y], [op], (0,), (2,))
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    fed = rng.integers(-32768, 32768, (7, 24)).astype(np.int16)
    found = octavo.compile(octavo.load(path))(fed)["y"]
    assert found.any()
    if columns > 1:
        assert not litert(content, fed).any()
        content = other_form(content)
    np.testing.assert_array_equal(found, litert(content, fed))
