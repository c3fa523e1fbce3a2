"""The layers with weights of a partitioned module: what each computes, and its constants as kernels hold them. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import Expr

from ..backends.cpu.kernels.vectors import without_bodies
from ..backends.cpu.lowering import lower_composites
from ..composites.attributes import HOST, read_composites, write_op
from ..composites.base import FloatResult, QuantizedTensor
from ..composites.weighted import Conv2dOp, Conv2dTransposeOp, MatmulOp
from ..graph.dataflow import BodyWriter, DataflowView, attrs_of, call_to, write_function
from ..identity import TensorId
from ..numerics import QuantParams
from ..target_choice import ResolvedTarget
from .window_sums import WeightedOps


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightedLayer:
    """A layer of integer sums.

    Parameters
    ----------
    function
        Name of its composite in the partitioned module.
    op
        What it computes.
    core
        The variable of the product itself, in the source.
    bias
        TensorId of its bias in the QDQ module.
    """

    function: str
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


def weighted_layers(parts: tvm.IRModule) -> dict[TensorId, WeightedLayer]:
    """Return the layers of the host's kernels that have a bias, by the TensorId of that."""
    found: dict[TensorId, WeightedLayer] = {}
    for name, composite in read_composites(parts).items():
        op = composite.op
        if not isinstance(op, (Conv2dOp, Conv2dTransposeOp, MatmulOp)) or composite.backend != HOST:
            continue
        x: Any = op.x
        bias = composite.quantize_info.get("bias", {}).get("id")
        if bias and isinstance(x, QuantizedTensor) and np.ndim(x.params.scale) == 0:
            found[TensorId(bias)] = WeightedLayer(function=name, op=op, core=composite.core, bias=TensorId(bias))
    return found


def kernel_constants(parts: tvm.IRModule, layer: WeightedLayer, target: ResolvedTarget) -> list[Any]:
    """Return the constants that the kernel of a layer is called with, packed as it reads them (tvm tensors)."""
    view = DataflowView(parts["main"])
    call = next(
        binding
        for binding in view.bindings
        if isinstance(binding.value, relax.Call) and getattr(binding.value.op, "name_hint", "") == layer.function
    )
    function: Any = parts[layer.function]
    for key, value in write_op(layer.op, layer.core).items():
        function = function.with_attr(key, value)
    builder = relax.BlockBuilder()

    def body(writer: BodyWriter) -> Expr:
        return writer.emit(call.var.name, call.value, is_output=True)

    write_function(builder, "main", list(call.value.args), body, attrs_of(view.function))
    alone = builder.get()
    alone.update_func(call.value.op, function)
    with without_bodies():
        lowered = lower_composites(alone, target.host, target.isas, 1)
    for binding in DataflowView(lowered.module["main"]).bindings:
        kernel = call_to(binding.value, "call_dps_packed")
        if kernel is not None and is_of_layer(lowered.kernels[str(kernel.args[0].global_symbol)].func.attrs, layer.bias):
            return [arg.value for arg in kernel.args[1].fields if isinstance(arg, GenericConst)]
    raise AssertionError(f"{layer.function} has no kernel of its own")


def is_of_layer(attrs: Mapping[str, Any], bias: TensorId) -> bool:
    """Return whether attributes are those of the kernel that multiplies a layer's weights."""
    return bias_of(attrs) == bias


def bias_of(attrs: Mapping[str, Any]) -> str | None:
    """Return the TensorId of the bias that a kernel adds, None where its attributes name none."""
    info: Any = attrs.get("quantize_info")
    return None if info is None or "bias" not in info else str(info["bias"]["id"])
