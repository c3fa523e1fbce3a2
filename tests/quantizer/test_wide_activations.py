"""Activations of 16 bits among those of 8: which they are, that the rest stays as it was, and what it brings."""

from dataclasses import replace

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.errors import QuantizationError
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.target import CPU
from octavo.target.tensor_support import TensorSupport

SHAPE = (1, 3, 8, 8)
PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", float_ops=())
WIDE = TensorSupport(dtypes=("int16",))


@pytest.fixture(scope="module")
def profiled() -> tuple[octavo.Model, octavo.Profile, list[np.ndarray]]:
    model, rng = residual_net(), np.random.default_rng(4)
    samples = [rng.normal(size=SHAPE).astype(np.float32) for _ in range(12)]
    return model, octavo.profile(model, samples, keep_samples=12), samples


@pytest.fixture(scope="module")
def plain(profiled) -> octavo.Model:
    model, profile, _ = profiled
    return octavo.quantize(model, profile, recipe=PLAIN)


def dtypes(quantized: octavo.Model) -> dict[str, str]:
    return {str(name): params.dtype for name, params in quantized.plan.activations.items()}


@pytest.mark.parametrize(
    ("tensor", "wide"),
    [("x", {"x"}), ("r1", {"r1"}), ("r2", {"r2"}), ("r3", {"r3", "m", "f"})],
)
def test_one_tensor_is_wide_and_what_its_kernels_share(profiled, plain, tensor, wide):
    model, profile, samples = profiled
    quantized = octavo.quantize(model, profile, recipe=replace(PLAIN, tensors={tensor: WIDE}))
    assert {name for name, dtype in dtypes(quantized).items() if dtype == "int16"} == wide
    assert {name for name, dtype in dtypes(quantized).items() if dtype == "uint8"} == set(dtypes(plain)) - wide
    assert [layer.op for layer in quantized.plan.layers] == [layer.op for layer in plain.plan.layers]
    ops = octavo.explain(quantized).ops
    assert all(op.integer for op in ops if op.macs)
    assert [op.kernel for op in ops].count("float.elementwise") == 1
    again = octavo.quantize(model, plan=quantized.plan)
    assert again.fingerprint == quantized.fingerprint
    first, second = (octavo.compile(each)(samples[0]) for each in (quantized, again))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_the_most_expensive_are_wide(profiled):
    model, profile, samples = profiled
    executables = [octavo.compile(model)]
    counts = (0, 1, 5)
    for count in counts:
        quantized = octavo.quantize(model, profile, recipe=octavo.Recipe(wide_activations=count))
        assert count <= list(dtypes(quantized).values()).count("int16") <= 3 * count
        executables.append(octavo.compile(quantized))
    real, *others = ([next(iter(each(x).values())) for x in samples] for each in executables)
    errors = [sqnr_db(np.concatenate(real), np.concatenate(each)) for each in others]
    assert errors[0] + 0.2 < errors[1] < errors[2] - 0.2, errors


def test_a_target_without_16_bits_takes_none(profiled):
    model, profile, _ = profiled
    narrow = replace(CPU, ops=tuple(replace(op, activations=("uint8", "int8")) for op in CPU.ops))
    quantized = octavo.quantize(model, profile, target=narrow, recipe=replace(PLAIN, wide_activations=2))
    assert set(dtypes(quantized).values()) == {"uint8"}
    assert len(quantized.plan.layers) == len(octavo.quantize(model, profile, target=narrow, recipe=PLAIN).plan.layers)


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_a_count_is_a_count(count):
    with pytest.raises(QuantizationError, match="wide_activations must be a number of activations, 0 or more"):
        octavo.Recipe(wide_activations=count)
