"""Sums of integer products by adders of floats: the bits of the oracle, whatever the mode of the thread."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import tvm
from conv2d_cases import Layers, exact_case
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_runner import Compiled
from test_conv2d_machine_code import TARGETS, count, innermost_loops, spills
from test_float_output_kernels import FloatLayers
from test_strassen_kernels import check_all, extreme_cases, keyed, levels, strassen_case
from test_sum_output_kernels import sum_case
from tvm import relax
from tvm.script.ir_builder import tirx as T

import octavo
from machine_isas import each_isa
from nets import model_of
from octavo.compiler import target_choice
from octavo.compiler.backends.cpu.kernels import AVX2, Conv2dSpec, Isas, has_float_adders, isas_of, target_for
from octavo.compiler.backends.cpu.kernels.conv.x86.bilinear.block_product import STRASSEN_FORM
from octavo.compiler.backends.cpu.kernels.conv.x86.bilinear.shifted_product import (
    INPUT_SHIFTS,
    LARGEST_INPUTS,
    LIMIT,
    ShiftedProduct,
    fits_int32,
)
from octavo.compiler.backends.cpu.kernels.language.vectors import prim_func
from octavo.compiler.target_choice import resolve_target
from octavo.ir.composites.outputs import Output
from octavo.ir.graph.dataflow import BodyWriter
from octavo.runtime.llvm_host import host_target

on_avx2 = pytest.mark.parametrize("isa", each_isa([AVX2]))

FLUSHING = 0x1F80 | 1 << 15 | 1 << 6
"""MXCSR of a thread in which subnormal numbers are taken and left as zero."""


def shifted(layers: Layers, size: tuple[int, int], channels: tuple[int, int], **window: object) -> Conv2dSpec:
    return layers.spec(size, channels, **window, float_adders=True)


def as_floats(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum of integers as floats' adders form it of their bits."""
    total = a.astype(np.int32).view(np.float32) + b.astype(np.int32).view(np.float32)
    return total.view(np.int32).astype(np.int64)


@settings(deadline=None)
@given(st.integers(0, LIMIT), st.integers(0, LIMIT))
def test_floats_add_integers_up_to_the_limit(total: int, part: int) -> None:
    part = min(part, total)
    assert as_floats(np.array([total - part]), np.array([part])) == [total]


def test_beyond_the_limit_sums_are_rounded() -> None:
    assert as_floats(np.array([LIMIT]), np.array([0])) == [LIMIT]
    assert as_floats(np.array([LIMIT - 1]), np.array([2])) != [LIMIT + 1]


def blocks_of(values: np.ndarray) -> list[np.ndarray]:
    return [half for rows in np.split(values, 2) for half in np.split(rows, 2, axis=1)]


