"""Which ops of a .tflite file run in integers by a plan, and what the plan says of their tensors. It writes nothing.

An op is integer where LiteRT has a kernel for it, and all that it reads and makes is quantized as that kernel asks. Any other op
computes in float between a DEQUANTIZE and a QUANTIZE, which is what the plan means by it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ...errors import QuantizationError
from ...frontends.tflite.source import TfliteGraph, TfliteOp, TfliteSource
from ...ir.graph import Model
from ...ir.identity import TensorId
from ...numerics import PerTensor, QuantParams
from ...quantizer.plan.entries import IntegerLayer
from ...quantizer.plan.plan import QuantizedModel
from .kernels import KERNELS, WEIGHTED


def source_of(model: Model) -> TfliteSource:
    """Return the file that a model came from; QuantizationError where it is no .tflite file."""
    if not isinstance(model.source, TfliteSource):
        raise QuantizationError(
            f"only a model loaded from a .tflite file can be written as TFLite, this one came from {model.source_format}; "
            "octavo.export_onnx writes models that came from ONNX"
        )
    return model.source


@dataclass(kw_only=True, slots=True, eq=False)
class Decisions:
    """What a plan says in the terms of the file: tensors by their indices, ops by their places.

    Parameters
    ----------
    integer
        The ops that run in integers.
    left
        By the place of an op that the plan has in integers and the file has not, why.
    """

    graph: TfliteGraph
    ids: tuple[TensorId, ...]
    dtype: str
    integer: set[int] = field(default_factory=set[int])
    left: dict[int, str] = field(default_factory=dict[int, str])
    _params: dict[TensorId, QuantParams] = field(default_factory=dict[TensorId, QuantParams])
    _layers: dict[TensorId, IntegerLayer] = field(default_factory=dict[TensorId, IntegerLayer])
    _readers: dict[int, int] = field(default_factory=dict[int, int])

    @staticmethod
    def of(model: QuantizedModel) -> Decisions:
        """Read a plan."""
        source, plan = source_of(model), model.plan
        dtypes = {params.dtype for params in plan.activations.values()}
        if len(dtypes) > 1 or not dtypes <= {"int8", "int16"}:
            raise QuantizationError(
                f"activations are {', '.join(sorted(dtypes))}; TFLite has int8, or int16 for all: quantize the model with "
                "octavo.export.tflite.quantize"
            )
        made = Decisions(graph=source.graph, ids=source.ids, dtype=next(iter(dtypes), "int8"))
        made._params = {name: each for name, each in plan.activations.items() if isinstance(each.granularity, PerTensor)}
        # A zero padding that went into convolutions is an op of the file, which pads by the zero point.
        folded = {fold.gone: fold.tensor for fold in plan.folds if fold.op == "nn.pad"}
        made._params |= {gone: made._params[tensor] for gone, tensor in folded.items() if tensor in made._params}
        made._layers = {layer.output: layer for layer in plan.layers}
        for index in (*(index for op in source.graph.ops for index in op.inputs), *source.graph.outputs):
            made._readers[index] = made._readers.get(index, 0) + 1
        for place, op in enumerate(source.graph.ops):
            if not any(made._is_planned(index, folded) for index in op.outputs):
                continue
            reason = made._obstacle(op)
            if reason is None:
                made.integer.add(place)
            else:
                made.left[place] = reason
        return made

    def params(self, index: int) -> QuantParams | None:
        """Return the parameters of an activation; None where it is float."""
        return self._params.get(self.ids[index])

    def layer(self, op: TfliteOp) -> IntegerLayer | None:
        """Return the layer of an op with one result."""
        return self._layers.get(self.ids[op.outputs[0]])

    def is_data(self, index: int) -> bool:
        """Return whether a tensor is a float activation."""
        return index >= 0 and self.graph.tensors[index].dtype == "float32" and self.graph.tensors[index].value is None

    def _is_planned(self, index: int, folded: dict[TensorId, TensorId]) -> bool:
        name = self.ids[index]
        return name in self._layers or (name in folded and name in self._params)

    def _read(self, op: TfliteOp) -> Iterator[int]:
        """Yield the activations that an op reads."""
        places = WEIGHTED.get(op.name)
        return (index for place, index in enumerate(op.inputs) if self.is_data(index) and (places is None or place == places[0]))

    def _obstacle(self, op: TfliteOp) -> str | None:
        """Return why an op that the plan has in integers is float in the file."""
        kernel = KERNELS.get(op.name)
        if kernel is None or self.dtype not in kernel.versions:
            return f"LiteRT has no {op.name} of {self.dtype}"
        read, made = list(self._read(op)), [index for index in op.outputs if self._readers.get(index)]
        unknown = next((index for index in (*read, *made) if self.params(index) is None), None)
        if unknown is not None:
            return f"{self.graph.tensors[unknown].name} is float"
        known = [params for index in (*read, *made) if (params := self.params(index)) is not None]
        if kernel.keeps_params and any(not same_params(params, known[0]) for params in known):
            return f"LiteRT's {op.name} keeps scale and zero point, which differ"
        fixed = kernel.output.get(self.dtype)
        if fixed is not None and (known[-1].scale, known[-1].zero_point) != (np.float32(fixed[0]), fixed[1]):
            return f"LiteRT's {op.name} makes scale {fixed[0]} and zero point {fixed[1]}"
        return self._unfit_constant(op, takes_constants=kernel.takes_constants)

    def _unfit_constant(self, op: TfliteOp, *, takes_constants: bool) -> str | None:
        layer = self.layer(op)
        if op.name in WEIGHTED:
            if self.is_data(op.inputs[WEIGHTED[op.name][1]]) and (layer is None or layer.weight is None):
                return "its weight is computed, and here stays float"
            has_bias = len(op.inputs) > WEIGHTED[op.name][2] and op.inputs[WEIGHTED[op.name][2]] >= 0
            if layer is None or layer.weight is None or has_bias != (layer.bias is not None):
                return "the plan has no integer weight, or no bias, for it"
            return None
        for index in op.inputs:
            value = None if index < 0 else self.graph.tensors[index].value
            if value is None or value.dtype != np.float32:
                continue
            known = () if layer is None else (*layer.constants, *(() if layer.weight is None else (layer.weight,)))
            if not takes_constants:
                return f"{self.graph.tensors[index].name} is a constant"
            if self.ids[index] not in known and value.size > 1:
                return f"the plan keeps the constant {self.graph.tensors[index].name} float"
        return None


def same_params(one: QuantParams, other: QuantParams) -> bool:
    """Return whether two tensors have one scale and zero point."""
    return bool(np.array_equal(one.scale, other.scale) and np.array_equal(one.zero_point, other.zero_point))
