"""Kernels of open sizes give what the kernel of each size gives, bit for bit: random sizes, those around tiles and vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from emulated_kernels import MACHINES, call_of, check_emulated
from kernel_runner import GENERIC, ISAS
from open_kernels import check_open, open_cases
from tvm.script.ir_builder import tirx as T

from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import (
    AVX2,
    AVX512_VNNI,
    BatchMatmulSpec,
    BlockMatmulSpec,
    BlockRowsSpec,
    FloatConcatSpec,
    FloatOutput,
    Kernel,
    SoftmaxSpec,
)
from octavo.compiler.backends.cpu.kernels.conv.loops.open_tiles import for_pixel_tiles
from octavo.compiler.backends.cpu.kernels.language.vectors import prim_func, shuffled
from octavo.compiler.backends.cpu.kernels.matmuls import x86_int8_batch_matmul
from octavo.compiler.backends.cpu.kernels.move.take import TakeSpec
from octavo.compiler.backends.cpu.kernels.move.transpose import TransposeSpec
from octavo.compiler.backends.cpu.kernels.norms.channel_groups import ChannelGroups
from octavo.compiler.backends.cpu.kernels.norms.float_group_norm import FloatGroupNormSpec
from octavo.compiler.backends.cpu.kernels.norms.group_norm import GroupNormSpec
from octavo.compiler.backends.cpu.kernels.quantization.dynamic import ColumnsSpec, DynamicSpec
from octavo.compiler.backends.cpu.kernels.reductions.float_reduce import FloatReduceSpec
from octavo.compiler.backends.cpu.kernels.reductions.reduce import ReduceSpec
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.ir.composites.matrix_view import MatrixView
from octavo.ir.composites.outputs import Output
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR
from octavo.numerics.dynamic import PER_ROW
from octavo.numerics.rounding.fixed_point import fixed_point_multiplier
from octavo.runtime.llvm_host import host_target
from octavo.runtime.size import Size

Dim = Callable[[str], Any]
Sizes = Sequence[Mapping[str, int]]
EDGES = (1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 65, 130)


def drawn(rng: np.random.Generator, *names: str, count: int = 8, most: int = 90) -> Sizes:
    """Sizes around tiles and vectors, and others."""
    numbers = [*EDGES, *map(int, rng.integers(1, most, count))]
    return [{name: int(rng.choice(numbers)) for name in names} for _ in range(count)] + [dict.fromkeys(names, 1)]


def inputs(rng: np.random.Generator) -> Callable[[Kernel], Sequence[np.ndarray]]:
    def draw(kernel: Kernel) -> Sequence[np.ndarray]:
        given: list[np.ndarray] = []
        for param in kernel.func.params[: len(kernel.func.params) - 1 - len(kernel.constants)]:
            size, dtype = int(param.ty.shape[0]), np.dtype(str(param.ty.dtype))
            if dtype.kind == "f":
                values = rng.normal(size=size).astype(dtype)
                # Scales are positive, zero points whole numbers: both are read from one array.
                given.append(np.abs(np.rint(values * 8)) + 1 if "parameters" in param.name else values)
            else:
                bounds = np.iinfo(dtype)
                given.append(rng.integers(bounds.min, bounds.max, size, endpoint=True).astype(dtype))
        return [array.astype(np.float32) if array.dtype == np.float64 else array for array in given]

    return draw


def dense(dim: Dim, isa: str, features: tuple[int, int] = (33, 40), threads: int = 1, **how: Any) -> Kernel:
    rng = np.random.default_rng(1)
    output = how.pop("output", Output(zero_point=5))
    is_wide = how.get("dtype") == "int16"
    bias = rng.integers(-999, 999, features[1])
    multiplier: Any = rng.uniform(1e-4, 1e-3, features[1]).astype(np.float32)
    if is_wide:
        multiplier = fixed_point_multiplier(1e-5, "reduced")
    return kernels.matmul(
        rows=dim("batch") * dim("sequence"),
        in_features=features[0],
        out_features=features[1],
        weight=rng.integers(-127, 128, features).astype(np.int8),
        weight_zero_point=how.pop("weight_zero_point", 0),
        bias=bias.astype(np.int64 if is_wide else np.float32 if output.real_bias else np.int32),
        multiplier=multiplier,
        input_zero_point=0 if is_wide or not isinstance(output, Output) else 3,
        output=output,
        threads=threads,
        isa=isa,
        **how,
    )


@pytest.mark.parametrize(
    ("size", "are_few"), [(1, True), (2, True), (3, True), (5, True), (6, True), (6, False), (8, True), (16, True)]
)
def test_tiles_cover_each_pixel(size: int, are_few: bool) -> None:
    """Tiles of fewer pixels end where the last one does, and none leaves the range."""

    def emit(out: Any) -> None:
        def tile(first: Any, pixels: int) -> None:
            for pixel in range(pixels):
                T.buffer_store(out, 1, [first + pixel])

        for_pixel_tiles(Size.named("count").asobject(), size, tile, are_few=are_few)

    func = prim_func([("out", Size.named("count") + 8, "int32")], emit)
    library = llvm_module({"tiles": func.with_attr(KERNEL_ATTR, "tiles")}, host_target())
    for count in range(1, 3 * size + 2):
        out = tvm.runtime.tensor(np.zeros(count + 8, np.int32))
        library["tiles"](count, out)
        assert out.numpy().tolist() == [1] * count + [0] * 8


PER_ROW_OUTPUT = FloatOutput(pixels_per_scale=1)
DENSE: dict[str, dict[str, Any]] = {
    "ragged": {},
    "whole vectors": {"features": (64, 96)},
    "per row": {"output": PER_ROW_OUTPUT, "features": (32, 48)},
    "panels that a row reads twice": {"output": PER_ROW_OUTPUT, "features": (70, 150)},
    "asymmetric": {"weight_zero_point": 9},
    "16 bits": {"dtype": "int16", "output": Output(zero_point=0, qmin=-32768, qmax=32767), "features": (24, 20)},
    "two threads": {"threads": 2, "features": (64, 64)},
    "many rows of two threads": {"output": PER_ROW_OUTPUT, "threads": 2, "features": (96, 320)},
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", DENSE)
def test_dense(kind: str, isa: str, rng: np.random.Generator) -> None:
    """Every kernel of one size gives the same, whatever its ISA: the generic one is compiled in a fraction of the time."""
    how, sizes = DENSE[kind], [*drawn(rng, "batch", "sequence", count=5, most=20), {"batch": 3, "sequence": 211}]
    sizes.append({"batch": 1, "sequence": 1})
    check_open(lambda dim: dense(dim, isa, **how), sizes, inputs(rng), lambda dim: dense(dim, GENERIC, **how))


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != GENERIC])
@pytest.mark.parametrize("features", [(7, 64), (33, 150), (3000, 200)], ids=["full panels", "ragged", "in parts"])
def test_dense_floats(features: tuple[int, int], isa: str, rng: np.random.Generator) -> None:
    """A single row reads panels together, more rows one after the other; long sums are left behind, and resumed."""
    weight, bias = rng.normal(size=features).astype(np.float32), rng.normal(size=features[1]).astype(np.float32)

    def made(dim: Dim) -> Kernel:
        how: dict[str, Any] = {"low": -1.0, "high": math.inf, "threads": 1, "isa": isa}
        return kernels.float_matmul(rows=dim("batch") * dim("sequence"), weight=weight, bias=bias, **how)

    sizes = [{"batch": batch, "sequence": sequence} for batch, sequence in ((1, 1), (1, 2), (5, 1), (1, 6), (3, 5))]
    check_open(made, sizes, inputs(rng))


def test_few_rows_read_bytes_of_weights() -> None:
    """AVX2 multiplies words: of a layer of open rows those of many are widened as it runs."""
    assert dense(Size.named, AVX2, features=(64, 96)).constants[0].dtype == np.int8


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa == AVX2])
@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows_take_fewer_products_of_the_same_weights(threads: int, isa: str, rng: np.random.Generator) -> None:
    """Rows around the fewest that take Strassen's product, and odd ones; the file has no second copy of what is packed."""
    kernel = dense(Size.named, isa, features=(128, 96), threads=threads)
    assert kernel.name == "matmul 6x1, strassen 2"
    assert [(array.size, array.dtype) for array in kernel.constants] == [(128 * 96, np.int8), (96, np.int32), (96, np.float32)]
    sizes = [{"batch": 1, "sequence": rows} for rows in (1, 33, 47, 48, 49, 50, 63, 64, 65, 131, 1001)]
    check_open(lambda dim: dense(dim, isa, features=(128, 96), threads=threads), sizes, inputs(rng))


