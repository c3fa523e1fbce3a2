"""Parameters of a weight that somebody gives whole, and whether a layer can take them. Chooses none."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ...numerics import INTEGER_RANGE, PerAxis, PerBlock, PerTensor, QuantParams
from ..constraints import LARGEST_SCALE, is_exact
from ..placement import Layer

_KINDS = {PerTensor: "per_tensor", PerAxis: "per_axis", PerBlock: "per_block"}


def unlike_layer(params: QuantParams, layer: Layer, allowed: Collection[str], shape: tuple[int, ...]) -> str | None:
    """Return what of the parameters of its weight a layer cannot take, and what it needs; None where it takes them.

    Parameters
    ----------
    allowed
        The granularities that weight and bias have in common.
    shape
        Of the weight, as the model's parameter holds it.
    """
    op, support = layer.op, layer.support
    assert op is not None, "only layers with weights have parameters of them"
    if layer.block:
        return _unlike_blocks(params, shape, 1 - op.weight_axis)
    needs, weight = f"{support.op} {layer.name} needs", support.tensor("weight")
    along = params.granularity.axis if isinstance(params.granularity, PerAxis) else None
    axis, channels = op.weight_axis if op.has_channels else None, shape[op.weight_axis]
    scales = np.asarray(params.scale, np.float64).reshape(-1)
    odd = scales[np.frexp(scales)[0] != 0.5]
    if _KINDS[type(params.granularity)] not in allowed:
        return f"{_KINDS[type(params.granularity)]} scales, {needs} {' or '.join(allowed)}"
    if along is not None and (along != axis or scales.size != channels):
        expected = "no axis" if axis is None else f"{channels} scales along axis {axis}"
        return f"{scales.size} scales along axis {along}, {needs} {expected}"
    if not params.is_symmetric:
        return "a zero point other than 0; quantize makes symmetric weights"
    if support.weight_range == "narrow" and params.qmin == INTEGER_RANGE[params.dtype][0]:
        return f"integers from {params.qmin}, {needs} a narrow range, from {params.qmin + 1}"
    if odd.size and (is_exact(layer) or weight.scales == "power_of_two"):
        return f"the scale {float(odd[0]):.9g}, {needs} a scale that is a power of two"
    if weight.scale is not None and (params.scale != np.float32(weight.scale)).any():
        return f"the scale {float(scales[0]):.9g}, {needs} {weight.scale:.9g}"
    if not ((scales >= 1 / LARGEST_SCALE) & (scales <= LARGEST_SCALE)).all():
        return f"a scale beyond [{1 / LARGEST_SCALE:.3g}; {LARGEST_SCALE:.3g}]"
    return None


def _unlike_blocks(params: QuantParams, shape: tuple[int, ...], axis: int) -> str | None:
    """Return what tells parameters from those of blocks along an axis of a weight, of 4 bits, or None."""
    granularity = params.granularity
    if not isinstance(granularity, PerBlock) or granularity.axis != axis:
        return f"{granularity}, expected blocks along axis {axis}"
    expected = tuple(size // granularity.size if at == axis else size for at, size in enumerate(shape))
    if params.scale.shape != expected:
        return f"scales {params.scale.shape}, expected {expected}"
    low, high = INTEGER_RANGE["int4"]
    if params.dtype != "int8" or params.qmin < low or params.qmax > high:
        return f"integers in [{params.qmin}; {params.qmax}] of {params.dtype}, expected [{low}; {high}] of int8"
    if (params.zero_point < low).any() or (params.zero_point > high).any():
        return f"a zero point beyond [{low}; {high}]"
    return None
