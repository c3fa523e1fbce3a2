"""What a target asks of an op beyond what matchers check: its tensors' parameters, attributes and shapes. Finds no op.

A matcher is given `for_matchers(support)`, which allows what any tensor of the op may be; what it found is then held against
`support` itself, tensor by tensor. The CPU's own description asks nothing more than its matchers do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...ir.composites.base import CompositeOp
from ...ir.composites.reduction import Pool2dOp
from ...ir.composites.weighted import (
    BatchMatmulOp,
    Conv2dOp,
    Conv2dTransposeOp,
    MatmulOp,
    QuantizedWeight,
    RowBatchMatmulOp,
    StackedMatmulOp,
)
from ...ir.graph.rules import Region, Rejection
from ...numerics import INTEGER_RANGE
from ...target import OpSupport, TargetDescription
from ...target.limits import beyond
from ...target.vocabulary import ACTIVATION_DTYPES, WEIGHT_DTYPES, GranularityName, Scheme

Entry = Mapping[str, Any]


def for_matchers(support: OpSupport) -> OpSupport:
    """Return a support that allows for each tensor what it allows for any: `tensors` says more of some than the op does."""
    if not support.tensors:
        return support
    roles = [tensor for role, tensor in support.tensors.items() if role not in ("weight", "bias")]
    more = [dtype for tensor in roles for dtype in tensor.dtypes or () if dtype in ACTIVATION_DTYPES]
    weight = support.tensor("weight")
    return replace(
        support,
        activations=tuple(dict.fromkeys((*support.activations, *more))),
        weights=tuple(dtype for dtype in weight.dtypes or () if dtype in WEIGHT_DTYPES),
        weight_schemes=cast("tuple[Scheme, ...]", weight.schemes),
        weight_granularity=cast("tuple[GranularityName, ...]", weight.granularity),
    )


def broken_constraint(
    region: Region[CompositeOp],
    shape: tuple[int, ...] | None,
    support: OpSupport,
    target: TargetDescription,
    ids: Mapping[str, str],
) -> Rejection | None:
    """Return which constraint of a target an op does not keep to, with the value found; None where it keeps to all.

    Parameters
    ----------
    shape
        Of its result; None where that is no single tensor of static shape.
    ids
        Variable -> TensorId of the tensor that it holds.
    """
    op, info = region.op, region.op.quantize_info()
    entries = {role: entry for role, entry in info.items() if isinstance(entry, dict)}
    tensors = {role: entry for role, entry in entries.items() if entry["id"] or entry["scale"] is not None}
    variables = {var.name for var in region.inputs} | {region.output.name}
    said = next(_broken(op, tensors, variables, support, ids), None)
    if said is None and shape is not None:
        said = beyond(support.limits, facts_of(op, shape, len(region.inputs)))
        said = None if said is None else f"its {said}"
    if said is None and target.activation_layout == "NCHW" and getattr(op, "layout", "") == "NHWC":
        said = "its layout is NHWC, expected NCHW (activation_layout)"  # only the other order is transposed to
    return None if said is None else Rejection(reason=f"{said}, says target {target.name} of {support.op}", matched=True)


def _broken(
    op: CompositeOp, tensors: Mapping[str, Entry], variables: Collection[str], support: OpSupport, ids: Mapping[str, str]
) -> Iterator[str]:
    for role, entry in tensors.items():
        name = f"{role} {ids.get(entry['id'], entry['id'])}"
        yield from _tensor(name, role, entry, support, is_constant=entry["id"] not in variables)
    weight = getattr(op, "weight", None)
    if isinstance(weight, QuantizedWeight) and support.weight_range == "narrow" and weight.params.is_symmetric:
        dtype = weight.params.dtype
        low = INTEGER_RANGE[dtype][0]
        if low < 0 and (weight.values == low).any():
            name = ids.get(weight.name, weight.name)
            yield f"weight {name} holds {low}, expected [{low + 1}; {-low - 1}] (weight_range narrow)"
    if support.same_params:
        yield from _shared(tensors, ids)


def _tensor(name: str, role: str, entry: Entry, support: OpSupport, *, is_constant: bool) -> Iterator[str]:
    """Say what a tensor's entry of a quantize_info holds that its role does not allow."""
    allowed = support.tensor(role, is_constant=is_constant)
    if entry["scale"] is None:
        if role == "bias" and allowed.dtypes and entry["dtype"] not in allowed.dtypes:
            yield f"{name} is {entry['dtype']}, expected {', '.join(allowed.dtypes)}"
        return
    scales, zero_points = np.atleast_1d(np.float32(entry["scale"])), np.atleast_1d(entry["zero_point"])
    if allowed.dtypes and entry["dtype"] not in allowed.dtypes:
        yield f"{name} is {entry['dtype']}, expected {', '.join(allowed.dtypes)}"
    if allowed.schemes == ("symmetric",) and zero_points.any():
        yield f"{name} has zero point {zero_points[zero_points != 0][0]}, expected 0 (symmetric)"
    granularity = "per_tensor" if entry["axis"] is None else "per_axis"
    if allowed.granularity and granularity not in allowed.granularity and not (role == "bias" or len(scales) == 1):
        yield f"{name} is quantized {granularity}, expected {', '.join(allowed.granularity)}"
    others = scales[np.frexp(scales)[0] != 0.5]
    if allowed.scales == "power_of_two" and others.size:
        yield f"{name} has scale {others[0]:.8g}, expected a power of two"
    if allowed.scale is not None and (scales != np.float32(allowed.scale)).any():
        yield f"{name} has scale {scales[scales != np.float32(allowed.scale)][0]:.8g}, expected {allowed.scale}"
    if allowed.zero_point is not None and (zero_points != allowed.zero_point).any():
        yield f"{name} has zero point {zero_points[zero_points != allowed.zero_point][0]}, expected {allowed.zero_point}"


