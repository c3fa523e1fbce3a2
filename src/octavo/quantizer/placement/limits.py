"""Facts of an op in a float graph by the names of `target.limits.LIMITS`, and whether a target allows them. Computes no value."""

from __future__ import annotations

from math import prod
from typing import Any

from ...ir.graph.dataflow import DataflowView, call_to, static_shape
from ...ir.graph.weighted import CONVOLUTIONS
from ...target import BATCH_MATMUL
from ...target.limits import beyond
from .layer import Layer

_POOLS = ("nn.avg_pool2d", "nn.max_pool2d", "nn.adaptive_avg_pool2d")
_ATTRIBUTES = {"kernel": "pool_size", "groups": "groups", "stride": "strides", "dilation": "dilation", "padding": "padding"}
"""Where ops that have such numbers hold them."""


def beyond_limits(view: DataflowView, layer: Layer, target: str) -> str | None:
    """Return what of an op a target does not allow, in words; None where nothing is."""
    if not layer.support.limits:
        return None
    shape = static_shape(layer.output) or ()
    facts = {"rank": (len(shape),), "batch": shape[:1], "elements": (prod(shape),), "inputs": (len({*layer.inputs}),)}
    found = beyond(layer.support.limits, facts | _of_channels(view, layer))
    return None if found is None else f"its {found}, says target {target} of {layer.support.op}"


def _of_channels(view: DataflowView, layer: Layer) -> dict[str, tuple[int, ...]]:
    value: Any = view.definition(layer.core)
    data, result = (static_shape(value.args[0]), static_shape(value)) if hasattr(value, "args") else (None, None)
    if data is None or result is None:
        return {}
    if layer.support.op in (BATCH_MATMUL, "matmul"):
        return {"input_channels": data[-1:], "output_channels": result[-1:]}
    call, convolution = call_to(value, *CONVOLUTIONS, *_POOLS), call_to(value, *CONVOLUTIONS)
    if call is None:
        return {}
    layout = str(call.attrs.layout if convolution is None else call.attrs.data_layout)
    read, made = layout.index("C"), str(call.attrs.out_layout or layout).index("C")
    facts = {name: _numbers(getattr(call.attrs, attr)) for name, attr in _ATTRIBUTES.items() if hasattr(call.attrs, attr)}
    if convolution is not None:
        weight, layout = static_shape(call.args[1]) or (), str(call.attrs.kernel_layout)
        facts["kernel"] = tuple(weight[layout.index(axis)] for axis in "HW")
    return {**facts, "input_channels": (data[read],), "output_channels": (result[made],)}


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(map(int, value)) if hasattr(value, "__len__") else (int(value),)
