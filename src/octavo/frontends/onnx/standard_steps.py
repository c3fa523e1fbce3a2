"""What rewriters of ONNX Runtime's ops write again and again: shapes, slices, activations, norms, heads, as standard nodes.

Sizes of a batch, a sequence or a past never become constants here: they are read from shapes in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper

from ..frontend import RejectedOpError
from .node_rewrite import NodeRewrite

ShapeOf = Callable[[str], "tuple[int | str, ...] | None"]
"""What is known of the shape of a tensor; None where its rank is unknown. A dimension that has no number is a text."""

_ENDLESS = 2**31 - 1


class Steps(NodeRewrite):
    """The nodes that take the place of one of ONNX Runtime's ops.

    Parameters
    ----------
    shape_of
        Shapes of the tensors that the nodes before this one made, by name.
    declared
        Shapes that the file declares, by name.
    rest
        As `NodeRewrite` says.
    """

    def __init__(self, *rest: Any, shape_of: ShapeOf, declared: ShapeOf) -> None:
        super().__init__(*rest)
        self._shape_of = shape_of
        self.declared = declared
        if self.opset < 11:
            raise RejectedOpError(f"it is written in ops of opset 11, and the model is of {self.opset}; convert its version")

    def step_name(self, output: str) -> str:
        """Return a name that no other node has: ONNX Runtime asks for that of what is exported."""
        return self.node.name and f"{self.node.name}/{output}"

    # -------------------------------------------------------------------------------------------------- what is known

    def refuse_attributes(self, *names: str, advice: str) -> None:
        """Raise for the attributes of these names that are set to something else than 0."""
        for name in names:
            if self.attrs.get(name, 0):
                raise RejectedOpError(f"its attribute {name} = {self.attrs[name]} is not supported; {advice}")

    def refuse_inputs(self, *places: int, advice: str) -> None:
        """Raise for inputs that are there."""
        for place in (place for place in places if self.input(place)):
            raise RejectedOpError(f"its input {place} ({self.input(place)!r}) is not supported; {advice}")

    def output(self, index: int) -> str:
        """Return the name of an output, "" where nothing reads it."""
        return self.node.output[index] if index < len(self.node.output) else ""

    def refuse_outputs(self, *places: int, advice: str) -> None:
        """Raise for outputs that are read."""
        for place in (place for place in places if self.output(place)):
            raise RejectedOpError(f"its output {place} ({self.output(place)!r}) is not supported; {advice}")

    def shape(self, name: str) -> tuple[int | str, ...]:
        """Return the shape of a tensor whose rank must be known."""
        shape = self._shape_of(name)
        if shape is None:
            raise RejectedOpError(f"the shape of its input {name!r} is unknown; write it to the file's value_info")
        return shape

    def rank(self, name: str) -> int:
        """Return how many axes a tensor has."""
        return len(self.shape(name))

    def size(self, name: str, axis: int) -> int:
        """Return a size that must be known: of heads and features, which weights fix."""
        size = self.shape(name)[axis]
        if not isinstance(size, int):
            raise RejectedOpError(f"axis {axis} of its input {name!r} of shape {self.shape(name)} must have a fixed size")
        return size

    # ----------------------------------------------------------------------------------------------------- plain steps

    def named(self, value: str, name: str) -> None:
        """Let a value have a name of the source's, too."""
        if name:
            self.emit("Identity", [value], to=name)

    def emit_all(self, op: str, inputs: Iterable[str], count: int, **attrs: Any) -> list[str]:
        """Add a node of several outputs and return their names."""
        names = [self.fresh(op) for _ in range(count)]
        self.nodes.append(onnx.helper.make_node(op, list(inputs), names, name=self.step_name(names[0]), **attrs))
        return names

    def number(self, value: float, *, shape: Sequence[int] = ()) -> str:
        """Return a float32 constant."""
        return self.constant(np.full(tuple(shape), value, np.float32))

    def sizes(self, *values: int) -> str:
        """Return an int64 constant of one axis."""
        return self.constant(np.array(values, np.int64))

    def reshape(self, value: str, *shape: int, to: str = "") -> str:
        """Reshape; 0 keeps a size, -1 is what is left."""
        return self.emit("Reshape", [value, self.sizes(*shape)], to=to)

    def transpose(self, value: str, *perm: int, to: str = "") -> str:
        """Permute the axes."""
        return self.emit("Transpose", [value], perm=list(perm), to=to)

    def unsqueeze(self, value: str, *axes: int) -> str:
        """Add axes of size 1."""
        return self.ints("Unsqueeze", value, "axes", axes, since=13)

    def squeeze(self, value: str, *axes: int, to: str = "") -> str:
        """Drop axes of size 1."""
        return self.ints("Squeeze", value, "axes", axes, since=13, to=to)

    def dim(self, value: str, axis: int) -> str:
        """Return one size of a tensor, as int64 of one axis."""
        return self.emit("Gather", [self.emit("Shape", [value]), self.sizes(axis)], axis=0)

    def cut(self, value: str, axis: int, start: int | str, end: int | str | None = None) -> str:
        """Return the part of an axis from start to end, which are numbers or int64 tensors of one axis."""
        bounds = [self.sizes(each) if isinstance(each, int) else each for each in (start, _ENDLESS if end is None else end)]
        return self.emit("Slice", [value, *bounds, self.sizes(axis)])

    def range_to(self, size: str) -> str:
        """Return the int64 numbers from 0 to a size (int64 of one axis) without it."""
        zero, one = self.constant(np.int64(0)), self.constant(np.int64(1))
        return self.emit("Range", [zero, self.squeeze(size, 0), one])

    def zeros(self, shape: str) -> str:
        """Return float32 zeros of a shape that the graph computes."""
        return self.emit("ConstantOfShape", [shape], value=onnx.helper.make_tensor("zero", onnx.TensorProto.FLOAT, [1], [0.0]))

    def int64(self, value: str) -> str:
        """Cast to int64."""
        return self.emit("Cast", [value], to_type=onnx.TensorProto.INT64)

    # ------------------------------------------------------------------------------------------------- norms, functions

    def gelu(self, x: str, *, to: str = "", is_tanh: bool = False) -> str:
        """x times the share of the normal distribution below x, by erf or by its approximation in tanh."""
        if self.opset >= 20:
            return self.emit("Gelu", [x], to=to, approximate="tanh" if is_tanh else None)
        half, one = self.number(0.5), self.number(1.0)
        if not is_tanh:
            part = self.emit("Erf", [self.emit("Div", [x, self.number(float(np.sqrt(2.0)))])])
            return self.emit("Mul", [self.emit("Mul", [x, self.emit("Add", [part, one])]), half], to=to)
        cube = self.emit("Mul", [self.emit("Pow", [x, self.number(3.0)]), self.number(0.044715)])
        inner = self.emit("Mul", [self.emit("Add", [x, cube]), self.number(float(np.sqrt(2.0 / np.pi)))])
        return self.emit("Mul", [self.emit("Mul", [x, half]), self.emit("Add", [self.emit("Tanh", [inner]), one])], to=to)

    def layer_norm(self, x: str, gamma: str, beta: str, epsilon: float, *, to: str = "") -> str:
        """Normalize the last axis to mean 0 and variance 1."""
        if self.opset >= 17:
            return self.emit("LayerNormalization", [x, gamma, *([beta] if beta else [])], to=to, axis=-1, epsilon=epsilon)
        distance = self.emit("Sub", [x, self.mean(x)])
        variance = self.mean(self.emit("Pow", [distance, self.number(2.0)]))
        root = self.emit("Sqrt", [self.emit("Add", [variance, self.number(epsilon)])])
        beta = beta or self.number(0.0, shape=[self.size(gamma, -1)])
        return self.emit("Add", [self.emit("Mul", [self.emit("Div", [distance, root]), gamma]), beta], to=to)

    def rms_norm(
        self, x: str, gamma: str, epsilon: float, *, axes: Sequence[int] = (-1,), to: str = "", inverse: str = ""
    ) -> str:
        """Divide by the root of the mean square, whose `inverse` gets that name if one is given."""
        if self.opset >= 23 and not inverse:
            return self.emit("RMSNormalization", [x, gamma], to=to, axis=axes[0], epsilon=epsilon)
        square = self.mean(self.emit("Pow", [x, self.number(2.0)]), axes)
        root = self.emit("Sqrt", [self.emit("Add", [square, self.number(epsilon)])])
        normal = self.emit("Mul", [x, self.emit("Reciprocal", [root], to=inverse)])
        return self.emit("Mul", [normal, gamma], to=to)

    def mean(self, x: str, axes: Sequence[int] = (-1,)) -> str:
        """Return the mean over axes, which stay with size 1."""
        return self.ints("ReduceMean", x, "axes", axes, since=18, keepdims=1)

    def activated(self, x: str, name: str, given: Sequence[float], *, to: str) -> str:
        """Apply the activation that a fused op names, with its parameters in their order; "" is none."""
        if name not in _ACTIVATIONS:
            raise RejectedOpError(f"its activation {name!r} is none of {', '.join(sorted(_ACTIVATIONS))}; export it unfused")
        parameters = _ACTIVATIONS[name]
        if name == "Clip":
            return self.emit("Clip", [x, *map(self.number, given)], to=to)
        return self.emit(name, [x], to=to, **dict(zip(parameters, map(float, given), strict=False)))

    # ------------------------------------------------------------------------------------------------------------ heads

    def by_head(self, x: str, heads: int, size: int) -> str:
        """[batch, rows, heads * size] to [batch, heads, rows, size]."""
        return self.transpose(self.reshape(x, 0, 0, heads, size), 0, 2, 1, 3)

    def join_by_head(self, x: str, features: int, *, to: str = "") -> str:
        """[batch, heads, rows, size] to [batch, rows, heads * size]."""
        return self.reshape(self.transpose(x, 0, 2, 1, 3), 0, 0, features, to=to)


_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""Activations of fused ops, and their parameters in the order in which these are listed."""
