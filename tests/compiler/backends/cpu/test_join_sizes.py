"""Functions that TVM fuses take the sizes that they need, whichever way they need them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from octavo.compiler.backends.cpu.join_sizes import join_sizes
from octavo.compiler.backends.cpu.link import float_passes

R: Any = relax.op


def positions(*, is_alone: bool) -> tvm.IRModule:
    """Return the positions of a sequence behind a past: no tensor that is read has its size, unless x is added."""
    sequence, past = (tvm.tirx.Var(name, "int64") for name in ("sequence", "past"))
    x = relax.Var("x", relax.TensorType([sequence, 1], "int64"))  # pyright: ignore[reportArgumentType]
    cache = relax.Var("cache", relax.TensorType([past], "int64"))  # pyright: ignore[reportArgumentType]
    builder: Any = relax.BlockBuilder()
    with builder.function("main", [x, cache]):
        with builder.dataflow():
            first = builder.emit(R.reshape(builder.emit(R.arange(past, past + 1, 1, "int64")), [1, 1]))
            column = builder.emit(R.expand_dims(builder.emit(R.arange(0, sequence, 1, "int64")), 1)) if is_alone else x
            y = builder.emit_output(R.add(column, first))
        builder.emit_func_output(y)
    return builder.get()


@pytest.mark.parametrize("is_alone", [True, False])
def test_numbers_and_dimensions_of_one_fused_function(is_alone: bool) -> None:
    executable = octavo.compile(octavo.load(positions(is_alone=is_alone)))
    for sequence, past in ((3, 5), (1, 0), (20, 1)):
        x = np.arange(sequence, dtype=np.int64)[:, None]
        (y,) = executable({"x": x, "cache": np.zeros(past, np.int64)}).values()
        np.testing.assert_array_equal(y, x + past)


def test_a_module_without_both_is_left_as_it_is() -> None:
    module = positions(is_alone=False)
    for each in float_passes().passes:  # pyright: ignore[reportAttributeAccessIssue]
        module = each(module)
        assert join_sizes(module).same_as(module)
