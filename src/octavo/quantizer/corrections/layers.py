"""The layers with weights of a partitioned module: what each computes, and its constants as kernels hold them. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ...compiler.backends.cpu.packed_constants import packed_constants
from ...ir.composites.attributes import HOST, Composite
from ...ir.composites.base import FloatResult, QuantizedTensor
from ...ir.composites.weighted import Conv2dOp, Conv2dTransposeOp, MatmulOp
from ...ir.graph.dataflow import DataflowView, op_name
from ...ir.identity import TensorId
from ...numerics import QuantParams
from .window_sums import WeightedOps


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightedLayer:
    """A layer of integer sums.

    Parameters
    ----------
    composite
        What it is in the partitioned module.
    op
        What it computes, which may be with other weights by now.
    core
        The variable of the product itself, in the source.
    bias
        TensorId of its bias in the QDQ module.
    """

    composite: Composite
    op: WeightedOps
    core: str
    bias: TensorId

    @property
    def unit(self) -> npt.NDArray[np.float64]:
        """Real value of one unit of the sums, (output channels,)."""
        assert isinstance(self.op.x, QuantizedTensor)
        scale = np.float64(self.op.x.params.scale) * np.ravel(self.op.weight.params.scale).astype(np.float64)
        return np.broadcast_to(scale, (self.op.weight.bias.size,))

    @property
    def real_bias(self) -> npt.NDArray[np.float64]:
        """The bias in real numbers, (output channels,)."""
        if isinstance(self.op.y, FloatResult):
            return self.op.y.bias.astype(np.float64)
        if self.op.weight.real_bias is not None:
            return self.op.weight.real_bias.astype(np.float64)
        return self.op.weight.bias.astype(np.float64) * self.unit

    def with_shift(self, shift: npt.NDArray[np.float64]) -> WeightedLayer:
        """Return the layer with real numbers added to its bias."""
        op, y = self.op, self.op.y
        if isinstance(y, FloatResult):
            return replace(self, op=replace(op, y=replace(y, bias=(y.bias + shift).astype(np.float32))))
        weight = op.weight
        if weight.real_bias is not None:
            return replace(self, op=replace(op, weight=replace(weight, real_bias=(weight.real_bias + shift).astype(np.float32))))
        moved = np.clip(np.rint(weight.bias + shift / self.unit), -(2**31), 2**31 - 1).astype(np.int32)
        return replace(self, op=replace(op, weight=replace(weight, bias=moved)))

    def with_weights(self, values: npt.NDArray[np.int8], params: QuantParams) -> WeightedLayer:
        """Return the layer with other integers of its weights, laid out as these are, and the scales of the source's `params`.

        A composite has one scale where those of all channels are equal; they may differ now.
        """
        weight = self.op.weight
        scale, former = (np.broadcast_to(np.ravel(each.scale), weight.bias.shape) for each in (params, weight.params))
        if np.array_equal(scale, former):
            return replace(self, op=replace(self.op, weight=replace(weight, values=values)))
        share = scale.astype(np.float64) / former
        changed = replace(
            weight,
            values=values,
            params=replace(weight.params, scale=params.scale, zero_point=params.zero_point, granularity=params.granularity),
            bias=np.rint(weight.bias / share).astype(np.int32),
            bias_scale=(weight.bias_scale * share).astype(np.float32),
            multiplier=(weight.multiplier * share).astype(np.float32),
        )
        return replace(self, op=replace(self.op, weight=changed))


def weighted_layers(composites: Iterable[Composite]) -> dict[TensorId, WeightedLayer]:
    """Return the layers of the host's kernels that have a bias, by the TensorId of that."""
    found: dict[TensorId, WeightedLayer] = {}
    for composite in composites:
        op = composite.op
        if not isinstance(op, (Conv2dOp, Conv2dTransposeOp, MatmulOp)) or composite.backend != HOST:
            continue
        x: Any = op.x
        bias = composite.quantize_info.get("bias", {}).get("id")
        if bias and isinstance(x, QuantizedTensor) and np.ndim(x.params.scale) == 0:
            found[TensorId(bias)] = WeightedLayer(composite=composite, op=op, core=composite.core, bias=TensorId(bias))
    return found


def composite_calls(parts: tvm.IRModule) -> dict[str, relax.VarBinding]:
    """Return the bindings of a partitioned module by the names of what they call, of which composites' are called once."""
    return {op_name(binding.value): binding for binding in DataflowView(parts["main"]).bindings}


def kernel_constants(layer: WeightedLayer, call: relax.VarBinding, isa: str) -> list[Any]:
    """Return the constants that the kernel of a layer is called with, packed as it reads them (tvm tensors).

    Parameters
    ----------
    call
        Of its composite.
    isa
        Of the kernel.
    """
    value: Any = call.value
    composite = replace(layer.composite, op=layer.op)
    kernels = packed_constants(composite, list(value.args), call.var, isa)
    return next(constants for attrs, constants in kernels if bias_of(attrs) == layer.bias)


def bias_of(attrs: Mapping[str, Any]) -> str | None:
    """Return the TensorId of the bias that a kernel adds, None where its attributes name none."""
    info: Any = attrs.get("quantize_info")
    return None if info is None or "bias" not in info else str(info["bias"]["id"])
