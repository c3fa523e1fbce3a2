"""Cases of ops with constant weights: convolutions, plain, grouped and depthwise, and products of matrices, one or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr

from ...ir.untyped import ops
from ...numerics import INTEGER_RANGE, PerAxis, PerTensor, QuantParams, bias_params, max_accumulator
from ...target import GATHERED_MATMUL, STACKED_MATMUL
from .choices import FULL_RANGE, Choices
from .sketch import Array, Body, Sketch, Tail, model_of

_STACKED_RANK = 3
_SEVERAL = (STACKED_MATMUL, GATHERED_MATMUL)
"""Products by several matrices."""
_TIE_SCALES = (0.5, 0.25, 0.5)
"""Of input, weight and result: a sum counts a quarter of the result's unit, so that every fourth is a tie."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """One convolution or product; sizes of its image count for the first only, `experts` where each has a weight of its own."""

    inputs: int
    outputs: int
    kernel: tuple[int, int] = (3, 3)
    image: tuple[int, int, int] = (1, 7, 6)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    scales: tuple[float, npt.ArrayLike, float] = (0.04, 0.006, 0.09)
    zero_points: tuple[int, int, int] = (0, 0, 0)
    magnitude: int = FULL_RANGE
    weight_magnitude: int = 127
    bias: int = 2000
    relu: bool = False
    clip: tuple[float, float] | None = None
    layout: str = "NHWC"
    experts: int = 3


