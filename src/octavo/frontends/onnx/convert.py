"""Convert an ONNX graph to Relax with TVM's importer, mended where it leaves more than plain ops. Reads no file.

TVM's converters do most ops. Ours come first, for these: Clip, Pad and Tile (TVM: PrimFuncs), Conv and the pools (auto_pad as
attributes), ConvTranspose, Gemm and Expand (forms that integer kernels take), Gather (indices in range), Dropout (the identity of
inference), Softmax before opset 13, Resize of opset 10; normalizations by layer and instance (one op each); LSTM, GRU and RNN
(unrolled), CumSum and scattering (TVM: code that does not build), Celu; QuantizeLinear and DequantizeLinear (one spelling of
parameters) and ops that compute in integers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx
import onnx.defs
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from ...errors import ModelError, OctavoError, UnsupportedOpError
from ...ir.graph.dataflow import call_to
from ...runtime.mapped import shared_tensor
from ...runtime.tensors import values_of
from ..assemble import Assembled, assemble
from ..frontend import NewlyKnownError, RejectedOpError, conversion_errors, discard, quiet, reason
from ..input_shapes import InputShapes
from ..relax_ops import is_static, shape_of
from ..source_tensor import SourceTensor
from ..symbols import size_text
from . import (
    arithmetic,
    conv,
    data_movement,
    decompositions,
    integer_ops,
    norms,
    open_shapes,
    ops,
    qoperator,
    rearranged,
    recurrent,
    resize,
    signal_steps,
)
from .control_flow import CONTROL_FLOW
from .graph import STANDARD_DOMAINS, describe
from .large_tensors import tensor_array
from .ops import NodeContext
from .prepare import PreparedOnnx
from .sizes import size_value, tensor_of

_frontend: Any = onnx_frontend
_CONVERTERS = {
    **ops.CONVERTERS,
    **arithmetic.CONVERTERS,
    **data_movement.CONVERTERS,
    **norms.CONVERTERS,
    **recurrent.CONVERTERS,
    **resize.CONVERTERS,
    **decompositions.CONVERTERS,
    **rearranged.CONVERTERS,
    **signal_steps.CONVERTERS,
    **conv.CONVERTERS,
    **integer_ops.CONVERTERS,
}
_INLINED = frozenset({*CONTROL_FLOW, "SequenceMap"})
"""What TVM's importer has entries for, and is resolved before."""


def supported(node: onnx.NodeProto) -> bool:
    """Whether there is a converter for the node's op, ours or TVM's."""
    if node.op_type in _INLINED:
        return False
    return node.op_type in _CONVERTERS or node.op_type in qoperator.REWRITES or node.op_type in _frontend._get_convert_map()


