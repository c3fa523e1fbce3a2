"""ONNX's shape inference, with the values that shapes are computed from. Knows no op, and changes no graph."""

from __future__ import annotations

import onnx
import onnx.shape_inference

_LONGEST = 2**20
"""Elements of a vector: no shape has as many, and as values of one they take some hundred bytes each, of every op anew."""


def with_inferred_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that has the shapes of its values, from those of its inputs and from numbers that are computed of shapes.

    ONNX takes each vector for such numbers, of whatever type: where one is too long for that, shapes alone are followed.
    """
    shapes_alone = onnx.shape_inference.infer_shapes(model)
    return shapes_alone if _has_long_vector(shapes_alone.graph) else onnx.shape_inference.infer_shapes(model, data_prop=True)


def _has_long_vector(graph: onnx.GraphProto) -> bool:
    shapes = [
        [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in (*graph.input, *graph.value_info, *graph.output)
    ]
    shapes += [list(tensor.dims) for tensor in graph.initializer]
    return any(len(shape) == 1 and shape[0] > _LONGEST for shape in shapes)