def weighted_sketches(choices: Choices) -> Iterator[Sketch]:
    """Yield the cases of an op with weights."""
    if not choices.weight_dtype:
        return
    middle = choices.zero_points("input")[len(choices.zero_points("input")) // 2]
    out = choices.zero_points("output")[len(choices.zero_points("output")) // 2]
    base = _Layer(
        inputs=choices.size("input_channels", 4),
        outputs=choices.size("output_channels", 5),
        kernel=_pair(choices.size("kernel", 3)),
        image=(choices.size("batch", 1), 7, 6),
        strides=_pair(choices.size("stride", 1)),
        padding=_around(choices.size("padding", 0)),
        dilation=_pair(choices.size("dilation", 1)),
        zero_points=(middle, 0, out),
        bias=(2000 << (8 * choices.is_wide)) if choices.has("bias") else 0,
        layout="NCHW" if choices.target.activation_layout == "NCHW" else "NHWC",
    )
    sweeps = [_arithmetic(choices, base), _per_channel(choices, base)]
    if choices.is_first:
        more = {"nn.conv2d": _windows, **dict.fromkeys(_SEVERAL, _experts)}.get(choices.op)
        sweeps += [_channels(choices, base), *([] if more is None else [more(choices, base)])]
    for sweep in sweeps:
        for name, checks, layer in sweep:
            yield _sketch(choices, name, checks, layer)
    yield from _near_overflow(choices, base)
    if choices.is_wide and choices.has("bias"):
        yield _beside_ties(choices, base)
    if choices.is_wide and choices.support.bits_of(choices.dtype) > 33:
        yield _beyond_32_bits(choices, base)


_Named = Iterator[tuple[str, str, _Layer]]


def _pair(number: int) -> tuple[int, int]:
    return number, number


def _around(number: int) -> tuple[int, int, int, int]:
    return number, number, number, number


def _arithmetic(choices: Choices, base: _Layer) -> _Named:
    small = replace(base, scales=_TIE_SCALES, magnitude=6, weight_magnitude=3, bias=min(base.bias, 40))
    yield "ties", "sums that are an odd number of halves of the result's unit, of both signs", small
    yield "general", "a multiplier that is no power of two", base
    if base.bias:
        yield "no_bias", "no bias", replace(base, bias=0)
    yield "saturation", "results beyond both bounds of the dtype", replace(base, scales=(0.04, 0.006, 0.006))
    for x in choices.zero_points("input"):
        for y in choices.zero_points("output"):
            points = (x, 0, y)
            yield f"zero_points_{x}_{y}", f"zero point {x} of the input, {y} of the result", replace(base, zero_points=points)
    if "asymmetric" in (choices.support.tensor("weight").schemes or ()):
        low, high = INTEGER_RANGE[choices.weight_dtype]
        for w in (low, high, (low + high + 1) // 2 + 3):
            points = (base.zero_points[0], w, base.zero_points[2])
            yield f"weight_zero_point_{w}", f"zero point {w} of the weight", replace(base, zero_points=points)
    if choices.has("nn.relu"):
        yield "relu", "a relu in the same kernel", replace(base, relu=True)
    if choices.has("clip"):
        yield "clip", "a clip in the same kernel, narrower than the dtype on both sides", replace(base, clip=(-3.0, 2.5))


def _per_channel(choices: Choices, base: _Layer) -> _Named:
    if "per_axis" not in (choices.support.tensor("weight").granularity or ()):
        return
    scales = 0.006 * 2.0 ** (np.arange(base.outputs) % 5 - 2.0)
    yield "per_channel", "each output channel has a scale of its own", replace(base, scales=(0.04, scales, 0.09))
    halves = replace(base, scales=(0.5, 0.25 * 2.0 ** (np.arange(base.outputs) % 3), 0.5), magnitude=6, weight_magnitude=3)
    yield "per_channel_ties", "ties, each output channel with a scale of its own", replace(halves, bias=min(base.bias, 40))


def _channels(choices: Choices, base: _Layer) -> _Named:
    for count in choices.sizes("input_channels", (1, 3, 17)):
        yield f"input_channels_{count}", f"{count} input channels", replace(base, inputs=count)
    for count in choices.sizes("output_channels", (1, 3, 16, 17)):
        yield f"output_channels_{count}", f"{count} output channels", replace(base, outputs=count)
    batches = choices.sizes("batch", (2,))
    for batch in batches:
        yield f"batch_{batch}", f"a batch of {batch}", replace(base, image=(batch, *base.image[1:]))


def _experts(choices: Choices, base: _Layer) -> _Named:
    for count in (2, 5):
        yield f"experts_{count}", f"{count} matrices, of which each has a weight of its own", replace(base, experts=count)


def _windows(choices: Choices, base: _Layer) -> _Named:
    large = replace(base, image=(base.image[0], 11, 13))
    for rows, columns in _kernels(choices):
        image = (base.image[0], max(rows + 2, 7), max(columns + 3, 6))
        layer = replace(base, kernel=(rows, columns), image=image)
        yield f"kernel_{rows}x{columns}", f"a kernel of {rows} rows and {columns} columns", layer
    strides, dilations = choices.sizes("stride", (1, 2, 3)), choices.sizes("dilation", (1, 2))
    pairs = {(strides[0], strides[-1]), (strides[-1], strides[0]), (strides[-1], strides[-1])}
    for pair in sorted(pairs):
        yield f"stride_{pair[0]}x{pair[1]}", f"strides {pair}", replace(large, strides=pair)
    for pair in sorted({(dilations[0], dilations[-1]), (dilations[-1], dilations[0])}):
        yield f"dilation_{pair[0]}x{pair[1]}", f"dilations {pair}", replace(large, dilation=pair)
    both = replace(large, strides=(strides[-1], strides[0]), dilation=(dilations[0], dilations[-1]))
    yield "stride_and_dilation", "strides and dilations that differ", both
    paddings = choices.sizes("padding", (0, 1, 2))
    for x in choices.zero_points("input"):
        padding = (paddings[-1], paddings[0], paddings[0], paddings[len(paddings) // 2])
        points = (x, 0, base.zero_points[2])
        layer = replace(base, padding=padding, zero_points=points)
        yield f"padding_{x}", f"padding {padding}, which counts as real 0, the zero point {x}", layer
    yield (
        "everything",
        "strides, dilations and padding",
        replace(both, padding=(paddings[0], paddings[-1], paddings[-1], paddings[0])),
    )
    if choices.target.activation_layout == "any":
        yield "layout_nchw", "channels first, with padding", replace(base, layout="NCHW", padding=_around(paddings[-1]))
    yield from _groups(choices, replace(base, padding=_around(choices.size("padding", 1))))


def _kernels(choices: Choices) -> list[tuple[int, int]]:
    sizes = choices.sizes("kernel", (1, 2, 3, 5))
    return sorted({*((size, size) for size in sizes), (sizes[0], sizes[-1]), (sizes[-1], sizes[0])})


def _groups(choices: Choices, base: _Layer) -> _Named:
    channels = choices.size("input_channels", 6)
    made = choices.size("output_channels", channels)
    if made == channels and choices.is_allowed("groups", channels) and channels > 1:
        depthwise = replace(base, inputs=channels, outputs=channels, groups=channels)
        yield "depthwise", "as many groups as channels", depthwise
        if choices.is_allowed("output_channels", 2 * channels):
            yield "depthwise_multiplier", "depthwise, two outputs of each input", replace(depthwise, outputs=2 * channels)
        if "per_axis" in (choices.support.tensor("weight").granularity or ()):
            scales = 0.006 * 2.0 ** (np.arange(channels) % 5 - 2.0)
            yield "depthwise_per_channel", "depthwise, scales by channel", replace(depthwise, scales=(0.04, scales, 0.02))
    for groups in choices.sizes("groups", (2,)):
        reads, makes = choices.size("input_channels", 2 * groups), choices.size("output_channels", 3 * groups)
        if 1 < groups < reads and reads % groups == 0 and makes % groups == 0:
            yield f"groups_{groups}", f"{groups} groups", replace(base, inputs=reads, outputs=makes, groups=groups)


def _near_overflow(choices: Choices, base: _Layer) -> Iterator[Sketch]:
    """Yield a case whose sums reach the bounds of the accumulator, and where they may leave it one whose sums do."""
    bits, overflow = min(choices.support.bits_of(choices.dtype), 32), choices.support.overflow
    bound = 2 ** (bits - 1) - 1
    layer = replace(
        base,
        kernel=_pair(choices.size("kernel", 1)),
        image=(base.image[0], 6, 6),
        scales=(1.0, 1.0, 2.0 ** (bits - (15 if choices.is_wide else 7))),
    )
    low, high = choices.weight_bounds
    reached = max(abs(low), high) * (FULL_RANGE - 1 if choices.is_wide else 255)
    has_bias = choices.has("bias")
    # Without a bias products alone, as many as fit.
    fitting = choices.size("input_channels", max(min(bound // reached, layer.inputs if has_bias else 300), 1))
    within = replace(layer, inputs=fitting)
    x, w = _extremes(choices, within, "near_overflow")
    sign = np.where(np.arange(layer.outputs) // 2 % 2 == 0, 1, -1).astype(np.int32)
    bias = None
    if has_bias:
        params = choices.params("input", 1.0, layer.zero_points[0])
        products = max_accumulator(w, 0, None, int(params.zero_point), *INTEGER_RANGE[params.dtype])
        bias = np.clip(bound - products, 0, None).astype(np.int32) * sign
    checks = f"sums up to the bounds of an accumulator of {bits} bits"
    yield _sketch(choices, "near_overflow", checks, within, given=(x, w, bias))
    beyond = layer if has_bias else replace(layer, inputs=choices.size("input_channels", min(4 * bound // reached + 2, 600)))
    if overflow != "proven" and (has_bias or beyond.inputs * reached > 2 * bound):
        x, w = _extremes(choices, beyond, "overflow")
        checks = f"sums beyond the bounds of an accumulator of {bits} bits, which {overflow}"
        yield _sketch(choices, "overflow", checks, beyond, given=(x, w, np.int32(bound) * sign if has_bias else None))


def _extremes(choices: Choices, layer: _Layer, name: str) -> tuple[Array, Array]:
    """Draw an input, of which two thirds are the bounds of its dtype, and a weight of the bounds of its own."""
    x, w = _values(choices, layer, choices.generator(name))
    low, high = choices.weight_bounds
    w[...] = np.where(np.arange(layer.outputs) % 2 == 0, high, low)
    x.reshape(-1)[: x.size // 3], x.reshape(-1)[x.size // 3 : 2 * x.size // 3] = INTEGER_RANGE[x.dtype.name]
    return x, w


def _beside_ties(choices: Choices, base: _Layer) -> Sketch:
    """Return a case whose sums have up to 30 bits and lie so near a tie that float32, which has 24, takes most to the tie."""
    inputs, kernel = choices.size("input_channels", 1), _pair(choices.size("kernel", 1))
    layer = replace(base, inputs=inputs, kernel=kernel, magnitude=60, weight_magnitude=1, scales=(1.0, 1.0, 2.0**16))
    rng = choices.generator("beside_ties")
    x, w = _values(choices, layer, rng)
    odd = (2 * rng.integers(2**12, 2**14 - 1, layer.outputs) + 1) * rng.choice((-1, 1), layer.outputs)
    bias = (odd * 2**15).astype(np.int32)
    return _sketch(choices, "beside_ties", "sums beside ties that float32 cannot tell from them", layer, given=(x, w, bias))


def _beyond_32_bits(choices: Choices, base: _Layer) -> Sketch:
    """Return a case with sums that an accumulator of 32 bits does not hold: the values of each have one sign."""
    inputs = choices.size("input_channels", 1200)
    layer = replace(base, inputs=inputs, kernel=_pair(choices.size("kernel", 1)), image=(base.image[0], 4, 4), bias=0)
    layer = replace(layer, scales=(1.0, 1.0, 2.0**18))
    x, w = _values(choices, layer, choices.generator("beyond_32_bits"))
    x, w = np.abs(x // 2) + 2**14 - 1, np.abs(w // 2) + 63
    rows = np.where(np.arange(x.size // inputs) % 2 == 0, 1, -1).reshape(*x.shape[:-1], 1)
    columns = np.where(np.arange(w.shape[-1]) % 3 == 0, -1, 1)
    w[..., 1::3] //= 4  # channels whose sums do fit
    given = (x * rows).astype(choices.params("input", 1.0).dtype), (w * columns).astype(choices.weight_dtype), None
    return _sketch(choices, "beyond_32_bits", "sums that 32 bits do not hold", layer, given=given)


def _values(choices: Choices, layer: _Layer, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw the input, about its zero point, and the weight, HWIO, (in, out) or (experts, in, out)."""
    params = choices.params("input", layer.scales[0], layer.zero_points[0])
    low, high = INTEGER_RANGE[params.dtype]
    center = int(params.zero_point)
    bounds = max(low, center - layer.magnitude), min(high, center + layer.magnitude)
    batch, rows, columns = layer.image
    is_conv, stack = choices.op == "nn.conv2d", (layer.experts,) if choices.op in _SEVERAL else ()
    outer = (batch, *stack) if stack and batch > 1 else stack
    outer = (2 * layer.experts + batch,) if choices.op == GATHERED_MATMUL else outer
    shape = (batch, rows, columns, layer.inputs) if is_conv else (*outer, rows, layer.inputs)
    x = rng.integers(bounds[0], bounds[1] + 1, shape).astype(params.dtype)
    least, most = choices.weight_bounds
    least, most = max(least, -layer.weight_magnitude - (least < -127)), min(most, layer.weight_magnitude)
    if layer.zero_points[1]:
        least, most = INTEGER_RANGE[choices.weight_dtype]
    sizes = (*layer.kernel, layer.inputs // layer.groups, layer.outputs) if is_conv else (*stack, layer.inputs, layer.outputs)
    w = rng.integers(least, most + 1, sizes).astype(choices.weight_dtype)
    if layer.weight_magnitude >= 127 and w.size > 1:
        w.reshape(-1)[0], w.reshape(-1)[-1] = least, most
        x.reshape(-1)[0], x.reshape(-1)[-1] = bounds
    return x, w


def _sketch(
    choices: Choices, name: str, checks: str, layer: _Layer, given: tuple[Array, Array, Array | None] | None = None
) -> Sketch:
    is_conv, is_nchw = choices.op == "nn.conv2d", layer.layout == "NCHW"
    x_params = choices.params("input", layer.scales[0], layer.zero_points[0])
    w_params = _weight_params(choices, layer)
    if given is None:
        rng = choices.generator(name)
        x, w = _values(choices, layer, rng)
        bias = rng.integers(-layer.bias, layer.bias + 1, layer.outputs).astype(np.int32) if layer.bias else None
    else:
        x, w, bias = given
    x = np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if is_conv and is_nchw else x

    # Each of the weights more than once, in no order, and the last one first.
    indices = choices.generator(f"{name}_indices").permutation(np.arange(len(x)) % layer.experts)[::-1].astype(np.int64)
    indices[0] = layer.experts - 1
    is_gathered = choices.op == GATHERED_MATMUL

    def op(body: Body, read: Any) -> Expr:
        value = body.emit(_product(body, read, w, w_params, layer, is_conv=is_conv))
        if bias is None:
            return value
        shape, axis = ((1, layer.outputs, 1, 1), 1) if is_conv and is_nchw else ((layer.outputs,), 0)
        return ops.add(value, body.constant(bias.reshape(shape), bias_params(x_params, w_params, axis)))

    y_params = choices.params("output", layer.scales[2], layer.zero_points[2])
    tail = Tail(params=y_params, rounding=choices.rounding, relu=layer.relu, clip=layer.clip)
    inputs = {"x": (x, x_params), **({"indices": (indices, None)} if is_gathered else {})}
    given_inputs = {each: values for each, (values, _) in inputs.items()}
    return Sketch(op=choices.op, name=name, checks=checks, module=model_of(inputs, op, tail), inputs=given_inputs)


def _weight_params(choices: Choices, layer: _Layer) -> QuantParams:
    """Return a weight's parameters; of several matrices, one channel behind the other, each has another order of scales."""
    if choices.op not in _SEVERAL:
        axis = 3 if choices.op == "nn.conv2d" else 1
        return choices.weight_params(layer.scales[1], layer.zero_points[1], axis=axis, channels=layer.outputs)
    own = np.atleast_1d(layer.scales[1])
    scales = np.concatenate([np.roll(own, expert) for expert in range(layer.experts)]) if own.size > 1 else own
    return choices.weight_params(scales, layer.zero_points[1], axis=0, channels=layer.experts * layer.outputs)


def _product(body: Body, read: Sequence[Expr], w: Array, params: QuantParams, layer: _Layer, *, is_conv: bool) -> Expr:
    x, *indices = read
    if w.ndim == _STACKED_RANK:
        channels = body.constant(w.transpose(0, 2, 1).reshape(-1, layer.inputs), params)
        stack = body.emit(ops.reshape(channels, (layer.experts, layer.outputs, layer.inputs)))
        stack = body.emit(ops.take(stack, indices[0], axis=0, mode="clip")) if indices else stack
        return ops.matmul(x, body.emit(ops.permute_dims(stack, [0, 2, 1])))
    if not is_conv:
        return ops.matmul(x, body.constant(w, params))
    window: dict[str, Any] = {
        "strides": layer.strides,
        "padding": layer.padding,
        "dilation": layer.dilation,
        "groups": layer.groups,
    }
    if layer.layout == "NHWC":
        return ops.nn.conv2d(x, body.constant(w, params), **window, data_layout="NHWC", kernel_layout="HWIO")
    granularity = PerAxis(0) if isinstance(params.granularity, PerAxis) else PerTensor()
    moved = QuantParams(dtype=params.dtype, scale=params.scale, zero_point=params.zero_point, granularity=granularity)
    return ops.nn.conv2d(x, body.constant(w.transpose(3, 2, 0, 1), moved), **window)
