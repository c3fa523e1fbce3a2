"""Kernels called one by one, which may be compiled while others are still being written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.ir import GenericConst
from tvm.relax import Var

import octavo
from nets import residual_net
from octavo.compiler.backends.cpu.context import PlacedKernel
from octavo.compiler.backends.cpu.link import link, linked_kernel
from octavo.compiler.backends.cpu.lowering import Lowered, lower_composites
from octavo.compiler.codegen import objects
from octavo.compiler.codegen.kernel_calls import KernelCalls, KernelLibraries
from octavo.compiler.partition.pipeline import partition_module
from octavo.compiler.target_choice import resolve_target
from octavo.runtime.code_cache import LOCATION_VARIABLE

HERE = resolve_target(None)


@pytest.fixture(scope="module")
def parts() -> tvm.IRModule:
    samples = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)
    model = residual_net()
    quantized = octavo.quantize(model, octavo.profile(model, samples), preset="fast")
    return partition_module(quantized.bound(), HERE.host)


def lowered_of(parts: tvm.IRModule, listener: Any = None) -> Lowered:
    return lower_composites(parts, HERE.host, HERE.isas, 1, listener=listener)


def outputs(program: KernelCalls, x: np.ndarray) -> list[np.ndarray]:
    state: dict[Var, Any] = dict(zip(program.params, [tvm.runtime.tensor(x)], strict=True))
    for call in program.calls:
        operands = [state[each] if isinstance(each, Var) else each for each in call.operands]
        state[call.var] = call.run([each.value if isinstance(each, GenericConst) else each for each in operands])
    return [state[result].numpy() for result in program.results]


def test_each_kernel_is_told_of_as_it_is_written(parts: tvm.IRModule) -> None:
    """In the order of the module, with the code that it has there."""
    heard: list[PlacedKernel] = []
    lowered = lowered_of(parts, heard.append)
    assert [kernel.symbol for kernel in heard] == list(lowered.kernels)
    for kernel in heard:
        assert kernel.func.body.same_as(lowered.kernels[kernel.symbol].func.body)


@pytest.mark.parametrize("cache", ["off", "on"])
def test_kernels_compiled_early_are_not_compiled_again(
    parts: tvm.IRModule, cache: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv(LOCATION_VARIABLE, "off" if cache == "off" else str(tmp_path))
    compiled: list[str] = []
    compile_one = objects._compiled

    def counted(each: objects.Compilable, target: tvm.target.Target) -> bytes:
        compiled.extend(each.functions)
        return compile_one(each, target)

    monkeypatch.setattr(objects, "_compiled", counted)
    libraries = KernelLibraries(HERE.llvm)
    lowered = lowered_of(parts, lambda kernel: libraries.add(kernel.symbol, linked_kernel(kernel, HERE.llvm)))
    program = KernelCalls(link(lowered, HERE.llvm), HERE.llvm, libraries)
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    early = outputs(program, x)
    assert len(compiled) == len(set(compiled))
    again = len(compiled)
    late = outputs(KernelCalls(link(lowered_of(parts), HERE.llvm), HERE.llvm), x)
    for got, want in zip(early, late, strict=True):
        np.testing.assert_array_equal(got, want)
    assert (len(compiled) == again) == (cache == "on")
