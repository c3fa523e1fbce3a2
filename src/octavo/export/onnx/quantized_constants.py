"""Integer constants in an ONNX graph, each behind a DequantizeLinear: weights, biases and other constant operands.

Which integers, the plan says; what is looked for here is whether the node holds its matrix transposed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from ...ir.graph.dataflow import DataflowView, call_to, static_shape
from ...ir.graph.weighted import read_gathered, swapped_matrices
from ...ir.identity import TensorId
from ...numerics import INTEGER_RANGE, PerAxis, PerBlock, PerTensor, QuantParams, dequantize
from ...numerics.rotation import rotate
from ...quantizer.plan import IntegerLayer
from .onnx_graph import Node, attribute, set_attribute
from .products import NewNodes
from .source_nodes import SourceNodes


def fits_int4(params: QuantParams) -> bool:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedConstants:
    """Writes them into one graph; a weight that several read is written once, with a DequantizeLinear for each.

    Runtimes take a DequantizeLinear into the one op that reads it.
    """

    nodes: SourceNodes
    _weights: dict[tuple[TensorId, bool], Node] = field(default_factory=dict["tuple[TensorId, bool]", Node])

    def quantize_weights(self, layer: IntegerLayer, chain: list[Node], *, bias_alone: bool = False) -> None:
        """Let a layer's nodes, its last first, read its weight and its bias as integers, dequantized; or its bias alone."""
        assert layer.weight is not None, "checked by the caller"
        node = chain[-1]
        if layer.is_stacked:
            self.nodes.graph.set_input(node, 1, self._stack(layer))
        elif not bias_alone:
            self.nodes.graph.set_input(node, 1, self._weight(layer.weight, self._is_transposed(layer, node)))
        if node.op_type == "Gemm":
            # The quantized constants hold the factors.
            set_attribute(node, "alpha", 1.0)
        if layer.bias is None:
            return
        bias = self._bias(layer.bias)
        added = next((other for other in chain[:-1] if other.op_type == "Add"), None)
        has_own = len(node.input) > 2 and node.input[2]
        if added is None or has_own:
            self.nodes.graph.set_input(node, 2, bias)
            if node.op_type == "Gemm":
                set_attribute(node, "beta", 1.0)
        elif node.op_type == "MatMul":
            constant = next(index for index, name in enumerate(added.input) if self.nodes.graph.constant(name) is not None)
            self.nodes.graph.set_input(added, constant, bias)
        else:
            # An Add behind a convolution without bias becomes its bias.
            output = added.output[0]
            self.nodes.graph.remove(added)
            self.nodes.graph.rename_output(node, node.output[0], output)
            self.nodes.graph.set_input(node, 2, bias)

    def _stack(self, layer: IntegerLayer) -> str:
        """Add weights of several matrices, a row for each output of each, and what makes matrices of the rows."""
        experts, rank = self._experts(layer)
        nodes = NewNodes(self.nodes.graph, f"{layer.weight}_experts")
        turned = nodes.add("Transpose", experts, perm=swapped_matrices(rank))
        self.nodes.graph.add_after(experts, nodes.made)
        return turned

    def _experts(self, layer: IntegerLayer) -> tuple[str, int]:
        """Add weights of several matrices as [several, out, in]; return their name and rank."""
        assert layer.weight is not None, "checked by the caller"
        view = DataflowView(self.nodes.model.module["main"])
        product: Any = view.definition(view.variables[str(layer.output)])
        while call_to(product, "matmul") is None:
            product = view.definition(product.args[0])
        found = read_gathered(view, product.args[1])
        shape = static_shape(product.args[1] if found is None else found.weights)
        assert shape is not None, "weights have one"
        size = [*shape[:-2], *shape[:-3:-1]] if found is None else shape
        nodes, rows = NewNodes(self.nodes.graph, f"{layer.weight}_experts"), self._weight(layer.weight, transposed=False)
        experts = nodes.add("Reshape", rows, self.nodes.graph.add_constant(f"{layer.weight}_experts_shape", np.array(size)))
        self.nodes.graph.add_after(rows, nodes.made)
        return experts, len(size)

    def gather_weights(self, layer: IntegerLayer, product: Node) -> None:
        """Let a MatMul gather its weights of several matrices of integers, dequantized, as its node did of real ones.

        They stand on the right then: of one that has them on the left, both operands and the result are transposed.
        """
        graph = self.nodes.graph
        operand = next(fold.gone for fold in self.nodes.plan.folds if fold.op == "take" and fold.tensor == layer.source)
        place = 0 if product.input[0] in self.nodes.names(operand) else 1
        gather = graph.producer(product.input[place])
        while gather is not None and gather.op_type not in ("Gather", "GatherND"):
            gather = graph.producer(gather.input[0])
        assert gather is not None, f"{operand} is gathered"
        experts, _ = self._experts(layer)
        nodes, rank = NewNodes(graph, f"{operand}_gathered"), len(self.nodes.model.tensors[operand].shape)
        attrs = {each.name: helper.get_attribute_value(each) for each in gather.attribute}
        rows = nodes.add(gather.op_type, experts, gather.input[1], **attrs)
        weights = nodes.add("Transpose", rows, perm=swapped_matrices(rank))
        graph.add_after(product.input[place], nodes.made)
        x, output = product.input[1 - place], product.output[0]
        moved = NewNodes(graph, f"{x}_repeated")
        laid = self._repeated(moved, x, self.nodes.model.tensors[operand].shape[:-2])
        if place == 0:
            made = graph.fresh(f"{output}_rows")
            laid = moved.add("Transpose", laid, perm=swapped_matrices(rank))
            graph.rename_output(product, output, made)
            back = helper.make_node("Transpose", [made], [output], name=output, perm=swapped_matrices(rank))
            graph.add_after(made, [back])
        graph.add_after(x, moved.made)
        graph.set_input(product, 0, laid)
        graph.set_input(product, 1, weights)

    def _repeated(self, nodes: NewNodes, x: str, batch: tuple[Any, ...]) -> str:
        """Return an operand of a product as often as it is broadcast to a batch."""
        real = x
        while (maker := self.nodes.graph.producer(real)) is not None and maker.op_type in ("QuantizeLinear", "DequantizeLinear"):
            real = maker.input[0]
        found = self.nodes.model.tensors.find(real)
        shape = () if found is None else self.nodes.model.tensors[found].shape
        missing = len(batch) + 2 - len(shape)
        if found is None or not shape:
            return x
        if missing:
            x = nodes.add("Unsqueeze", x, self.nodes.graph.add_constant(f"{x}_axes", np.arange(missing)))
        padded = (*(1,) * missing, *shape)
        counts = [1 if size == count else count for size, count in zip(padded, (*batch, *padded[-2:]), strict=True)]
        return x if set(counts) == {1} else nodes.add("Tile", x, self.nodes.graph.add_constant(f"{x}_counts", np.array(counts)))

    def read_weight(self, layer: IntegerLayer, product: Node) -> None:
        """Let a MatMul that was written for a layer, as the module has it, read its weight."""
        assert layer.weight is not None, "the caller asks for layers that have one"
        self.nodes.graph.set_input(product, 1, self._weight(layer.weight, transposed=False))

    def _bias(self, name: TensorId) -> str:
        """Add a bias, in float32 where its layer adds it so."""
        params, values = self.nodes.plan.biases.get(name), self.nodes.plan.weight_values[name].reshape(-1)
        if params is None:
            return self.nodes.graph.add_constant(str(name), values)
        granularity = PerAxis(0) if params.scale.ndim else params.granularity
        return self._dequantize(str(name), values, replace(params, granularity=granularity))

    def quantize_constants(self, layer: IntegerLayer, node: Node) -> None:
        """Let the op's node read its other constants so."""
        for constant in layer.constants:
            names = self.nodes.names(constant)
            for index, name in enumerate(node.input):
                if name in names:
                    self.nodes.graph.set_input(node, index, self._weight(constant, False))

    def _is_transposed(self, layer: IntegerLayer, node: Node) -> bool:
        """Return whether the module holds a weight transposed; a matrix may be, a convolution's is OIHW in both."""
        weight = layer.weight
        assert weight is not None, "checked by the caller"
        values, params = self.nodes.plan.weight_values[weight], self.nodes.plan.weights[weight]
        source = self.nodes.graph.constant(node.input[1])
        source = source if source is None or values.ndim != 2 else source.reshape(source.shape[-2:])  # a stack of one
        if values.ndim != 2 or source is None:
            assert source is None or source.shape == values.shape, f"{weight}: shapes {source.shape} and {values.shape}"
            return source is None and bool(attribute(node, "transB", 0))
        real = dequantize(values, params)
        source = source * np.float32(attribute(node, "alpha", 1.0))
        rotations = self.nodes.plan.equalization.rotations
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
                rotation = self.nodes.plan.equalization.rotations.get(tensor)
                turned = turned if rotation is None else rotate(turned, axis, rotation.size, rotation.starts)
            gains = (turned * exact).sum(axis=1) / np.maximum((exact * exact).sum(axis=1), 1e-30)
            fits.append(float(np.square(turned - gains[:, np.newaxis] * exact).sum()))
        return fits[1] < fits[0]

    def matrix(self, layer: IntegerLayer, node: Node) -> tuple[npt.NDArray[Any], QuantParams]:
        """Return the integers of a dense layer's weight, [in, out], and their parameters."""
        assert layer.weight is not None, "dense layers have one"
        values, params = self.nodes.plan.weight_values[layer.weight], self.nodes.plan.weights[layer.weight]
        is_turned = self._is_transposed(layer, node) != bool(attribute(node, "transB", 0))
        return (values.T, _transposed(params)) if is_turned else (values, params)

    def _weight(self, weight: TensorId, transposed: bool) -> str:
        if (weight, transposed) in self._weights:
            again = type(self._weights[weight, transposed])()
            again.CopyFrom(self._weights[weight, transposed])
            again.name = again.output[0] = self.nodes.graph.fresh(f"{weight}_dequantized")
            self.nodes.graph.add_first(again)
            return again.output[0]
        values, params = self.nodes.plan.weight_values[weight], self.nodes.plan.weights[weight]
        if transposed:
            params, values = _transposed(params), values.T
        name = self._dequantize(str(weight), values, params)
        self._weights[weight, transposed] = self.nodes.graph.producer(name)
        return name

    def _dequantize(self, name: str, values: npt.NDArray[Any], params: QuantParams) -> str:
        """Add integers and their DequantizeLinear; return the name of its result."""
        add = self.nodes.graph.add_int4 if fits_int4(params) else self.nodes.graph.add_constant
        integers = add(f"{name}_quantized", values)
        inputs = [integers, self.nodes.graph.add_constant(f"{name}_scale", params.scale)]
        if params.dtype != "int32":
            inputs.append(add(f"{name}_zero_point", params.zero_point.astype(params.dtype)))
        output = self.nodes.graph.fresh(f"{name}_dequantized")
        granularity = params.granularity
        attrs: dict[str, Any] = {} if isinstance(granularity, PerTensor) else {"axis": granularity.axis}
        attrs |= {"block_size": granularity.size} if isinstance(granularity, PerBlock) else {}
        self.nodes.graph.add_first(helper.make_node("DequantizeLinear", inputs, [output], name=output, **attrs))
        return output

    # ----------------------------------------------------------------------------------------------------------- activations
