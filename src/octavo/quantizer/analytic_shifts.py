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

from ..ir.graph.dataflow import static_shape
from ..ir.identity import TensorId
from ..numerics import QuantParams, dequantize
from ..numerics.statistics.histogram_estimates import moments
from .corrections.layers import product_of
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
        x, read = layer.inputs[0], form.statistics[source]
        product, shape, name = product_of(layer.core.name, x, layer.op), list(static_shape(x) or ()), layer.op.weight.name
        error = dequantize(integers[name], weights[name]).astype(np.float64) - form.model.params[name]
        if read.histogram.total:
            means = _means(read, x, source, product.axis % len(shape))
            del shape[product.axis]
            found[layer.name] = -product.mean_of(means, shape[1:], product.weights_of(error)).astype(np.float32)
    return found


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
