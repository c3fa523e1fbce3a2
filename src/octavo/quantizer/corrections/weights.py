"""Weights of layers as kernels hold them, from the float model and back, and rounded by what the layers read. Runs nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...ir.composites.weighted import Conv2dOp, MatmulOp
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView
from ...ir.identity import TensorId
from ...numerics import PerAxis, QuantParams
from ...numerics.statistics.gptq import gptq_round, gptq_round_and_scale
from ...numerics.statistics.ranges import symmetric_params
from ..plan.plan import QuantizedModel
from ..recipe import WEIGHT_BITS, bits_of
from ..weights.constants import Constants
from ..weights.convolution import weighted
from .gram import ExactRows, covariances, inherited_errors, row_count
from .layers import WeightedLayer
from .window_sums import WeightedOps

_HWIO = "HWIO"

BLOCK_INPUTS = 1536
"""Of a layer whose weights make up for each other's errors, at most; one with more has several such blocks of equal size. Memory
grows with the second power of it, work with the third."""

MIN_ROWS = 0.1
"""Rows for each input that say which errors make up for each other: of fewer, rounding to nearest does as well elsewhere."""

MAX_INPUTS = 4608
"""Of a layer whose scales are chosen with its integers, which needs all inputs at once."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightSource:
    """The float weight of a layer.

    Parameters
    ----------
    name
        Of its parameter.
    weight
        float32, laid out as the layer's integers: HWIO, or [in, out].
    positions
        Where each of its elements lies in the parameter: flat indices, laid out alike.
    shape
        Of the parameter.
    params
        Its integers', whose bounds the composite does not know.
    is_free
        Whether its scales may become others: those that its values alone ask for.
    """

    name: TensorId
    weight: npt.NDArray[np.float32]
    positions: npt.NDArray[np.int64]
    shape: tuple[int, ...]
    params: QuantParams
    is_free: bool

    def placed(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a layer's integers as the parameter holds them."""
        result = np.empty(self.weight.size, values.dtype)
        result[self.positions.reshape(-1)] = values.reshape(-1)
        return result.reshape(self.shape)


class WeightSources:
    """Finds the float weights behind the layers of a quantized model; the parameters of those that are `kept` stay."""

    def __init__(self, simple: Model, quantized: QuantizedModel, kept: Collection[str]) -> None:
        self._view = DataflowView(simple.module["main"])
        self._constants = Constants(self._view, simple.params)
        self._params = simple.params
        self._plan, self._kept = quantized.plan, kept
        self._calls = {binding.var.name: binding.value for binding in self._view.bindings}
        names = [layer.weight for layer in quantized.plan.layers]
        self._shared = {name for name in names if names.count(name) > 1}

    def of(self, layer: WeightedLayer) -> WeightSource | None:
        """Return the float weight of a layer; None where it is another layer's, too, or reaches its kernel some other way."""
        call = self._calls.get(layer.core)
        op = None if call is None or not isinstance(layer.op, (Conv2dOp, MatmulOp)) else weighted(self._constants, call)
        if op is None or isinstance(op, str) or op.weight.name in self._shared:
            return None
        positions = op.weight.positions
        if isinstance(layer.op, Conv2dOp):
            layout = str(op.call.attrs.kernel_layout)
            positions = positions.transpose([layout.index(axis) for axis in _HWIO])
        integers = self._plan.weight_values.get(op.weight.name)
        if integers is None or not np.array_equal(integers.reshape(-1)[positions], layer.op.weight.values):
            return None
        values = self._params[op.weight.name]
        return WeightSource(
            name=op.weight.name,
            weight=values.reshape(-1)[positions],
            positions=positions,
            shape=values.shape,
            params=self._plan.weights[op.weight.name],
            is_free=self._is_free(op.weight.name),
        )

    def _is_free(self, name: TensorId) -> bool:
        params, granularity = self._plan.weights[name], self._plan.weights[name].granularity
        bits = bits_of(params)
        if self._plan.recipe.weight_range != "auto" or bits == WEIGHT_BITS or name in self._kept:
            return False
        if not isinstance(granularity, PerAxis):
            return False
        return symmetric_params(self._params[name], params.dtype, axis=granularity.axis, bits=bits) == params


def rounded_weights(
    op: WeightedOps, source: WeightSource, inputs: Sequence[npt.NDArray[Any]], exact: ExactRows | None = None
) -> tuple[npt.NDArray[np.int8], QuantParams] | None:
    """Return integers of a layer's weights that change its sums least on what it reads, and their parameters.

    None where they have a zero point, and where too little is read to say so.

    Parameters
    ----------
    source
        The float weights.
    inputs
        What the layer reads, as kernels hold it, sample by sample.
    exact
        What the layer should give: then weights make up, too, for what is wrong with its inputs, as far as they can.
    """
    if not isinstance(op, (Conv2dOp, MatmulOp)) or op.weight.zero_point.any():
        return None
    groups = op.groups if isinstance(op, Conv2dOp) else 1
    outputs = source.weight.shape[-1]
    if not source.is_free and row_count(op, inputs[0].shape, len(inputs)) < MIN_ROWS * source.weight.size / outputs:
        return None
    rows = source.weight.reshape(-1, outputs).T.reshape(groups, outputs // groups, -1)
    scale = np.broadcast_to(np.ravel(op.weight.params.scale).astype(np.float64), (outputs,)).reshape(groups, -1)
    bounds, given = {"qmin": source.params.qmin, "qmax": source.params.qmax}, source.params
    wanted, size = rows.astype(np.float64), rows.shape[2]
    unit, x = np.float64(cast("Any", op.x).params.scale), None
    errors = None if exact is None or size > BLOCK_INPUTS else inherited_errors(op, inputs, wanted * unit, exact)
    if errors is not None:
        wanted, x = errors.made_up_for() / unit, errors.covariances()
    found = np.empty(rows.shape, np.int8)
    if source.is_free and size <= MAX_INPUTS:
        gram = (x or covariances(op, inputs)).shrunk()
        found[:], scales = gptq_round_and_scale(wanted, gram, scale, **bounds)
        given = replace(given, scale=scales.reshape(given.scale.shape).astype(np.float32))
    else:
        step = -(-size // -(-size // BLOCK_INPUTS))
        for start in range(0, size, step):
            some = slice(start, start + step)
            gram = (x or covariances(op, inputs, some)).shrunk()
            found[:, :, some] = gptq_round(wanted[:, :, some], gram, scale, **bounds)
    return found.reshape(outputs, -1).T.reshape(source.weight.shape), given
