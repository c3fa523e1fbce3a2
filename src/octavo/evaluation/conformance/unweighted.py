"""Cases of ops without weights: sums and other pairs, pools, tables, concatenations and what only moves data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Expr

from ...ir.untyped import ops
from ...numerics import INTEGER_RANGE, QuantParams
from ...target import ELEMENTWISE
from .choices import FULL_RANGE, Choices
from .sketch import Array, Body, Sketch, Tail, draw, middle, model_of

_SHAPE = (1, 5, 6, 7)
PAIRS = ("add", "subtract", "multiply", "maximum", "minimum")
POOLS = ("nn.max_pool2d", "nn.avg_pool2d")


def pair_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of an op of two tensors."""
    build: Callable[..., Expr] = getattr(ops, choices.op)
    shape = _shape(choices)
    is_extreme, is_product = choices.op in ("maximum", "minimum"), choices.op == "multiply"
    inner, result = middle(choices, "input"), middle(choices, "output")

    def case(name: str, checks: str, scales: Sequence[float], zero_points: Sequence[int], **more: Any) -> Sketch:
        roles = ("input0", "input1", "output")
        if is_extreme or choices.support.same_params:
            scales, zero_points = [scales[0]] * 3, [zero_points[0]] * 3
        params = [choices.params(*each) for each in zip(roles, scales, zero_points, strict=True)]
        magnitude = more.pop("magnitude", FULL_RANGE)
        inputs = {each: draw(choices, name + each, params[i], shape, magnitude) for i, each in enumerate("ab")}
        tail = Tail(params=params[2], rounding=choices.rounding, **more)
        pairs = {each: (values, params[i]) for i, (each, values) in enumerate(inputs.items())}
        module = model_of(pairs, lambda _, read: build(read[0], read[1]), tail)
        return Sketch(op=choices.op, name=name, checks=checks, module=module, inputs=inputs)

    points = (inner, inner, result)
    ties = (0.5, 0.25, 0.25 / choices.finer) if is_product else (0.25, 0.5, 1.0)
    general = (0.04, 0.07, 0.3 if is_product else 0.09)
    yield case("ties", "results that lie between two integers, of both signs", ties, points, magnitude=12 if is_product else 40)
    yield case("general", "ratios that are no powers of two", general, points)
    yield case("saturation", "results beyond both bounds of the dtype", (0.5, 0.5, 0.25), points)
    yield case("unequal_scales", "scales of the inputs that lie far apart", (0.5, 0.5 / 256, 0.5), points)
    for i, role in enumerate(("input0", "input1", "output")):
        for point in choices.zero_points(role):
            chosen = tuple(point if at == i else each for at, each in enumerate(points))
            yield case(f"zero_point_{role}_{point}", f"zero point {point} of {role}", general, chosen)
    yield from _clamped(choices, lambda name, checks, **more: case(name, checks, general, points, **more))


def _clamped(choices: Choices, case: Callable[..., Sketch]) -> Iterator[Sketch]:
    if choices.has("nn.relu"):
        yield case("relu", "a relu in the same kernel", relu=True)
    if choices.has("clip"):
        yield case("clip", "a clip in the same kernel, narrower than the dtype on both sides", clip=(-3.0, 2.5))


