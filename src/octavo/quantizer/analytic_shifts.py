"""What rounding weights moves the results of layers by, as a profile tells without a run.

The mean of what a layer gives moves by the errors of its weights times the means of what it reads (Nagel et al., Data-Free
Quantization Through Weight Equalization and Bias Correction, 2019, section 4.2). A profile has the ranges of channels, and of all
values together the mean: each channel's is taken to lie at the same share of its range. It runs nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ..ir.graph.dataflow import call_to, static_shape
from ..ir.graph.weighted import Weighted
from ..ir.identity import TensorId
from ..numerics import QuantParams, dequantize
from ..numerics.statistics.histogram_estimates import moments
from .placement import Layer
from .ranges import TensorRange

Floats = npt.NDArray[np.float64]


def analytic_shift(
    layer: Layer, value: npt.NDArray[Any], integers: npt.NDArray[Any], params: QuantParams, read: TensorRange, source: TensorId
) -> npt.NDArray[np.float32] | None:
    """Return what is to be added to the bias of a layer, (output channels,); None where that is not known.

    Parameters
    ----------
    layer
        With a weight and a bias.
    value, integers, params
        Of its weight, as the model's parameter holds it.
    read
        Statistics of what it reads, or of a tensor that holds all values of that: of `source`.
    """
    op, x = layer.op, layer.inputs[0]
    shape, out = static_shape(x), static_shape(layer.core)
    if op is None or shape is None or out is None or not read.histogram.total:
        return None
    error = dequantize(integers, params).astype(np.float64) - value
    if call_to(op.call, "matmul") is not None:
        means = _means(read, x, source, len(shape) - 1)
        return -(means @ error.reshape(-1)[op.weight.positions]).astype(np.float32)
    layout = str(op.call.attrs.data_layout)
    means = _means(read, x, source, layout.index("C"))
    by_tap = error.reshape(-1)[op.weight.positions].transpose([str(op.call.attrs.kernel_layout).index(axis) for axis in "OIHW"])
    rows, columns = (_shares(op, shape[layout.index(axis)], out[layout.index(axis)], place) for place, axis in enumerate("HW"))
    by_channel = np.einsum("oihw,h,w->oi", by_tap, rows, columns)
    groups = int(op.call.attrs.groups)
    if call_to(op.call, "nn.conv2d_transpose") is not None:  # its weights hold all inputs, and the outputs of one group
        shift = np.einsum("ogi,gi->go", by_channel.reshape(len(by_channel), groups, -1), means.reshape(groups, -1))
    else:
        shift = np.einsum("goi,gi->go", by_channel.reshape(groups, -1, by_channel.shape[1]), means.reshape(groups, -1))
    return -shift.reshape(-1).astype(np.float32)


def _means(read: TensorRange, x: Var, source: TensorId, axis: int) -> Floats:
    """Return the means of channels along an axis of what a layer reads: that of all values where the profile has no ranges."""
    mean = moments(read.histogram, read.minimum, read.maximum).mean
    shape = static_shape(x) or ()
    if source != x.name or read.channel_axis != axis or read.channel_minimum.size != shape[axis]:
        return np.full(shape[axis], mean)
    has_values = np.isfinite(read.channel_minimum)
    low, high = (np.where(has_values, ends, 0).astype(np.float64) for ends in (read.channel_minimum, read.channel_maximum))
    width = float((high - low).mean())
    share = min(max((mean - float(low.mean())) / width, 0.0), 1.0) if width > 0 else 0.0
    return low + share * (high - low)


def _shares(op: Weighted, size: int, outputs: int, place: int) -> Floats:
    """Return at which share of the outputs along an axis each tap reads a value, and no padding.

    Parameters
    ----------
    size, outputs
        Of what the layer reads, and of its results, along the axis.
    place
        Of the axis: 0 for height, 1 for width.
    """
    attrs, is_transposed = op.call.attrs, call_to(op.call, "nn.conv2d_transpose") is not None
    taps = static_shape(op.call.args[1])
    assert taps is not None, "weights are constants"
    stride, dilation = int(attrs.strides[place]), int(attrs.dilation[place])
    before = int(attrs.padding[place if len(attrs.padding) > 1 else 0])
    offsets = np.arange(taps[str(attrs.kernel_layout).index("HW"[place])]) * dilation - before
    if is_transposed:  # each value goes to one output for each tap
        at = np.arange(size)[:, np.newaxis] * stride + offsets
        return ((at >= 0) & (at < outputs)).sum(axis=0) / outputs
    at = np.arange(outputs)[:, np.newaxis] * stride + offsets
    return ((at >= 0) & (at < size)).mean(axis=0)
