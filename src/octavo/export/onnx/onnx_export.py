"""Repeating a quantization plan on the ONNX file a model came from: a QDQ model that other runtimes load.

It decides nothing: what is integer, and with which parameters, the plan says. A tensor that an integer op makes keeps its name,
for what its DequantizeLinear leaves; the float value before is `<name>_float`. One that equalization scaled is another tensor
than the source's, and named `<name>_divided`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx.checker
from onnx import helper
from tvm import relax

from ...errors import QuantizationError, check_type
from ...frontends.onnx import roundings as roundings_in_file
from ...frontends.onnx.large_tensors import OnnxSource
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, call_to, static_shape
from ...ir.identity import TensorId
from ...ir.qdq.rounding import source_op
from ...quantizer.plan import IntegerLayer, QuantizedModel
from ...quantizer.qdq import is_quantized
from ...runtime.atomic_write import write_atomically
from ...runtime.size import Size
from ...target.vocabulary import HALF_EVEN
from .dequantized_reads import DequantizedReads
from .equalized_tensor import METADATA_KEY, EqualizedTensor, equalized_metadata
from .float_rewrites import FloatRewrites
from .module_export import module_as_onnx
from .onnx_graph import Node, OnnxGraph
from .quantized_constants import QuantizedConstants, fits_int4
from .raised_opset import raised
from .row_quantization import RowQuantization
from .runtime_products import RuntimeProducts
from .source_nodes import SourceNodes
from .written_steps import WrittenSteps

MIN_OPSET, MIN_IR_VERSION = 13, 7
"""First version whose QuantizeLinear and DequantizeLinear have an axis, and the IR version that came with it."""
WIDTHS_OPSET, WIDTHS_IR_VERSION = 21, 10
"""The first ones that have integers of 16 and of 4 bits."""

OPS = ("standard", "onnxruntime")
"""Whose ops a file may hold."""


def export_onnx(model: Model, path: str | Path, *, ops: Literal["standard", "onnxruntime"] = "standard") -> None:
    """Write a quantized model as an ONNX QDQ file: the whole file or nothing.

    Parameters
    ----------
    model
        What `quantize` returned, of a model loaded from ONNX.
    path
        The file to write.
    ops
        "standard": ONNX's own ops, whose results are those of the compiled model. "onnxruntime": dense layers whose activations
        are quantized when run become MatMulNBits and DynamicQuantizeMatMul, which ONNX Runtime runs several times as fast; the
        latter has one scale for all rows where the plan has one for each. Products of two activations stay float then.

    Raises
    ------
    QuantizationError
        If `ops` is neither, the model is not quantized, did not come from ONNX, cannot be raised to opset 13 (21 where
        activations have 16 bits or weights 4 and fewer), or the path cannot be written.
    """
    write_atomically(path, onnx_model(model, ops=ops).SerializeToString(), QuantizationError, "the ONNX file")


def onnx_model(model: Model, *, ops: str = "standard") -> Any:
    """Return the onnx.ModelProto that `export_onnx` writes; raises as it does."""
    if ops not in OPS:
        raise QuantizationError(f"unknown ops {ops!r}: choose from {', '.join(OPS)}")
    check_type(model, Model, QuantizationError, "a Model that octavo.quantize returned")
    if not isinstance(model, QuantizedModel):
        return _quantized_source(model)
    if not isinstance(model.source, OnnxSource):
        raise QuantizationError(
            f"only a model loaded from ONNX can be written as ONNX, this one came from {model.source_format}; compile it instead"
        )
    plan = model.plan
    is_wide = any(params.dtype in ("int16", "uint16") for params in plan.activations.values())
    is_new = is_wide or any(fits_int4(params) for params in plan.weights.values())
    proto = _at_least(WIDTHS_OPSET if is_new else MIN_OPSET, model.source)
    graph = OnnxGraph(proto)
    runtime = RuntimeProducts(graph=graph, block_activations=plan.recipe.block_activations) if ops == "onnxruntime" else None
    exporter = _Exporter(nodes=SourceNodes(model=model, plan=plan, graph=graph), opset=_opset(proto), runtime=runtime)
    equalized, roundings = exporter.run()
    proto.producer_name = "octavo"
    if equalized:
        proto.metadata_props.add(key=METADATA_KEY, value=equalized_metadata(equalized))
    if roundings:
        proto.metadata_props.add(key=roundings_in_file.METADATA_KEY, value=roundings_in_file.roundings_metadata(roundings))
    # Files of IR version 3 must list every initializer among the inputs.
    proto.ir_version = max(proto.ir_version, WIDTHS_IR_VERSION if is_new else MIN_IR_VERSION)
    _state_output_ranks(model, proto)
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise QuantizationError(f"the quantized ONNX model is not valid: {error}") from error
    return proto


def _quantized_source(model: Model) -> Any:
    """Return the file of a model that was quantized already when it was loaded."""
    if not is_quantized(model):
        raise QuantizationError("the model is not quantized; call quantize before writing it")
    return model.source.complete() if isinstance(model.source, OnnxSource) else module_as_onnx(model)


def _state_output_ranks(model: Model, proto: Any) -> None:
    """Give outputs that state no shape one of open sizes: the checker wants a shape, though runtimes infer it."""
    body = model.module["main"].body.body
    results = list(body.fields) if isinstance(body, relax.Tuple) else [body]
    for value, result in zip(proto.graph.output, results, strict=True):
        if not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
            for dim in static_shape(result) or ():
                dimension = value.type.tensor_type.shape.dim.add()
                if isinstance(dim, Size):
                    dimension.dim_param = str(dim)


def _at_least(opset: int, source: OnnxSource) -> Any:
    proto: Any = source.complete()
    if _opset(proto) >= opset:
        return proto
    try:
        return raised(proto, opset)
    except RuntimeError as error:
        raise QuantizationError(
            f"the ONNX file has opset {_opset(proto)}; QDQ needs {opset}, and onnx cannot convert it: {error}"
        ) from error


def _opset(proto: Any) -> int:
    return max((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), default=0)


@dataclass(kw_only=True, slots=True)
class _Exporter:
    """One run of `onnx_model`."""

    nodes: SourceNodes
    opset: int
    runtime: RuntimeProducts | None
    """Writes ONNX Runtime's ops, None for a file of standard ones."""
    _dequantized: dict[TensorId, str] = field(default_factory=dict[TensorId, str])
    _read_float: set[TensorId] = field(default_factory=set[TensorId])
    """Tensors of the module that something reads besides their QuantizeLinear."""
    _sources: dict[TensorId, str] = field(default_factory=dict[TensorId, str])
    """By a tensor the op that makes what is quantized, where files have a rounding for it of their own."""
    _roundings: dict[str, str] = field(default_factory=dict[str, str])

    def run(self) -> tuple[dict[str, EqualizedTensor], dict[str, str]]:
        """Edit the graph; return which tensors of it are the source's, equalized, and roundings that files don't mean unsaid."""
        nodes, plan, graph = self.nodes, self.nodes.plan, self.nodes.graph
        view = DataflowView(nodes.model.module["main"])
        quantized = [binding.value.args[0] for binding in view.bindings if call_to(binding.value, "quantize") is not None]
        self._read_float = {TensorId(var.name) for var in quantized if view.only_user(var) is None}
        self._sources = {TensorId(var.name): source_op(var, view.definition) for var in quantized}
        rewrites, constants = FloatRewrites(nodes=nodes), QuantizedConstants(nodes=nodes)
        rewrites.fold()
        layers = [layer for layer in plan.layers if nodes.has_node(layer)]
        steps = WrittenSteps(nodes=nodes, view=view)
        if plan.equalization:
            rewrites.divide({layer.output for layer in layers} | steps.members, steps.constants)
        reads = DequantizedReads(nodes=nodes, view=view, others=steps.results)
        reads.separate()
        places = list(reads.places())
        made, layers = layers, [layer for layer in layers if layer.output not in steps.results]
        chains = {layer.output: list(nodes.chain(layer)) for layer in layers}
        starts = {output: [chain[-1], *nodes.steps(chain[-1])] for output, chain in chains.items()}
        for layer in layers:
            if layer.weight is not None and not layer.is_gathered:
                constants.quantize_weights(layer, chains[layer.output], bias_alone=self._is_replaced(layer))
            constants.quantize_constants(layer, chains[layer.output][-1])
        for layer in made:
            self._quantize_made(layer)
        rows = RowQuantization(graph=graph, opset=self.opset)
        for layer in layers:
            for node in () if layer.is_gathered else starts[layer.output]:
                self._read_reals(layer, node, rows, constants)
        for node, place, tensor in places:
            graph.set_input(node, place, self._dequantized_name(tensor))
        for layer in layers:
            if layer.is_gathered:  # whose operands change places
                constants.gather_weights(layer, starts[layer.output][0])
                self._read_reals(layer, starts[layer.output][0], rows, constants)
        for layer, node in steps.write(self._dequantized_name):
            if not self._is_replaced(layer):
                constants.read_weight(layer, node)
            self._read_reals(layer, node, rows, constants)
        self._roundings |= steps.roundings
        equalized = rewrites.name_equalized()
        graph.finish()
        return equalized, self._roundings

    def _read_reals(self, layer: IntegerLayer, node: Node, rows: RowQuantization, constants: QuantizedConstants) -> None:
        """Let a layer's first node quantize what it reads when run, where it does."""
        if self._is_replaced(layer):
            (self.runtime or rows).replace(layer, node, *constants.matrix(layer, node))
        elif layer.per_row and (layer.block or layer.has_samples or layer.is_stacked):
            rows.read_dequantized(node, of_samples=layer.has_samples)
        elif layer.per_row and self.runtime is None:
            rows.replace_product(node)

    def _is_replaced(self, layer: IntegerLayer) -> bool:
        """Return whether other nodes stand for a dense layer, with its weight's integers."""
        is_known = layer.reads_reals if self.runtime is not None else layer.per_row and not layer.block
        return bool(is_known) and layer.weight is not None and not (layer.has_samples or layer.is_stacked)

    def _quantize_made(self, layer: IntegerLayer) -> None:
        """Put Q and DQ behind an integer op; the DQ takes over the name, so that every reader reads it.

        A result that is not quantized stays as it is; so does one that is left in float for some of its readers, while others
        quantize it. Of one that is moved within its node, the move's result is quantized.
        """
        if (
            layer.output not in self.nodes.plan.activations
            or layer.output not in self.nodes.model.tensors
            or layer.output in self._read_float
        ):
            return
        name = self.nodes.first_name(layer.output)
        before = self.nodes.graph.fresh(f"{name}_float")
        self.nodes.graph.rename_output(self.nodes.node(layer.output), name, before)
        self._add_pair(layer.output, before, name)
        self._dequantized[layer.output] = name

    def _dequantized_name(self, tensor: TensorId) -> str:
        """Return the name of a tensor dequantized, adding Q and DQ to one that no integer op made."""
        if tensor not in self._dequantized:
            name = self.nodes.first_name(tensor)
            output = self.nodes.graph.fresh(f"{name}_dequantized")
            self._add_pair(tensor, name, output)
            self._dequantized[tensor] = output
        return self._dequantized[tensor]

    def _add_pair(self, tensor: TensorId, source: str, output: str) -> None:
        params = self.nodes.plan.activations[tensor]
        scale = self.nodes.graph.add_constant(f"{tensor}_scale", params.scale)
        zero_point = self.nodes.graph.add_constant(f"{tensor}_zero_point", params.zero_point.astype(params.dtype))
        integers = self.nodes.graph.fresh(f"{tensor}_quantized")
        rounding = self.nodes.plan.roundings.get(tensor, HALF_EVEN)
        if rounding != roundings_in_file.assumed_rounding(self._sources.get(tensor, "")):
            self._roundings[integers] = rounding
        nodes = [
            helper.make_node("QuantizeLinear", [source, scale, zero_point], [integers], name=integers),
            helper.make_node("DequantizeLinear", [integers, scale, zero_point], [output], name=f"{output}_DequantizeLinear"),
        ]
        self.nodes.graph.add_after(source, nodes)
