"""16-bit kernels equal their oracles bit for bit, on every ISA of the host, at sizes around the vector width."""

import itertools

import numpy as np
import pytest
from kernel_runner import EACH_ISA, Case, check, part

from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import (
    BatchMatmulSpec,
    LookupSpec,
    PairwiseSpec,
    PreluSpec,
    ReduceSpec,
    ResizeSpec,
    Side,
    SoftmaxSpec,
)
from octavo.compiler.backends.cpu.kernels.move.concat import ConcatSpec
from octavo.compiler.backends.cpu.kernels.pool.pool2d import Pool2dSpec
from octavo.ir.composites.matrix_view import MatrixView
from octavo.ir.composites.outputs import Output
from octavo.numerics import (
    QuantParams,
    Window,
    avg_pool2d,
    batch_matmul,
    max_pool2d,
    maximum,
    minimum,
    mul,
    reduce_extreme,
    reduce_sum,
    resize_bilinear,
)
from octavo.numerics.quantized.binary import add_int16, float_binary_int16, product_multiplier
from octavo.numerics.quantized.int16_functions import tanh_table
from octavo.numerics.quantized.rescale import int16_rescale_table, prelu_int16
from octavo.numerics.quantized.resize import int16_linear_taps
from octavo.numerics.quantized.softmax import exact_softmax_int16, softmax_int16
from octavo.numerics.rounding.fixed_point import fixed_point_multiplier, mean_multiplier

INT16 = Output(zero_point=0, qmin=-32768, qmax=32767)
SIZES = (1, 3, 15, 16, 17, 65)


