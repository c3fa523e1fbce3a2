"""One spelling of the target: every entry point takes each, and refuses the same ones with the same words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from nets import model_of
from octavo.compiler.backends.cpu.kernels import AVX2, KNOWN_ISAS, isas_of, scheduled
from octavo.compiler.target_choice import SPELLINGS, resolve_target
from octavo.errors import TargetError
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU, OpSupport, TargetDescription

X = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
DENSE = TargetDescription(
    name="dense",
    ops=(
        OpSupport(op="matmul", weights=("int8", "uint8"), fusions=("bias", "nn.relu", "clip"), float_output=True),
        *(OpSupport(op=name) for name in ("quantize", "dequantize")),
    ),
)
"""Hardware that computes dense layers alone."""

SPELLED = ("none", "cpu", "isa", "llvm", "llvm target", "description", "path", "path text")


@pytest.fixture(scope="module")
def dense_json(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("targets") / "dense.json"
    path.write_text(json.dumps(DENSE.to_json()))
    return path


@pytest.fixture(scope="module")
def target_of(dense_json) -> Callable[[str], Any]:
    spelled = dict(
        zip(SPELLED, (None, "cpu", "generic", "llvm", tvm.target.Target("llvm"), DENSE, dense_json, str(dense_json)), strict=True)
    )
    return lambda name: spelled[name]


@pytest.fixture(scope="module")
def model():
    """A convolution and a dense layer: what only one of the targets takes, and what all take."""
    rng = np.random.default_rng(1)
    params = {"w": rng.normal(size=(8, 3, 3, 3)).astype(np.float32), "v": rng.normal(size=(8, 10)).astype(np.float32)}

    def body(writer: BodyWriter, **v: Any) -> Any:
        r1 = writer.emit("r1", relax.op.nn.relu(writer.emit("c1", relax.op.nn.conv2d(v["x"], v["w"], padding=1, strides=2))))
        pooled = writer.emit("m", relax.op.mean(r1, axis=[2, 3]))
        return writer.emit("y", relax.op.matmul(pooled, v["v"]), is_output=True)

    return model_of({"x": (X.shape, "float32")}, params, body, ("y",))


@pytest.fixture(scope="module")
def profile(model):
    return octavo.profile(model, [X])


@pytest.fixture(scope="module")
def quantized(model, profile):
    return octavo.quantize(model, profile)


@pytest.fixture(scope="module")
def expected(quantized):
    return octavo.compile(quantized)(X)


def integer_ops(explanation: octavo.Explanation) -> set[str]:
    return {op.op for op in explanation.counted if op.integer}


@pytest.mark.parametrize("spelling", SPELLED)
def test_quantize_takes_every_spelling(spelling, target_of, model, profile):
    made = octavo.quantize(model, profile, target=target_of(spelling))
    of_dense = "conv2d" not in integer_ops(octavo.explain(made))
    assert of_dense == (spelling in ("description", "path", "path text"))


@pytest.mark.parametrize("spelling", SPELLED)
def test_compile_and_explain_take_every_spelling(spelling, target_of, quantized, expected):
    target = target_of(spelling)
    executable = octavo.compile(quantized, target=target)
    explained = octavo.explain(quantized, target=target)
    assert explained == octavo.explain(executable)
    assert "matmul" in integer_ops(explained)
    assert ("conv2d" in integer_ops(explained)) == (spelling not in ("description", "path", "path text"))
    for name, value in executable(X).items():
        np.testing.assert_allclose(value, expected[name], atol=0.05)


@pytest.mark.parametrize("spelling", SPELLED)
def test_relax_pipeline_takes_every_spelling(spelling, target_of, quantized):
    with host_target():
        made = octavo.relax_pipeline(target=target_of(spelling))(quantized.bound())
    # Kernels are named by the tensors that they write: r1 is the first convolution's, y the dense layer's (generic: 1x1 conv2d).
    kernels = {str(var.name_hint): str(function.attrs.get(KERNEL_ATTR)) for var, function in made.functions_items()}
    assert any(name.endswith("_y") and kernel.startswith(("matmul", "conv2d")) for name, kernel in kernels.items())
    of_conv2d = any(name.endswith("_r1_q") and "conv2d" in kernel for name, kernel in kernels.items())
    assert of_conv2d == (spelling not in ("description", "path", "path text"))


@pytest.mark.parametrize("target", [5, "", " ", "gpu", "x86.avx9", b"cpu", {"cpu"}, {"kind": "llvm"}, "a\0b", "x" * 5000])
def test_every_entry_point_refuses_with_the_same_words(target, model, profile):
    messages = set()
    for call in (
        lambda: octavo.quantize(model, profile, target=target),
        lambda: octavo.compile(model, target=target),
        lambda: octavo.explain(model, target=target),
        lambda: octavo.relax_pipeline(target=target),
        lambda: octavo.tune(model, target=target),
    ):
        with pytest.raises(TargetError) as raised:
            call()
        messages.add(str(raised.value))
    (message,) = messages
    assert message.startswith("unknown target ")
    assert message.endswith(f": give {SPELLINGS}")


def test_what_the_choices_stand_for(monkeypatch):
    monkeypatch.delenv("OCTAVO_TARGET", raising=False)
    host = host_target()
    assert str(resolve_target(None)) == str(resolve_target("cpu"))
    assert resolve_target("cpu").description is CPU
    assert resolve_target("cpu").isas == isas_of(host)
    assert resolve_target("generic").isas == ("generic",)
    assert resolve_target(DENSE).isas == resolve_target(None).isas, "it lists none, so all of the machine's"
    assert resolve_target(replace(DENSE, isas=("generic",))).isas == ("generic",), "only what the description lists"
    assert str(resolve_target(DENSE).llvm) == str(scheduled(host)), "in the order of instructions that suits its best ISA"
    assert str(resolve_target("cpu", tvm.target.Target("llvm")).llvm) == str(tvm.target.Target("llvm"))


@pytest.mark.needs_isa(AVX2)
def test_the_variable_narrows_what_this_machine_is(model, monkeypatch):
    monkeypatch.setenv("OCTAVO_TARGET", AVX2)
    assert resolve_target(None).isas == resolve_target("cpu").isas == (AVX2, "generic")
    assert str(resolve_target(None).llvm) == str(resolve_target(AVX2).llvm)
    assert octavo.compile(model).description.isa == AVX2
    assert resolve_target(DENSE).isas == (AVX2, "generic")
    assert resolve_target("generic").isas == ("generic",), "a target that is given counts"
    assert isas_of(resolve_target("generic").llvm) == isas_of(host_target())
    monkeypatch.setenv("OCTAVO_TARGET", "")
    assert resolve_target(None).isas == isas_of(host_target())


def test_a_wrong_variable_is_one_error(model, monkeypatch):
    monkeypatch.setenv("OCTAVO_TARGET", "x86.sse9")
    with pytest.raises(TargetError, match=r"OCTAVO_TARGET names the unknown ISA 'x86\.sse9': choose from .*generic, or unset it"):
        octavo.compile(model)
    monkeypatch.setenv("OCTAVO_TARGET", AVX2)
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "x86-64")
    with pytest.raises(
        TargetError, match=r"OCTAVO_TARGET names x86\.avx2, which this machine lacks: choose from generic, or unset"
    ):
        octavo.compile(model)


@pytest.mark.parametrize("isa", KNOWN_ISAS)
def test_a_machine_without_an_isa_can_quantize_and_explain_for_it_but_not_compile(isa, model, profile):
    quantized = octavo.quantize(model, profile, target=isa)
    assert {op.isa for op in octavo.explain(quantized, target=isa).ops} <= {isa, "generic", "tvm", ""}
    if isa not in isas_of(host_target()):
        with pytest.raises(TargetError, match=f"this machine has no {isa}; it has "):
            octavo.compile(quantized, target=isa)
