"""Normalizations, resizing, and choices by indices."""

import itertools

import numpy as np
import pytest
from emulated_ops import Case, integers, output, tensor, wrong

from octavo.ir.composites.movement import TakeOp
from octavo.ir.composites.normalization import GroupNormOp, L2NormalizeOp, LayerNormOp
from octavo.ir.composites.reduction import FloatResizeOp, ResizeOp
from octavo.numerics.quantized.normalization import group_norm, l2_normalize, l2_normalize_fixed, layer_norm
from octavo.numerics.quantized.resize import float_resize_bilinear, float_taps, linear_taps, resize_bilinear

DTYPES = ("int8", "uint8")
TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def norm_parts(dtype, count, seed=1):
    rng = np.random.default_rng(seed)
    low = -128 if dtype == "int8" else 0
    gamma, beta = rng.normal(1, 0.5, count).astype(np.float32), rng.normal(0, 1, count).astype(np.float32)
    return low, {"gamma": gamma, "beta": beta, "epsilon": 1e-5}


def layer_norm_case(dtype, shape, *, flat=False):
    low, constants = norm_parts(dtype, shape[-1])
    x, y = tensor("x", shape, dtype, 0.1, low + 130), output(shape, dtype, 0.03, low + 120, (low + 3, low + 250))
    values = np.full(shape, low + 9, dtype) if flat else integers(shape, dtype, 2)
    want = layer_norm(
        (values.astype(np.int32) - low).astype(np.uint8),
        scale=float(x.params.scale),
        **constants,
        out_scale=float(y.tensor.params.scale),
        zero_point=120,
        qmin=3,
        qmax=250,
    )
    op = LayerNormOp(x=x, y=y, names=("", ""), **constants)
    return Case(op, {"x": values}, (want.astype(np.int32) + low).astype(dtype))


def group_norm_case(dtype, shape, groups, axis=1, nhwc=()):
    low, constants = norm_parts(dtype, shape[axis])
    x, y = tensor("x", shape, dtype, 0.1, low + 130), output(shape, dtype, 0.03, low + 120)
    values = integers(shape, dtype, 3)
    rows = np.moveaxis(values, axis, -1)
    want = group_norm(
        (rows.astype(np.int32) - low).astype(np.uint8).reshape(shape[0], -1, shape[axis]),
        groups=groups,
        scale=float(x.params.scale),
        **constants,
        out_scale=float(y.tensor.params.scale),
        zero_point=120,
    )
    want = np.moveaxis((want.astype(np.int32) + low).astype(dtype).reshape(rows.shape), -1, axis)
    op = GroupNormOp(x=x, y=y, names=("", ""), groups=groups, axis=axis, **constants)
    return Case(op, {"x": values}, np.ascontiguousarray(want), nhwc)


def norm_cases():
    for dtype in DTYPES:
        yield layer_norm_case(dtype, (5, 33))
        yield layer_norm_case(dtype, (2, 3, 300))
        yield layer_norm_case(dtype, (3, 16), flat=True)
        yield group_norm_case(dtype, (2, 6, 5, 7), 3)
        yield group_norm_case(dtype, (2, 8, 5, 3), 2, nhwc=("x",))
        yield group_norm_case(dtype, (2, 5, 12), 4, axis=2)


def l2_case(dtype, shape, axis, *, fixed=False, values=None, nhwc=(), bounds=None):
    low = -128 if dtype == "int8" else 0
    out_scale, zero_point = (1 / 128, low + 128) if fixed else (0.011, low + 100)
    x, y = tensor("x", shape, dtype, 0.1, low + 90), output(shape, dtype, out_scale, zero_point, bounds)
    values = integers(shape, dtype, 7) if values is None else values
    rows = np.moveaxis(values, axis, -1)
    if fixed:
        want = np.clip(l2_normalize_fixed(rows, input_zero_point=low + 90), y.qmin, y.qmax)
    else:
        points = {"zero_point": zero_point, "qmin": y.qmin, "qmax": y.qmax, "dtype": dtype}
        want = l2_normalize(rows, input_zero_point=low + 90, out_scale=float(y.tensor.params.scale), **points)
    op = L2NormalizeOp(x=x, y=y, axis=axis, rounding="fixed_point" if fixed else "half_even")
    return Case(op, {"x": values}, np.ascontiguousarray(np.moveaxis(want, -1, axis)), nhwc)


def small_rows(dtype):
    """Rows of norms from 0 on: the zero point but for one or two elements near it."""
    rows = np.full((40, 5), (-128 if dtype == "int8" else 0) + 90, np.int32)
    rows[:, 1] += np.arange(40) - 20
    rows[::3, 3] += 1
    return rows.astype(dtype)


