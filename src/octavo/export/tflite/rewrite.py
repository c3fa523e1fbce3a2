"""A quantized model as the .tflite file it came from, rewritten: integer tensors, QUANTIZE and DEQUANTIZE, everything else kept.

Tensors of inputs and outputs keep their places in the file, so that signatures and metadata go on naming them. A tensor that an
integer op makes keeps its name for the integers (`<name>_divided` where equalization scaled it); what DEQUANTIZE leaves of it is
`<name>_dequantized`, and `<name>_int8` are the integers of one that the file has in float. What nothing reads any more, float
weights first of all, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tflite

from ...errors import QuantizationError
from ...frontends.tflite.flatbuffer import Table, read_tables
from ...frontends.tflite.source import TfliteOp
from ...numerics import QuantParams, dequantize, quantize
from ...numerics.arrays import Array
from ...quantizer.plan.entries import IntegerLayer
from ...quantizer.plan.plan import QuantizedModel
from ..onnx.equalized_tensor import METADATA_KEY, SUFFIX, EqualizedTensor, equalized_metadata
from .decisions import Decisions, source_of
from .kernels import KERNELS, WEIGHT_AXIS, WEIGHTED, constant_params

_TYPES = {
    "float32": tflite.TensorType.FLOAT32,
    "int8": tflite.TensorType.INT8,
    "uint8": tflite.TensorType.UINT8,
    "int16": tflite.TensorType.INT16,
    "int32": tflite.TensorType.INT32,
    "int64": tflite.TensorType.INT64,
}
_BIAS_DTYPES = {"int8": "int32", "int16": "int64"}
"""As TFLite's converter has them."""
_VERSIONS = {"QUANTIZE": {"int8": 1, "uint8": 1, "int16": 2}, "DEQUANTIZE": {"int8": 2, "uint8": 1, "int16": 3}}
_REQUANTIZE_VERSION = 2
_UNBOUNDED = {tflite.ActivationFunctionType.RELU6: tflite.ActivationFunctionType.RELU}
_UNBOUNDED_OPS = {"RELU6": "RELU"}


