"""What every rewriting of one ONNX node as several standard ones needs: its inputs, attributes and constants, and new nodes.

Knows no op but those that standard ones are made of. Builds no Relax.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper

from ...ir.identity import NameSupply
from ..frontend import RejectedOpError
from .large_tensors import tensor_array

_TO_CHANNELS_FIRST, _TO_CHANNELS_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


class NodeRewrite:
    """The standard nodes that take the place of one node; all carry its name, which says where they come from.

    Parameters
    ----------
    node
        The source node.
    names
        Names that are taken in the graph.
    types
        Element types of the graph's inputs and initializers: they tell what an absent zero point would be.
    opset
        Version of the standard operator set.
    constants
        The graph's initializers.
    """

    def __init__(
        self,
        node: onnx.NodeProto,
        names: NameSupply,
        types: Mapping[str, int],
        opset: int,
        constants: Mapping[str, onnx.TensorProto],
    ) -> None:
        self.node = node
        self._values = constants
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._names = names
        self._types = types
        self.attrs: dict[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    def input(self, index: int) -> str:
        """Return the name of an input, "" if absent."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def required(self, index: int, what: str) -> str:
        """Return the name of an input that must be there."""
        name = self.input(index)
        if not name:
            raise RejectedOpError(f"its {what} (input {index}) is missing")
        return name

    def value(self, index: int, what: str) -> npt.NDArray[Any]:
        """Return the value of an input that must be a constant."""
        found = self._values.get(self.required(index, what))
        if found is None:
            raise RejectedOpError(f"its {what} (input {index}) must be constant")
        return tensor_array(found)

    def emit(self, op: str, inputs: Iterable[str], *, to: str = "", **attrs: Any) -> str:
        """Add a node of the standard operator set and return the name of its output, `to` if given.

        Cast's own attribute `to` is spelled `to_type` here.
        """
        name = to or self.fresh(op)
        declared = {key.removesuffix("_type"): value for key, value in attrs.items() if value is not None}
        self.nodes.append(onnx.helper.make_node(op, list(inputs), [name], name=self.step_name(name), **declared))
        return name

    def step_name(self, output: str) -> str:
        """Return the name of the node that makes an output."""
        del output
        return self.node.name

    def fresh(self, what: str) -> str:
        """Return a new name for a tensor that `what` makes."""
        return self._names.fresh(f"{next(filter(None, self.node.output))}_{what}")

    def constant(self, values: Any) -> str:
        """Add an initializer and return its name."""
        name = self.fresh("constant")
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def ints(self, op: str, data: str, attribute: str, values: Iterable[int], *, since: int, to: str = "", **attrs: Any) -> str:
        """Add a node whose list of integers is an attribute before opset `since` and an input from there on."""
        if self.opset < since:
            return self.emit(op, [data], to=to, **{attribute: list(values)}, **attrs)
        return self.emit(op, [data, self.constant(np.array(list(values), np.int64))], to=to, **attrs)

    def dequantized(self, first: int, what: str, *, axis: int | None = None) -> str:
        """Dequantize the inputs (data, scale, zero_point) that start at `first`."""
        return self.dequantize(self.required(first, what), self.required(first + 1, f"{what}_scale"), self.input(first + 2), axis)

    def dequantize(self, data: str, scale: str, zero_point: str = "", axis: int | None = None) -> str:
        """Add a DequantizeLinear to float32; without a zero point it is 0."""
        return self.emit("DequantizeLinear", [data, self._float32(scale), *([zero_point] if zero_point else [])], axis=axis)

    def _float32(self, scale: str) -> str:
        """Return a scale as float32: sums of products leave the range of float16."""
        if self._types.get(scale, onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT:
            return scale
        return self.emit("Cast", [scale], to_type=onnx.TensorProto.FLOAT)

    def quantize(self, value: str, scale_at: int, *, like: int, to: str = "") -> None:
        """End in the QuantizeLinear of the inputs (scale, zero_point) at `scale_at`; both may lack a zero point, which is 0 then.

        `like` is where the zero point of an input of the same dtype stands.
        """
        zero_point = self.input(scale_at + 1)
        if not zero_point:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(self._types.get(self.input(like), onnx.TensorProto.UINT8))
            zero_point = self.constant(np.zeros((), dtype))
        scale = self._float32(self.required(scale_at, "y_scale"))
        self.emit("QuantizeLinear", [value, scale, zero_point], to=to or self.node.output[0])

    def text(self, name: str) -> str:
        """Return a string attribute, "" if absent."""
        value = self.attrs.get(name, "")
        return value.decode() if isinstance(value, bytes) else str(value)

    def copied(self, *names: str) -> dict[str, Any]:
        """Return those of the named attributes that the source states."""
        return {name: self.attrs[name] for name in names if name in self.attrs}

    def image(self) -> str:
        """Dequantize input 0, four-dimensional, with channels first: integers are what a transposition moves."""
        data = self.required(0, "X")
        if self._has_channels_last:
            data = self.emit("Transpose", [data], perm=_TO_CHANNELS_FIRST)
        return self.dequantize(data, self.required(1, "x_scale"), self.input(2))

    def quantize_image(self, value: str, scale_at: int) -> None:
        """End as `quantize` does, for a result with channels first: put them where the source has them."""
        if not self._has_channels_last:
            self.quantize(value, scale_at, like=2)
            return
        first = self.fresh("channels_first")
        self.quantize(value, scale_at, like=2, to=first)
        self.emit("Transpose", [first], to=self.node.output[0], perm=_TO_CHANNELS_LAST)

    @property
    def _has_channels_last(self) -> bool:
        return bool(self.attrs.get("channels_last", 0))