class _GraphImporter(onnx_frontend.ONNXGraphImporter):
    """TVM's importer with our converters in front; every result is bound to a variable, so that it can be named."""

    def __init__(self, prepared: PreparedOnnx, inputs: InputShapes, origin: str) -> None:
        super().__init__(
            {name: list(shape) for name, shape in inputs.shapes.items()}, {}, keep_params_in_input=False, sanitize=False
        )
        self._prepared = prepared
        self._symbols, self._is_open = inputs.symbols, not inputs.is_static
        self._origin = origin
        self._outputs = {value.name for value in prepared.graph.output}
        self._quantized: dict[tuple[Any, ...], Any] = {}

    def holder(self, name: str) -> Any:
        """Return what holds the tensor that the source calls `name`; None if nothing does."""
        return self._nodes.get(name)

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Leave it to `prepare`, which knows the nodes."""

    def _parse_attr(self, attr_proto: Any) -> dict[str, Any]:
        """Read the attributes; an empty list, which TVM's importer rejects, means the default."""
        declared: Any = [a for a in attr_proto if onnx.helper.get_attribute_value(a) not in ([], ())]
        return super()._parse_attr(declared)

    def _parse_array(self, tensor_proto: Any) -> Any:
        """Return a constant's values, those of a large one in the memory that it lies in."""
        return shared_tensor(tensor_array(tensor_proto, align=True).reshape(tuple(tensor_proto.dims)))

    def _construct_nodes(self, graph: Any) -> None:
        super()._construct_nodes(graph)
        for name in self._outputs:
            self._nodes[name] = self._bind(tensor_of(self.bb.emit, self._nodes[name]))

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        node = self._prepared.nodes[int(attrs["tvm_custom"]["name"])]
        with conversion_errors(lambda: f"{self._origin}: {describe(node)}"):
            _check_given(node, opset)
            says = self._prepared.roundings
            context = NodeContext(
                builder=self.bb, op=op_name, node=node, attrs=attrs, opset=opset, symbols=self._symbols, roundings=says
            )
            result: Any = None
            if self._is_open:
                result = size_value(context, inputs)
                if result is not None:
                    return result
                inputs = onnx_frontend.onnx_input(self._tensors(op_name, inputs))
                open_shapes.learn_sizes(context, inputs)
                if op_name in open_shapes.CONVERTERS:
                    result = open_shapes.CONVERTERS[op_name](context, list(inputs))
            operands = arithmetic.with_listed_axes(context, list(inputs))
            operands = arithmetic.with_fence(context, arithmetic.with_axis(context, operands))
            inputs = onnx_frontend.onnx_input(operands)  # gives None for those that are left out
            if result is None and op_name in _CONVERTERS:
                result = _CONVERTERS[op_name](context, list(inputs))
            if result is None:
                result = super()._convert_operator(op_name, inputs, attrs, opset)
            result = self._merged(node, self._bind(result))
            open_shapes.check_pixels(context, list(inputs), result)
            if self._is_open:
                open_shapes.check_known(self._symbols, result)
            else:
                _check_static(result)
            return result

    def _tensors(self, op_name: str, inputs: Any) -> list[Any]:
        """Return a node's inputs with sizes as tensors where the op takes tensors."""
        sizes = open_shapes.SIZE_INPUTS.get(op_name, ())
        return [value if place in sizes else tensor_of(self.bb.emit, value) for place, value in enumerate(inputs)]

    def _merged(self, node: onnx.NodeProto, result: Any) -> Any:
        """Return what an equal QuantizeLinear of the same value gave before: some quantizers write one for each reader.

        Its output is then another name of the same tensor. Outputs of the graph keep a variable of their own.
        """
        call: Any = self.bb.lookup_binding(result) if isinstance(result, relax.Var) else None
        if call_to(call, "quantize") is None or self._outputs.intersection(node.output):
            return result
        data, *parameters = call.args[:3]
        if not all(isinstance(parameter, tvm.ir.GenericConst) for parameter in parameters):
            return result
        values = [values_of(parameter.value) for parameter in parameters]
        key = (hash(data), call.attrs.axis, str(call.attrs.out_dtype), *((v.shape, v.tobytes()) for v in values))
        return self._quantized.setdefault(key, result)

    def _bind(self, result: Any) -> Any:
        result = self.bb.normalize(result) if isinstance(result, relax.Call) else result
        if isinstance(result, relax.Tuple):
            return relax.Tuple([self._bind(field) for field in result.fields])
        if isinstance(result, relax.Call | relax.TupleGetItem) and isinstance(result.ty, relax.TensorType):
            return self.bb.emit(result)
        return result


def _check_given(node: onnx.NodeProto, opset: int) -> None:
    """Raise RejectedOpError for a standard op without an input that it cannot be without: TVM's tuples take none for one."""
    if node.domain not in STANDARD_DOMAINS or not onnx.defs.has(node.op_type, opset, ""):
        return
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    for place in range(max(len(node.input), schema.min_input)):
        formal = schema.inputs[min(place, len(schema.inputs) - 1)] if schema.inputs else None
        is_given = place < len(node.input) and node.input[place] != ""
        if formal is not None and not is_given and formal.option != optional:
            raise RejectedOpError(f"its {formal.name} (input {place}) is missing")