def test_parts_of_a_tile_of_open_rows_are_loops() -> None:
    """Steps are written out for whole tiles of 6 rows and for a single row alone: 2 products of 8 lanes each."""
    products: list[Any] = []
    name = int(T.llvm_lookup_intrinsic_id("llvm.x86.avx2.pmadd.wd"))

    def note(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.call_llvm_pure_intrin" and int(call.args[0]) == name:
            products.append(call)

    kernel = dense(Size.named, AVX2, features=(32, 16))
    tvm_ffi.structural_walk(kernel.func.body, (tvm.ir.Call, note))
    written_out, steps_of_a_turn = 16 * (6 + 1), 2
    assert 2 * written_out < len(products) <= 2 * (written_out + steps_of_a_turn * (5 + 4 + 3 + 2))


def product(dim: Dim, isa: str, names: str = "rows inner columns", heads: int = 1, **how: Any) -> Kernel:
    """Heads of two images by those of one, with these sizes open."""
    rows, inner, columns = (dim(name) if name in names else 24 for name in ("rows", "inner", "columns"))
    rows = heads * rows
    views = [MatrixView.plain(shape) for shape in ((2, 3, rows, inner), (1, 3, inner, columns), (2, 3, rows, columns))]
    facts = {"a_zero_point": 4, "b_zero_point": 130, "multiplier": 1e-4, "output": Output(zero_point=7), **how}
    return kernels.batch_matmul(BatchMatmulSpec(**dict(zip("aby", views, strict=True)), **facts), isa=isa)


PRODUCTS: dict[str, dict[str, Any]] = {
    "bytes": {},
    "queries by keys": {"names": "rows columns"},
    "weights by values": {"names": "rows inner", "threads": 2},
    "per row": {"by_row": True, "output": FloatOutput()},
    "per row, two for each token": {"by_row": True, "output": FloatOutput(), "heads": 2},
    "real": {"output": FloatOutput(low=-1.0)},
    "16 bits": {"dtype": "int16", "output": Output(zero_point=0, qmin=-32768, qmax=32767), "a_zero_point": 0, "b_zero_point": 0},
}


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa in (ISAS[0], AVX2)])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_of_activations(kind: str, isa: str, rng: np.random.Generator) -> None:
    how, sizes = PRODUCTS[kind], drawn(rng, "rows", "inner", "columns", count=6)
    sizes += [{"rows": 1, "inner": inner, "columns": columns} for inner, columns in ((1, 40), (37, 1), (50, 16))]
    check_open(lambda dim: product(dim, isa, **how), sizes, inputs(rng), lambda dim: product(dim, GENERIC, **how))


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa in (ISAS[0], AVX2)])
@pytest.mark.parametrize("fewer", [0, 1])
def test_products_of_as_many_rows_as_windows(fewer: int, isa: str, rng: np.random.Generator) -> None:
    """One sample of sound has no window, or one fewer than none."""

    def made(dim: Dim, isa: str) -> Kernel:
        windows = dim("samples") // 20 - fewer
        return product(lambda name: windows if name == "rows" else dim(name), isa, "rows columns", output=FloatOutput())

    sizes = [{"samples": 20 * (rows + fewer) + 7, "columns": columns} for rows, columns in ((1, 40), (5, 1), (17, 16), (3, 7))]
    check_open(lambda dim: made(dim, isa), sizes, inputs(rng), lambda dim: made(dim, GENERIC))


