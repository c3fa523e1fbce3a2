"""What rounding weights moves the results of layers by, as a profile tells without a run.

The mean of what a layer gives moves by the errors of its weights times the means of what it reads (Nagel et al., Data-Free
Quantization Through Weight Equalization and Bias Correction, 2019, section 4.2). A profile has the ranges of channels, and of all
values together the mean: each channel's is taken to lie at the same share of its range. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ..ir.graph.dataflow import call_to, static_shape
from ..ir.graph.weighted import Weighted
from ..ir.identity import TensorId
from ..numerics import QuantParams, dequantize
from ..numerics.statistics.histogram_estimates import moments
from ..runtime.size import is_open
from .equalized_float import EqualizedFloat
from .placement import Layer
from .ranges import TensorRange

Floats = npt.NDArray[np.float64]


def analytic_shifts(
    form: EqualizedFloat,
    layers: Iterable[Layer],
    weights: Mapping[TensorId, QuantParams],
    integers: Mapping[TensorId, npt.NDArray[Any]],
) -> dict[TensorId, npt.NDArray[np.float32]]:
    """Return what is to be added to biases, (output channels,), by the outputs of their layers, where that is known."""
    found: dict[TensorId, npt.NDArray[np.float32]] = {}
    for layer in layers:
        source = None if layer.op is None or layer.bias is None else form.sources.source(layer.inputs[0])
        if layer.op is None or source is None or layer.reads_reals or form.statistics is None:
            continue
        name, read = layer.op.weight.name, form.statistics[source]
        error = dequantize(integers[name], weights[name]).astype(np.float64) - form.model.params[name]
        if read.histogram.total:
            found[layer.name] = _shift(layer, layer.op, error, read, source)
    return found


def _shift(layer: Layer, op: Weighted, error: Floats, read: TensorRange, source: TensorId) -> npt.NDArray[np.float32]:
    """Return that of a layer, by the errors of its weight and statistics of what it reads: of `source`, which holds all of it."""
    x = layer.inputs[0]
    shape, out = static_shape(x) or (), static_shape(layer.core) or ()
    if call_to(op.call, "matmul") is not None:
        means = _means(read, x, source, len(shape) - 1)
        return -(means @ np.asarray(op.weight.as_read(error), order="C")).astype(np.float32)
    layout = str(op.call.attrs.data_layout)
    means = _means(read, x, source, layout.index("C"))
    by_tap = np.asarray(op.weight.as_read(error), order="C").transpose(
        [str(op.call.attrs.kernel_layout).index(axis) for axis in "OIHW"]
    )
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
    """Return at which share of the outputs along an axis (0: height, 1: width) each tap reads a value, and no padding.

    Sizes that are open count as endless ones.
    """
    attrs, is_transposed = op.call.attrs, call_to(op.call, "nn.conv2d_transpose") is not None
    taps = static_shape(op.call.args[1])
    assert taps is not None, "weights are constants"
    stride, dilation = int(attrs.strides[place]), int(attrs.dilation[place])
    before = int(attrs.padding[place if len(attrs.padding) > 1 else 0])
    offsets = np.arange(taps[str(attrs.kernel_layout).index("HW"[place])]) * dilation - before
    if is_open(size) or is_open(outputs):
        return np.full(len(offsets), 1 / stride if is_transposed else 1.0)
    if is_transposed:  # each value goes to one output for each tap
        at = np.arange(size)[:, np.newaxis] * stride + offsets
        return ((at >= 0) & (at < outputs)).sum(axis=0) / outputs
    at = np.arange(outputs)[:, np.newaxis] * stride + offsets
    return ((at >= 0) & (at < size)).mean(axis=0)
