"""Repeating a quantization plan on the ONNX file a model came from: a QDQ model that other runtimes load.

It decides nothing: what is integer, and with which parameters, the plan says. A tensor that an integer op makes keeps its name,
for what its DequantizeLinear leaves; the float value before is `<name>_float`. One that equalization scaled is another tensor
than the source's, and named `<name>_divided`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.checker
import onnx.version_converter
from onnx import helper
from tvm import relax

from ...errors import QuantizationError, check_type
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, call_to, static_shape
from ...ir.graph.moving import CONSTANT_MOVERS
from ...ir.identity import TensorId
from ...ir.simplify import Fold
from ...numerics import INTEGER_RANGE, PerAxis, PerBlock, PerTensor, QuantParams, dequantize
from ...numerics.rotation import rotate
from ...quantizer.plan import IntegerLayer, QuantizationPlan, QuantizedModel
from ...runtime.atomic_write import write_atomically
from ...runtime.size import Size
from .equalized_tensor import METADATA_KEY, ROTATED, SUFFIX, EqualizedTensor, equalized_metadata
from .module_export import quantized_source
from .onnx_graph import PASS_THROUGH, Node, OnnxGraph, attribute, set_attribute
from .row_quantization import RowQuantization
from .unscaled_constants import is_scaled, unscaled_constants

MIN_OPSET, MIN_IR_VERSION = 13, 7
"""First version whose QuantizeLinear and DequantizeLinear have an axis, and the IR version that came with it."""
WIDTHS_OPSET, WIDTHS_IR_VERSION = 21, 10
"""The first ones that have integers of 16 and of 4 bits."""
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_RECURRENT = ("LSTM", "GRU", "RNN")
_NORMS = ("nn.layer_norm", "nn.group_norm")
_WEIGHTED = (*_CONVOLUTIONS, "Gemm", "MatMul")


def export_onnx(model: Model, path: str | Path) -> None:
    """Write a quantized model as an ONNX QDQ file: the whole file or nothing.

    Parameters
    ----------
    model
        What `quantize` returned, of a model loaded from ONNX.
    path
        The file to write.

    Raises
    ------
    QuantizationError
        If the model is not quantized, did not come from ONNX, cannot be raised to opset 13 (21 where activations have 16 bits
        or weights 4 and fewer), or the path cannot be written.
    """
    write_atomically(path, onnx_model(model).SerializeToString(), QuantizationError, "the ONNX file")


def onnx_model(model: Model) -> Any:
    """Return the onnx.ModelProto that `export_onnx` writes; raises as it does."""
    check_type(model, Model, QuantizationError, "a Model that octavo.quantize returned")
    if not isinstance(model, QuantizedModel):
        return quantized_source(model)
    if not isinstance(model.source, onnx.ModelProto):
        raise QuantizationError(
            f"only a model loaded from ONNX can be written as ONNX, this one came from {model.source_format}; compile it instead"
        )
    plan = model.plan
    is_wide = any(params.dtype in ("int16", "uint16") for params in plan.activations.values())
    is_new = is_wide or any(_fits_int4(params) for params in plan.weights.values())
    proto = _at_least(WIDTHS_OPSET if is_new else MIN_OPSET, model.source)
    equalized = _Exporter(model=model, plan=plan, graph=OnnxGraph(proto), opset=_opset(proto)).run()
    proto.producer_name = "octavo"
    if equalized:
        proto.metadata_props.add(key=METADATA_KEY, value=equalized_metadata(equalized))
    # Files of IR version 3 must list every initializer among the inputs.
    proto.ir_version = max(proto.ir_version, WIDTHS_IR_VERSION if is_new else MIN_IR_VERSION)
    _state_output_ranks(model, proto)
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise QuantizationError(f"the quantized ONNX model is not valid: {error}") from error
    return proto


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


def _fits_int4(params: QuantParams) -> bool:
    """Return whether 4 bits hold a weight: all that its integers may be, and its zero points."""
    low, high = INTEGER_RANGE["int4"]
    points = params.zero_point
    return (
        params.dtype == "int8" and params.qmin >= low and params.qmax <= high and bool(((points >= low) & (points <= high)).all())
    )


def _transposed(params: QuantParams) -> QuantParams:
    """Return the parameters of a matrix for it transposed."""
    granularity = params.granularity
    if isinstance(granularity, PerBlock):
        flipped = PerBlock(1 - granularity.axis, granularity.size)
        return replace(params, scale=params.scale.T, zero_point=params.zero_point.T, granularity=flipped)
    return replace(params, granularity=PerAxis(1 - granularity.axis)) if isinstance(granularity, PerAxis) else params


def _at_least(opset: int, source: Any) -> Any:
    proto = copy.deepcopy(source)
    if _opset(proto) >= opset:
        return proto
    try:
        return onnx.version_converter.convert_version(proto, opset)
    except RuntimeError as error:
        raise QuantizationError(
            f"the ONNX file has opset {_opset(proto)}; QDQ needs {opset}, and onnx cannot convert it: {error}"
        ) from error


def _opset(proto: Any) -> int:
    return max((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), default=0)


@dataclass(kw_only=True, slots=True)
class _Exporter:
    """One run of `onnx_model`."""

    model: Model
    plan: QuantizationPlan
    graph: OnnxGraph
    opset: int
    _layer_of: dict[TensorId, IntegerLayer] = field(default_factory=dict[TensorId, IntegerLayer])
    _dequantized: dict[TensorId, str] = field(default_factory=dict[TensorId, str])
    _read_float: set[TensorId] = field(default_factory=set[TensorId])
    """Tensors of the module that something reads besides their QuantizeLinear."""
    _weights: dict[tuple[TensorId, bool], str] = field(default_factory=dict[tuple[TensorId, bool], str])

    def run(self) -> dict[str, EqualizedTensor]:
        """Edit the graph; return which tensors of it are the source's, equalized."""
        self._layer_of = {layer.output: layer for layer in self.plan.layers}
        view = DataflowView(self.model.module["main"])
        quantized = [binding.value.args[0] for binding in view.bindings if call_to(binding.value, "quantize") is not None]
        self._read_float = {TensorId(var.name) for var in quantized if view.only_user(var) is None}
        for fold in self.plan.folds:
            if fold.op == "nn.pad":
                self._fold_padding(fold)
            elif fold.op == "nn.batch_norm":
                self._fold_batch_norm(fold)
        layers = [layer for layer in self.plan.layers if self._has_node(layer)]
        if self.plan.equalization:
            self._divide({layer.output for layer in layers})
        chains = {layer.output: list(self._chain(layer)) for layer in layers}
        starts = {output: [chain[-1], *self._steps(chain[-1])] for output, chain in chains.items()}
        for layer in layers:
            if layer.weight is not None:
                self._quantize_weights(layer, chains[layer.output])
            self._quantize_constants(layer, chains[layer.output][-1])
        for layer in layers:
            self._quantize_made(layer)
        rows = RowQuantization(graph=self.graph, opset=self.opset)
        for layer in layers:
            for node in starts[layer.output]:
                if layer.per_row and layer.block:
                    rows.read_dequantized(node)
                elif layer.per_row and layer.weight is not None:
                    rows.replace(node, *self._matrix(layer, node))
                elif layer.per_row:
                    rows.replace_product(node)
                elif not layer.block:
                    self._read_dequantized(layer, node)
        equalized = self._name_equalized()
        self.graph.finish()
        return equalized

    # ------------------------------------------------------------------------------------------------------- finding nodes

    def _names(self, tensor: TensorId) -> list[str]:
        entry = self.model.tensors[tensor]
        return [entry.source_name, *entry.aliases]

    def _first_name(self, tensor: TensorId) -> str:
        """Return the name under which the graph first makes a tensor, before any Identity."""
        names = self._names(tensor)
        for name in names:
            node = self.graph.producer(name)
            if node is None or node.op_type not in PASS_THROUGH or node.input[0] not in names:
                return name
        raise AssertionError(f"{tensor}: a cycle of Identity nodes")

    def _node(self, tensor: TensorId) -> Node:
        node = self.graph.producer(self._first_name(tensor))
        assert node is not None, f"{tensor} is made by no node of the ONNX graph"
        return node

    def _before(self, node: Node) -> Node:
        """Return the node that makes the data of one with a single data operand."""
        for name in node.input:
            producer = self.graph.producer(name)
            while producer is not None and producer.op_type in PASS_THROUGH:
                producer = self.graph.producer(producer.input[0])
            if producer is not None and self.graph.constant(name) is None:
                return producer
        raise AssertionError(f"{node.op_type} {node.output[0]} reads no computed tensor")

    def _has_node(self, layer: IntegerLayer) -> bool:
        """Return whether a node of the source stands for a layer: not where it moves data in one, or is a step of a larger op.

        A recurrent op, which is many layers of ours, stays float in the file.
        """
        if layer.output in self.model.tensors:
            return True
        return layer.weight is not None and layer.source is not None and self._node(layer.source).op_type in _WEIGHTED

    def _chain(self, layer: IntegerLayer) -> Iterator[Node]:
        """Yield the nodes of a layer from its last back to the op itself."""
        assert layer.source is not None, "the caller asks for layers that have a node"
        node = self._node(layer.source)
        yield node
        if layer.weight is not None:
            while node.op_type not in _WEIGHTED:
                node = self._before(node)
                yield node
        else:
            for _ in layer.fused:
                node = self._before(node)
                yield node

    def _steps(self, last: Node) -> list[Node]:
        """Return the nodes before the last of a normalization that the file writes in steps: several may read its data."""
        tensors = [fold.gone for fold in self.plan.folds if fold.op in _NORMS and self._node(fold.tensor) is last]
        return [self._node(tensor) for tensor in tensors if tensor in self.model.tensors]

    def _origin(self, tensor: TensorId) -> TensorId | None:
        """Return the source tensor behind a variable that only the frontend knows: it moves data within one source op.

        None where a float op within that source op made it.
        """
        while tensor not in self.model.tensors:
            if tensor not in self._layer_of:
                return None
            tensor = self._layer_of[tensor].inputs[0]
        return tensor

    # ------------------------------------------------------------------------------------------------------------- folding

    def _fold_padding(self, fold: Fold) -> None:
        pad = self._node(fold.gone)
        top, left, bottom, right = fold.padding
        for name in self._names(fold.gone):
            for conv in list(self.graph.readers(name)):
                if conv.op_type in PASS_THROUGH:
                    continue
                mode = attribute(conv, "auto_pad", b"NOTSET")
                if mode not in (b"NOTSET", b"VALID"):
                    raise QuantizationError(f"{conv.output[0]}: auto_pad {mode.decode()} behind a Pad cannot be written as ONNX")
                pads = attribute(conv, "pads", [0, 0, 0, 0]) if mode == b"NOTSET" else [0, 0, 0, 0]
                set_attribute(conv, "auto_pad", "NOTSET")
                set_attribute(conv, "pads", [pads[0] + top, pads[1] + left, pads[2] + bottom, pads[3] + right])
                self.graph.set_input(conv, 0, pad.input[0])

    def _fold_batch_norm(self, fold: Fold) -> None:
        assert fold.weight is not None, "a folded batch norm leaves a weight"
        assert fold.bias is not None, "a folded batch norm leaves a bias"
        norm = self._node(fold.tensor)
        gone = [norm]
        node = self._before(norm)
        while node.op_type not in _CONVOLUTIONS:
            gone.append(node)
            node = self._before(node)
        output = norm.output[0]
        for other in gone:
            self.graph.remove(other)
        self.graph.rename_output(node, node.output[0], output)
        weight, bias = self.model.params.get(fold.weight), self.model.params.get(fold.bias)
        # Convolutions that stay float keep float constants; the others get theirs as integers.
        if weight is not None:
            self.graph.set_input(node, 1, self.graph.add_constant(f"{fold.weight}_folded", weight))
        if bias is not None:
            self.graph.set_input(node, 2, self.graph.add_constant(f"{fold.bias}_folded", bias.reshape(-1)))

    # -------------------------------------------------------------------------------------------------------- equalization

    def _divide(self, done: set[TensorId]) -> None:
        """Give float ops the constants that equalization left them, and clips bounds that all channels are within."""
        factors, rotations = self.plan.equalization.factors, self.plan.equalization.rotations
        changed, folded = {*factors, *rotations}, {name for fold in self.plan.folds for name in (fold.weight, fold.bias)}
        restored = self._restore_for_recurrent()
        for layer in self.plan.layers:
            reads_restored = layer.weight is not None and self._origin(layer.inputs[0]) in restored
            is_known = layer.output in done or layer.op in CONSTANT_MOVERS or reads_restored
            if not is_known and not changed.isdisjoint((layer.output, *layer.inputs)):
                self._refuse(layer.output)
        inverses, unscaled = self._inverses(), unscaled_constants(self.model, changed)
        for name, value in self.model.params.items():
            if name in inverses:
                self._multiply(inverses[name], value)
                continue
            if value.dtype != np.float32 or name in folded or name in unscaled or not value.ndim:
                continue
            if name not in self.model.tensors:
                self._refuse(name)
            self._exchange(name, value)
        for tensor in {fold.tensor for fold in self.plan.folds if fold.op == "nn.group_norm"} & factors.keys():
            self._divide_steps(tensor, factors[tensor])
        for tensor in factors:
            node = self._node(tensor) if tensor in self.model.tensors else None
            if node is not None and node.op_type == "Clip":
                bound = None if len(node.input) < 3 else self.graph.constant(node.input[2])
                if bound is None:
                    self._refuse(tensor)
                else:
                    wide = np.asarray((bound / factors[tensor]).max(), np.float32)
                    self.graph.set_input(node, 2, self.graph.add_constant(f"{tensor}_max", wide))

    def _divide_steps(self, tensor: TensorId, factors: npt.NDArray[Any]) -> None:
        """Divide the result of a normalization in steps: the factor of its last product, and what is added behind that."""
        node, kind = self._node(tensor), "Add"
        while kind == "Add":
            kind = node.op_type
            places = [index for index, name in enumerate(node.input) if self.graph.constant(name) is not None]
            if kind not in ("Add", "Mul") or len(places) != 1:
                self._refuse(tensor)
            name, before = node.input[places[0]], self._before(node)
            values = self.graph.constant(name)
            assert values is not None, "it was looked for"
            self.graph.set_input(node, places[0], self.graph.add_constant(f"{name}_divided", values / factors))
            node = before

    def _name_equalized(self) -> dict[str, EqualizedTensor]:
        found: dict[str, EqualizedTensor] = {}
        for tensor in self.plan.equalization.rotations:
            for name in self._names(tensor) if tensor in self.model.tensors else ():
                self.graph.rename(name, self.graph.fresh(f"{name}{ROTATED}"))
        for tensor, factors in self.plan.equalization.factors.items():
            is_named = tensor in self.model.tensors and tensor not in self.plan.equalization.rotations
            for name in self._names(tensor) if is_named else ():
                new = self.graph.fresh(f"{name}{SUFFIX}")
                self.graph.rename(name, new)
                found[new] = EqualizedTensor(source_name=name, factors=factors)
        return found

    def _restore_for_recurrent(self) -> set[TensorId]:
        """Let recurrent ops, which keep their weights, read equalized tensors multiplied again; return which tensors that are."""
        restored: set[TensorId] = set()
        for tensor, factor in self.plan.equalization.factors.items():
            names = self._names(tensor) if tensor in self.model.tensors else []
            for node in [each for name in names for each in self.graph.readers(name) if each.op_type in _RECURRENT]:
                name = self.graph.fresh(f"{tensor}_restored")
                constant = self.graph.add_constant(f"{tensor}_factors", np.asarray(factor, np.float32))
                place = next(index for index, read in enumerate(node.input) if read in names)
                self.graph.add_after(
                    node.input[place], [helper.make_node("Mul", [node.input[place], constant], [name], name=name)]
                )
                self.graph.set_input(node, place, name)
                restored.add(tensor)
        return restored

    def _inverses(self) -> dict[TensorId, TensorId]:
        """Return the constants by which results of functions are multiplied, and these results."""
        view = DataflowView(self.model.module["main"])
        users = ((param, view.only_user(param)) for param in view.function.params)
        return {
            TensorId(param.name): TensorId(user.name)
            for param, user in users
            if user is not None
            and TensorId(param.name) not in self.model.tensors
            and TensorId(user.name) in self.plan.equalization.factors
            and call_to(view.definition(user), "multiply") is not None
        }

    def _multiply(self, tensor: TensorId, factors: npt.NDArray[Any]) -> None:
        """Multiply a tensor by factors where it is made."""
        if tensor not in self.model.tensors:
            self._refuse(tensor)
        name = self._first_name(tensor)
        made = self.graph.fresh(f"{name}_function")
        self.graph.rename_output(self._node(tensor), name, made)
        factor = self.graph.add_constant(f"{name}_inverse", factors)
        self.graph.add_after(made, [helper.make_node("Mul", [made, factor], [name])])

    def _exchange(self, constant: TensorId, value: npt.NDArray[Any]) -> None:
        """Let all nodes that read a constant read another value of it."""
        for name in self._names(constant):
            source = self.graph.constant(name)
            if source is None or any(np.array_equal(source.reshape(-1), each.reshape(-1)) for each in (value, value.T)):
                continue
            # A matrix may lie transposed in the module.
            layouts = (value, value.T) if source.ndim == 2 else (value,)
            fits = [each for each in layouts if is_scaled(source, each)]
            if self.plan.equalization.rotations and not fits and (source.ndim != 2 or source.shape[0] != source.shape[1]):
                fits = [each for each in layouts if each.shape == source.shape]
            # The module's constants may hold a Gemm's own factors, too.
            if not fits or any(
                attribute(node, each, 1.0) != 1.0 for node in self.graph.readers(name) for each in ("alpha", "beta")
            ):
                self._refuse(constant)
            new = self.graph.add_constant(f"{constant}_divided", fits[0].reshape(source.shape))
            for node in self.graph.readers(name):
                for index, read in enumerate(node.input):
                    if read == name:
                        self.graph.set_input(node, index, new)

    def _refuse(self, tensor: TensorId) -> None:
        raise QuantizationError(
            f"{tensor}: what equalization made of it cannot be written as ONNX; quantize with equalization and rotation 'none'"
        )

    # ------------------------------------------------------------------------------------------------------------- constants

    def _quantize_weights(self, layer: IntegerLayer, chain: list[Node]) -> None:
        assert layer.weight is not None, "checked by the caller"
        node = chain[-1]
        if layer.block or not layer.per_row:
            self.graph.set_input(node, 1, self._weight(layer.weight, self._is_transposed(layer, node)))
        if node.op_type == "Gemm":
            # The quantized constants hold the factors.
            set_attribute(node, "alpha", 1.0)
        if layer.bias is None:
            return
        bias = self._bias(layer.bias)
        added = next((other for other in chain[:-1] if other.op_type == "Add"), None)
        has_own = len(node.input) > 2 and node.input[2]
        if added is None or has_own:
            self.graph.set_input(node, 2, bias)
            if node.op_type == "Gemm":
                set_attribute(node, "beta", 1.0)
        elif node.op_type == "MatMul":
            constant = next(index for index, name in enumerate(added.input) if self.graph.constant(name) is not None)
            self.graph.set_input(added, constant, bias)
        else:
            # An Add behind a convolution without bias becomes its bias.
            output = added.output[0]
            self.graph.remove(added)
            self.graph.rename_output(node, node.output[0], output)
            self.graph.set_input(node, 2, bias)

    def _bias(self, name: TensorId) -> str:
        """Add a bias, in float32 where its layer adds it so."""
        params, values = self.plan.biases.get(name), self.plan.weight_values[name].reshape(-1)
        if params is None:
            return self.graph.add_constant(str(name), values)
        granularity = PerAxis(0) if params.scale.ndim else params.granularity
        return self._dequantize(str(name), values, replace(params, granularity=granularity))

    def _quantize_constants(self, layer: IntegerLayer, node: Node) -> None:
        for constant in layer.constants:
            names = self._names(constant)
            for index, name in enumerate(node.input):
                if name in names:
                    self.graph.set_input(node, index, self._weight(constant, False))

    def _is_transposed(self, layer: IntegerLayer, node: Node) -> bool:
        """Return whether the module holds a weight transposed; a matrix may be, a convolution's is OIHW in both."""
        weight = layer.weight
        assert weight is not None, "checked by the caller"
        values, params = self.plan.weight_values[weight], self.plan.weights[weight]
        source = self.graph.constant(node.input[1])
        if values.ndim != 2 or source is None:
            assert source is None or source.shape == values.shape, f"{weight}: shapes {source.shape} and {values.shape}"
            return source is None and bool(attribute(node, "transB", 0))
        real = dequantize(values, params)
        source = source * np.float32(attribute(node, "alpha", 1.0))
        rotations = self.plan.equalization.rotations
        if layer.inputs[0] in rotations or layer.output in rotations:
            if source.shape != source.T.shape:
                return values.shape != source.shape
            return self._is_rotated_of_transposed(layer, node, real, source)
        fits = [
            float(np.abs(candidate - real).max(initial=0.0)) if candidate.shape == real.shape else np.inf
            for candidate in (source, source.T)
        ]
        assert min(fits) < np.inf, f"{weight}: shapes {source.shape} and {values.shape}"
        return fits[1] < fits[0]

    def _is_rotated_of_transposed(
        self, layer: IntegerLayer, node: Node, real: npt.NDArray[np.float32], source: npt.NDArray[Any]
    ) -> bool:
        """Return whether a square matrix, rotated as a layer is, is nearer to another one transposed, but for factors of rows."""
        fits: list[float] = []
        for is_turned in (False, True):
            # Rows are what the product reads, in the layout of the node.
            turned = real.T if is_turned != bool(attribute(node, "transB", 0)) else real
            exact = source.T if attribute(node, "transB", 0) else source
            for tensor, axis in ((layer.inputs[0], 0), (layer.output, 1)):
                rotation = self.plan.equalization.rotations.get(tensor)
                turned = turned if rotation is None else rotate(turned, axis, rotation.size, rotation.starts)
            gains = (turned * exact).sum(axis=1) / np.maximum((exact * exact).sum(axis=1), 1e-30)
            fits.append(float(np.square(turned - gains[:, np.newaxis] * exact).sum()))
        return fits[1] < fits[0]

    def _matrix(self, layer: IntegerLayer, node: Node) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Return the integers of a dense layer's weight, [in, out], and their scales."""
        assert layer.weight is not None, "dense layers have one"
        values, params = self.plan.weight_values[layer.weight], self.plan.weights[layer.weight]
        is_turned = self._is_transposed(layer, node) != bool(attribute(node, "transB", 0))
        return (values.T if is_turned else values), params.scale

    def _weight(self, weight: TensorId, transposed: bool) -> str:
        if (weight, transposed) not in self._weights:
            values, params = self.plan.weight_values[weight], self.plan.weights[weight]
            if transposed:
                params, values = _transposed(params), values.T
            self._weights[weight, transposed] = self._dequantize(str(weight), values, params)
        return self._weights[weight, transposed]

    def _dequantize(self, name: str, values: npt.NDArray[Any], params: QuantParams) -> str:
        """Add integers and their DequantizeLinear; return the name of its result."""
        add = self.graph.add_int4 if _fits_int4(params) else self.graph.add_constant
        integers = add(f"{name}_quantized", values)
        inputs = [integers, self.graph.add_constant(f"{name}_scale", params.scale)]
        if params.dtype != "int32":
            inputs.append(add(f"{name}_zero_point", params.zero_point.astype(params.dtype)))
        output = self.graph.fresh(f"{name}_dequantized")
        granularity = params.granularity
        attrs: dict[str, Any] = {} if isinstance(granularity, PerTensor) else {"axis": granularity.axis}
        attrs |= {"block_size": granularity.size} if isinstance(granularity, PerBlock) else {}
        self.graph.add_first(helper.make_node("DequantizeLinear", inputs, [output], name=output, **attrs))
        return output

    # ----------------------------------------------------------------------------------------------------------- activations

    def _quantize_made(self, layer: IntegerLayer) -> None:
        """Put Q and DQ behind an integer op; the DQ takes over the name, so that every reader reads it.

        A result that is not quantized stays as it is; so does one that is left in float for some of its readers, while others
        quantize it. Of one that is moved within its node, the move's result is quantized.
        """
        if (
            layer.output not in self.plan.activations
            or layer.output not in self.model.tensors
            or layer.output in self._read_float
        ):
            return
        name = self._first_name(layer.output)
        before = self.graph.fresh(f"{name}_float")
        self.graph.rename_output(self._node(layer.output), name, before)
        self._add_pair(layer.output, before, name)
        self._dequantized[layer.output] = name

    def _read_dequantized(self, layer: IntegerLayer, start: Node) -> None:
        """Let an integer op read its inputs dequantized, adding Q and DQ to those that no integer op made."""
        for variable in layer.inputs:
            tensor = self._origin(variable)
            if tensor is None or (variable not in self.plan.activations and variable in self._layer_of):
                continue
            if tensor not in self._dequantized:
                name = self._first_name(tensor)
                output = self.graph.fresh(f"{name}_dequantized")
                self._add_pair(tensor, name, output)
                self._dequantized[tensor] = output
            names = self._names(tensor)
            for index, name in enumerate(start.input):
                if name in names:
                    self.graph.set_input(start, index, self._dequantized[tensor])

    def _add_pair(self, tensor: TensorId, source: str, output: str) -> None:
        params = self.plan.activations[tensor]
        scale = self.graph.add_constant(f"{tensor}_scale", params.scale)
        zero_point = self.graph.add_constant(f"{tensor}_zero_point", params.zero_point.astype(params.dtype))
        integers = self.graph.fresh(f"{tensor}_quantized")
        nodes = [
            helper.make_node("QuantizeLinear", [source, scale, zero_point], [integers], name=integers),
            helper.make_node("DequantizeLinear", [integers, scale, zero_point], [output], name=f"{output}_DequantizeLinear"),
        ]
        self.graph.add_after(source, nodes)
