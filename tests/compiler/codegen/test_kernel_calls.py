"""Kernels called one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.ir import GenericConst
from tvm.relax import Var

import octavo
from nets import residual_net
from octavo.compiler.backends.cpu.link import link
from octavo.compiler.backends.cpu.lowering import lower_composites
from octavo.compiler.codegen import objects
from octavo.compiler.codegen.kernel_calls import KernelCalls
from octavo.compiler.partition.pipeline import partition_module
from octavo.compiler.target_choice import resolve_target
from octavo.runtime.code_cache import LOCATION_VARIABLE

HERE = resolve_target(None)


@pytest.fixture(scope="module")
def quantized() -> octavo.QuantizedModel:
    samples = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)
    model = residual_net()
    return octavo.quantize(model, octavo.profile(model, samples), preset="fast")


def outputs(program: KernelCalls, x: np.ndarray) -> list[np.ndarray]:
    state: dict[Var, Any] = dict(zip(program.params, [tvm.runtime.tensor(x)], strict=True))
    for call in program.calls:
        operands = [state[each] if isinstance(each, Var) else each for each in call.operands]
        state[call.var] = call.run([each.value if isinstance(each, GenericConst) else each for each in operands], {})
    return [state[result].numpy() for result in program.results]


@pytest.mark.parametrize("cache", ["off", "on"])
def test_calls_give_what_the_compiled_model_does_and_each_kernel_is_compiled_once(
    quantized: octavo.QuantizedModel, cache: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv(LOCATION_VARIABLE, "off" if cache == "off" else str(tmp_path))
    compiled: list[str] = []
    compile_one = objects._compiled

    def counted(each: objects.Compilable, target: tvm.target.Target) -> bytes:
        compiled.extend(each.functions)
        return compile_one(each, target)

    monkeypatch.setattr(objects, "_compiled", counted)
    parts = partition_module(quantized.bound(), HERE.host)
    linked = link(lower_composites(parts, HERE.host, HERE.isas, 1), HERE.llvm)
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    found = outputs(KernelCalls(linked, HERE.llvm), x)
    for got, want in zip(found, octavo.compile(quantized)(x).values(), strict=True):
        np.testing.assert_array_equal(got, want)
    kernels = [name for name in compiled if name.startswith("octavo_")]
    assert kernels
    if cache == "on":
        assert len(kernels) == len(set(kernels))
        outputs(KernelCalls(linked, HERE.llvm), x)
        assert [name for name in compiled if name.startswith("octavo_")] == kernels