BY_VNNI = ["bytes", "queries by keys", "weights by values", "real"]


# Where the machine has the instruction, the test above runs these kernels with it: the stand-in alone is left.
@pytest.mark.parametrize("kind", BY_VNNI[2:3] if ISAS[0] == AVX512_VNNI else BY_VNNI)
def test_products_by_vnni(kind: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what its instruction means, on any machine."""
    monkeypatch.setattr(x86_int8_batch_matmul, "dot", plain_dot)

    how, sizes = PRODUCTS[kind], drawn(rng, "rows", "inner", "columns", count=4)
    check_open(lambda dim: product(dim, AVX512_VNNI, **how), sizes, inputs(rng), lambda dim: product(dim, GENERIC, **how))


def plain_dot(acc: Any, values: Any, weights: Any, count: int = 16) -> Any:
    """Sums of products of four neighbours, uint8 by int8."""
    for place in range(4):
        lanes = list(range(place, 4 * count, 4))
        left = shuffled([T.reinterpret(f"uint8x{4 * count}", values)], lanes).astype(f"int32x{count}")
        right = shuffled([T.reinterpret(f"int8x{4 * count}", weights)], lanes).astype(f"int32x{count}")
        acc = acc + left * right
    return acc


FEW_FEATURES = {"whole vectors": (16, 32), "two threads": (16, 64), "panels that a row reads twice": (6, 150)}
"""Inputs and outputs where code for each input is written out: of several panels, one of whole vectors, and rests elsewhere."""


@pytest.mark.parametrize("machine", MACHINES)
def test_dense_and_products_on_emulated_machines(machine: str, rng: np.random.Generator) -> None:
    isa = machine if machine.startswith("arm") else GENERIC
    sizes = [{"batch": 3, "sequence": 1}, {"batch": 1, "sequence": 211}]
    draw, cases = inputs(rng), []
    for number, (kind, how) in enumerate(DENSE.items(), list(MACHINES).index(machine)):
        # Each kind at each size, each kind on each machine, each size on each machine.
        how = {**how, "features": FEW_FEATURES.get(kind, (17, 24))}
        cases += open_cases(
            lambda dim, how=how: dense(dim, isa, **how),
            [sizes[number % 2]],
            draw,
            lambda dim, how=how: dense(dim, GENERIC, **how),
        )
    cases += open_cases(lambda dim: product(dim, isa), drawn(rng, "rows", "inner", "columns", count=1, most=40), draw)
    check_emulated(map(call_of, cases), MACHINES[machine])


def blocks(dim: Dim) -> Kernel:
    rng = np.random.default_rng(2)
    spec = BlockMatmulSpec(
        rows=dim("rows"), inputs=64, outputs=21, block=32, digits=1, output=FloatOutput(), has_zero_points=True
    )
    return kernels.block_matmul(
        spec,
        weight=rng.integers(0, 16, (64, 21)).astype(np.uint8),
        scale=rng.uniform(0.01, 0.1, (2, 21)).astype(np.float32),
        zero_point=rng.integers(0, 16, (2, 21)).astype(np.int32),
        bias=rng.normal(size=21).astype(np.float32),
        isa=ISAS[0],
    )


SOFTMAX: dict[str, Any] = {"scale": 0.1, "out_scale": 1 / 256, "output": Output(zero_point=0)}
WORDS = Output(zero_point=0, qmin=-32768, qmax=32767)
FAMILIES: dict[str, Callable[[Dim], Kernel]] = {
    "blocks of 4 bits": blocks,
    "integers of blocks": lambda dim: kernels.block_rows(
        BlockRowsSpec(rows=dim("rows"), inputs=64, block=32, digits=3), isa=ISAS[0]
    ),
    "parameters of rows": lambda dim: kernels.dynamic_parameters(
        DynamicSpec(rows=dim("rows"), size=dim("columns"), style=PER_ROW), isa=ISAS[0]
    ),
    "integers of rows": lambda dim: kernels.dynamic_quantize(
        DynamicSpec(rows=dim("rows"), size=dim("columns"), style="onnx"), isa=ISAS[0]
    ),
    "parameters of columns": lambda dim: kernels.column_parameters(
        ColumnsSpec(batch=2, size=dim("rows"), columns=dim("columns"), style=PER_ROW), isa=ISAS[0]
    ),
    "integers of columns": lambda dim: kernels.column_quantize(
        ColumnsSpec(batch=2, size=dim("rows"), columns=dim("columns"), style=PER_ROW, threads=2), isa=ISAS[0]
    ),
    "softmax": lambda dim: kernels.softmax(SoftmaxSpec(rows=dim("rows"), columns=dim("columns"), **SOFTMAX), isa=ISAS[0]),
    "log softmax": lambda dim: kernels.log_softmax(
        SoftmaxSpec(rows=dim("rows"), columns=dim("columns"), **{**SOFTMAX, "out_scale": 1 / 16}), isa=ISAS[0]
    ),
    "softmax of words": lambda dim: kernels.softmax(
        SoftmaxSpec(rows=dim("rows"), columns=dim("columns"), dtype="int16", scale=1e-3, out_scale=1 / 32768, output=WORDS),
        isa=ISAS[0],
    ),
    "softmax in fixed point": lambda dim: kernels.softmax(
        SoftmaxSpec(
            rows=dim("rows"), columns=dim("columns"), dtype="int16", scale=1e-3, out_scale=1, output=WORDS, rounding="fixed_point"
        ),
        isa=ISAS[0],
    ),
    "mean": lambda dim: kernels.reduce(
        ReduceSpec(kind="mean", outer=dim("rows"), extent=dim("columns"), inner=1, output=Output(zero_point=3), multiplier=0.7),
        isa=ISAS[0],
    ),
    "mean of words over rows": lambda dim: kernels.reduce(
        ReduceSpec(kind="mean", outer=2, extent=dim("rows"), inner=dim("columns"), dtype="int16", output=WORDS, multiplier=0.7),
        isa=ISAS[0],
    ),
    "sum": lambda dim: kernels.reduce(
        ReduceSpec(
            kind="sum", outer=1, extent=dim("rows"), inner=dim("columns"), output=Output(zero_point=3), input_zero_point=9
        ),
        isa=ISAS[0],
    ),
    "place of the greatest": lambda dim: kernels.reduce(
        ReduceSpec(kind="argmax", outer=dim("rows"), extent=dim("columns"), inner=1, output=Output(zero_point=0)), isa=ISAS[0]
    ),
    "mean of reals": lambda dim: kernels.float_reduce(
        FloatReduceSpec(kind="mean", outer=2, count=dim("rows"), inner=dim("columns")), isa=ISAS[0]
    ),
    "sum of reals in rows": lambda dim: kernels.float_reduce(
        FloatReduceSpec(kind="sum", outer=dim("rows"), count=dim("columns"), inner=1), isa=ISAS[0]
    ),
    "place of the least of reals": lambda dim: kernels.float_reduce(
        FloatReduceSpec(kind="argmin", outer=dim("rows"), count=dim("columns"), inner=1), isa=ISAS[0]
    ),
    "mean of reals in strips": lambda dim: kernels.float_reduce(
        FloatReduceSpec(kind="mean", outer=dim("columns"), count=dim("rows"), inner=150), isa=ISAS[0]
    ),
    "group norm": lambda dim: kernels.group_norm(
        GroupNormSpec(groups=groups_of(dim), scale=0.1, epsilon=1e-5, out_scale=0.02, output=Output(zero_point=100)),
        gamma=np.linspace(0.5, 2, 40, dtype=np.float32),
        beta=np.linspace(-1, 1, 40, dtype=np.float32),
        isa=ISAS[0],
    ),
    "group norm of reals": lambda dim: kernels.float_group_norm(
        FloatGroupNormSpec(groups=groups_of(dim), epsilon=1e-5),
        gamma=np.linspace(0.5, 2, 40, dtype=np.float32),
        beta=np.linspace(-1, 1, 40, dtype=np.float32),
        isa=ISAS[0],
    ),
    "transposed": lambda dim: transpose((2, dim("rows"), dim("columns")), (0, 2, 1)),
    "transposed, few rows": lambda dim: transpose((2, 5, dim("columns")), (0, 2, 1)),
    "transposed, few columns": lambda dim: transpose((dim("rows"), 3), (1, 0)),
    "transposed, 48 columns": lambda dim: transpose((dim("rows"), 48), (1, 0), dtype="float32"),
    "heads": lambda dim: transpose((2, dim("rows"), 4, 24), (0, 2, 1, 3)),
    "reversed": lambda dim: transpose((dim("rows"), 3, dim("columns")), (2, 1, 0)),
    "rows side by side": lambda dim: kernels.float_concat(
        FloatConcatSpec(outer=dim("rows"), inners=(32, 17, 144)), line=None, isa=ISAS[0]
    ),
    "rows by index": lambda dim: kernels.take(
        TakeSpec(outer=2, extent=dim("rows"), inner=dim("columns"), count=dim("rows"), index_dtype="int64"), isa=ISAS[0]
    ),
}


def groups_of(dim: Dim) -> ChannelGroups:
    return ChannelGroups(images=dim("rows"), pixels=dim("columns"), channels=40, groups=5)


def transpose(shape: tuple[int, ...], axes: tuple[int, ...], dtype: Any = "uint8") -> Kernel:
    return kernels.transpose(TransposeSpec(shape=shape, axes=axes, dtype=dtype), isa=ISAS[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_other_kernels(family: str, rng: np.random.Generator) -> None:
    more = [{"rows": 2, "columns": 700}] if "softmax" in family else []
    more += [{"rows": 5, "columns": 37}] if "transposed" in family else []
    check_open(FAMILIES[family], [*drawn(rng, "rows", "columns", count=6), *more], inputs(rng))
