"""Whether an ONNX graph computes the samples of a batch independently, so that it may run one after the other. Runs nothing.

The graph is shaped for two batch sizes. A tensor holds the batch along the axis whose size grows with it; what an op does to that
axis says whether results of one sample depend on that sample alone. An op that is not known to do so counts as one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper

from ..input_shapes import InputShapes
from .graph import describe, graph_inputs
from .large_tensors import tensor_array
from .prepare import PreparedOnnx, prepare

_SIZES = (2, 3)
_MAX_VALUES = 1024
"""Constants of more values are no shapes; their values are left out."""


@dataclass(frozen=True, slots=True)
class _BatchAxis:
    """The axis that holds the batch, and how many neighbours there each sample has."""

    axis: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """A node with what is known of its inputs and its first output; shapes are those of the smaller batch."""

    attrs: Mapping[str, Any]
    ins: Sequence[_BatchAxis | None]
    shapes: Sequence[tuple[int, ...]]
    out: _BatchAxis
    out_shape: tuple[int, ...]
    values: Sequence[npt.NDArray[Any] | None]
    opset: int

    @property
    def only_first(self) -> bool:
        """Whether no other input holds the batch."""
        return self.ins[0] is not None and all(along is None for along in self.ins[1:])

    def axis(self, default: int) -> int:
        """Return the attribute "axis", counted from the start."""
        return int(self.attrs.get("axis", default)) % max(len(self.shapes[0]), 1)


def _elementwise(step: _Step) -> bool:
    """Inputs broadcast: their batch axes meet, counted from the last axis."""
    place = len(step.out_shape) - step.out.axis
    return all(
        along is None or (len(shape) - along.axis == place and along.count == step.out.count)
        for along, shape in zip(step.ins, step.shapes, strict=True)
    )


def _first_axis(step: _Step) -> bool:
    """Windows and channels are behind the batch."""
    return step.only_first and step.ins[0] == step.out and step.out.axis == 0


def _reshaped(step: _Step) -> bool:
    """A sample's values stay neighbours: as many stand before the batch as stood there."""
    along = step.ins[0]
    if along is None or not step.only_first:
        return False
    return int(np.prod(step.shapes[0][: along.axis])) == int(np.prod(step.out_shape[: step.out.axis]))


def _transposed(step: _Step) -> bool:
    rank = len(step.shapes[0])
    perm = [int(axis) for axis in step.attrs.get("perm", range(rank)[::-1])]
    return step.ins[0] is not None and perm[step.out.axis] == step.ins[0].axis


def _other_axis(default: int) -> Callable[[_Step], bool]:
    """It works along one axis, which is not the batch's."""
    return lambda step: step.only_first and step.ins[0] == step.out and step.axis(default) != step.out.axis


def _softmax(step: _Step) -> bool:
    if step.opset >= 13:
        return _other_axis(-1)(step)
    return step.only_first and step.ins[0] == step.out and step.out.axis < step.axis(1)  # all axes from there on are one


def _normalized(step: _Step) -> bool:
    return step.only_first and step.ins[0] == step.out and step.out.axis < step.axis(-1)


def _concat(step: _Step) -> bool:
    return step.axis(0) != step.out.axis and all(along in (None, step.out) for along in step.ins)


def _gathered(step: _Step) -> bool:
    data, indices = step.ins[:2]
    return indices is None if data is not None and step.axis(0) != data.axis else data is None


def _reduced(step: _Step) -> bool:
    return step.only_first and step.ins[0] is not None and step.ins[0].count == step.out.count


def _sliced(step: _Step) -> bool:
    """Along the batch all is taken, in order."""
    if not step.only_first or step.ins[0] != step.out:
        return False
    if len(step.shapes) < 5 or step.values[4] is None:
        return len(step.shapes) < 5
    steps = step.values[4].reshape(-1)
    given = step.values[3]
    axes = range(steps.size) if given is None else [int(axis) % len(step.shapes[0]) for axis in given.reshape(-1)]
    return all(int(by) == 1 for axis, by in zip(axes, steps, strict=True) if axis == step.out.axis)


