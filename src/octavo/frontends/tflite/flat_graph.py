"""The one subgraph that a .tflite file of several becomes: tensors and operators are added to it. Knows no op that it writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tflite

from .flatbuffer import Table

OP_NAMES = {code: name for name, code in vars(tflite.BuiltinOperator).items() if isinstance(code, int)}
_DTYPES = {
    tflite.TensorType.FLOAT32: "float32",
    tflite.TensorType.FLOAT16: "float16",
    tflite.TensorType.BOOL: "bool",
    tflite.TensorType.INT8: "int8",
    tflite.TensorType.INT16: "int16",
    tflite.TensorType.INT32: "int32",
    tflite.TensorType.INT64: "int64",
}
_TYPES = {name: code for code, name in _DTYPES.items()}
_MAX_OPS = 20000
OPERANDS = ("Inputs", "Outputs", "Intermediates")
"""Fields of an operator that name tensors."""


class TooManyOpsError(ValueError):
    """A graph that is written out has grown too large."""


class FlatGraph:
    """The graph that is written, in a model whose buffers and operator codes grow with it.

    Parameters
    ----------
    model
        The file's tables.
    place
        Of the subgraph that is written.
    """

    def __init__(self, model: Table, place: int) -> None:
        self._buffers: list[Table] = model["Buffers"]
        self._codes: list[Table] = model["OperatorCodes"]
        self.graph: Table = model["Subgraphs"][place]
        self.tensors: list[Table] = list(self.graph["Tensors"] or [])
        self.ops: list[Table] = []
        self.inputs: list[int] = [int(index) for index in self._numbers(self.graph, "Inputs")]
        self.values: dict[int, npt.NDArray[Any]] = {}
        """What is known of tensors that ops computed."""

    @staticmethod
    def _numbers(table: Table, name: str) -> Any:
        value = table[name]
        return [] if value is None else value

    def op_name(self, op: Table) -> str:
        """Return the name of an operator."""
        code = self._codes[op.number("OpcodeIndex")]
        return OP_NAMES.get(max(code.number("BuiltinCode"), code.number("DeprecatedBuiltinCode")), "")

    def code(self, name: str) -> int:
        """Return the index of an operator code."""
        number = getattr(tflite.BuiltinOperator, name)
        fields = {"BuiltinCode": number, "DeprecatedBuiltinCode": min(number, 127), "Version": 1}
        for index, code in enumerate(self._codes):
            if max(code.number("BuiltinCode"), code.number("DeprecatedBuiltinCode")) == number:
                return index
        self._codes.append(Table(kind="OperatorCode", fields=fields))
        return len(self._codes) - 1

    def shape(self, index: int) -> list[int]:
        """Return a tensor's shape."""
        return [int(dim) for dim in self._numbers(self.tensors[index], "Shape")]

    def name(self, index: int) -> str:
        """Return a tensor's name."""
        return (self.tensors[index]["Name"] or b"").decode()

    def dtype(self, index: int) -> str:
        """Return a tensor's dtype, "" for one that nothing is written of."""
        return _DTYPES.get(self.tensors[index].number("Type"), "")

    def value(self, index: int) -> npt.NDArray[Any] | None:
        """Return the value of a constant, or of what was computed of constants; else None."""
        if index in self.values:
            return self.values[index]
        data = self._buffers[self.tensors[index].number("Buffer")]["Data"]
        if data is None or not data.size or not self.dtype(index):
            return None
        return data.view(self.dtype(index)).reshape(self.shape(index))

    def add_tensor(self, table: Table) -> int:
        """Add a tensor of any fields."""
        self.tensors.append(table)
        return len(self.tensors) - 1

    def tensor(self, name: str, shape: list[int], dtype: str = "float32") -> int:
        """Add a tensor that an op computes."""
        fields = {"Name": name.encode(), "Shape": np.asarray(shape, np.int32), "Type": _TYPES[dtype]}
        return self.add_tensor(Table(kind="Tensor", fields=fields))

    def buffer(self, value: npt.NDArray[Any]) -> int:
        """Add a buffer."""
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        self._buffers.append(Table(kind="Buffer", fields={"Data": data}))
        return len(self._buffers) - 1

    def constant(self, name: str, value: npt.NDArray[Any], scale: npt.NDArray[Any] | None = None) -> int:
        """Add a constant, with a scale for each index of its first axis where it is quantized."""
        index = self.tensor(name, list(value.shape), str(value.dtype))
        self.tensors[index]["Buffer"] = self.buffer(value)
        if scale is not None:
            affine = {"Scale": scale.astype(np.float32), "ZeroPoint": np.zeros(scale.size, np.int64), "QuantizedDimension": 0}
            self.tensors[index]["Quantization"] = Table(kind="QuantizationParameters", fields=affine)
        return index

    def op(self, name: str, inputs: list[int], outputs: list[int], options: str = "", **fields: Any) -> None:
        """Add an operator; `options` is the class of its `fields`."""
        table: dict[str, Any] = {
            "OpcodeIndex": self.code(name),
            "Inputs": np.asarray(inputs, np.int32),
            "Outputs": np.asarray(outputs, np.int32),
        }
        if options:
            table["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, options)
            table["BuiltinOptions"] = Table(kind=options, fields=fields)
        self.add_op(Table(kind="Operator", fields=table))

    def add_op(self, op: Table) -> None:
        """Add an operator of any fields."""
        self.ops.append(op)
        if len(self.ops) > _MAX_OPS:
            raise TooManyOpsError(f"more than {_MAX_OPS} ops")

    def made(self, name: str, inputs: list[int], shape: list[int], options: str = "", **fields: Any) -> int:
        """Add an operator of one float result, and return that."""
        output = self.tensor(f"{name.lower()}_{len(self.tensors)}", shape)
        self.op(name, inputs, [output], options, **fields)
        return output

    def finish(self, outputs: list[int]) -> dict[int, int]:
        """Put what was written into the file's table; return the new index of each tensor that is left."""
        used = dict.fromkeys([*self.inputs, *outputs])
        for op in self.ops:
            used.update(dict.fromkeys(int(index) for name in OPERANDS for index in self._numbers(op, name) if index >= 0))
        order = {index: place for place, index in enumerate(sorted(used))}
        for op in self.ops:
            for name in OPERANDS:
                if op[name] is not None:
                    op[name] = np.asarray([order.get(int(index), -1) for index in op[name]], np.int32)
        self.graph["Tensors"] = [self.tensors[index] for index in order]
        self.graph["Operators"] = self.ops
        self.graph["Inputs"] = np.asarray([order[index] for index in self.inputs], np.int32)
        self.graph["Outputs"] = np.asarray([order[index] for index in outputs], np.int32)
        return order
