"""Ranges of variables that the profile does not know: those of the tensors that they were moved from or are moved to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import relax
from tvm.relax import Expr, Var

from nets import model_of
from octavo.ir.graph.dataflow import BodyWriter, DataflowView
from octavo.ir.graph.value_sources import ValueSources

Written = Callable[[BodyWriter, Var], Expr]


def source(body: Written, name: str) -> str | None:
    """Return which of x, p and y tells the range of `name` in a function of x."""
    model = model_of({"x": ((2, 6, 4), "float32")}, {}, body, ("y",))
    view = DataflowView(model.module["main"])
    found = ValueSources(view, {"x", "p", "y"}).source(next(b.var for b in view.bindings if b.var.name == name))
    return None if found is None else str(found)


def _behind(writer: BodyWriter, x: Var) -> Expr:
    part = writer.emit("_part", relax.op.split(x, 2, axis=1))
    item = writer.emit("_item", relax.TupleGetItem(part, 1))
    row = writer.emit("_row", relax.op.expand_dims(item, 0))
    return writer.emit("y", relax.op.exp(row), is_output=True)


def _ahead(writer: BodyWriter, x: Var) -> Expr:
    step = writer.emit("_step", relax.op.tanh(x))
    row = writer.emit("_row", relax.op.reshape(step, (1, 2, 24)))
    pair = writer.emit("_pair", relax.Tuple([row, row]))
    return writer.emit("y", relax.op.concat(pair, axis=0), is_output=True)


def _padded(writer: BodyWriter, x: Var, value: float = 0.0) -> Expr:
    step = writer.emit("_step", relax.op.nn.pad(x, [0, 0, 1, 1, 0, 0], pad_value=value))
    return writer.emit("y", relax.op.exp(step), is_output=True)


def _padded_with_others(writer: BodyWriter, x: Var) -> Expr:
    return _padded(writer, x, 9.0)


def _computed(writer: BodyWriter, x: Var) -> Expr:
    step = writer.emit("_step", relax.op.tanh(x))
    return writer.emit("y", relax.op.exp(step), is_output=True)


def _partly_read(writer: BodyWriter, x: Var) -> Expr:
    step = writer.emit("_step", relax.op.tanh(x))
    return writer.emit("y", relax.op.strided_slice(step, axes=[0], begin=[0], end=[1]), is_output=True)


@pytest.mark.parametrize(
    ("body", "name", "expected"),
    [
        (_behind, "_row", "x"),
        (_ahead, "_step", "y"),
        (_padded, "_step", "x"),
        (_padded_with_others, "_step", None),
        (_computed, "_step", None),
        (_partly_read, "_step", None),
        (_computed, "y", "y"),
    ],
)
def test_the_range_is_that_of_a_tensor_that_holds_all_values(body: Written, name: str, expected: str | None) -> None:
    assert source(body, name) == expected
