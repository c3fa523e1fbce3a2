"""Sparse tensors of an ONNX graph as the dense ones that they stand for: kernels read no others.

Their places are those of a checked model.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from ...errors import ModelError

_MAX_BYTES = 1 << 31


def with_dense(model: onnx.ModelProto, origin: str) -> onnx.ModelProto:
    """Return a model whose initializers and constants are all dense; the one given where they are.

    Raises
    ------
    ModelError
        If a dense tensor is beyond 2 GB.
    """
    constants = [node for node in model.graph.node if node.op_type == "Constant" and _sparse(node) is not None]
    if not model.graph.sparse_initializer and not constants:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.initializer.extend(_dense(each, each.values.name, origin) for each in made.graph.sparse_initializer)
    made.graph.ClearField("sparse_initializer")
    for node in made.graph.node:
        sparse = _sparse(node) if node.op_type == "Constant" else None
        if sparse is not None:
            value = _dense(sparse, node.output[0], origin)
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("value", value))
    return made


def _sparse(node: onnx.NodeProto) -> onnx.SparseTensorProto | None:
    return next((each.sparse_tensor for each in node.attribute if each.name == "sparse_value"), None)


def _dense(sparse: onnx.SparseTensorProto, name: str, origin: str) -> onnx.TensorProto:
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dims = [int(dim) for dim in sparse.dims]
    if min(dims, default=1) < 0 or math.prod(dims) * values.itemsize > _MAX_BYTES:
        raise ModelError(f"{origin}: sparse tensor {name!r} of shape {dims} is too large to be stored dense, as kernels read it")
    steps = np.asarray([math.prod(dims[axis + 1 :]) for axis in range(len(dims))], np.int64)
    places = indices if indices.ndim == 1 else (indices * steps).sum(axis=1)
    dense = np.zeros(math.prod(dims), values.dtype)
    dense[places] = values
    return numpy_helper.from_array(dense.reshape(dims), name)