def _same(step: _Step) -> bool:
    """The batch axis stays what it is; only the first input holds it."""
    return step.only_first and step.ins[0] == step.out


def _expanded(step: _Step) -> bool:
    return step.only_first and _elementwise(step)


def _product(step: _Step) -> bool:
    """The batch is no axis that is summed over, and that of the result is the one of each operand that has it."""
    summed = (len(step.shapes[0]) - 1, max(len(step.shapes[1]) - 2, 0))
    if any(along is not None for along in step.ins[2:]):
        return False
    if any(along is not None and along.axis == axis for along, axis in zip(step.ins, summed, strict=False)):
        return False
    return len(step.shapes[0]) > 1 and len(step.shapes[1]) > 1 and _elementwise(step)


def _gemm(step: _Step) -> bool:
    rows = 1 if step.attrs.get("transA", 0) else 0
    bias_fits = len(step.ins) < 3 or step.ins[2] is None or (len(step.shapes[2]) == 2 and step.ins[2] == step.out)
    return step.ins[0] == _BatchAxis(rows, step.out.count) and step.ins[1] is None and step.out.axis == 0 and bias_fits


def _recurrent(step: _Step) -> bool:
    return not step.attrs.get("layout", 0) and step.ins[0] is not None and step.ins[0].axis == 1


_ELEMENTWISE = (
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot"),
    *("BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Dropout", "Elu", "Equal"),
    *("Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf"),
    *("IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or"),
    *("PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh"),
    *("Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor"),
)
_WINDOWS = (
    *("AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace", "GlobalAveragePool"),
    *("GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool", "Resize"),
    *("SpaceToDepth", "Upsample"),
)
_RULES: dict[str, Callable[[_Step], bool]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_WINDOWS, _first_axis),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
    **{
        f"Reduce{name}": _reduced
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduced),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "Pad", "Tile"), _same),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalized),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _product),
    "Concat": _concat,
    "Expand": _expanded,
    "Gather": _gathered,
    "Gemm": _gemm,
    "LpNormalization": _other_axis(-1),
    "Slice": _sliced,
    "Split": _other_axis(0),
    "TopK": _other_axis(-1),
    "Transpose": _transposed,
}
"""Op -> whether a step of it treats the samples independently. Ops that are missing are not known to."""

_SHAPE_INPUTS = frozenset({"Reshape", "Expand", "Slice", "Tile", "Resize", "Upsample", "Pad", "Squeeze", "Unsqueeze", "Split"})
"""Ops that read sizes from all inputs but the first: these may grow with the batch."""


def batch_obstacle(proto: onnx.ModelProto, inputs: InputShapes, supported: Callable[[onnx.NodeProto], bool], origin: str) -> str:
    """Return why a graph whose inputs leave the batch alone open must see all its samples at once; "" where it need not."""
    light = _without_large_values(proto)
    prepared: list[PreparedOnnx] = []
    for size in _SIZES:
        try:
            prepared.append(prepare(light, inputs.of_batch(size).shapes, supported, origin))
        except Exception:  # whatever the reason: what works for one sample does not for two
            return f"the graph takes no batch of {size}"
    return _Walk(prepared[0], prepared[1], [value.name for value in graph_inputs(proto.graph)]).obstacle()