def draw(rng, shape, dtype="int16"):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_elementwise(isa):
    rng = np.random.default_rng(4)
    scales = {"a_scale": 0.001, "b_scale": 0.0013, "out_scale": 0.0021}
    bounds = {"qmin": -20_000, "qmax": 30_000}
    output, cases = Output(zero_point=0, **bounds), []
    for size in part(SIZES, isa, 2):
        for shapes in (((2, size), (2, size)), ((2, size), (size,)), ((3, size), (3, 1))):
            a, b = (draw(rng, shape) for shape in shapes)
            sides = {
                name: Side(shape=shape, dtype="int16", scale=scales[f"{name}_scale"])
                for name, shape in zip("ab", shapes, strict=True)
            }
            for kind in ("add", "sub", "mul"):
                given = {**scales, "out_scale": 0.02} if kind == "mul" else scales
                common = {"out_scale": given["out_scale"], "output": output, "rounding": "fixed_point"}
                kernel = kernels.pairwise(PairwiseSpec(kind=kind, **sides, **common), isa=isa)
                if kind == "mul":
                    expected = mul(a, b, multiplier=product_multiplier(**given, rounding="twice_away"), dtype="int16", **bounds)
                else:
                    expected = add_int16(a, b, subtract=kind == "sub", **given, **bounds)
                cases.append(Case(kernel=kernel, inputs=(a, b), expected=expected, about=(kind, shapes)))
        x = draw(rng, (3, 5, size))
        multiplier = mean_multiplier(0.001 / 0.0007, 5)
        rows = {"outer": 3, "extent": 5, "inner": size, "dtype": "int16"}
        spec = ReduceSpec(kind="sum", multiplier=multiplier, output=INT16, **rows)
        expected = reduce_sum(x, (1,), multiplier=multiplier, dtype="int16")
        cases.append(Case(kernel=kernels.reduce(spec, isa=isa), inputs=(x,), expected=expected, about=("mean", size)))
        for kind in ("sum", "max", "min"):
            own = Output(zero_point=-90, **bounds)
            given = {"multiplier": 0.31, "input_zero_point": 700}
            spec = ReduceSpec(kind=kind, output=own, **rows, **(given if kind == "sum" else {}))
            expected = (
                reduce_sum(x, (1,), zero_point=-90, dtype="int16", **given, **bounds)
                if kind == "sum"
                else reduce_extreme(x, (1,), largest=kind == "max", **bounds)
            )
            cases.append(Case(kernel=kernels.reduce(spec, isa=isa), inputs=(x,), expected=expected, about=(kind, size)))
        parts = draw(rng, (4, size)), draw(rng, (4, 3))
        spec = ConcatSpec(outer=4, inners=(size, 3), multipliers=(1.0, 1.0), zero_points=(0, 0), output=output, dtype="int16")
        expected = np.clip(np.concatenate(parts, 1), *bounds.values())
        cases.append(Case(kernel=kernels.concat(spec, isa=isa), inputs=parts, expected=expected, about=("concat", size)))
    check(cases)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_pairs_in_float32(isa):
    rng = np.random.default_rng(7)
    scales = {"a_scale": 0.00131, "a_zero_point": 300, "b_scale": 0.0007, "b_zero_point": -7000}
    bounds, cases = {"qmin": -30_000, "qmax": 32_000}, []
    shapes = itertools.cycle([(), (1,)])
    for size, kind in part(list(itertools.product((1, 33, 200), ("add", "sub", "mul", "max", "min"))), isa):
        a, b = draw(rng, (3, size)), draw(rng, (3, size) if kind == "add" else (*next(shapes), size))
        given = {**scales, "out_scale": 0.02 if kind == "mul" else 0.0021}
        first, second = (
            Side(shape=x.shape, dtype="int16", scale=given[f"{name}_scale"], zero_point=given[f"{name}_zero_point"])
            for name, x in (("a", a), ("b", b))
        )
        output = Output(zero_point=-90, **bounds)
        spec = PairwiseSpec(kind=kind, a=first, b=second, out_scale=given["out_scale"], output=output, rounding="float32")
        if kind in ("max", "min"):
            expected = (maximum if kind == "max" else minimum)(a, b, **bounds)
        else:
            expected = float_binary_int16(kind, a, b, zero_point=-90, **given, **bounds)
        cases.append(Case(kernel=kernels.pairwise(spec, isa=isa), inputs=(a, b), expected=expected, about=(kind, size)))
    check(cases)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_lookup(isa):
    rng = np.random.default_rng(5)
    tables = [("int16", "int16", tanh_table(0.0003))]
    for source, target in (("int16", "int8"), ("uint8", "int16"), ("int8", "int16")):
        x, y = QuantParams.per_tensor(source, 0.01, 3), QuantParams.per_tensor(target, 0.2, -4)
        tables.append((source, target, int16_rescale_table(x, y)))
    cases = []
    for source, target, table in tables:
        x = draw(rng, 3000, source)
        kernel = kernels.lookup(LookupSpec(size=x.size, x_dtype=source, y_dtype=target), table=table, isa=isa)
        expected = table[x.astype(np.int64) - np.iinfo(source).min]
        cases.append(Case(kernel=kernel, inputs=(x,), expected=expected, about=(source, target)))
    check(cases)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_softmax(isa):
    rng = np.random.default_rng(6)
    cases = []
    for columns in part((*SIZES, 1001), isa, 2):
        for scale in (0.0001, 0.002):
            x = draw(rng, (5, columns))
            given = {"scale": scale, "beta": 0.7, "out_scale": 1 / 32768, "rounding": "fixed_point"}
            spec = SoftmaxSpec(rows=5, columns=columns, **given, output=INT16, dtype="int16")
            kernel = kernels.softmax(spec, isa=isa)
            expected = softmax_int16(x, scale=scale, beta=0.7)
            cases.append(Case(kernel=kernel, inputs=(x,), expected=expected, about=("softmax", columns, scale)))
    check(cases)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_softmax_to_any_scale(isa):
    rng = np.random.default_rng(11)
    cases = []
    for columns, scale in part(list(itertools.product((1, 16, 33, 1001), (0.00001, 0.002, 3.0))), isa, 5):
        x = draw(rng, (5, columns))
        given = {"scale": scale, "out_scale": float(rng.uniform(0.5, 4)) / 65536}
        out = Output(zero_point=-32768, qmin=-32768, qmax=32_000)
        spec = SoftmaxSpec(rows=5, columns=columns, output=out, dtype="int16", threads=2, **given)
        kernel = kernels.softmax(spec, isa=isa)
        expected = exact_softmax_int16(x, **given, zero_point=-32768, qmax=32_000)
        cases.append(Case(kernel=kernel, inputs=(x,), expected=expected, about=(columns, scale)))
    check(cases)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_pools(isa):
    rng = np.random.default_rng(7)
    cases = []
    for size in part(SIZES, isa, 2):
        x = draw(rng, (2, 6, 7, size))
        lattice = {"strides": (2, 1), "padding": (1, 0, 1, 1)}
        window = {"kernel": (3, 2), "window": Window(**lattice), "out_shape": (3, 7)}
        bounds = {"qmin": -20_000, "qmax": 30_000}
        for rounding, ratio, points in (("half_away", 1.0, (0, 0)), ("half_even", 0.7, (100, -7))):
            average = {"multiplier": ratio, "input_zero_point": points[0], "rounding": rounding}
            spec = pool_spec(x, "avg", window, Output(zero_point=points[1], **bounds), **average)
            expected = avg_pool2d(x, **window, **average, zero_point=points[1], **bounds, dtype="int16")
            cases.append(Case(kernel=kernels.pool2d(spec, isa=isa), inputs=(x,), expected=expected, about=(rounding, size)))
        spec = pool_spec(x, "max", window, Output(zero_point=0, **bounds), input_zero_point=0)
        expected = max_pool2d(x, **window, **bounds)
        cases.append(Case(kernel=kernels.pool2d(spec, isa=isa), inputs=(x,), expected=expected, about=("max", size)))
    check(cases)


