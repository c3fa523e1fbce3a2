"""Pools, means, and softmax."""

import itertools

import numpy as np
import pytest
from emulated_ops import Case, integers, output, tensor, wrong

from octavo.evaluation.conformance.oracles import expected
from octavo.ir.composites.normalization import SoftmaxOp
from octavo.ir.composites.reduction import Pool2dOp, ReduceOp
from octavo.numerics import log_softmax

DTYPES = ("int8", "uint8")


def pool_case(dtype, kind, rounding, channels=5, *, layout="NCHW", nhwc=(), size=(7, 6), kernel=(3, 3), strides=(1, 1), **more):
    padding, dilation = more.pop("padding", (0, 0, 0, 0)), more.pop("dilation", (1, 1))
    low = -128 if dtype == "int8" else 0
    same = more.pop("same", rounding == "half_away")
    shape = (2, channels, *size) if layout == "NCHW" else (2, *size, channels)
    beyond = more.pop("beyond", 0)  # rows and columns of the result whose windows reach beyond the padding
    rows, columns = (
        (extent + padding[i] + padding[i + 2] - (taps - 1) * gap - 1) // step + 1 + beyond
        for i, (extent, taps, step, gap) in enumerate(zip(size, kernel, strides, dilation, strict=True))
    )
    out = (2, channels, rows, columns) if layout == "NCHW" else (2, rows, columns, channels)
    out = more.pop("shape", out)
    x = tensor("x", shape, dtype, 0.1, low + 130)
    y = output(out, dtype, 0.1 if same else 0.07, low + 130 if same else low + 20, more.pop("bounds", None))
    op = Pool2dOp(
        kind=kind,
        x=x,
        y=y,
        layout=layout,
        kernel=kernel,
        strides=strides,
        padding=padding,
        dilation=dilation,
        count_include_pad=more.pop("counted", False),
        out_height=rows,
        out_width=columns,
        rounding=rounding,
    )
    assert not more
    inputs = {"x": integers(shape, dtype, 1)}
    want = np.ascontiguousarray(expected(op, inputs).values)
    return Case(op, inputs, want, nhwc)


def pool_cases():
    kinds = [("max", "half_even"), *(("avg", each) for each in ("half_even", "half_even_stored", "half_away", "float32"))]
    for dtype, (kind, rounding) in itertools.product(DTYPES, kinds):
        low = -128 if dtype == "int8" else 0
        yield pool_case(dtype, kind, rounding)
        yield pool_case(dtype, kind, rounding, 8, nhwc=("x",), strides=(2, 1), padding=(1, 0, 1, 2))
        yield pool_case(dtype, kind, rounding, 4, layout="NHWC", kernel=(2, 3), dilation=(2, 1), bounds=(low + 30, low + 220))
        yield pool_case(dtype, kind, rounding, 12, size=(4, 4), kernel=(4, 4), same=True)
        yield pool_case(dtype, kind, rounding, 6, kernel=(2, 2), strides=(2, 2), padding=(1, 1, 0, 0), beyond=1, same=True)
        if kind == "avg" and rounding != "half_away":
            yield pool_case(dtype, kind, rounding, padding=(1, 1, 1, 1), counted=True)
            yield pool_case(dtype, kind, rounding, 7, size=(9, 5), kernel=(9, 5), shape=(2, 7))
    yield pool_case("int8", "avg", "half_even", 33, size=(31, 5), kernel=(31, 5), layout="NHWC", shape=(2, 33))


def softmax_case(dtype, shape, axis, *, scale=0.1, rounding="half_even", nhwc=(), beta=1.0, spread=256):
    low = -128 if dtype == "int8" else 0
    x = tensor("x", shape, dtype, scale, low + 130)
    y = output(shape, dtype, 1 / 256 if rounding == "half_even" else 0.0039, low)
    op = SoftmaxOp(x=x, y=y, axis=axis, beta=beta, is_log=False, rounding=rounding)
    inputs = {"x": integers(shape, dtype, 2)}
    if spread < 256:
        inputs["x"] = (low + 40 + np.random.default_rng(3).integers(0, spread, shape)).astype(dtype)
    plain = op
    if rounding != "half_even":
        steps = np.floor(np.float32(1) / np.float32(0.0039))
        y = output(shape, dtype, float(np.float32(1) / steps), low)
        plain = SoftmaxOp(x=x, y=y, axis=axis, beta=beta, is_log=False, rounding="half_even")
    return Case(op, inputs, np.ascontiguousarray(expected(plain, inputs).values), nhwc)


def softmax_cases():
    for dtype in DTYPES:
        for columns in (1, 2, 3, 10, 31, 32, 33, 100, 257, 1001):
            yield softmax_case(dtype, (5, columns), 1, spread=40 if columns > 100 else 256)
        yield softmax_case(dtype, (2, 9, 3, 4), 1)
        yield softmax_case(dtype, (2, 9, 3, 4), 1, nhwc=("x",))
        yield softmax_case(dtype, (2, 9, 3, 4), 3, nhwc=("x",), beta=0.5)
        yield softmax_case(dtype, (2, 9, 3), 1, scale=0.02)
        yield softmax_case(dtype, (3, 17), 1, rounding="integer_inverse_scale", spread=9)


