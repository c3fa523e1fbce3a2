"""RSQRT of int8 gives LiteRT's integers, whatever the scales: of every stored integer, that of 0 too, from a table."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import octavo
from tflite_writer import Op, Tensor, write


@pytest.mark.parametrize("seed", range(6))
def test_every_integer(seed, tmp_path):
    """The first two have values that are next to a tie, which rounding once gets wrong."""
    rng = np.random.default_rng(seed)
    ties = [(0.22015597432453637, 0.004712847338336798, -96), (0.32666972836344516, 0.0025651870977358967, -26)]
    drawn = (float(np.exp(rng.uniform(-6, 1))), float(np.exp(rng.uniform(-6, 0))), int(rng.integers(-128, 20)))
    scale, step, zero_point = ties[seed] if seed < len(ties) else drawn
    tensors = [
        Tensor(name="x", shape=(256,), dtype="int8", scale=(scale,), zero_point=(-128,)),
        Tensor(name="y", shape=(256,), dtype="int8", scale=(step,), zero_point=(zero_point,)),
    ]
    path = tmp_path / "m.tflite"
    path.write_bytes(write(tensors, [Op(name="RSQRT", inputs=(0,), outputs=(1,))], (0,), (1,)))
    x = np.arange(-128, 128).astype(np.int8)
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    executable = octavo.compile(octavo.load(path))
    np.testing.assert_array_equal(executable(x)["y"], interpreter.get_tensor(1))
    assert [op.kernel for op in octavo.explain(executable).ops] == ["lookup"]
