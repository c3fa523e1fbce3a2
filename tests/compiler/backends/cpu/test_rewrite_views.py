"""A reshape is a view of the same memory, also where TVM does not see it: of a size that is a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from octavo.compiler.backends.cpu.link import float_passes
from octavo.ir.graph.dataflow import DataflowView, call_to

R: Any = relax.op


def grown(*, is_returned: bool = False) -> tvm.IRModule:
    """Return a cache that grows, and gets a dimension of 1 for each group of heads that reads it."""
    batch, past, sequence = (tvm.tirx.Var(name, "int64") for name in ("batch", "past", "sequence"))
    shapes: Any = [batch, 2, past, 4], [batch, 2, sequence, 4], [batch, 2, 1, past + sequence, 4]
    cache, new = (
        relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in zip(("cache", "new"), shapes, strict=False)
    )
    builder: Any = relax.BlockBuilder()
    with builder.function("main", [cache, new]):
        with builder.dataflow():
            joined = builder.emit(R.concat([cache, new], axis=2))
            wide = R.reshape(joined, shapes[2])
            y = builder.emit_output(wide if is_returned else R.sum(builder.emit(wide), axis=[3]))
        builder.emit_func_output(y)
    return builder.get()


@pytest.mark.parametrize("is_returned", [False, True])
def test_no_kernel_copies_what_changes_its_shape(is_returned: bool) -> None:
    with tvm.target.Target("llvm"):
        module = float_passes()(grown(is_returned=is_returned))
    values = [binding.value for binding in DataflowView(module["main"]).bindings]
    assert sum(call_to(value, "call_tir") is not None for value in values) == 2, module
    assert any(call_to(value, "reshape") is not None for value in values) == (not is_returned)


@pytest.mark.parametrize("is_returned", [False, True])
def test_values_are_those_of_the_cache(is_returned: bool, rng: np.random.Generator) -> None:
    executable = octavo.compile(octavo.load(grown(is_returned=is_returned)))
    for batch, past, sequence in ((1, 0, 3), (2, 5, 1)):
        cache, new = (rng.normal(size=(batch, 2, rows, 4)).astype(np.float32) for rows in (past, sequence))
        (y,) = executable({"cache": cache, "new": new}).values()
        joined = np.concatenate([cache, new], axis=2)[:, :, None]
        np.testing.assert_allclose(y, joined if is_returned else joined.sum(3), rtol=1e-6)