def product_of(made: ShiftedProduct, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x @ w as a kernel computes it, of two rows."""
    inputs = [s + shift for s, shift in zip(STRASSEN_FORM.left(*blocks_of(x)), made.input_shifts, strict=True)]
    weights = [t + shift for t, shift in zip(STRASSEN_FORM.right(*blocks_of(w)), made.weight_shifts, strict=True)]
    sums = []
    for s, t, (size, small) in zip(inputs, weights, made.spans, strict=True):
        assert s.min() >= 0
        assert t.min() >= 0
        steps = np.stack([s[:, k : k + 2] @ t[k : k + 2] for k in range(0, s.shape[1], 2)])
        total = np.zeros_like(steps[0])
        for first in range(0, len(steps), size):
            share = np.zeros_like(total)
            for index, step in enumerate(steps[first : first + size]):
                share = as_floats(share, step) if index < small else share + step
            total += share
        sums.append(total)
    lacking = made.input_factors @ np.array([each.sum(axis=1) for each in blocks_of(x)])[:, 0]
    results = [
        block + constant + factor
        for block, constant, factor in zip(STRASSEN_FORM.products(*sums), made.constants, lacking, strict=True)
    ]
    return np.block([[results[0], results[1]], [results[2], results[3]]])


def extreme_weights(rng: np.random.Generator, shape: tuple[int, int]) -> list[np.ndarray]:
    """All at an end of what weights less their zero points can be, alternating, in halves, and at random."""
    grid = np.indices(shape).sum(axis=0)
    halves = np.indices(shape)[0] * 2 // shape[0] % 2
    ends = [(255, -255), (127, -128), (0, -255), (255, 0)]
    chosen = [np.where(which, high, low) for high, low in ends for which in (grid % 2, halves, grid < 0, grid >= 0)]
    return [*chosen, rng.integers(-128, 128, shape), np.zeros(shape, np.int64)]


def test_the_product_of_shifted_operands(rng: np.random.Generator) -> None:
    for inputs in (4, 36, 200):
        for w in extreme_weights(rng, (inputs, 6)):
            made = ShiftedProduct.of(w)
            worst = np.where(np.indices((2, inputs)).sum(axis=0) % 2, 255, 0)
            for x in (np.full((2, inputs), 255), worst, 255 - worst, rng.integers(0, 256, (2, inputs))):
                assert product_of(made, x, w).tolist() == (x @ w).tolist()


def test_spans_stay_within_the_limit_and_are_few(rng: np.random.Generator) -> None:
    for w in (rng.integers(-128, 128, (1200, 32)), np.full((1200, 2), 255), np.rint(rng.normal(0, 20, (900, 8))).astype(int)):
        made = ShiftedProduct.of(w)
        points = zip(STRASSEN_FORM.right(*blocks_of(w)), made.weight_shifts, LARGEST_INPUTS, made.spans, strict=True)
        for t, shift, most, (size, small) in points:
            steps = ((t + shift) * most).reshape(-1, 2, t.shape[1]).sum(axis=1)
            spans = [steps[first : first + size] for first in range(0, len(steps), size)]
            assert max(int(span[:small].sum(axis=0).max()) for span in spans) <= LIMIT
            assert 1 <= small <= size
            assert len(spans) <= steps.sum(axis=0).max() // LIMIT + 2


def test_large_sums_are_left_to_integers(rng: np.random.Generator) -> None:
    for w in (rng.integers(-128, 128, (128, 8)), np.full((64, 4), -255), np.full((64, 4), 255)):
        made, half = ShiftedProduct.of(w), len(w) // 2
        shifted_weights = [t + s for t, s in zip(STRASSEN_FORM.right(*blocks_of(w)), made.weight_shifts, strict=True)]
        products = [most * t.sum(axis=0) for most, t in zip(LARGEST_INPUTS, shifted_weights, strict=True)]
        bounds = [
            sum(abs(sign) * total for sign, total in zip(signs, products, strict=True))
            + abs(constants)
            + abs(factors).sum() * 255 * half
            for signs, constants, factors in zip(STRASSEN_FORM.product_rows, made.constants, made.input_factors, strict=True)
        ]
        left = (1 << 31) - int(np.max(bounds))
        assert fits_int32(w, np.array([0, 1 - left]))
        assert not fits_int32(w, np.array([0, left]))


def test_no_input_is_negative() -> None:
    largest = STRASSEN_FORM.left(*(np.array([0, 255])[bits] for bits in np.indices((2, 2, 2, 2)).reshape(4, -1)))
    for values, shift, most in zip(largest, INPUT_SHIFTS, LARGEST_INPUTS, strict=True):
        assert (values + shift).min() == 0
        assert (values + shift).max() == most


@on_avx2
def test_sizes_strides_blocks_and_threads(isa: str) -> None:
    layers = Layers(1)
    cases = []
    sizes = [(1, 1), (3, 5), (7, 7), (2, 13), (1, 6)]
    for number, channels in enumerate([(32, 96), (192, 64), (544, 32), (1024, 64)]):
        size = sizes[number % len(sizes)]
        cases.append(strassen_case(layers, shifted(layers, size, channels, batch=1 + number % 2), levels(1), isa))
    for channels, strides in ((64, 64), (2, 2)), ((544, 32), (1, 2)), ((32, 96), (3, 1)):
        cases.append(strassen_case(layers, shifted(layers, (9, 8), channels, strides=strides), levels(1), isa))
    for block, threads in (1, 1), (7, 1), (None, 3):
        cases.append(strassen_case(layers, shifted(layers, (19, 9), (640, 128), threads=threads), levels(1, block), isa))
    cases.append(strassen_case(layers, shifted(layers, (2, 4), (64, 512), threads=2), levels(1), isa))
    check_all(cases)
    assert sum("spans" in case.kernel.func.script() for case in cases) >= 5


@on_avx2
def test_sums_just_beyond_the_limit(isa: str) -> None:
    """Of one span, by less than a step; and of later spans, larger than the first. Odd sums, which floats would round there."""
    layers = Layers(0)
    few = np.zeros(288, np.int64)
    few[:260] = [255] * 258 + [3, 1]
    assert LIMIT < 255 * few.sum() < LIMIT + 255
    rising = np.sort(np.random.default_rng(0).integers(0, 255, 1024))
    cases = []
    for differences, odd in ((few, [259]), (rising, range(1, 1024, 64))):
        half = len(differences)
        w, x = np.zeros((1, 1, 2 * half, 32), np.int8), np.zeros((1, 1, 2, 2 * half), np.uint8)
        w[0, 0, :half, 16:] = (differences // 2)[:, None]  # the third product takes their difference
        w[0, 0, half:, 16:] = (differences // 2 - differences)[:, None]
        x[0, 0, 0, :half] = 255
        x[0, 0, 0, odd] = 254
        spec = dataclasses.replace(shifted(layers, (1, 2), (2 * half, 32)), input_zero_point=0, output=Output(zero_point=128))
        sums = x[0, 0, 0].astype(np.int64) @ w[0, 0].astype(np.int64)
        made = exact_case(spec, isa, x, w, 0, (-sums).astype(np.int32), np.ones(32, np.float32), schedules=keyed(spec, levels(1)))
        assert (made.expected[0, 0, 0] == 128).all()
        cases.append(made)
    check_all(cases)


@on_avx2
def test_extreme_operands(isa: str) -> None:
    check_all(extreme_cases(isa, 320, lambda _: 1, float_adders=True))


@on_avx2
def test_any_size(isa: str, rng: np.random.Generator) -> None:
    layers = Layers(7)
    cases = []
    for _ in range(5):
        height, width, inputs, outputs, threads, batch = map(int, rng.integers(1, (13, 13, 25, 5, 3, 3)))
        spec = shifted(layers, (height, width), (32 * inputs, 32 * outputs), threads=threads, batch=batch)
        cases.append(strassen_case(layers, spec, levels(1), isa))
    check_all(cases)


@on_avx2
def test_results_of_every_kind(isa: str) -> None:
    layers, floats = Layers(4), FloatLayers(5)
    modes = ("constant", "image", "tensor")
    specs = [shifted(layers, (15, 14), (256, 256), batch=2) for _ in modes]
    cases = [
        floats.float_case(specs[1], isa, "image"),
        *(sum_case(layers, spec, isa, mode) for spec, mode in zip(specs[::2], modes[::2], strict=True)),
    ]
    assert all(case.kernel.name == "conv2d.pointwise.strassen 2" for case in cases)
    check_all(cases)


@on_avx2
def test_threads_whose_subnormals_are_zero(isa: str) -> None:
    """As a library leaves them that was compiled for fast mathematics: results are the same, and so is the mode behind them."""
    layers = Layers(6)
    specs = [shifted(layers, size, channels, threads=n) for size, channels, n in SHAPES_AND_THREADS]
    cases = [strassen_case(layers, spec, levels(1), isa) for spec in specs]
    assert "T.parallel" in cases[2].kernel.func.script()
    swap = prim_func([("new", 1, "int32"), ("old", 1, "int32")], emit_swap)
    kernels = {str(number): case.kernel.func for number, case in enumerate(cases)}
    compiled = Compiled({"swap": swap, **kernels}, target_for(AVX2, host_target()))

    def exchanged(mode: int) -> int:
        old = tvm.runtime.tensor(np.zeros(1, np.int32))
        compiled["swap"](tvm.runtime.tensor(np.array([mode], np.int32)), old)
        return int(old.numpy()[0])

    for name, case in zip(kernels, cases, strict=True):
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(value).ravel()) for value in (*case.inputs, *case.kernel.constants)]
        out = tvm.runtime.tensor(np.zeros(case.expected.size, case.expected.dtype))
        before = exchanged(FLUSHING)
        compiled[name](*tensors, out)
        after = exchanged(before)
        assert after & ~0x3F == FLUSHING
        assert out.numpy().tolist() == case.expected.ravel().tolist()


SHAPES_AND_THREADS = [((5, 7), (64, 64), 1), ((5, 7), (640, 64), 1), ((40, 40), (640, 128), 2)]


def emit_swap(new: T.Buffer, old: T.Buffer) -> None:
    for name, buffer in (("stmxcsr", old), ("ldmxcsr", new)):
        intrinsic = T.llvm_lookup_intrinsic_id(f"llvm.x86.sse.{name}")
        T.evaluate(T.call_llvm_intrin(intrinsic, T.address_of(buffer[0]), dtype="void"))


@pytest.mark.parametrize("w_zero_point", [0, 3])
@pytest.mark.parametrize("channels", [256, 1024])
def test_inner_loops_add_floats_alone(w_zero_point: int, channels: int) -> None:
    layers = Layers(40)
    chosen, isa = TARGETS["znver4 without AVX-512"]
    case = layers.case(shifted(layers, (28, 28), (channels, channels)), isa, w_zero_point=w_zero_point)
    assert case.kernel.name == "conv2d.pointwise.strassen 2"
    assembly = Compiled({"kernel": case.kernel.func}, chosen).code.inspect_source("asm")
    loops = [loop for loop in innermost_loops(assembly, "vpmaddwd") if count("vpmaddwd", loop) == 12]
    floats = [loop for loop in loops if count("vaddps", loop)]
    assert floats
    for loop in floats:
        assert count("vaddps", loop) == 12
        assert not count("vpaddd", loop)
        assert spills(loop) == []
        assert len(re.findall(r"^\s+[a-z]", loop, re.MULTILINE)) <= 36
    assert count("vldmxcsr", assembly) == 2


def test_which_cores_have_them() -> None:
    def target(cpu: str) -> tvm.target.Target:
        return tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu})

    for cpu, expected in {"znver2": False, "znver3": False, "znver4": True, "haswell": False, "x86-64-v3": False}.items():
        assert isas_of(target(cpu)).float_adders is expected
        assert has_float_adders(resolve_target("cpu", target(cpu)).isas) is expected
        assert has_float_adders(resolve_target(AVX2, target(cpu)).isas) is expected
    assert not has_float_adders((AVX2,))
    assert Isas.among(Isas((AVX2, "generic"), float_adders=True), ["generic"]) == ("generic",)


def test_it_is_taken_where_it_pays() -> None:
    layers = Layers(6)

    def name(size: int, channels: tuple[int, int], **window: object) -> str:
        return layers.case(shifted(layers, (size, size), channels, **window), AVX2, w_zero_point=0).kernel.name

    assert {name(size, channels) for size, channels in ((56, (128, 128)), (14, (512, 512)), (7, (1024, 1024)))} == {
        "conv2d.pointwise.strassen 2"
    }
    assert ".strassen" not in name(112, (32, 64))


def test_two_products_always_stay_within_the_limit() -> None:
    assert 2 * LARGEST_INPUTS.max() * 4 * 255 <= LIMIT


def test_layers_of_a_model_are_told_of_the_core(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions and matmuls; by an LLVM target, and by the variable that names an ISA of this machine."""
    arrays = {"w": rng.normal(size=(128, 128, 1, 1)), "v": rng.normal(size=(128, 128))}

    def body(writer: BodyWriter, x: Any, **p: Any) -> Any:
        made = writer.emit("c", relax.op.nn.relu(writer.emit("_c", relax.op.nn.conv2d(x, p["w"]))))
        rows = writer.emit("_r", relax.op.reshape(made, (128, 784)))
        rows = writer.emit("_t", relax.op.permute_dims(rows))
        return writer.emit("y", relax.op.matmul(rows, p["v"]), is_output=True)

    arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
    model = model_of({"x": ((1, 128, 28, 28), "float32")}, arrays, body, ("y",))
    profile = octavo.profile(model, [rng.normal(size=(1, 128, 28, 28)).astype(np.float32)])
    quantized = octavo.quantize(model, profile, recipe=octavo.Recipe(bias_correction=False, weight_rounding="nearest"))
    assert not count("vldmxcsr", octavo.compile(quantized, target="llvm -mcpu=haswell").assembly())
    host = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"})
    monkeypatch.setattr(target_choice, "host_target", lambda: host)
    monkeypatch.setenv("OCTAVO_TARGET", AVX2)
    assert resolve_target(None).isas == (AVX2, "generic")
    assert has_float_adders(resolve_target(None).isas)
    assert count("vldmxcsr", octavo.compile(quantized).assembly()) == 4