def pool_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of a pooling."""
    is_max = choices.op == "nn.max_pool2d"
    build: Callable[..., Expr] = ops.nn.max_pool2d if is_max else ops.nn.avg_pool2d
    is_nchw = choices.target.activation_layout == "NCHW"
    channels = choices.size("input_channels", 5)
    base: dict[str, Any] = {
        "pool_size": (choices.size("kernel", 2),) * 2,
        "strides": (choices.size("stride", 1),) * 2,
        "padding": (choices.size("padding", 0),) * 4,
    }

    inner = middle(choices, "input")

    def case(name: str, checks: str, scales: tuple[float, float] = (0.5, 0.5), zero_point: int = inner, **more: Any) -> Sketch:
        tail = {each: more.pop(each) for each in ("relu", "clip") if each in more}
        count = more.pop("channels", channels)
        x = choices.params("input", scales[0], zero_point)
        keeps = is_max or choices.support.same_params or (scales[0] == scales[1] and not more.get("own_result"))
        more.pop("own_result", None)
        y = x if keeps else choices.params("output", scales[1], middle(choices, "output"))
        shape = (choices.size("batch", 1), 8, 7, count)
        shape = (shape[0], shape[3], *shape[1:3]) if is_nchw else shape
        values = draw(choices, name, x, shape, FULL_RANGE)
        window = {**base, **more, "layout": "NCHW" if is_nchw else "NHWC"}
        module = model_of(
            {"x": (values, x)}, lambda _, read: build(read[0], **window), Tail(params=y, rounding=choices.rounding, **tail)
        )
        return Sketch(op=choices.op, name=name, checks=checks, module=module, inputs={"x": values})

    yield case("general", "windows of 2 by 2" if is_max else "windows of 2 by 2: averages lie between integers, ties among them")
    for point in choices.zero_points("input"):
        yield case(f"zero_point_{point}", f"zero point {point}", zero_point=point)
        padding = tuple(min(choices.size("padding", 1), base["pool_size"][0] - 1) for _ in range(4))
        yield case(f"padding_{point}", f"padding {padding}, zero point {point}", zero_point=point, padding=padding)
        if not is_max:
            yield case(
                f"counted_padding_{point}", "padding that counts", zero_point=point, padding=padding, count_include_pad=True
            )
    if not is_max and not choices.support.same_params:
        yield case("other_scale", "the result has a scale and a zero point of its own", (0.05, 0.031), own_result=True)
        yield case("saturation", "results beyond both bounds", (0.5, 0.125), own_result=True)
    kernels, strides = choices.sizes("kernel", (1, 2, 3)), choices.sizes("stride", (1, 2, 3))
    for size in {(kernels[-1], kernels[0]), (kernels[0], kernels[-1]), (kernels[-1], kernels[-1])} if choices.is_first else ():
        if size[0] <= 8 and size[1] <= 7:
            yield case(f"kernel_{size[0]}x{size[1]}", f"windows of {size[0]} by {size[1]}", pool_size=size)
    for pair in sorted({(strides[0], strides[-1]), (strides[-1], strides[0])}) if choices.is_first else ():
        yield case(f"stride_{pair[0]}x{pair[1]}", f"strides {pair}", strides=pair)
    for count in choices.sizes("input_channels", (1, 16, 17)) if choices.is_first else ():
        yield case(f"channels_{count}", f"{count} channels", channels=count)
    yield from _clamped(choices, lambda name, checks, **more: case(name, checks, **more))


TABLES: dict[str, tuple[Callable[..., Expr], str]] = {
    "sigmoid": (ops.sigmoid, "the sigmoid"),
    "tanh": (ops.tanh, "the hyperbolic tangent"),
    "gelu": (ops.nn.gelu, "the Gaussian error linear unit"),
    "exp": (ops.exp, "the exponential function, which saturates"),
    "silu": (ops.nn.silu, "x times its sigmoid"),
}


def table_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of functions of one tensor: every integer of its dtype is looked up."""
    for name, (build, what) in TABLES.items():
        for point in choices.zero_points("input") if name == "sigmoid" else (middle(choices, "input"),):
            yield _every_integer(choices, f"{name}_{point}", what, build, (0.05, 1 / 128), point)
    yield _every_integer(choices, "leaky_relu", "a leaky relu", lambda x: ops.nn.leakyrelu(x, 0.125), (0.25, 0.25), 0)


def _every_integer(
    choices: Choices, name: str, checks: str, build: Callable[..., Expr], scales: tuple[float, float], zero_point: int
) -> Sketch:
    x, y = choices.params("input", scales[0], zero_point), choices.params("output", scales[1], middle(choices, "output"))
    low, high = INTEGER_RANGE[x.dtype]
    values = np.arange(low, high + 1).astype(x.dtype).reshape(1, -1)
    module = model_of({"x": (values, x)}, lambda _, read: build(read[0]), Tail(params=y, rounding=choices.rounding))
    return Sketch(op=choices.op, name=name, checks=checks, module=module, inputs={"x": values})


