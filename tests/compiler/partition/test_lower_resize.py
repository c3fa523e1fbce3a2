"""Bilinear resizing, lowered in both layouts: the oracle bit for bit, and the rounding that the source asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, round_as, run_float, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
X = (0.1, 3)


def module_of(layout: str, dtype: str, y: tuple[float, int], method: str = "linear"):
    shape = (2, 5, 7, 6) if layout == "NHWC" else (2, 6, 5, 7)

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        x = qdq.dequantize("x", params["x"], X)
        attrs = {"layout": layout, "method": method, "coordinate_transformation_mode": "half_pixel"}
        return qdq.quantize("y", writer.emit("core", op.image.resize2d(x, (10, 9), **attrs)), y, is_output=True)

    return graph({"x": (shape, dtype)}, body), shape


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("rounding", ["half_up", "half_even"])
def test_equals_the_oracle(layout: str, dtype: str, rounding: str) -> None:
    module, shape = module_of(layout, dtype, X)
    if rounding == "half_up":
        module = round_as(module, "half_up")
    low, high = numerics.INTEGER_RANGE[dtype]
    x = np.random.default_rng(0).integers(low, high + 1, shape).astype(dtype)
    nhwc = x if layout == "NHWC" else x.transpose(0, 2, 3, 1)
    taps = numerics.linear_taps(5, 10, "half_pixel"), numerics.linear_taps(7, 9, "half_pixel")
    want = numerics.resize_bilinear(nhwc, *taps, rounding=rounding)
    want = want if layout == "NHWC" else want.transpose(0, 3, 1, 2)
    for isa in ISAS:
        (record,) = lower(module, CPU, (isa,), 1).records
        assert (record.op, record.integer) == ("resize", True), record
        np.testing.assert_array_equal(run_lowered(module, x, isa=isa), want)
    assert np.abs(want.astype(int) - run_float(module, x)).max() <= 1


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_in_float32(layout: str) -> None:
    """Of other parameters at once, and of the source's zero points, which the kernel holds relabelled."""
    y = (0.07, -9)
    module, shape = module_of(layout, "int8", y)
    module = round_as(module, "float32")
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    nhwc = x if layout == "NHWC" else x.transpose(0, 2, 3, 1)
    taps = numerics.float_taps(5, 10, "half_pixel"), numerics.float_taps(7, 9, "half_pixel")
    parameters = {"in_scale": X[0], "input_zero_point": X[1], "out_scale": y[0], "zero_point": y[1]}
    want = numerics.float_resize_bilinear(nhwc, *taps, **parameters, qmin=-128, qmax=127)
    np.testing.assert_array_equal(run_lowered(module, x), want if layout == "NHWC" else want.transpose(0, 3, 1, 2))


def test_a_change_of_parameters() -> None:
    module, shape = module_of("NHWC", "uint8", (0.07, 90))
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    assert np.abs(run_lowered(module, x).astype(int) - run_float(module, x)).max() <= 1


def test_cubic_stays_float() -> None:
    module, _ = module_of("NHWC", "uint8", X, "cubic")
    reasons = [record.reason for record in lower(module, CPU, ISAS, 1).records if not record.integer]
    assert reasons == ["it resizes by cubic in layout NHWC"]
