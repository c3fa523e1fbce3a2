"""What is said of ops that stay float: that a target allows no such numbers, or that they are steps of a larger one.

It decides nothing: placement asks once it has decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from tvm.relax import Var

from ...ir.graph.dataflow import DataflowView, call_to, static_shape
from ...ir.graph.weighted import CONVOLUTIONS
from ...ir.identity import TensorEntry, TensorId, TensorTable
from ...runtime.shapes import typical
from ...target import BATCH_MATMUL, GATHERED_MATMUL, STACKED_MATMUL
from ...target.limits import beyond
from .layer import Layer

_KIB = 1024
_POOLS = ("nn.avg_pool2d", "nn.max_pool2d", "nn.adaptive_avg_pool2d")
_ATTRIBUTES = {"kernel": "pool_size", "groups": "groups", "stride": "strides", "dilation": "dilation", "padding": "padding"}
"""Where ops that have such numbers hold them."""


def cost(tensors: Iterable[Var]) -> str:
    """Return how much memory the float32 values of tensors take."""
    count = 4 * sum(typical(prod(static_shape(var) or ())) for var in tensors)
    return f"{count:,} bytes" if count < _KIB else f"{count / _KIB:,.1f} KiB"


def together(reasons: Mapping[str, str]) -> str:
    """Return why several targets do not take an op, each by its name; of one target, its reason alone."""
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def without_range(
    view: DataflowView, tensors: TensorTable, missing: list[Var], touched: Iterable[Var], *, multiplies: bool
) -> str:
    """Return why an op stays float that needs the ranges of missing variables, of which the profile tells nothing.

    `tensors` are the source's, which a profile can know, `touched` what the op reads and makes; it `multiplies` or doesn't.
    """
    inner = next((var for var in missing if TensorId(var.name) not in tensors), None)
    full = None if inner is None else _full(view, tensors, inner)
    if full is None:
        return f"the profile holds no range of {', '.join(var.name for var in missing)}"
    work = "and its multiply-accumulates" if multiplies else "without a product"
    return (
        f"it is a step within {full.op} {full.source_name}, of which a profile knows only what the op reads and makes; it "
        f"stays float, {cost(touched)} a call {work}; written in plain ops in the source, its steps would have ranges"
    )


def _full(view: DataflowView, tensors: TensorTable, step: Var) -> TensorEntry | None:
    """Return the tensor of the source that a step leads to."""
    line, seen = [step], {step}
    for var in line:  # which grows
        entry = tensors.get(TensorId(var.name))
        if entry is not None and entry.op:
            return entry
        users = dict.fromkeys(user for user in view.users(var) if user not in seen)
        line.extend(users)
        seen.update(users)
    return None


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
    if layer.support.op in (BATCH_MATMUL, STACKED_MATMUL, GATHERED_MATMUL, "matmul"):
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
