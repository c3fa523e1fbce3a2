"""Facts of an op in a float graph by the names of `target.limits.LIMITS`, and whether a target allows them. Computes no value."""

from __future__ import annotations

from math import prod
from typing import Any

from ...ir.graph.dataflow import DataflowView, call_to, static_shape
from ...ir.graph.weighted import CONVOLUTIONS
from ...target import BATCH_MATMUL
from ...target.limits import beyond
from .layer import Layer

Facts = dict[str, tuple[int, ...]]
_WINDOWED = ("nn.avg_pool2d", "nn.max_pool2d")
_ADAPTIVE = "nn.adaptive_avg_pool2d"


def beyond_limits(view: DataflowView, layer: Layer, target: str) -> str | None:
    """Return what of an op a target does not allow, in words; None where nothing is."""
    if not layer.support.limits:
        return None
    found = beyond(layer.support.limits, facts_of(view, layer))
    return None if found is None else f"its {found}, says target {target} of {layer.support.op}"


def facts_of(view: DataflowView, layer: Layer) -> Facts:
    """Return the numbers of an op that can be limited."""
    shape = static_shape(layer.output) or ()
    batch = {"batch": shape[:1]} if shape else {}
    inputs = (len(set(layer.inputs)),)
    return {"rank": (len(shape),), **batch, "elements": (prod(shape),), "inputs": inputs, **_of_channels(view, layer)}


def _of_channels(view: DataflowView, layer: Layer) -> Facts:
    value: Any = view.definition(layer.core)
    data, result = (static_shape(value.args[0]), static_shape(value)) if hasattr(value, "args") else (None, None)
    if data is None or result is None:
        return {}
    if layer.support.op in (BATCH_MATMUL, "matmul"):
        return {"input_channels": data[-1:], "output_channels": result[-1:]}
    call = call_to(value, *CONVOLUTIONS, *_WINDOWED, _ADAPTIVE)
    if call is None:
        return {}
    convolution, adaptive = call_to(value, *CONVOLUTIONS), call_to(value, _ADAPTIVE)
    layouts = str(call.attrs.layout if convolution is None else call.attrs.data_layout), str(call.attrs.out_layout)
    read, made = (layout.index("C") for layout in (layouts[0], layouts[1] or layouts[0]))
    channels = {"input_channels": (data[read],), "output_channels": (result[made],)}
    if adaptive is not None:
        return channels
    if convolution is not None:
        weight, layout = static_shape(call.args[1]) or (), str(call.attrs.kernel_layout)
        window = {"kernel": tuple(weight[layout.index(axis)] for axis in "HW"), "groups": (int(call.attrs.groups),)}
    else:
        window = {"kernel": _numbers(call.attrs.pool_size)}
    sizes = {"stride": "strides", "dilation": "dilation", "padding": "padding"}
    return {**window, **{name: _numbers(getattr(call.attrs, attr)) for name, attr in sizes.items()}, **channels}


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