def l2_cases():
    for dtype, fixed in itertools.product(DTYPES, (False, True)):
        low = -128 if dtype == "int8" else 0
        for columns in (1, 3, 16, 17, 31, 33, 65, 127, 129):
            yield l2_case(dtype, (5, columns), 1, fixed=fixed)
        yield l2_case(dtype, (2, 3, 1500), 2, fixed=fixed)
        yield l2_case(dtype, (1, 32768), 1, fixed=fixed, values=np.full((1, 32768), low + 255, dtype))
        yield l2_case(dtype, (40, 5), 1, fixed=fixed, values=small_rows(dtype))
        yield l2_case(dtype, (2, 21, 3, 5), 1, fixed=fixed, nhwc=("x",), bounds=(low + 60, low + 170))
        yield l2_case(dtype, (2, 21, 3, 5), 1, fixed=fixed)


def resize_case(dtype, rounding, size, to, channels, *, layout="NCHW", nhwc=(), mode="half_pixel", cuts_off=False):
    low = -128 if dtype == "int8" else 0
    shape, out = ((2, channels, *each) if layout == "NCHW" else (2, *each, channels) for each in (size, to))
    x = tensor("x", shape, dtype, 0.1, low + 130)
    values = integers(shape, dtype, 4)
    image = values.transpose(TO_NHWC) if layout == "NCHW" else values
    taps_of = float_taps if rounding == "float32" else linear_taps
    rows, columns = (taps_of(a, b, mode) for a, b in zip(size, to, strict=True))
    if rounding == "float32":
        y = output(out, dtype, 0.07, low + 120, (low + 2, low + 251))
        points = {"input_zero_point": low + 130, "zero_point": low + 120, "qmin": low + 2, "qmax": low + 251}
        scales = {"in_scale": float(x.params.scale), "out_scale": float(y.tensor.params.scale)}
        want = float_resize_bilinear(image, rows, columns, **scales, **points, cuts_off=cuts_off)
        op = FloatResizeOp(x=x, y=y, layout=layout, rows=rows, columns=columns, cuts_off=cuts_off)
    else:
        y = output(out, dtype, 0.1, low + 130, (low + 20, low + 230))
        want = np.clip(resize_bilinear(image, rows, columns, rounding=rounding), low + 20, low + 230).astype(dtype)
        op = ResizeOp(x=x, y=y, layout=layout, rows=rows, columns=columns, rounding=rounding)
    return Case(op, {"x": values}, np.ascontiguousarray(want.transpose(TO_NCHW) if layout == "NCHW" else want), nhwc)


def resize_cases():
    for dtype in DTYPES:
        for rounding in ("half_up", "half_even", "float32"):
            yield resize_case(dtype, rounding, (4, 5), (9, 7), 8, nhwc=("x",), cuts_off=rounding == "float32")
            yield resize_case(dtype, rounding, (6, 4), (3, 8), 3, mode="align_corners")
            yield resize_case(dtype, rounding, (5, 5), (10, 10), 4, layout="NHWC", mode="asymmetric")


def take_case(dtype, index_dtype, shape, axis, places, *, constant=False, nhwc=(), same=True):
    low = -128 if dtype == "int8" else 0
    values = integers(shape, dtype, 5)
    indices = np.random.default_rng(6).integers(-2, shape[axis] + 2, places).astype(index_dtype)
    out = (*shape[:axis], *places, *shape[axis + 1 :])
    y = output(out, dtype, 0.1 if same else 0.07, low + 130)
    x = tensor("x", shape, dtype, 0.1, low + 130)
    want = np.take(values, np.clip(indices, 0, shape[axis] - 1), axis=axis)
    if not same:
        steps = np.rint((want.astype(np.int32) - (low + 130)).astype(np.float32) * (np.float32(0.1) / np.float32(0.07)))
        want = np.clip(steps + low + 130, low, low + 255).astype(dtype)
    op = TakeOp(x=x, y=y, values=values if constant else None, indices="i", axis=axis)
    return Case(op, {"i": indices} if constant else {"x": values, "i": indices}, want, nhwc)


def take_cases():
    for dtype, index_dtype in (("int8", "int32"), ("uint8", "int64")):
        yield take_case(dtype, index_dtype, (9, 16), 0, (2, 3), constant=True)
        yield take_case(dtype, index_dtype, (3, 7, 5), 1, (4,), same=False)
        yield take_case(dtype, index_dtype, (2, 4, 3, 5), 3, (6,), nhwc=("x",))


def test_normalizations_are_those_of_the_oracle():
    assert wrong(list(norm_cases())) == []


def test_rows_over_their_norm_are_those_of_the_oracle():
    assert wrong(list(l2_cases())) == []


def test_resizing_is_that_of_the_oracle():
    assert wrong([*resize_cases(), *take_cases()]) == []


@pytest.mark.parametrize(("check", "seed"), [("races", 1), ("addresses", 2)])
def test_normalizations_read_and_write_their_own_memory(check, seed):
    cases = [*list(norm_cases())[::2], *list(l2_cases())[2::12], *list(resize_cases())[::4], *list(take_cases())[:2]]
    assert wrong(cases, check=check, seed=seed) == []