def _without_large_values(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which large constants are inputs of their shape."""
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    small: list[onnx.TensorProto] = []
    listed = {value.name for value in proto.graph.input}
    for tensor in light.graph.initializer:
        if int(np.prod(tensor.dims)) <= _MAX_VALUES:
            small.append(onnx.TensorProto.FromString(tensor.SerializeToString()))
        elif tensor.name not in listed:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    del light.graph.initializer[:]
    light.graph.initializer.extend(small)
    return light


class _Walk:
    """Follows the batch through a graph that was prepared for two sizes."""

    def __init__(self, small: PreparedOnnx, large: PreparedOnnx, inputs: list[str]) -> None:
        self._pair = (small, large)
        self._values = [{tensor.name: tensor for tensor in each.graph.initializer} for each in self._pair]
        self._along: dict[str, _BatchAxis | None] = dict.fromkeys(inputs, _BatchAxis(0, 1))

    def obstacle(self) -> str:
        """Return the first reason found."""
        small, large = self._pair
        if [(node.op_type, node.name) for node in small.graph.node] != [(n.op_type, n.name) for n in large.graph.node]:
            return "its ops depend on the size of the batch"
        for node in small.graph.node:
            source = small.nodes[int(node.name)]
            if not self._is_batch_independent(node):
                return f"{describe(source)} joins the samples of a batch, or is not known to keep them independent"
        for output in small.graph.output:
            along = self._batch_axis_of(output.name)
            if along is None or along.axis != 0:
                return f"output {output.name!r} does not hold the batch along its first axis"
        return ""

    def _is_batch_independent(self, node: onnx.NodeProto) -> bool:
        names = [name for name in node.input if name]
        sizes = set(names[1:]) if node.op_type in _SHAPE_INPUTS else set[str]()
        ins: list[_BatchAxis | None] = []
        for position, name in enumerate(names):
            if position and name in sizes and name not in self._along:
                ins.append(None)
                continue
            if name not in self._along and not self._add_constant(name):
                return False
            ins.append(self._along[name])
        outputs = [name for name in node.output if name]
        if not any(ins):
            self._along.update(dict.fromkeys(outputs, None))
            return all(self._shape(name, 0) == self._shape(name, 1) for name in outputs)
        rule = _RULES.get(node.op_type)
        shapes = [self._shape(name, 0) for name in names]
        for name in outputs:
            along, shape = self._inferred_batch_axis(name), self._shape(name, 0)
            if rule is None or along is None or shape is None or None in shapes:
                return False
            step = _Step(
                attrs={attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute},
                ins=ins,
                shapes=[shape for shape in shapes if shape is not None],
                out=along,
                out_shape=shape,
                values=[self._value(name) for name in names],
                opset=self._pair[0].opset,
            )
            if not rule(step):
                return False
            self._along[name] = along
        return True

    def _batch_axis_of(self, name: str) -> _BatchAxis | None:
        if name not in self._along:
            self._add_constant(name)
        return self._along.get(name)

    def _add_constant(self, name: str) -> bool:
        """Take in a constant: the same for both sizes, or one that repeats its values for each sample."""
        pair = [values.get(name) for values in self._values]
        if pair[0] is None or pair[1] is None:  # a large one, or an absent value
            self._along[name] = None
            return pair[0] is pair[1] and self._shape(name, 0) == self._shape(name, 1)
        small, large = (tensor_array(tensor) for tensor in pair if tensor is not None)
        if small.shape == large.shape and small.tobytes() == large.tobytes():
            self._along[name] = None
            return True
        along = self._inferred_batch_axis(name)
        if along is None:
            return False
        samples = [part for array, size in ((small, 2), (large, 3)) for part in np.split(array, size, axis=along.axis)]
        self._along[name] = along
        return all(np.array_equal(part, samples[0]) for part in samples)

    def _inferred_batch_axis(self, name: str) -> _BatchAxis | None:
        """Return the one axis whose size grows with the batch."""
        small, large = (self._shape(name, at) for at in range(2))
        if small is None or large is None or len(small) != len(large):
            return None
        axes = [axis for axis, pair in enumerate(zip(small, large, strict=True)) if pair[0] != pair[1]]
        if len(axes) != 1 or small[axes[0]] * _SIZES[1] != large[axes[0]] * _SIZES[0]:
            return None
        return _BatchAxis(axes[0], small[axes[0]] // _SIZES[0])

    def _shape(self, name: str, at: int) -> tuple[int, ...] | None:
        shape = self._pair[at].shapes.get(name)
        return None if shape is None or not all(isinstance(dim, int) for dim in shape) else tuple(int(dim) for dim in shape)

    def _value(self, name: str) -> npt.NDArray[Any] | None:
        tensor = self._values[0].get(name)
        return None if tensor is None else tensor_array(tensor)