def _check_static(result: Any) -> None:
    """Raise RejectedOpError for a result whose shape depends on values that are fed."""
    for value in result.fields if isinstance(result, relax.Tuple) else [result]:
        ty = value.ty
        if isinstance(ty, relax.TensorType) and (not isinstance(ty.shape, relax.ShapeExpr) or not is_static(shape_of(value))):
            raise RejectedOpError(
                "the shape of its result depends on values that are fed, and must be known before the run; make them constants "
                "of the model, or cut it ahead of this op"
            )


def convert(prepared: PreparedOnnx, inputs: InputShapes, origin: str) -> Assembled:
    """Build the named module of a prepared graph.

    Raises
    ------
    NewlyKnownError
        If the graph says more of the symbols than was known.
    UnsupportedOpError
        If a node has a form that no converter takes.
    """
    _check_choices(prepared, origin)
    importer = _GraphImporter(prepared, inputs, origin)
    graph: Any = prepared.graph
    try:
        with quiet():
            module: tvm.IRModule = importer.from_onnx(graph, prepared.opset)
    except (OctavoError, NewlyKnownError):
        discard(importer.bb)
        raise
    except Exception as error:
        discard(importer.bb)
        raise ModelError(f"{origin}: TVM's ONNX importer cannot read the graph: {reason(error)}") from error
    sources = _complete_shapes(prepared, importer, inputs)
    if not inputs.is_static:
        _check_bindings(module, origin)
    positions = {source.name: position for position, source in enumerate(sources)}
    outputs = [positions[value.name] for value in prepared.graph.output]
    return assemble(module, sources, [importer.holder(source.name) for source in sources], outputs)


def _check_choices(prepared: PreparedOnnx, origin: str) -> None:
    """Raise UnsupportedOpError where a node reads which boxes were chosen: how many these are depends on data."""
    outputs = {value.name for value in prepared.graph.output}
    for node in (node for node in prepared.graph.node if node.op_type == "NonMaxSuppression"):
        readers = [prepared.nodes[int(each.name)] for each in prepared.graph.node if node.output[0] in each.input]
        if readers or node.output[0] not in outputs:
            reader = f", which {describe(readers[0])} reads," if readers else ""
            raise UnsupportedOpError(
                f"{origin}: {describe(prepared.nodes[int(node.name)])}: the shape of its result{reader} depends on data; let "
                "it be an output of the model, and pick what it names yourself"
            )


def _check_bindings(module: tvm.IRModule, origin: str) -> None:
    """Raise UnsupportedOpError where a converter of TVM's binds a shape: sizes stand as arguments of ops alone."""
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if not isinstance(binding.var.ty, relax.TensorType | relax.TupleType):
                raise UnsupportedOpError(
                    f"{origin}: an op cannot be imported with open sizes: its importer computes shapes at run time "
                    f"({binding.value}); fix its sizes with sizes= in Python, --size on the command line"
                )


def _complete_shapes(prepared: PreparedOnnx, importer: _GraphImporter, inputs: InputShapes) -> list[SourceTensor]:
    """Fill in the shapes that ONNX does not infer (ops of other operator sets) from the Relax types."""
    completed: list[SourceTensor] = []
    for source in prepared.sources:
        holder = importer.holder(source.name)
        is_late = isinstance(holder, tvm.ir.GenericConst) and not is_static(source.shape)
        if (isinstance(holder, relax.Var) or is_late) and isinstance(holder.ty, relax.TensorType) and holder.ty.shape is not None:
            shape = tuple(
                size if isinstance(size, int) else size_text(size) for size in map(inputs.symbols.simplify, shape_of(holder))
            )
            source = replace(source, shape=shape, dtype=str(holder.ty.dtype))
        completed.append(source)
    return completed
