"""Writing the QDQ form of a function from a placement and its parameters. Decides nothing.

Form of the result, for a tensor `t` that gets quantized::

    t = ...                                            # float, named by its TensorId
    t_q = R.quantize(t, scale, zero_point)             # uint8
    t_dq = R.dequantize(t_q, scale, zero_point)        # what integer ops read

Where an integer op makes `t`, every consumer reads t_dq, the graph's outputs too: a kernel leaves integers only, and the
simulation shows what the machine computes. Where a float op or an input of the graph makes it, float consumers go on reading
`t`, which is there. A weight is a parameter `w_q` of int8 and `w = R.dequantize(w_q, ...)`; a bias `b_q` of int32 likewise. Zero
points are int32 constants. A layer that quantizes `t` per row when run reads what `ir.qdq.runtime_inputs.write_rows` makes of it,
once for all such layers, and adds its bias in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from ..errors import QuantizationError
from ..ir.graph import Model
from ..ir.graph.dataflow import BodyWriter, DataflowView, call_to, operand_vars, replace_operands
from ..ir.graph.model import rewritten
from ..ir.graph.moving import CONSTANT_MOVERS
from ..ir.graph.nodes import constant
from ..ir.graph.weighted import with_operands
from ..ir.identity import TensorId
from ..ir.identity.naming import NameSupply
from ..ir.qdq.blocks import write_blocks
from ..ir.qdq.rounding import with_rounding
from ..ir.qdq.runtime_inputs import write_rows
from ..numerics import PerAxis, PerBlock, QuantParams
from ..target.vocabulary import HALF_EVEN
from .parameters import Parameters
from .placement import Layer, Placement, PlanInputs
from .plan import IntegerLayer


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Emitted:
    """A model in QDQ form; `layers` with the names in it, parameters and integers of the biases by those names, and roundings."""

    model: Model
    layers: tuple[IntegerLayer, ...]
    biases: dict[TensorId, QuantParams]
    bias_values: dict[TensorId, npt.NDArray[Any]]
    roundings: dict[TensorId, str]


@dataclass(kw_only=True, slots=True)
class QdqWriter:
    """Writes "main" of one model in QDQ form.

    Parameters
    ----------
    planned_roundings
        Of tensors whose rounding is not the first that the target has.
    """

    inputs: PlanInputs
    placement: Placement
    parameters: Parameters
    planned_roundings: Mapping[TensorId, str] = field(default_factory=dict[TensorId, str])
    _names: NameSupply = field(init=False)
    _values: dict[TensorId, npt.NDArray[Any]] = field(init=False)
    _new_params: list[Var] = field(default_factory=list[Var])
    _emitted: dict[Var, Expr] = field(default_factory=dict[Var, Expr])
    _dequantized: dict[Var, Expr] = field(default_factory=dict[Var, Expr])
    _of_rows: dict[tuple[Var, bool], Expr] = field(default_factory=dict["tuple[Var, bool]", Expr])
    _layer_of: dict[Var, Layer] = field(default_factory=dict[Var, Layer])
    _bias_names: dict[Var, TensorId] = field(default_factory=dict[Var, TensorId])
    _bias_params: dict[Var, Var] = field(default_factory=dict[Var, Var])

    def __post_init__(self) -> None:
        """Collect the names in use."""
        self._names = NameSupply([*self.inputs.form.model.tensors, *self.inputs.view.names])
        self._values = dict(self.inputs.form.model.params)
        self._layer_of = {var: layer for layer in self.placement.layers for var in layer.members}

    def write(self) -> Emitted:
        """Return the model in QDQ form, its constants integer where the placement says so."""
        params = list(self.inputs.view.function.params)
        weight_params = [self._integer_param(name, self.parameters.weight_values[name]) for name in self.parameters.weights]
        for layer in self.placement.layers:
            if layer.output in self.parameters.bias_values:
                self._name_bias(layer)

        def body(writer: BodyWriter) -> Expr:
            roots = {TensorId(param.name): param for param in params}
            for (name, quant), integers in zip(self.parameters.weights.items(), weight_params, strict=True):
                root = roots[name]
                # A weight that is a result of the model, too, keeps its name and its values there.
                weight_name = self._names.fresh(f"{name}_weight") if self.inputs.view.is_returned(root) else str(name)
                self._emitted[root] = writer.emit(weight_name, self._dequantized_weight(writer, weight_name, integers, quant))
            for param in params:
                self._quantize(writer, param, param)
            for binding in self.inputs.view.bindings:
                self._binding(writer, binding.var, binding.value)
            return replace_operands(self.inputs.view.result, lambda var: self._returned(var, params))

        model = rewritten(self.inputs.form.model, body, [*params, *self._new_params], self._values)
        return Emitted(
            model=model,
            layers=tuple(
                replace(layer.entry, bias=self._bias_names.get(layer.output), source=self._source(layer.output))
                for layer in self.placement.layers
            ),
            biases={self._bias_names[var]: quant for var, quant in self.parameters.biases.items()},
            bias_values={self._bias_names[var]: value for var, value in self.parameters.bias_values.items()},
            roundings={TensorId(var.name): self._rounding_of(var) for var in self.parameters.activations},
        )

    def _source(self, var: Var | None) -> TensorId | None:
        while var is not None:
            if var.name in self.inputs.form.model.tensors:
                return TensorId(var.name)
            var = self.inputs.view.only_user(var)
            if var is not None and call_to(self.inputs.view.definition(var), *CONSTANT_MOVERS) is None:
                return None
        return None

    def _integer_param(self, name: TensorId, integers: npt.NDArray[Any]) -> Var:
        param = relax.Var(self._names.fresh(f"{name}_q"), relax.TensorType(list(integers.shape), str(integers.dtype)))
        self._values[TensorId(param.name)] = integers
        self._new_params.append(param)
        return param

    def _binding(self, writer: BodyWriter, var: Var, value: Expr) -> None:
        layer = self._layer_of.get(var)
        if layer is None:
            new = replace_operands(_inline_tuples(self.inputs.view, value), self._read_by_float)
        elif layer.output in self._bias_names and len(layer.members) > 1 and var.same_as(layer.members[1]):
            new = self._biased(writer, layer)
        elif var.same_as(layer.core) and layer.per_row and layer.op is None:
            operands: Any = value
            new = with_operands(value, *(self._rows(arg, writer, by_column=place > 0) for place, arg in enumerate(operands.args)))
        elif var.same_as(layer.core):
            plain = _inline_tuples(self.inputs.view, value)
            new = replace_operands(plain, lambda read: self._read_by(layer, read, writer))
        else:
            members = layer.members
            new = replace_operands(value, lambda read: self._plain(read) if read in members else self._read_by_integer(read))
        is_output = self.inputs.view.is_returned(var) and var not in self.placement.made
        self._emitted[var] = writer.emit(var.name, new, is_output=is_output)
        self._quantize(writer, var, self._emitted[var])

    def _name_bias(self, layer: Layer) -> None:
        """Give a layer a bias of its own: under the source's name, or a new one where others read the constant too."""
        assert layer.bias is not None, "checked by the caller"
        root = layer.bias.constant.root
        is_only = all(self.inputs.view.only_user(var) is not None for var in (root, *layer.bias.constant.moves))
        name = TensorId(root.name if is_only else self._names.fresh(root.name))
        self._bias_names[layer.output] = name
        self._bias_params[layer.output] = self._integer_param(name, self.parameters.bias_values[layer.output])

    def _biased(self, writer: BodyWriter, layer: Layer) -> Expr:
        """Write a layer's bias, moved as in the source, and return its addition."""
        assert layer.bias is not None, "checked by the caller"
        name = self._bias_names[layer.output]
        integers = self._bias_params[layer.output]
        quant = self.parameters.biases.get(layer.output)
        bias: Expr = integers if quant is None else writer.emit(str(name), _dequantize(integers, quant))
        for move in layer.bias.constant.moves:
            moved = _with_operand(self.inputs.view.definition(move), bias)
            bias = writer.emit(self._names.fresh(f"{name}_shaped"), moved)
        return relax.op.add(self._emitted[layer.core], bias)

    def _quantize(self, writer: BodyWriter, var: Var, value: Expr) -> None:
        if var not in self.placement.quantized:
            return
        quant = self.parameters.activations[var]
        scale, zero_point = constant(quant.scale), constant(quant.zero_point)
        call = with_rounding(relax.op.quantize(value, scale, zero_point, out_dtype=quant.dtype), self._rounding_of(var))
        integers = writer.emit(self._names.fresh(f"{var.name}_q"), call)
        is_output = var in self.placement.made and self.inputs.view.is_returned(var)
        self._dequantized[var] = writer.emit(
            self._names.fresh(f"{var.name}_dq"), relax.op.dequantize(integers, scale, zero_point), is_output=is_output
        )

    def _dequantized_weight(self, writer: BodyWriter, name: str, integers: Var, quant: QuantParams) -> Expr:
        if isinstance(quant.granularity, PerBlock):
            return write_blocks(integers, quant, lambda value: writer.emit(self._names.fresh(f"{name}_blocks"), value))
        return _dequantize(integers, quant)

    def _read_by(self, layer: Layer, var: Var, writer: BodyWriter) -> Expr:
        """Return what a layer's own op reads, quantized per row where it is not yet."""
        root = self.inputs.view.root_of(var)
        if root in layer.per_row:
            return self._rows(var, writer)
        return self._read_by_float(root) if layer.block and root in layer.inputs else self._read_by_integer(var)

    def _rows(self, var: Var, writer: BodyWriter, *, by_column: bool = False) -> Expr:
        root = self.inputs.view.root_of(var)
        key = root, by_column
        if key not in self._of_rows:
            name = f"{root.name}_{'columns' if by_column else 'rows'}"
            self._of_rows[key] = write_rows(
                self._read_by_float(root), lambda value: writer.emit(self._names.fresh(name), value), by_column=by_column
            )
        return self._of_rows[key]

    def _rounding_of(self, var: Var) -> str:
        """Return the first rounding that the target has for the op that makes a tensor, or for a change from float."""
        layer = self._layer_of.get(var)
        support = self.inputs.target.support("quantize") if layer is None or layer.leaves_float else layer.support
        allowed = (HALF_EVEN,) if support is None else support.roundings
        requested = self.planned_roundings.get(TensorId(var.name), allowed[0])
        if requested not in allowed:
            op = "a change from float" if support is None else support.op
            rounds = f"target {self.inputs.target.name} rounds results of {op} {' or '.join(allowed)}"
            raise QuantizationError(f"the plan: {var.name}: rounding {requested!r}: {rounds}")
        return requested

    def _plain(self, var: Var) -> Expr:
        return self._emitted.get(var, var)

    def _returned(self, var: Var, params: list[Var]) -> Expr:
        root = self.inputs.view.root_of(var)
        return root if any(root.same_as(param) for param in params) else self._read_by_float(var)

    def _read_by_float(self, var: Var) -> Expr:
        root = self.inputs.view.root_of(var)
        return self._dequantized[root] if root in self.placement.made else self._plain(var)

    def _read_by_integer(self, var: Var) -> Expr:
        root = self.inputs.view.root_of(var)
        return self._dequantized.get(root, self._plain(var))


def _inline_tuples(view: DataflowView, value: Expr) -> Expr:
    """Return a call with the tuples it reads by name written out, so that their fields can be replaced for this reader."""
    return replace_operands(value, lambda var: view.definition(var) if isinstance(view.definition(var), relax.Tuple) else var)


def _with_operand(value: Any, operand: Expr) -> Expr:
    first = operand_vars(value)[0]
    return replace_operands(value, lambda var: operand if var.same_as(first) else var)


def _dequantize(integers: Var, quant: QuantParams) -> Expr:
    axis = quant.granularity.axis if isinstance(quant.granularity, PerAxis) else -1
    return relax.op.dequantize(integers, constant(quant.scale), constant(quant.zero_point), axis=axis)


def is_quantized(model: Model) -> bool:
    """Return whether a model has quantize or dequantize ops."""
    view = DataflowView(model.module["main"])
    return any(call_to(binding.value, "quantize", "dequantize") is not None for binding in view.bindings)