def log_softmax_case(dtype, shape, axis, *, scale=0.06, out_scale=1 / 16, nhwc=(), beta=1.0, bounds=None):
    low = -128 if dtype == "int8" else 0
    x, y = tensor("x", shape, dtype, scale, low + 90), output(shape, dtype, out_scale, low + 251, bounds)
    op = SoftmaxOp(x=x, y=y, axis=axis, beta=beta, is_log=True, rounding="half_even")
    values = integers(shape, dtype, 5)
    constants = {"scale": float(np.float32(scale) * np.float32(beta)), "out_scale": float(y.tensor.params.scale)}
    points = {"zero_point": low + 251, "qmin": y.qmin, "qmax": y.qmax, "dtype": dtype}
    want = np.moveaxis(log_softmax(np.moveaxis(values, axis, -1), **constants, **points), -1, axis)
    return Case(op, {"x": values}, np.ascontiguousarray(want), nhwc)


def log_softmax_cases():
    for dtype in DTYPES:
        low = -128 if dtype == "int8" else 0
        for columns in (1, 2, 3, 10, 31, 32, 33, 100, 257, 1001):
            yield log_softmax_case(dtype, (5, columns), 1, scale=0.06 if columns % 2 else 0.005)
        yield log_softmax_case(dtype, (2, 9, 3, 4), 1, nhwc=("x",), bounds=(low + 30, low + 220))
        yield log_softmax_case(dtype, (2, 9, 3), 1, beta=2.0, out_scale=0.01)
        yield log_softmax_case(dtype, (3, 40), 1, out_scale=2.0**-12)
        yield log_softmax_case(dtype, (3, 40), 1, scale=30.0, out_scale=0.001)


def reduce_case(dtype, kind, rounding, shape, axes, *, keeps=False, nhwc=(), scale=0.07, same=False):
    low = -128 if dtype == "int8" else 0
    kept = [1 if axis in axes else size for axis, size in enumerate(shape) if keeps or axis not in axes]
    x = tensor("x", shape, dtype, 0.1, low + 130)
    y = output(kept, dtype, 0.1 if same else scale, low + 130 if same else low + 20)
    op = ReduceOp(x=x, y=y, kind=kind, axes=axes, rounding=rounding)
    inputs = {"x": integers(shape, dtype, 4)}
    return Case(op, inputs, np.asarray(expected(op, inputs).values), nhwc)


def reduce_cases():
    kinds = (
        ("mean", "half_even"),
        ("mean", "half_even_stored"),
        ("sum", "half_even"),
        ("max", "half_even"),
        ("min", "half_even"),
    )
    for dtype, (kind, rounding) in itertools.product(DTYPES, kinds):
        scale = 1.0 if kind == "sum" else 0.07
        yield reduce_case(dtype, kind, rounding, (3, 5, 6), (2,), scale=scale)
        yield reduce_case(dtype, kind, rounding, (3, 300), (1,), scale=scale)
        yield reduce_case(dtype, kind, rounding, (3, 5, 8), (0, 2), scale=scale)
        yield reduce_case(dtype, kind, rounding, (3, 5, 8), (1,), scale=scale, same=kind in ("max", "min"))
        yield reduce_case(dtype, kind, rounding, (2, 3, 4, 5), (1, 3), keeps=True, nhwc=("x",), scale=scale)
        yield reduce_case(dtype, kind, rounding, (2, 8, 4, 5), (2, 3), keeps=True, nhwc=("x",), scale=scale)
        yield reduce_case(dtype, kind, rounding, (2, 8, 4, 5), (2,), nhwc=("x",), scale=scale)
        yield reduce_case(dtype, kind, rounding, (2, 8, 1, 1), (2, 3), nhwc=("x",), scale=scale)
        yield reduce_case(dtype, kind, rounding, (2, 40, 3), (0, 1, 2), scale=scale * 10)


def test_reductions_are_those_of_the_oracle():
    assert wrong(list(reduce_cases())) == []


def test_pools_are_those_of_the_oracle():
    assert wrong(list(pool_cases())) == []


def test_softmax_is_that_of_the_oracle():
    assert wrong(list(softmax_cases())) == []


def test_logarithms_of_softmax_are_those_of_the_oracle():
    assert wrong(list(log_softmax_cases())) == []


@pytest.mark.parametrize(("check", "seed"), [("races", 1), ("addresses", 2)])
def test_pools_read_and_write_their_own_memory(check, seed):
    cases = [pool_case("int8", "avg", "half_even", 8, padding=(1, 1, 1, 1)), pool_case("uint8", "max", "half_even")]
    cases += [pool_case("int8", "avg", "half_even", 12, size=(4, 4), kernel=(4, 4), same=True)]
    cases += [softmax_case("int8", (5, 10), 1), softmax_case("int8", (2, 300), 1)]
    cases += [log_softmax_case("uint8", (5, 10), 1), log_softmax_case("int8", (2, 300), 1)]
    assert wrong(cases, check=check, seed=seed) == []
