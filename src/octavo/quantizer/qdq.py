"""Writing the QDQ form of a function from a placement and a plan of its parameters. Decides nothing.

Form of the result, for a tensor `t` that gets quantized::

    t = ...                                            # float, named by its TensorId
    t_q = R.quantize(t, scale, zero_point)             # uint8
    t_dq = R.dequantize(t_q, scale, zero_point)        # what integer ops read

Where an integer op makes `t`, every consumer reads t_dq, the graph's outputs too: a kernel leaves integers only, and the
simulation shows what the machine computes. Where a float op or an input of the graph makes it, float consumers go on reading
`t`, which is there. A weight is a parameter `w_q` of int8 and `w = R.dequantize(w_q, ...)`; a bias `b_q` of int32 likewise. Float
ops that share a weight with integer ones go on reading the parameter `w`, and integer ones `w_weight`. Zero points are int32
constants. A layer that quantizes `t` per row when run reads what `ir.qdq.runtime_inputs.write_rows` makes of it,
once for all such layers, and adds its bias in float32.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tvm import relax
from tvm.relax import Expr, Var

from ..ir.graph import Model
from ..ir.graph.constants import Constants
from ..ir.graph.dataflow import BodyWriter, DataflowView, call_to, operand_vars, replace_operands
from ..ir.graph.model import rewritten
from ..ir.graph.nodes import constant
from ..ir.graph.recurrence import with_rounded_state
from ..ir.graph.weighted import with_operands
from ..ir.identity import TensorId
from ..ir.identity.naming import NameSupply
from ..ir.qdq.blocks import write_blocks
from ..ir.qdq.rounding import with_rounding
from ..ir.qdq.runtime_inputs import write_rows
from ..numerics import PerAxis, PerBlock, QuantParams
from .placement import Layer, Placement
from .plan import QuantizationPlan

_ROWS = {-1: "rows", -2: "columns", None: "samples"}
"""What is quantized when run, by the axis along which it lies."""


def write_qdq(model: Model, view: DataflowView, placement: Placement, plan: QuantizationPlan) -> Model:
    """Return a float model in QDQ form, its constants integer where the plan says so; `view` is of its "main"."""
    return _Writer(model, view, placement, plan).write()


class _Writer:
    """Writes "main" of one model."""

    def __init__(self, model: Model, view: DataflowView, placement: Placement, plan: QuantizationPlan) -> None:
        self._model, self._view, self._placement, self._plan = model, view, placement, plan
        self._layer_of = {var: layer for layer in placement.layers for var in layer.members}
        self._gathering = {var for layer in placement.layers for var in layer.gathering}
        names = [entry.bias for entry in plan.layers if entry.bias is not None]
        self._names, self._values = NameSupply([*model.tensors, *view.names, *names]), dict(model.params)
        self._new_params = list[Var]()
        self._constants = Constants(view, model.params)
        self._emitted, self._dequantized = dict[Var, Expr](), dict[Var, Expr]()
        self._of_rows = dict[tuple[Var, int | None], Expr]()
        self._biases = dict[Var, tuple[TensorId, Var]]()
        """By the output of a layer the name of its bias, and the parameter that holds its integers."""

    def write(self) -> Model:
        """Return the model in QDQ form."""
        plan, params = self._plan, list(self._view.function.params)
        weight_params = list(map(self._integer_param, plan.weights))
        for layer, entry in zip(self._placement.layers, plan.layers, strict=True):
            if entry.bias is not None:
                self._biases[layer.output] = entry.bias, self._integer_param(entry.bias)

        def body(writer: BodyWriter) -> Expr:
            roots = {TensorId(param.name): param for param in params}
            for (name, quant), integers in zip(plan.weights.items(), weight_params, strict=True):
                weight_name = self._weight_name(roots[name])
                weight = self._dequantized_weight(writer, weight_name, integers, quant)
                self._dequantized[roots[name]] = writer.emit(weight_name, weight)
            for param in params:
                self._quantize(writer, param, param)
            for binding in self._view.bindings:
                self._binding(writer, binding.var, binding.value)
            return replace_operands(self._view.result, lambda var: self._returned(var, params))

        return rewritten(self._model, body, [*params, *self._new_params], self._values)

    def _integer_param(self, name: TensorId) -> Var:
        integers = self._plan.weight_values[name]
        param = relax.Var(self._names.fresh(f"{name}_q"), relax.TensorType(list(integers.shape), str(integers.dtype)))
        self._values[TensorId(param.name)] = integers
        self._new_params.append(param)
        return param

    def _binding(self, writer: BodyWriter, var: Var, value: Expr) -> None:
        layer = self._layer_of.get(var)
        if layer is None and (constant := self._constants.find(var)) is not None and constant.name in self._plan.weights:
            moved = replace_operands(value, self._read_by_integer)
            self._dequantized[var] = writer.emit(self._weight_name(var), moved)
            if var not in self._read_as_given:
                return
        if var in self._gathering:
            new = replace_operands(value, self._read_by_integer)
        elif layer is None:
            new = replace_operands(_inline_tuples(self._view, value), self._read_by_float)
        elif layer.output in self._biases and len(layer.members) > 1 and var.same_as(layer.members[1]):
            new = self._biased(writer, layer)
        elif var.same_as(layer.core) and layer.per_row and layer.op is None:
            operands: Any = value
            new = with_operands(value, *(self._rows(arg, writer, -2 if place else -1) for place, arg in enumerate(operands.args)))
        elif var.same_as(layer.core):
            plain = _inline_tuples(self._view, value)
            new = replace_operands(plain, lambda read: self._read_by(layer, read, writer))
            new = with_rounded_state(new) if layer.entry.is_recurrence else new
        else:
            members = layer.members
            new = replace_operands(value, lambda read: self._plain(read) if read in members else self._read_by_integer(read))
        is_output = self._view.is_returned(var) and var not in self._placement.made
        self._emitted[var] = writer.emit(var.name, new, is_output=is_output)
        self._quantize(writer, var, self._emitted[var])

    @cached_property
    def _read_as_given(self) -> set[Var]:
        """The weights of integer ops, moved or not, that float ops read, too, or that are results: they keep names and values."""
        read = [self._view.root_of(var) for var in operand_vars(self._view.result)]
        for var, value in ((binding.var, _inline_tuples(self._view, binding.value)) for binding in self._view.bindings):
            if not (
                var in self._layer_of
                or var in self._gathering
                or isinstance(value, relax.Tuple)
                or self._constants.is_constant(var)
            ):
                read += operand_vars(value)
        found = [constant for var in read if (constant := self._constants.find(var)) is not None]
        return {var for constant in found for var in (constant.root, *constant.moves)}

    def _weight_name(self, var: Var) -> str:
        """Return the name of a weight, moved or not, as integer ops read it."""
        return self._names.fresh(f"{var.name}_weight") if var in self._read_as_given else str(var.name)

    def _biased(self, writer: BodyWriter, layer: Layer) -> Expr:
        """Write a layer's bias, moved as in the source, and return its addition."""
        assert layer.bias is not None, "checked by the caller"
        name, integers = self._biases[layer.output]
        quant = self._plan.biases.get(name)
        bias: Expr = integers if quant is None else writer.emit(str(name), _dequantize(integers, quant))
        for move in layer.bias.constant.moves:
            moved = _with_operand(self._view.definition(move), bias)
            bias = writer.emit(self._names.fresh(f"{name}_shaped"), moved)
        return relax.op.add(self._emitted[layer.core], bias)

    def _quantize(self, writer: BodyWriter, var: Var, value: Expr) -> None:
        if var not in self._placement.quantized:
            return
        quant, rounding = self._plan.activations[TensorId(var.name)], self._plan.roundings[TensorId(var.name)]
        scale, zero_point = constant(quant.scale), constant(quant.zero_point)
        call = with_rounding(relax.op.quantize(value, scale, zero_point, out_dtype=quant.dtype), rounding)
        integers = writer.emit(self._names.fresh(f"{var.name}_q"), call)
        is_output = var in self._placement.made and self._view.is_returned(var)
        self._dequantized[var] = writer.emit(
            self._names.fresh(f"{var.name}_dq"), relax.op.dequantize(integers, scale, zero_point), is_output=is_output
        )

    def _dequantized_weight(self, writer: BodyWriter, name: str, integers: Var, quant: QuantParams) -> Expr:
        if isinstance(quant.granularity, PerBlock):
            return write_blocks(integers, quant, lambda value: writer.emit(self._names.fresh(f"{name}_blocks"), value))
        return _dequantize(integers, quant)

    def _read_by(self, layer: Layer, var: Var, writer: BodyWriter) -> Expr:
        """Return what a layer's own op reads, quantized per row where it is not yet."""
        root = self._view.root_of(var)
        if root in layer.per_row:
            return self._rows(var, writer, layer.entry.row_axis(root.name))
        if layer.entry.is_recurrence and self._constants.find(var) is None:
            return self._read_by_float(root)  # states are as float ops have them
        return self._read_by_float(root) if layer.block and root in layer.inputs else self._read_by_integer(var)

    def _rows(self, var: Var, writer: BodyWriter, axis: int | None) -> Expr:
        root = self._view.root_of(var)
        key = root, axis
        if key not in self._of_rows:
            name = f"{root.name}_{_ROWS[axis]}"
            real = self._read_by_float(root)
            self._of_rows[key] = write_rows(real, lambda value: writer.emit(self._names.fresh(name), value), axis)
        return self._of_rows[key]

    def _plain(self, var: Var) -> Expr:
        return self._emitted.get(var, var)

    def _returned(self, var: Var, params: list[Var]) -> Expr:
        root = self._view.root_of(var)
        return root if any(root.same_as(param) for param in params) else self._read_by_float(var)

    def _read_by_float(self, var: Var) -> Expr:
        root = self._view.root_of(var)
        return self._dequantized[root] if root in self._placement.made else self._plain(var)

    def _read_by_integer(self, var: Var) -> Expr:
        root = self._view.root_of(var)
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