@dataclass(kw_only=True, slots=True)
class Rewriter:
    """One run over the ops of a file."""

    model: QuantizedModel
    decisions: Decisions
    inputs: str
    outputs: str
    root: Table = field(init=False)
    _graph: Table = field(init=False)
    _tensors: list[Table] = field(init=False)
    _ops: list[Table] = field(default_factory=list[Table])
    _integers: dict[int, int] = field(default_factory=dict[int, int])
    """By a tensor of the source the one that holds its integers."""
    _reals: dict[int, int] = field(default_factory=dict[int, int])
    """By a tensor of the source the one that holds its real numbers, where that is another one."""
    _constants: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])

    def __post_init__(self) -> None:
        """Read the file anew: its tables are changed in place."""
        self.root = read_tables(source_of(self.model).graph.data)
        [self._graph] = self.root["Subgraphs"]
        self._tensors = self._graph["Tensors"]
        self._name_equalized()

    def _name_equalized(self) -> None:
        """Name equalized tensors as what they are, and write down by what."""
        found: dict[str, EqualizedTensor] = {}
        for table, tensor in zip(self._tensors, self.decisions.ids, strict=True):
            factors = self.model.plan.equalization.factors.get(tensor)
            if factors is not None:
                name = self.model.tensors[tensor].source_name
                table["Name"] = f"{name}{SUFFIX}".encode()
                found[f"{name}{SUFFIX}"] = EqualizedTensor(source_name=name, factors=factors)
        if found:
            data = np.frombuffer(equalized_metadata(found).encode(), np.uint8)
            self.root["Buffers"].append(Table(kind="Buffer", fields={"Data": data}))
            entry = Table(kind="Metadata", fields={"Name": METADATA_KEY.encode(), "Buffer": len(self.root["Buffers"]) - 1})
            self.root["Metadata"] = [*(self.root["Metadata"] or []), entry]

    def run(self) -> Table:
        """Return the model's table."""
        graph = self.decisions.graph
        for index in graph.inputs:
            self._enter(index)
        for place, (op, table) in enumerate(zip(graph.ops, self._graph["Operators"] or [], strict=True)):
            if place in self.decisions.integer:
                self._integer_op(op, table)
            else:
                self._float_op(op, table)
        for index in graph.outputs:
            self._leave(index)
        self._graph["Operators"] = self._ops
        return self.root

    # ------------------------------------------------------------------------------------------------------------ the edges

    def _enter(self, index: int) -> None:
        """Make an input of the graph integers where that is asked for."""
        if self.inputs == "float32" or not self.decisions.is_data(index):
            return
        params = self._edge(index, "input", self.inputs)
        if self.inputs == params.dtype:
            self._become(index, params)
            self._integers[index] = index
        else:
            unsigned = _unsigned(params)
            self._become(index, unsigned)
            self._integers[index] = self._new(index, f"_{params.dtype}", params)
            self._emit("QUANTIZE", _REQUANTIZE_VERSION, [index], [self._integers[index]])

    def _leave(self, index: int) -> None:
        """Give an output of the graph in the dtype that is asked for."""
        if not self.decisions.is_data(index) or self._integers.get(index) == index:
            return  # it was made as it leaves
        if self.outputs == "float32":
            if index in self._integers:
                self._dequantized(index)
            return
        params = self._edge(index, "output", self.outputs)
        if self._reals.get(index) == index:
            raise QuantizationError(self._no_scale(index, "output", "a float op computes it"))
        self._become(index, _unsigned(params))
        self._emit("QUANTIZE", _REQUANTIZE_VERSION, [self._integers[index]], [index])

    def _edge(self, index: int, what: str, wanted: str) -> QuantParams:
        """Return the parameters of an input or output that is to be integers."""
        params = self.decisions.params(index)
        if params is None:
            why = "a float op computes it" if what == "output" else "no op quantizes it"
            raise QuantizationError(self._no_scale(index, what, why))
        if wanted != params.dtype and (wanted, params.dtype) != ("uint8", "int8"):
            found = f"{what} {self.decisions.graph.tensors[index].name} is {params.dtype} within the model"
            raise QuantizationError(f"{found}: it can be float32 or {params.dtype}, not {wanted}")
        return params

    def _no_scale(self, index: int, what: str, why: str) -> str:
        return f"{what} {self.decisions.graph.tensors[index].name} has no scale and zero point ({why}): leave its dtype as it is"

    # -------------------------------------------------------------------------------------------------------------- the ops

    def _integer_op(self, op: TfliteOp, table: Table) -> None:
        layer, dtype = self.decisions.layer(op), self.decisions.dtype
        inputs = [self._operand(op, place, layer) for place in range(len(op.inputs))]
        outputs = [self._made(index) for index in op.outputs]
        kernel = KERNELS[op.name]
        name, options = op.name, table["BuiltinOptions"]
        if any(self._is_scaled(index) for index in op.outputs):
            # Integers saturate below the bound of every channel, which is no longer that of the file.
            name = _UNBOUNDED_OPS.get(op.name, op.name)
            if options is not None and options.number("FusedActivationFunction") in _UNBOUNDED:
                options["FusedActivationFunction"] = _UNBOUNDED[options.number("FusedActivationFunction")]
        if options is not None and op.name in ("ADD", "SUB") and dtype == "int16":
            options["PotScaleInt16"] = False
        table["OpcodeIndex"] = self._code(name, kernel.versions[dtype], table.number("OpcodeIndex"))
        table["Inputs"], table["Outputs"] = _indices(inputs), _indices(outputs)
        self._ops.append(table)

    def _operand(self, op: TfliteOp, place: int, layer: IntegerLayer | None) -> int:
        index = op.inputs[place]
        if index < 0:
            return index
        if self.decisions.is_data(index) and place not in WEIGHTED.get(op.name, ())[1:]:
            return self._quantized(index)
        _, weight, bias = WEIGHTED.get(op.name, (0, -1, -1))
        plan, value = self.model.plan, self.decisions.graph.tensors[index].value
        if place == weight:
            assert layer is not None, "an op with weights is a layer"
            assert layer.weight is not None, "an op with weights is a layer"
            integers = weight_layout(op.name, plan.weight_values[layer.weight])
            table = quantization(plan.weights[layer.weight], WEIGHT_AXIS.get(op.name, 0))
            return self._constant(index, str(layer.output), integers, table)
        if place == bias:
            assert layer is not None, "an op with weights is a layer"
            assert layer.bias is not None, "its bias was looked at"
            integers = plan.weight_values[layer.bias].reshape(-1).astype(_BIAS_DTYPES[self.decisions.dtype])
            return self._constant(index, str(layer.output), integers, quantization(plan.biases[layer.bias]))
        if value is None or value.dtype != np.float32:
            return index
        name = self.decisions.ids[index]
        if name in plan.weights:
            return self._constant(index, "", plan.weight_values[name].reshape(value.shape), quantization(plan.weights[name]))
        params = constant_params(float(np.abs(value).max()), self.decisions.dtype)
        return self._constant(index, "", quantize(value, params), quantization(params))

    def _float_op(self, op: TfliteOp, table: Table) -> None:
        """Keep an op float; its constants are those of the model, which factors between layers may have changed."""
        inputs = [index if index < 0 else self._real(op, place) for place, index in enumerate(op.inputs)]
        table["Inputs"] = _indices(inputs)
        self._ops.append(table)

    def _real(self, op: TfliteOp, place: int) -> int:
        index = op.inputs[place]
        if index in self._integers and index not in self._reals:
            return self._dequantized(index)
        tensor = self.decisions.graph.tensors[index]
        changed = self._changed_constant(op, place)
        if changed is None or np.array_equal(changed, tensor.value if tensor.value is not None else np.zeros(0)):
            return self._reals.get(index, index)
        key = (index, f"float {self.decisions.ids[op.outputs[0]]}")
        if key not in self._constants:
            self._constants[key] = self._append(index, "", "float32", changed)
        return self._constants[key]

    def _changed_constant(self, op: TfliteOp, place: int) -> npt.NDArray[Any] | None:
        """Return a float constant as the quantized model has it, in the file's layout."""
        index, plan = op.inputs[place], self.model.plan
        tensor, name = self.decisions.graph.tensors[index], self.decisions.ids[index]
        if tensor.dtype != "float32":
            return None
        _, weight, bias = WEIGHTED.get(op.name, (0, -1, -1))
        layer = self.decisions.layer(op) if op.name in WEIGHTED else None
        if layer is not None and place == weight and layer.weight is not None:
            return weight_layout(op.name, dequantize(plan.weight_values[layer.weight], plan.weights[layer.weight]))
        if layer is not None and place == bias and layer.bias is not None:
            return dequantize(plan.weight_values[layer.bias], plan.biases[layer.bias]).reshape(-1)
        value = self.model.params.get(name)
        is_known = tensor.value is not None or (place == weight and plan.equalization.factors)
        if value is None or value.dtype != np.float32 or not is_known:
            return None
        return weight_layout(op.name, value) if place == weight else value.reshape(tensor.shape)

    def _is_scaled(self, index: int) -> bool:
        return self.decisions.ids[index] in self.model.plan.equalization.factors

    # ---------------------------------------------------------------------------------------------------------- the tensors

    def _made(self, index: int) -> int:
        """Return the tensor that holds what an integer op makes."""
        params = self.decisions.params(index)
        if params is None:
            return index  # nothing reads it
        is_output = index in self.decisions.graph.outputs
        if is_output and self.outputs != params.dtype:
            self._integers[index] = self._new(index, f"_{params.dtype}", params)
        else:
            self._become(index, params)
            self._integers[index] = index
        return self._integers[index]

    def _quantized(self, index: int) -> int:
        """Return the tensor that holds the integers of another; what has none yet is float, and is quantized here."""
        if index not in self._integers:
            params = self.decisions.params(index)
            assert params is not None, "what an integer op reads has parameters"
            self._integers[index] = self._new(index, f"_{params.dtype}", params)
            self._reals[index] = index
            version = _VERSIONS["QUANTIZE"][params.dtype]
            self._emit("QUANTIZE", version, [index], [self._integers[index]])
        return self._integers[index]

    def _dequantized(self, index: int) -> int:
        """Return the tensor that holds the real numbers of integers."""
        params, integers = self.decisions.params(index), self._integers[index]
        assert params is not None, "it has integers"
        if index not in self._reals:
            is_output = index in self.decisions.graph.outputs and self.outputs == "float32"
            self._reals[index] = index if is_output else self._append(index, "_dequantized", "float32")
            self._emit("DEQUANTIZE", _VERSIONS["DEQUANTIZE"][params.dtype], [integers], [self._reals[index]])
        return self._reals[index]

    def _become(self, index: int, params: QuantParams) -> None:
        table = self._tensors[index]
        table["Type"], table["Quantization"] = _TYPES[params.dtype], quantization(params)

    def _new(self, index: int, suffix: str, params: QuantParams) -> int:
        made = self._append(index, suffix, params.dtype)
        self._become(made, params)
        return made

    def _constant(self, index: int, owner: str, integers: npt.NDArray[Any], params: Table) -> int:
        key = (index, owner)
        if key not in self._constants:
            made = self._append(index, "", str(integers.dtype), integers)
            self._tensors[made]["Quantization"] = params
            self._constants[key] = made
        return self._constants[key]

    def _append(self, like: int, suffix: str, dtype: str, value: npt.NDArray[Any] | None = None) -> int:
        """Add a tensor of another's name and shape; return its index."""
        table = self._tensors[like].copied()
        table["Name"] = (table["Name"] or f"tensor {like}".encode()) + suffix.encode()
        table["Type"], table["Quantization"], table["Sparsity"] = _TYPES[dtype], None, None
        table["Buffer"] = 0
        if value is not None:
            data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
            self.root["Buffers"].append(Table(kind="Buffer", fields={"Data": data}))
            table["Buffer"] = len(self.root["Buffers"]) - 1
            table["Shape"] = _indices(value.shape)
        self._tensors.append(table)
        return len(self._tensors) - 1

    def _emit(self, name: str, version: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        fields = {"OpcodeIndex": self._code(name, version), "Inputs": _indices(inputs), "Outputs": _indices(outputs)}
        self._ops.append(Table(kind="Operator", fields=fields))

    def _code(self, name: str, version: int, before: int | None = None) -> int:
        """Return the place of an operator code, added where there is none; `before` is that of the op as it was."""
        number = getattr(tflite.BuiltinOperator, name)
        codes: list[Table] = self.root["OperatorCodes"]
        version = max(version, 1 if before is None else codes[before].number("Version") or 1)
        wanted = {"DeprecatedBuiltinCode": min(number, 127), "BuiltinCode": number, "Version": version}
        for place, code in enumerate(codes):
            found = max(code.number("BuiltinCode"), code.number("DeprecatedBuiltinCode"))
            if (found, code.number("Version") or 1) == (number, version):
                return place
        codes.append(Table(kind="OperatorCode", fields=wanted))
        return len(codes) - 1


def _indices(values: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.asarray(values, np.int32)


def _unsigned(params: QuantParams) -> QuantParams:
    """Return the parameters of the same real numbers as uint8."""
    return QuantParams.per_tensor("uint8", float(params.scale), int(params.zero_point) + 128)


def _depthwise(value: Array) -> Array:
    # HWOI, or HWIO of one group -> 1HWO
    return value.reshape(1, *value.shape[:2], -1)


_LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "CONV_2D": lambda value: value.transpose(3, 0, 1, 2),  # HWIO -> OHWI
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": lambda value: value.T,
    # The convolution of a spread input has its kernel turned: HWIO -> OHWI, both ways.
    "TRANSPOSE_CONV": lambda value: value.transpose(3, 0, 1, 2)[:, ::-1, ::-1],
}


def weight_layout(op: str, value: Array) -> Array:
    """Return the weight of an op, by its name in the file, in the file's layout."""
    return np.ascontiguousarray(_LAYOUTS[op](value)) if op in _LAYOUTS else value


def quantization(params: QuantParams, axis: int = 0) -> Table:
    """Return the table of scales and zero points; `axis` is that of the file where there are several."""
    fields: dict[str, Any] = {
        "Scale": params.scale.reshape(-1).astype(np.float32),
        "ZeroPoint": params.zero_point.reshape(-1).astype(np.int64),
        "QuantizedDimension": axis if params.scale.size > 1 else 0,
    }
    return Table(kind="QuantizationParameters", fields=fields)
