"""Literals as NumPy arrays: read where they lie, and changed by nobody."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from octavo.ir.qdq.values import numpy_constant


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bool", "int8", "uint8", "int16", "uint16", "int32", "int64"])
def test_a_literal_s_array_is_its_value(dtype: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype)
    found = numpy_constant(relax.const(values, dtype))
    assert found is not None
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)
    scalar = numpy_constant(relax.const(values[1, 2], dtype))
    assert scalar is not None
    assert (scalar.shape, scalar[()]) == ((), values[1, 2])


def test_nobody_changes_a_literal_s_memory() -> None:
    literal = relax.const(np.ones(3, np.float32), "float32")
    found = numpy_constant(literal)
    assert found is not None
    assert np.shares_memory(found, numpy_constant(literal))
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 2.0


def test_the_array_outlives_its_literal() -> None:
    found = numpy_constant(relax.const(np.arange(1 << 16, dtype=np.int32), "int32"))
    others = [relax.const(np.zeros(1 << 16, np.int32), "int32") for _ in range(4)]
    np.testing.assert_array_equal(found, np.arange(1 << 16))
    assert len(others) == 4


def test_what_is_no_literal_has_no_array() -> None:
    assert numpy_constant(relax.Var("x", relax.TensorType(ndim=1, dtype="float32"))) is None
