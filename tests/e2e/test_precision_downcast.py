"""Float models compiled to 16 bits: what they compute, what stays float32 and why, and what is refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

import octavo
from datasets import imagenet_normalized, images
from machine_isas import EVERY_ISA
from nets import model_of, residual_net
from octavo.compiler.backends.cpu.kernels import AVX512_BF16, AVX512_VNNI, extensions_of
from octavo.errors import CompileError, ProfileError, QuantizationError
from octavo.ir.graph.inputs import random_inputs
from octavo.runtime.llvm_host import host_target
from reference_sessions import reference_session

ROUNDED = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
DIGITS = Path(octavo.__file__).parent / "cli" / "demo_data"


def scaled_net(factor: float) -> octavo.Model:
    """softmax(x) * factor, which softmax reads again: t holds the product."""

    def body(writer, x, f):
        s = writer.emit("s", relax.op.nn.softmax(x))
        t = writer.emit("t", relax.op.multiply(s, f))
        return writer.emit("y", relax.op.nn.softmax(t), is_output=True)

    return model_of(
        {"x": ((1, 8), "float32")}, {"f": np.full((8,), factor, np.float32)}, body, ("y",), fingerprint="sha256:" + "1" * 64
    )


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_each_tensor_is_rounded_and_the_rest_is_float32(rng: np.random.Generator, precision: str, threads: int) -> None:
    """A pooling net whose values are small integers: sums are exact, so the roundings of the tensors are all there is."""
    w = rng.integers(-3, 4, (16, 5, 3, 3)).astype(np.float32)

    def body(writer, x, w):
        c = writer.emit("c", relax.op.nn.conv2d(x, w, padding=1))
        return writer.emit("y", relax.op.nn.max_pool2d(c, pool_size=(2, 2), strides=(2, 2)), is_output=True)

    model = model_of({"x": ((1, 5, 12, 10), "float32")}, {"w": w}, body, ("y",))
    x = rng.integers(-999, 1000, (1, 5, 12, 10)).astype(np.float32)
    [got] = octavo.compile(model, precision=precision, threads=threads)(x).values()
    padded = np.pad(x.astype(ROUNDED[precision]).astype(np.float32), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    sums = np.einsum("nchwij,ocij->nohw", windows, w).astype(ROUNDED[precision]).astype(np.float32)
    assert np.array_equal(got, sums.reshape(1, 16, 6, 2, 5, 2).max(axis=(3, 5)))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_digits_are_read_as_in_float32(precision: str) -> None:
    model = octavo.load(DIGITS / "digits.onnx")
    with np.load(DIGITS / "digits.npz") as digits:
        pixels = digits["images"][:200, None].astype(np.float32) / 16
    runs = [octavo.compile(model, precision=each) for each in (None, precision)]
    float32, half = (np.concatenate([run(pixels[i : i + 1])["logits"] for i in range(200)]) for run in runs)
    assert half.dtype == np.float32
    assert np.array_equal(half.argmax(1), float32.argmax(1))
    assert not np.array_equal(half, float32)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_squeezenet_chooses_the_classes_of_float32(shared: Path, precision: str) -> None:
    file = shared / "models/onnx/squeezenet1.1_224_fp32.onnx"
    samples, _ = images(imagenet_normalized, calibration=False, limit=6)
    run, session = octavo.compile(octavo.load(file), precision=precision), reference_session(file)
    name = session.get_inputs()[0].name
    for sample in samples:
        assert next(iter(run(sample).values())).argmax() == session.run(None, {name: sample})[0].argmax()


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_weights_take_16_bits_on_every_isa(isa: str, precision: str) -> None:
    """All but the biases, and what fills vectors up."""
    model = residual_net()
    plain, half = (octavo.compile(model, target=isa, precision=each).description.weight_bytes for each in (None, precision))
    assert half < 0.6 * plain


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_every_isa_keeps_the_same_tensors_in_16_bits(isa: str) -> None:
    """The probabilities move by less than three roundings to bfloat16, 2^-9 each: one for each convolution."""
    model = residual_net()
    x = random_inputs(model)
    executable = octavo.compile(model, target=isa, precision="bfloat16")
    kernels = [op.kernel for op in octavo.explain(executable).ops if op.macs]
    multiplies = isa == AVX512_VNNI and AVX512_BF16 in extensions_of(host_target())
    assert all(kernel.startswith("bfloat16." if multiplies else "float.") for kernel in kernels)
    [got], [expected] = executable(x).values(), octavo.compile(model)(x).values()
    assert np.abs(got - expected).max() < 3 * 2.0**-9
    assert [op.dtype for op in octavo.explain(executable).ops] == ["bfloat16"] * 5 + [""]


def test_explain_says_what_is_kept_in_16_bits() -> None:
    model = residual_net()
    executable = octavo.compile(model, precision="float16")
    ops = {op.tensor: op for op in octavo.explain(executable).ops}
    assert {name for name, op in ops.items() if op.runs_in == "float16"} == {"r1", "r2", "r3", "m", "y"}
    assert ops["p"].runs_in == "float"  # an output of the model
    assert "; results of 5/6 ops float16, 100.0% of MACs" in octavo.explain(executable).summary
    assert octavo.explain(model, precision="float16") == octavo.explain(executable)


@pytest.mark.parametrize(
    ("factor", "precision", "said"),
    [
        (1e6, "float16", "beyond float16's largest number 65504"),
        (1e-6, "float16", "below float16's least normal number 6.10352e-05"),
        (1e6, "bfloat16", ""),
    ],
)
def test_a_tensor_that_float16_cannot_hold_stays_float32(
    rng: np.random.Generator, factor: float, precision: str, said: str
) -> None:
    model = scaled_net(factor)
    x = rng.normal(size=(1, 8)).astype(np.float32)
    profile = octavo.profile(model, [x])
    ops = {op.tensor: op for op in octavo.explain(model, precision=precision, profile=profile).ops}
    assert said in ops["t"].reason
    assert ops["t"].runs_in == ("float" if said else precision)
    if factor > 1:
        [got] = octavo.compile(model, precision=precision, profile=profile)(x).values()
        [expected] = octavo.compile(model)(x).values()
        assert got == pytest.approx(expected, abs=1e-6)
        assert said == "" or not np.isfinite(next(iter(octavo.compile(model, precision=precision)(x).values()))).all()


def test_weights_that_float16_cannot_hold_stay_float32(rng: np.random.Generator) -> None:
    weight = rng.normal(size=(4, 3, 1, 1)).astype(np.float32)
    weight[2, 1] = 70_000

    def body(writer, x, w):
        return writer.emit("y", relax.op.nn.conv2d(x, w), is_output=True)

    model = model_of({"x": ((1, 3, 4, 4), "float32")}, {"w": weight}, body, ("y",))
    [op] = octavo.explain(model, precision="float16").ops
    assert op.reason == "its weights reach 70000, beyond float16's largest number 65504: they stay float32"
    [got] = octavo.compile(model, precision="float16")(random_inputs(model)["net/x:0"]).values()
    assert np.isfinite(got).all()


def test_what_cannot_be_asked_for() -> None:
    model = residual_net()
    with pytest.raises(CompileError, match="unknown precision 'int4': choose from float32, bfloat16, float16"):
        octavo.compile(model, precision="int4")
    with pytest.raises(CompileError, match=r"float16.*, got int 16"):
        octavo.compile(model, precision=16)
    profile = octavo.profile(model, [next(iter(random_inputs(model).values()))])
    with pytest.raises(QuantizationError, match="give one, and no 16-bit precision"):
        octavo.compile(model, precision="float16", profile=profile, recipe=octavo.Recipe())
    with pytest.raises(ProfileError, match="the profile belongs to another model"):
        octavo.compile(octavo.quantize(model, profile), profile=profile)
    with pytest.raises(ProfileError, match="the profile belongs to another model"):
        octavo.compile(scaled_net(2), precision="float16", profile=profile)
    with pytest.raises(CompileError, match="precision 'bfloat16' is for float models, and this one is quantized"):
        octavo.compile(octavo.quantize(model, profile), precision="bfloat16")
