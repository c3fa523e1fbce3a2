"""Kernels that differ in scales and zero points alone become one, and still give each its own results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm_ffi import StructuralKey

from octavo.compiler.backends.cpu.context import PlacedKernel
from octavo.compiler.backends.cpu.kernels import (
    AVX2,
    AVX512_VNNI,
    GENERIC,
    BatchMatmulSpec,
    FloatBatchMatmulSpec,
    FloatOutput,
    Kernel,
    batch_matmul,
    float_batch_matmul,
)
from octavo.compiler.backends.cpu.kernels.quantization.quantize import QuantizeSpec, quantize
from octavo.compiler.backends.cpu.share_kernels import share_kernels
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.ir.composites.matrix_view import MatrixView
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR
from octavo.runtime.llvm_host import host_target
from octavo.runtime.size import Size

QUANTIZED = [(21, 0.1, 3), (21, 0.25, 130), (33, 0.1, 3), (21, 0.1, 3)]
"""Elements, scale, zero point."""


def placed(kernels: list[Kernel]) -> dict[str, PlacedKernel]:
    symbols = [f"kernel_{number}" for number in range(len(kernels))]
    return {
        symbol: PlacedKernel(symbol=symbol, func=kernel.func, name=kernel.name, isa=kernel.isa)
        for symbol, kernel in zip(symbols, kernels, strict=True)
    }


def body_of(kernel: PlacedKernel) -> Any:
    func: Any = kernel.func
    return StructuralKey(tvm.tirx.PrimFunc(func.params, func.body, func.ret_type))


def test_kernels_of_one_size_share_what_is_compiled_and_take_their_numbers() -> None:
    specs = [QuantizeSpec(size=size, scale=scale, zero_point=zero) for size, scale, zero in QUANTIZED]
    given = placed([quantize(spec, isa=GENERIC) for spec in specs])
    shared, numbers = share_kernels(given)
    assert body_of(shared["kernel_0"]) == body_of(shared["kernel_1"]) == body_of(shared["kernel_3"])
    assert numbers["kernel_0"] == numbers["kernel_3"] != numbers["kernel_1"]
    assert "kernel_2" not in numbers  # alone with its size: its numbers stay literals
    assert shared["kernel_2"] is given["kernel_2"]


def test_a_kernel_with_numbers_for_arguments_gives_what_literals_give(rng: np.random.Generator) -> None:
    specs = [QuantizeSpec(size=size, scale=scale, zero_point=zero) for size, scale, zero in QUANTIZED]
    given = placed([quantize(spec, isa=GENERIC) for spec in specs])
    shared, numbers = share_kernels(given)
    functions = {
        f"{kind}_{symbol}": each.func for kind, some in (("own", given), ("one", shared)) for symbol, each in some.items()
    }
    library = llvm_module({name: each.with_attr(KERNEL_ATTR, name) for name, each in functions.items()}, host_target())
    for symbol, spec in zip(given, specs, strict=True):
        x = tvm.runtime.tensor(rng.normal(scale=20, size=spec.size).astype(np.float32))
        results = [tvm.runtime.tensor(np.zeros(spec.size, np.uint8)) for _ in range(2)]
        library[f"own_{symbol}"](x, results[0])
        library[f"one_{symbol}"](x, *numbers.get(symbol, ()), results[1])
        np.testing.assert_array_equal(results[1].numpy(), results[0].numpy())


@pytest.mark.parametrize("isa", [AVX512_VNNI, AVX2, GENERIC])
def test_products_of_layers_are_one_kernel_for_known_and_open_sizes(isa: str) -> None:
    def product(zero_points: tuple[int, int], multiplier: float, rows: Any) -> Kernel:
        a, b, y = (MatrixView.plain(shape) for shape in ((2, rows, 32), (2, 32, 48), (2, rows, 48)))
        facts: dict[str, Any] = {"a_zero_point": zero_points[0], "b_zero_point": zero_points[1], "multiplier": multiplier}
        return batch_matmul(BatchMatmulSpec(a=a, b=b, y=y, output=FloatOutput(), **facts), isa=isa)

    for rows in (7, Size.named("rows")):
        layers = placed([product((132, 119), 1e-3, rows), product((9, 140), 2e-3, rows)])
        shared, numbers = share_kernels(layers)
        assert body_of(shared["kernel_0"]) == body_of(shared["kernel_1"])
        assert numbers["kernel_0"] != numbers["kernel_1"]


def test_layers_of_other_sizes_share_an_open_kernel(rng: np.random.Generator) -> None:
    rows: Any = Size.named("rows")
    sizes = [33 * rows, rows // 2 * 65]
    parameters = [{"scale": 0.1, "zero_point": 3}, {"scale": 0.25, "zero_point": 130}]
    made = [QuantizeSpec(size=size, **each) for size, each in zip(sizes, parameters, strict=True)]
    given = placed([quantize(spec, isa=GENERIC) for spec in made])
    shared, numbers = share_kernels(given)
    assert body_of(shared["kernel_0"]) == body_of(shared["kernel_1"])
    assert [numbers[symbol][0] for symbol in given] == [size // 16 for size in sizes]
    closed = [replace(spec, size=size.evaluate({"rows": 7})) for spec, size in zip(made, sizes, strict=True)]
    functions = {f"closed_{number}": quantize(spec, isa=GENERIC).func for number, spec in enumerate(closed)}
    functions["open"] = shared["kernel_0"].func
    library = llvm_module({name: each.with_attr(KERNEL_ATTR, name) for name, each in functions.items()}, host_target())
    for number, spec in enumerate(closed):
        x = tvm.runtime.tensor(rng.normal(scale=20, size=spec.size).astype(np.float32))
        results = [tvm.runtime.tensor(np.zeros(spec.size, np.uint8)) for _ in range(2)]
        library[f"closed_{number}"](x, results[0])
        taken = [each.evaluate({"rows": 7}) if isinstance(each, Size) else each for each in numbers[f"kernel_{number}"]]
        library["open"](x, *taken, results[1])
        np.testing.assert_array_equal(results[1].numpy(), results[0].numpy())


def test_a_layer_whose_operands_happen_to_be_of_one_size_shares_with_others() -> None:
    def product(columns: int) -> Kernel:
        rows: Any = Size.named("rows")
        a, b, y = (MatrixView.plain(shape) for shape in ((1, rows, 32), (1, 32, columns), (1, rows, columns)))
        return float_batch_matmul(FloatBatchMatmulSpec(a=a, b=b, y=y), isa=AVX2)

    shared, numbers = share_kernels(placed([product(32), product(64)]))
    assert body_of(shared["kernel_0"]) == body_of(shared["kernel_1"])
    assert all(isinstance(number, Size) or number < 2**15 for each in numbers.values() for number in each)
