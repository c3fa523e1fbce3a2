"""Chains of indices, masks and copies are computed where they are read; what is rounded, or takes long for several, is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.tirx import FloorDiv, FloorMod

import octavo
from octavo.compiler.backends.cpu.inline_indices import inline_indices
from octavo.compiler.backends.cpu.legalize import legalizations
from octavo.ir.graph.dataflow import DataflowView, call_to
from octavo.runtime.llvm_host import host_target

R: Any = relax.op
TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)
Emit = Callable[[Any], relax.Var]


def wrapped(emit: Emit, index: Any, size: Any) -> relax.Var:
    """Return indices of which negative ones count from the end, as ONNX has them."""
    behind = emit(R.add(index, size))
    return emit(R.where(emit(R.less(index, relax.const(0, "int64"))), behind, index))


def embedding(emit: Emit, x: Any, b: Any, s: Any) -> Any:
    """Rows of a table by a matrix of indices, by way of one dimension; the position picks another one."""
    flat = wrapped(emit, emit(R.reshape(x, [b * s])), relax.const(10, "int64"))
    rows = emit(R.reshape(emit(R.take(relax.const(TABLE), flat, axis=0)), [b, s, 4]))
    place = wrapped(emit, emit(R.arange(0, s, 1, "int64")), relax.const(10, "int64"))
    return R.add(rows, emit(R.take(relax.const(TABLE), place, axis=0)))


def stacked(emit: Emit, x: Any, b: Any, s: Any) -> Any:
    """Elements by a stack of two indices that is taken apart again."""
    rows = emit(R.broadcast_to(emit(R.expand_dims(emit(R.arange(0, b, 1, "int64")), 1)), [b, s]))
    columns = emit(R.broadcast_to(emit(R.arange(0, s, 1, "int64")), [b, s]))
    pair = emit(R.concat([emit(R.expand_dims(each, 2)) for each in (rows, columns)], axis=2))
    row, column = (emit(R.squeeze(emit(R.strided_slice(pair, [2], [n], [n + 1])), [2])) for n in range(2))
    flat = emit(R.add(emit(R.multiply(row, emit(R.arange(s, s + 1, 1, "int64")))), column))
    return R.take(emit(R.reshape(x, [b * s])), flat, axis=0)


def causal(emit: Emit, x: Any, b: Any, s: Any) -> Any:
    """A mask of what is not behind, with that of the input."""
    step = emit(R.arange(0, s, 1, "int64"))
    known = emit(R.expand_dims(emit(R.not_equal(x, relax.const(0, "int64"))), 1))
    mask = emit(R.logical_and(emit(R.less_equal(emit(R.expand_dims(step, 0)), emit(R.expand_dims(step, 1)))), known))
    return R.where(mask, relax.const(0.0, "float32"), relax.const(-1e30, "float32"))


def padded(emit: Emit, x: Any, b: Any, s: Any) -> Any:
    """Floats with zeros around them, transposed."""
    around = emit(R.nn.pad(emit(R.astype(x, "float32")), [0, 0, 1, 1]))
    return R.permute_dims(around, [1, 0])


def module(write: Callable[..., Any], b: Any, s: Any) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType([b, s], "int64"))  # pyright: ignore[reportArgumentType]
    builder: Any = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(write(builder.emit, x, b, s))
        builder.emit_func_output(y)
    return builder.get()


def legal(module: tvm.IRModule) -> tvm.IRModule:
    passes = [
        relax.transform.LegalizeOps(legalizations()),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
    ]
    with host_target():
        return tvm.transform.Sequential(passes)(module)


def calls(module: tvm.IRModule) -> list[Any]:
    """Return the kernels that main calls, views left out."""
    found = [call_to(binding.value, "call_tir") for binding in DataflowView(module["main"]).bindings]
    return [module[call.args[0]] for call in found if call is not None and "reshape" not in str(call.args[0].name_hint)]


def sizes() -> tuple[Any, Any]:
    return tvm.tirx.Var("b", "int64"), tvm.tirx.Var("s", "int64")


@pytest.mark.parametrize("write", [embedding, stacked, causal])
def test_a_chain_is_one_kernel_without_divisions(write: Callable[..., Any]) -> None:
    [function] = calls(inline_indices(legal(module(write, *sizes()))))
    divisions: list[Any] = []
    tvm_ffi.structural_walk(function.body, ((FloorDiv, FloorMod), divisions.append))
    assert not divisions


@pytest.mark.parametrize("write", [embedding, stacked, causal, padded])
def test_results_of_open_sizes_are_those_of_known_ones(write: Callable[..., Any], rng: np.random.Generator) -> None:
    opened = octavo.compile(octavo.load(module(write, *sizes())))
    for b, s in ((1, 1), (2, 5), (3, 10)):
        x = rng.integers(-10, 10, (b, s))
        [y] = opened({"x": x}).values()
        if write is embedding:
            np.testing.assert_array_equal(y, TABLE[x] + TABLE[:s])
        elif write is stacked:
            np.testing.assert_array_equal(y, x)
        elif write is padded:
            np.testing.assert_array_equal(y, np.pad(x, ((0, 0), (1, 1))).T.astype(np.float32))
        else:
            is_seen = np.tri(s, dtype=bool) & (x != 0)[:, None]
            np.testing.assert_array_equal(y, np.where(is_seen, np.float32(0), np.float32(-1e30)))
        [known] = octavo.compile(octavo.load(module(write, b, s)))({"x": x}).values()
        np.testing.assert_array_equal(known, y)


def test_zeros_around_are_chosen_where_they_are_read() -> None:
    assert len(calls(inline_indices(legal(module(padded, *sizes()))))) == 1


def rounded(emit: Emit, x: Any, b: Any, s: Any) -> Any:
    """A product of floats before a sum."""
    value = emit(R.astype(x, "float32"))
    return R.add(emit(R.multiply(value, relax.const(0.1, "float32"))), relax.const(0.2, "float32"))


def test_what_is_rounded_stays_where_it_is() -> None:
    made = inline_indices(legal(module(rounded, *sizes())))
    assert len(calls(made)) == 2  # the conversion is within the product


def looked_up(emit: Emit, x: Any, b: Any, s: Any) -> Any:
    """What is looked up is read for each pair of two."""
    found = emit(R.take(relax.const(np.arange(10, dtype=np.int64)), x))
    return R.multiply(*(emit(R.expand_dims(found, axis)) for axis in (1, 2)))


def test_what_takes_long_is_computed_once_for_many_readers() -> None:
    assert len(calls(inline_indices(legal(module(looked_up, *sizes()))))) == 2


def test_a_module_with_nothing_to_inline_is_left_as_it_is() -> None:
    def write(emit: Emit, x: Any, b: Any, s: Any) -> Any:
        return R.multiply(x, x)

    given = legal(module(write, *sizes()))
    assert inline_indices(given).same_as(given)
