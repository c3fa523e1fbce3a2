"""Runs kernels of open sizes beside those of each size: as they are, and closed, with numbers in place of their sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import tvm
from kernel_runner import GUARD, Case

from octavo.compiler.backends.cpu.kernels import Kernel
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR
from octavo.ir.graph.nodes import tensor_buffer
from octavo.ir.graph.sizes import buffers_and_dimensions, size_of
from octavo.runtime.llvm_host import host_target
from octavo.runtime.shapes import evaluated
from octavo.runtime.size import Size
from plain_code import plain_code

Make = Callable[[Callable[[str], Any]], Kernel]
"""Makes a kernel of sizes that it asks for by name."""

Draw = Callable[[Kernel], Sequence[np.ndarray]]
"""Returns inputs of a static kernel."""


def closed(kernel: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """Return an open kernel for these sizes: its body, unchanged, over buffers of static shapes."""
    buffers, dimensions = buffers_and_dimensions(kernel.func)
    params: list[Any] = []
    views: list[Any] = []
    tirx: Any = tvm.tirx
    for buffer in buffers:
        (size,) = evaluated([cast("int", size_of(buffer.ty.shape[0]))], sizes)
        params.append(tensor_buffer(buffer.name, (size,), str(buffer.ty.dtype)))
        views.append(tirx.DeclBuffer(buffer, data=tirx.buffer.buffer_data(params[-1])))
    numbers = [tirx.Bind(var, tirx.IntImm("int32", sizes[str(var.name)])) for var in dimensions]
    body = tirx.SeqStmt([*numbers, *views, kernel.func.body])
    func = tirx.PrimFunc(params, body, kernel.func.ret_type, kernel.func.attrs)
    return replace(kernel, func=func)


def open_cases(make: Make, sizes: Iterable[Mapping[str, int]], draw: Draw, like: Make | None = None) -> list[Case]:
    """Return a case of the open kernel, closed, for each of some sizes: its result is what the kernel of that size alone gives.

    `like` makes a kernel of the same results that runs here, where the kernel is another machine's.
    """
    kernel, sizes = make(Size.named), list(sizes)
    statics = [(like or make)(known.__getitem__) for known in sizes]
    drawn = [tuple(draw(static)) for static in statics]
    expected = results_of(statics, drawn)
    return [
        Case(kernel=closed(kernel, known), inputs=arrays, expected=result, about=dict(known))
        for known, arrays, result in zip(sizes, drawn, expected, strict=True)
    ]


def check_open(make: Make, sizes: Iterable[Mapping[str, int]], draw: Draw, like: Make | None = None) -> None:
    """Compile the open kernel once, and compare what it gives for each of some sizes with the kernel of that size alone."""
    kernel, sizes = make(Size.named), list(sizes)
    statics = [(like or make)(known.__getitem__) for known in sizes]
    drawn = [tuple(draw(static)) for static in statics]
    check_sizes(kernel, zip(sizes, drawn, results_of(statics, drawn), strict=True))


def check_sizes(kernel: Kernel, calls: Iterable[tuple[Mapping[str, int], Sequence[np.ndarray], np.ndarray]]) -> None:
    """Compile an open kernel once, and compare what it gives for sizes and inputs with what is expected of these."""
    library = llvm_module({"open": kernel.func.with_attr(KERNEL_ATTR, "open")}, host_target())
    _, dimensions = buffers_and_dimensions(kernel.func)
    for known, arrays, result in calls:
        expected = result.ravel()
        guard = GUARD // expected.itemsize
        storage = tvm.runtime.tensor(np.full(expected.size + guard, 77, expected.dtype))
        numbers = [known[str(var.name)] for var in dimensions]
        out = storage._create_view((expected.size,), str(expected.dtype))
        library["open"](*_tensors(arrays, kernel), *numbers, out)
        got = storage.numpy()
        assert (got[expected.size :] == 77).all(), f"written behind the end: {known}"
        np.testing.assert_array_equal(got[: expected.size], expected, err_msg=str(known))


def results_of(kernels: Sequence[Kernel], inputs: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Run static kernels on this machine, once each: unoptimized, which changes no bit of what they compute."""
    names = [f"kernel_{place}" for place in range(len(kernels))]
    named = {name: each.func.with_attr(KERNEL_ATTR, name) for name, each in zip(names, kernels, strict=True)}
    with plain_code():
        library = llvm_module(named, host_target())
        functions = [library[name] for name in names]  # LLVM compiles the first time that one is asked for
    results: list[np.ndarray] = []
    for function, kernel, arrays in zip(functions, kernels, inputs, strict=True):
        out = kernel.func.params[-1].ty
        result = tvm.runtime.tensor(np.zeros(int(out.shape[0]), str(out.dtype)))
        function(*_tensors(arrays, kernel), result)
        results.append(result.numpy())
    return results


def _tensors(arrays: Sequence[np.ndarray], kernel: Kernel) -> list[Any]:
    return [tvm.runtime.tensor(np.ascontiguousarray(value).ravel()) for value in (*arrays, *kernel.constants)]
