"""The op of a recurrence: its text, its type, and what becomes of one that no kernel takes."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax

import octavo
from octavo.errors import CompileError
from octavo.ir.graph.dataflow import DataflowView, static_shape
from octavo.ir.graph.recurrence import Recurrence, read_recurrence, recurrence

GRU = Recurrence(kind="GRU", activations=("sigmoid", "tanh"), operands=("bias",), backwards=True, states=1, clip=0.25)
TEXT = "GRU sigmoid tanh backwards=1 states=1 clip=0.25 with=bias"


def module_of(what: Recurrence) -> tvm.IRModule:
    steps = tvm.tirx.Var("steps", "int64")
    shapes = {"x": [steps, 2, 12], "weights": [4, 12], "bias": [12]}
    x, weights, bias = params = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(recurrence(x, weights, {"bias": bias}, what)))
        builder.emit_func_output(result)
    return builder.finalize()


def test_a_text_says_all() -> None:
    assert GRU.text() == TEXT
    assert Recurrence.parse(TEXT) == GRU
    plain = Recurrence(kind="RNN", activations=("relu",), resets_products=True)
    assert Recurrence.parse(plain.text()) == plain
    for text in ("", "LSTN", "GRU other=1"):
        with pytest.raises(ValueError, match="is no recurrence"):
            Recurrence.parse(text)


def test_it_prints_parses_and_is_saved() -> None:
    module = module_of(GRU)
    from_text: Any = tvm.script.from_source(module.script())
    for other in (from_text, tvm.ir.load_json(tvm.ir.save_json(module))):
        view = DataflowView(other["main"])
        [first, *_] = view.bindings
        what, operands = read_recurrence(first.value)
        assert what == GRU
        assert list(operands) == ["x", "weights", "bias"]
        assert list(map(str, static_shape(first.var) or ())) == ["steps + 1", "2", "4"]
        tvm.ir.assert_structural_equal(other, module)


def test_one_that_no_kernel_takes_is_refused() -> None:
    with pytest.raises(CompileError, match="one op; bias of t_lv is no constant"):
        octavo.compile(octavo.load(module_of(GRU)))