def pool_spec(x, kind, window, output, **fields):
    fields |= {"kernel": window["kernel"], "strides": window["window"].strides, "padding": window["window"].padding}
    rows, columns = window["out_shape"]
    return Pool2dSpec(
        kind=kind,
        batch=x.shape[0],
        in_height=x.shape[1],
        in_width=x.shape[2],
        channels=x.shape[3],
        out_height=rows,
        out_width=columns,
        output=output,
        dtype="int16",
        **fields,
    )


@pytest.mark.parametrize("isa", EACH_ISA)
def test_batch_matmul(isa):
    rng = np.random.default_rng(8)
    bounds, cases = {"qmin": -20_000, "qmax": 30_000}, []
    factors = itertools.cycle([fixed_point_multiplier(3e-6, "reduced"), np.float32(2.7e-6)])
    for columns, (rows, inner) in part(list(itertools.product((1, 7, 8, 33), ((1, 5), (6, 64)))), isa):
        a, b, multiplier = draw(rng, (2, 3, rows, inner)), draw(rng, (3, inner, columns)), next(factors)
        given = {"a_zero_point": 300, "b_zero_point": -7000, "multiplier": multiplier}
        views = dict(zip("aby", map(MatrixView.plain, (a.shape, b.shape, (2, 3, rows, columns))), strict=True))
        spec = BatchMatmulSpec(**views, output=Output(zero_point=-90, **bounds), dtype="int16", **given)
        expected = batch_matmul(a, b, zero_point=-90, out_dtype="int16", **given, **bounds)
        about = (rows, inner, columns)
        cases.append(Case(kernel=kernels.batch_matmul(spec, isa=isa), inputs=(a, b), expected=expected, about=about))
    check(cases)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_resize(isa):
    rng = np.random.default_rng(9)
    cases = []
    for channels, mode in part(list(itertools.product((1, 16, 19), ("asymmetric", "align_corners", "half_pixel"))), isa, 4):
        x = draw(rng, (2, 4, 7, channels))
        x.flat[:8] = np.repeat([-32768, 32767], 4)
        rows, columns = int16_linear_taps(4, 11, mode), int16_linear_taps(7, 3, mode)
        image = {"batch": 2, "in_height": 4, "in_width": 7, "channels": channels}
        spec = ResizeSpec(**image, rows=rows, columns=columns, dtype="int16", rounding="half_away")
        expected = resize_bilinear(x, rows, columns, rounding="half_away")
        cases.append(Case(kernel=kernels.resize_bilinear(spec, isa=isa), inputs=(x,), expected=expected, about=(channels, mode)))
    check(cases)


def test_taps_of_a_wide_result_stay_within_the_image():
    taps = int16_linear_taps(4, 199, "asymmetric")
    assert max(taps.first) == max(taps.second) == 3


@pytest.mark.parametrize("isa", EACH_ISA)
def test_prelu(isa):
    rng = np.random.default_rng(10)
    scales = {"x_scale": 0.001, "slope_scale": 0.01, "out_scale": 0.0007}
    bounds, cases = {"qmin": -20_000, "qmax": 30_000}, []
    for size, slope_shape in part(list(itertools.product(SIZES, ((1,), (3, 1), None))), isa, 4):
        x, slopes = draw(rng, (2, 3, size)), draw(rng, slope_shape or (size,), "int8").astype(np.int16)
        spec = PreluSpec(shape=x.shape, output=Output(zero_point=0, **bounds), **scales)
        kernel = kernels.prelu(spec, slopes=slopes, isa=isa)
        expected = prelu_int16(x, slopes, **scales, **bounds)
        cases.append(Case(kernel=kernel, inputs=(x,), expected=expected, about=(size, slope_shape)))
    check(cases)
