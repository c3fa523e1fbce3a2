"""Raising an ONNX file to a newer operator set with onnx's converter, which every tensor leaves with its name and its value."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.version_converter
from onnx import helper

from ...frontends.onnx.control_flow import rename
from ...frontends.onnx.graph import opset_of, replace_nodes

_RAW = "::raw"
"""Behind the name of a tensor: what its node makes, of which the tensor is another name."""


_PLACED_OPSET = 11
"""The first whose Resize says where its values lie; before, they lie as `_PLACES` says, which the converter leaves out."""
_PLACES = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def raised(proto: Any, opset: int) -> Any:
    """Return the model in a newer operator set.

    The converter names some results anew (an Upsample's, which becomes a Resize). Behind an Identity their names stay, which then
    goes to the node before it.

    Raises
    ------
    RuntimeError
        What the converter raises.
    """
    converted = _converted(proto, opset)
    kept = {name for node in converted.graph.node for name in node.output} | {each.name for each in converted.graph.initializer}
    read = {name for node in proto.graph.node for name in node.input} | {output.name for output in proto.graph.output}
    lost = {name for node in proto.graph.node for name in node.output if name in read and name not in kept}
    if not lost:
        return converted
    named = onnx.ModelProto()
    named.CopyFrom(proto)
    nodes: list[onnx.NodeProto] = []
    for node in named.graph.node:
        again = [name for name in node.output if name in lost]
        node.output[:] = [name + _RAW if name in lost else name for name in node.output]
        nodes += [node, *(helper.make_node("Identity", [name + _RAW], [name]) for name in again)]
    replace_nodes(named.graph, nodes)
    return _without(_converted(named, opset), lost)


def _converted(proto: Any, opset: int) -> Any:
    converted = onnx.version_converter.convert_version(proto, opset)
    for node in converted.graph.node if opset_of(proto) < _PLACED_OPSET <= opset else ():
        if node.op_type == "Resize":
            node.attribute.extend(helper.make_attribute(name, value) for name, value in _PLACES.items())
    return converted


def _without(proto: Any, lost: set[str]) -> Any:
    """Let the nodes before these Identities make what they name."""
    own = {node.input[0]: node.output[0] for node in proto.graph.node if node.op_type == "Identity" and node.output[0] in lost}
    kept = [node for node in proto.graph.node if not (node.op_type == "Identity" and node.output[0] in lost)]
    for node in kept:
        rename(node, own)
    replace_nodes(proto.graph, kept)
    return proto
