"""Cases of ops that sum or choose along an axis: reductions, softmax, and products of two activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tvm.relax import Expr

from ...ir.untyped import ops
from ...target import BATCH_MATMUL
from ...target.op_facts import REDUCTIONS
from .choices import FULL_RANGE, Choices
from .sketch import Body, Sketch, Tail, draw, middle, model_of

_SHAPE = (2, 5, 6)


def reduction_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of a sum, a mean, a maximum or a minimum along axes."""
    build: Callable[..., Expr] = getattr(ops, choices.op)
    keeps = choices.op in ("max", "min") or choices.support.same_params

    def case(name: str, checks: str, scales: tuple[float, float], point: int, axes: list[int]) -> Sketch:
        x = choices.params("input", scales[0], point)
        y = x if keeps else choices.params("output", scales[1], middle(choices, "output"))
        values = draw(choices, name, x, _SHAPE, FULL_RANGE)
        module = model_of({"x": (values, x)}, lambda _, read: build(read[0], axes), Tail(params=y, rounding=choices.rounding))
        return Sketch(op=choices.op, name=name, checks=checks, module=module, inputs={"x": values})

    at = middle(choices, "input")
    yield case("ties", "results that lie between two integers, ties among them", (0.5, 1.0), at, [2])
    yield case("two_axes", "along two axes", (0.5, 0.5), at, [0, 2])
    for point in choices.zero_points("input"):
        yield case(f"zero_point_{point}", f"zero point {point}", (0.05, 0.061), point, [1])
    yield case("saturation", "results beyond both bounds", (0.5, 0.0625), at, [2])


def adaptive_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of an average of all pixels."""
    is_nchw = choices.target.activation_layout == "NCHW"
    channels = choices.size("input_channels", 5)

    def case(name: str, checks: str, scales: tuple[float, float], point: int) -> Sketch:
        keeps = choices.support.same_params or scales[0] == scales[1]
        x = choices.params("input", scales[0], point)
        y = x if keeps else choices.params("output", scales[1], middle(choices, "output"))
        shape = (choices.size("batch", 1), channels, 4, 2) if is_nchw else (choices.size("batch", 1), 4, 2, channels)
        values, layout = draw(choices, name, x, shape, FULL_RANGE), "NCHW" if is_nchw else "NHWC"

        def op(_: Body, read: Any) -> Expr:
            return ops.nn.adaptive_avg_pool2d(read[0], (1, 1), layout=layout)

        module = model_of({"x": (values, x)}, op, Tail(params=y, rounding=choices.rounding))
        return Sketch(op=choices.op, name=name, checks=checks, module=module, inputs={"x": values})

    at = middle(choices, "input")
    for point in choices.zero_points("input"):
        yield case(f"zero_point_{point}", f"averages of 8 pixels, ties among them, zero point {point}", (0.5, 0.5), point)
    if not choices.support.same_params:
        yield case("other_scale", "the result has a scale and a zero point of its own", (0.05, 0.031), at)
        yield case("saturation", "results beyond both bounds", (0.5, 0.0625), at)


def place_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of the place of a maximum or a minimum."""
    build: Callable[..., Expr] = getattr(ops, choices.op)
    for axis in (1, 2):
        x = choices.params("input", 0.5, middle(choices, "input"))
        # Few values, so that several of a row are the greatest: the first counts.
        values = draw(choices, f"axis_{axis}", x, _SHAPE, 2)
        module = model_of({"x": (values, x)}, lambda _, read, axis=axis: build(read[0], axis), Tail(params=None))
        checks = f"along axis {axis}; of equal values the first"
        yield Sketch(op=choices.op, name=f"axis_{axis}", checks=checks, module=module, inputs={"x": values})


def softmax_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of a softmax over the last axis."""
    for columns, scale in ((1, 0.1), (10, 0.1), (17, 0.02), (100, 0.5)):
        name = f"columns_{columns}"
        x = choices.params("input", scale, middle(choices, "input"))
        y = choices.params("output", 1 / 256, choices.zero_points("output")[0])
        values = draw(choices, name, x, (4, columns), FULL_RANGE)
        tail = Tail(params=y, rounding=choices.rounding)
        module = model_of({"x": (values, x)}, lambda _, read: ops.nn.softmax(read[0], axis=-1), tail)
        checks = f"rows of {columns} values of scale {scale}"
        yield Sketch(op=choices.op, name=name, checks=checks, module=module, inputs={"x": values})


def product_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of a product of two activations."""
    inner, columns = choices.size("input_channels", 8), choices.size("output_channels", 5)

    def case(name: str, checks: str, scales: tuple[float, float, float], points: tuple[int, int], magnitude: int) -> Sketch:
        pairs = zip(("input0", "input1"), scales, points, strict=False)
        a, b = (choices.params(role, scale, point) for role, scale, point in pairs)
        inputs = {
            "a": draw(choices, f"{name}a", a, (2, 3, inner), magnitude),
            "b": draw(choices, f"{name}b", b, (2, inner, columns), magnitude),
        }
        tail = Tail(params=choices.params("output", scales[2], middle(choices, "output")), rounding=choices.rounding)
        read = {"a": (inputs["a"], a), "b": (inputs["b"], b)}
        module = model_of(read, lambda _, values: ops.matmul(values[0], values[1]), tail)
        return Sketch(op=choices.op, name=name, checks=checks, module=module, inputs=inputs)

    at = (middle(choices, "input0"), middle(choices, "input1"))
    yield case("ties", "sums that are an odd number of halves of the result's unit", (0.5, 0.25, 0.5 / choices.finer), at, 6)
    yield case("general", "a multiplier that is no power of two", (0.04, 0.007, 0.13), at, FULL_RANGE)
    yield case("saturation", "results beyond both bounds of the dtype", (0.04, 0.007, 0.01), at, FULL_RANGE)
    for a in choices.zero_points("input0"):
        for b in choices.zero_points("input1"):
            points = f"zero points {a} and {b} of the inputs"
            yield case(f"zero_points_{a}_{b}", points, (0.04, 0.007, 0.13), (a, b), FULL_RANGE)


REDUCED: dict[str, Callable[[Choices], Iterator[Sketch]]] = {
    "nn.adaptive_avg_pool2d": adaptive_sketches,
    **dict.fromkeys(REDUCTIONS, reduction_sketches),
    **dict.fromkeys(("argmax", "argmin"), place_sketches),
    "nn.softmax": softmax_sketches,
    BATCH_MATMUL: product_sketches,
}