def _shared(tensors: Mapping[str, Entry], ids: Mapping[str, str]) -> Iterator[str]:
    """Say which tensor's parameters differ from the result's."""
    result = tensors.get("output")
    if result is None or result["scale"] is None:
        return
    for role, entry in tensors.items():
        found, expected = ((each["scale"], each["zero_point"]) for each in (entry, result))
        if role.startswith("input") and entry["scale"] is not None and found != expected:
            yield (
                f"{role} {ids.get(entry['id'], entry['id'])} has scale {found[0]} and zero point {found[1]}, "
                f"expected the result's, {expected[0]} and {expected[1]} (same_params)"
            )


Facts = dict[str, tuple[int, ...]]


def facts_of(op: CompositeOp, shape: tuple[int, ...], inputs: int) -> Facts:
    """Return the numbers of an op that has a result of this shape and reads so many tensors, constants not counted."""
    batch = {"batch": shape[:1]} if shape else {}
    return {"rank": (len(shape),), **batch, "elements": (math.prod(shape),), "inputs": (inputs,), **_window(op), **_channels(op)}


def _window(op: CompositeOp) -> Facts:
    if isinstance(op, (Conv2dOp, Conv2dTransposeOp)):
        kernel, groups = op.weight.values.shape[:2], {"groups": (op.groups,)}
    elif isinstance(op, Pool2dOp):
        kernel, groups = op.kernel, {}
    else:
        return {}
    return {"kernel": kernel, "stride": op.strides, "dilation": op.dilation, "padding": op.padding, **groups}


def _channels(op: CompositeOp) -> Facts:
    if isinstance(op, (Conv2dOp, Conv2dTransposeOp)):
        read, made = op.weight.values.shape[2] * op.groups, op.weight.values.shape[3]
    elif isinstance(op, MatmulOp):
        read, made = op.weight.values.shape
    elif isinstance(op, StackedMatmulOp):
        read, made = op.x.shape[-1], op.y.shape[-1]
    elif isinstance(op, BatchMatmulOp):
        read, made = op.a.tensor.shape[-1], op.b.tensor.shape[-1]
    elif isinstance(op, RowBatchMatmulOp):
        read, made = op.a.shape[-1], op.b.shape[-1]
    elif isinstance(op, Pool2dOp):
        read = made = op.x.shape[1 if op.layout == "NCHW" else -1]
    else:
        return {}
    return {"input_channels": (read,), "output_channels": (made,)}
