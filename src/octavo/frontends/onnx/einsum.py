"""Write ONNX's Einsum over two tensors as a MatMul between permutations, which can be quantized; Einsum is one opaque op.

Before (x [1, 12, 16], w [16, 4, 8])::

    y = Einsum(x, w), equation "abc,cde->abde"

After::

    y::right = Reshape(w, [16, 32]); y::product = MatMul(x, y::right); y = Reshape(y::product, [1, 12, 4, 8])

Left as it is: an ellipsis, a diagonal, another number of operands, operands that broadcast, and what needs more than one size
that is open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from .graph import replace_nodes
from .shape_inference import with_inferred_shapes

_Size = int | str
"""A whole number, or the name of an open size."""


def decompose_einsums(model: onnx.ModelProto) -> None:
    """Rewrite the graph of `model`."""
    if all(node.op_type != "Einsum" for node in model.graph.node):
        return  # shapes are not inferred for nothing
    shapes = _shapes(model)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    for node in model.graph.node:
        contraction = _contraction(node, shapes) if node.op_type == "Einsum" else None
        replacement = None if contraction is None else contraction.write()
        nodes.extend([node] if replacement is None else replacement)
        constants.extend([] if replacement is None or contraction is None else contraction.constants)
    replace_nodes(model.graph, nodes)
    model.graph.initializer.extend(constants)


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[_Size, ...]]:
    """Return the shapes that the graph states or implies; an open size without a name gets one of its own."""
    graph = with_inferred_shapes(model).graph
    shapes: dict[str, tuple[_Size, ...]] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and value.name not in shapes:
            shapes[value.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}:{axis}"
                for axis, dim in enumerate(tensor.shape.dim)
            )
    return shapes


def _contraction(node: onnx.NodeProto, shapes: Mapping[str, tuple[_Size, ...]]) -> _Contraction | None:
    """Read an Einsum; None for a form that stays."""
    equation = next((attribute.s.decode() for attribute in node.attribute if attribute.name == "equation"), "")
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:  # the letters that come once, in alphabetical order
        result = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    known = [shapes.get(name) for name in node.input]
    if "." in equation or len(terms) != 2 or len(known) != 2 or any(len(set(term)) < len(term) for term in (*terms, result)):
        return None
    sizes: dict[str, _Size] = {}
    for term, shape in zip(terms, known, strict=True):
        if shape is None or len(shape) != len(term):
            return None
        for letter, size in zip(term, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                return None
    return _Contraction(node, terms, result, sizes)


class _Contraction:
    """One Einsum. Letters in both operands and in the result count matrices; in both and not in the result, they are summed."""

    def __init__(self, node: onnx.NodeProto, terms: list[str], result: str, sizes: Mapping[str, _Size]) -> None:
        self._node = node
        self._terms = terms
        self._result = result
        self._sizes = sizes
        shared = set(terms[0]) & set(terms[1])
        self._batch = [letter for letter in terms[0] if letter in shared and letter in result]
        self._summed = [letter for letter in terms[0] if letter in shared and letter not in result]
        self._free = [[letter for letter in term if letter not in shared and letter in result] for term in terms]
        self._nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def write(self) -> list[onnx.NodeProto] | None:
        """Return the nodes; None where a shape has more than one open size, or one that no op can leave open."""
        rows, columns = self._free
        if any(set(term) - {*self._batch, *self._summed, *free} for term, free in zip(self._terms, self._free, strict=True)):
            return None  # a letter of one operand alone is summed: rare
        left = self._as_matrices(0, [self._batch, rows, self._summed], keeps_rows=not self._batch and bool(rows))
        right = self._as_matrices(1, [self._batch, self._summed, columns], keeps_rows=False)
        letters = [*self._batch, *rows, *columns]
        shape = self._open([self._sizes[letter] for letter in letters])
        if left is None or right is None or shape is None:
            return None
        product = self._add("MatMul", [left, right], "product")
        has_shape = (self._batch or rows) and len(columns) == 1 and (len(rows) == 1 or not self._batch)
        spread = product if has_shape else self._reshaped(product, shape, "spread")
        axes = [letters.index(letter) for letter in self._result]
        if axes != sorted(axes):
            self._add("Transpose", [spread], "turned", perm=axes)
        self._nodes[-1].output[0] = self._node.output[0]
        return self._nodes

    def _as_matrices(self, side: int, groups: list[list[str]], *, keeps_rows: bool) -> str | None:
        """Return an operand as matrices: the batch as it is, then one axis for each of the other two groups.

        Rows stay several axes with `keeps_rows`: a MatMul takes them as they are.
        """
        word = ("left", "right")[side]
        value = self._node.input[side]
        order = [letter for group in groups for letter in group]
        axes = [self._terms[side].index(letter) for letter in order]
        if axes != sorted(axes):
            value = self._add("Transpose", [value], f"{word}_turned", perm=axes)
        batch, rows, columns = groups
        parts = [[letter] for letter in batch] + ([[letter] for letter in rows] if keeps_rows else [rows]) + [columns]
        if all(len(part) == 1 for part in parts):
            return value
        shape = self._open([self._product(part) for part in parts])
        return None if shape is None else self._reshaped(value, shape, word)

    def _product(self, letters: Sequence[str]) -> _Size:
        sizes = [self._sizes[letter] for letter in letters]
        numbers = [size for size in sizes if isinstance(size, int)]
        return math.prod(numbers) if len(numbers) == len(sizes) else "*".join(map(str, sizes))

    def _open(self, sizes: Sequence[_Size]) -> list[int] | None:
        """Return a shape with -1 for the size that is open; None for several."""
        shape = [size if isinstance(size, int) else -1 for size in sizes]
        return shape if shape.count(-1) < 2 else None

    def _reshaped(self, value: str, shape: list[int], word: str) -> str:
        name = f"{self._node.output[0]}::{word}_shape"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(shape, np.int64), name))
        return self._add("Reshape", [value, name], word)

    def _add(self, op: str, inputs: list[str], word: str, perm: list[int] | None = None) -> str:
        output = f"{self._node.output[0]}::{word}"
        node = onnx.helper.make_node(op, inputs, [output], name=self._node.name)
        if perm is not None:
            node.attribute.append(onnx.helper.make_attribute("perm", perm))
        self._nodes.append(node)
        return output