def concat_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of a concatenation."""
    counts = choices.sizes("inputs", (2, 3))
    shape = _shape(choices)

    def case(name: str, checks: str, count: int, axis: int, *, same: bool) -> Sketch:
        y = choices.params("output", 0.5, middle(choices, "output"))
        scales = [0.5 if same else 0.5 * 0.75**i for i in range(count)]
        points = choices.zero_points("input")
        params = [y if same else choices.params("input", scale, points[i % len(points)]) for i, scale in enumerate(scales)]
        pairs: dict[str, tuple[Array, QuantParams]] = {}
        for i, each in enumerate(params):
            sizes = tuple(size + i if at == axis else size for at, size in enumerate(shape))
            pairs[f"x{i}"] = (draw(choices, f"{name}{i}", each, sizes, FULL_RANGE), each)

        def op(_: Body, read: Sequence[Any]) -> Expr:
            return ops.concat(relax.Tuple(list(read)), axis=axis)

        module = model_of(pairs, op, Tail(params=y, rounding=choices.rounding))
        inputs = {name: values for name, (values, _) in pairs.items()}
        return Sketch(op=choices.op, name=name, checks=checks, module=module, inputs=inputs)

    for count in counts:
        yield case(f"inputs_{count}", f"{count} inputs with the result's parameters", count, 3, same=True)
    for axis in (1, 2):
        yield case(f"axis_{axis}", f"along axis {axis}", counts[0], axis, same=True)
    if not choices.support.same_params:
        yield case("requantized", "inputs with parameters of their own", counts[-1], 3, same=False)


MOVES: dict[str, tuple[Callable[..., Expr], str]] = {
    "reshape": (lambda x: ops.reshape(x, (_SHAPE[0] * _SHAPE[1], -1)), "rows joined"),
    "squeeze": (lambda x: ops.squeeze(x, [0]), "an axis of size 1 left out"),
    "expand_dims": (lambda x: ops.expand_dims(x, 1), "an axis of size 1 added"),
    "flatten": (ops.flatten, "one axis"),
    "nn.batch_flatten": (ops.nn.batch_flatten, "one axis behind the batch"),
    "permute_dims": (lambda x: ops.permute_dims(x, [0, 3, 1, 2]), "channels moved before rows and columns"),
    "strided_slice": (
        lambda x: ops.strided_slice(x, axes=[1, 2], begin=[1, 0], end=[5, 6], strides=[1, 2]),
        "every other column",
    ),
    "flip": (lambda x: ops.flip(x, axis=2), "columns reversed"),
    "tile": (lambda x: ops.tile(x, (1, 2, 1, 1)), "rows repeated"),
}


def move_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of an op that moves the data of one tensor."""
    if choices.op not in MOVES:
        return
    build, what = MOVES[choices.op]
    for point in choices.zero_points("input"):
        x = choices.params("input", 0.5, point)
        values = draw(choices, f"moved{point}", x, _SHAPE, FULL_RANGE)
        tail = Tail(params=x, rounding=choices.rounding)
        module = model_of({"x": (values, x)}, lambda _, read: build(read[0]), tail)
        inputs = {"x": values}
        yield Sketch(
            op=choices.op, name=f"zero_point_{point}", checks=f"{what}, zero point {point}", module=module, inputs=inputs
        )


def clamp_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of a clamp that is an op of its own."""
    is_relu = choices.op == "nn.relu"

    def case(name: str, checks: str, scales: tuple[float, float], point: int, bounds: tuple[float, float]) -> Sketch:
        x, y = choices.params("input", scales[0], point), choices.params("output", scales[1], middle(choices, "output"))
        y = x if scales[0] == scales[1] else y
        values = draw(choices, name, x, _shape(choices), FULL_RANGE)

        def op(_: Body, read: Sequence[Any]) -> Expr:
            return ops.nn.relu(read[0]) if is_relu else ops.clip(read[0], *bounds)

        module = model_of({"x": (values, x)}, op, Tail(params=y, rounding=choices.rounding))
        return Sketch(op=choices.op, name=name, checks=checks, module=module, inputs={"x": values})

    inner = middle(choices, "input")
    for point in choices.zero_points("input"):
        yield case(f"zero_point_{point}", f"zero point {point}", (0.05, 0.05), point, (-2.0, 1.5))
    if not is_relu:
        yield case("one_side", "bounds of which the dtype reaches one", (0.05, 0.05), inner, (-1.0, 1e6))
    if not choices.support.same_params:
        yield case("other_scale", "the result has a scale and a zero point of its own", (0.05, 0.031), inner, (-2.0, 1.5))
        yield case("ties", "results that lie between two integers", (0.25, 0.5), inner, (-9.0, 9.0))
        yield case("saturation", "results beyond the bounds of the dtype", (0.5, 0.125), inner, (-1e6, 1e6))


def _shape(choices: Choices) -> tuple[int, int, int, int]:
    return (choices.size("batch", _SHAPE[0]), *_SHAPE[1:])


SKETCHES: dict[str, Callable[[Choices], Iterator[Sketch]]] = {
    **dict.fromkeys(PAIRS, pair_sketches),
    **dict.fromkeys(POOLS, pool_sketches),
    **dict.fromkeys(MOVES, move_sketches),
    ELEMENTWISE: table_sketches,
    **dict.fromkeys(("nn.relu", "clip"), clamp_sketches),
    "concat": concat_sketches,
}
