"""Simplify: fold batch normalization and zero padding into convolutions, so that one integer kernel covers them.

Splits become slices, normalizations by layer or group in several ops the one op that they are.

Constants that the file keeps in integers only to save bytes (dynamic-range models) become float, to be quantized as any other,
and so do activations that such a .tflite file quantizes at run time.

Float in, float out: the model computes the same function, with fewer ops. The convolution's own result has another value than in
the source then, so its id is gone; the normalization's output keeps its id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import Expr, Var

from ...ir.graph import Model
from ...ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    attrs_of,
    call_to,
    operand_vars,
    replace_operands,
    static_shape,
    write_function,
)
from ...ir.graph.group_norm import read_group_norm
from ...ir.graph.layer_norm import plain_layer_norm
from ...ir.graph.split_to_slices import split_to_slices
from ...ir.identity import TensorId
from ...ir.qdq.dynamic import find_dynamic
from ...numerics.floats.batch_norm import fold_batch_norm
from ..names import Names
from ..plan import Fold
from ..weights.constants import Constant, Constants
from ..weights.convolution import CONVOLUTIONS, WEIGHTED, Bias, bias_operand, conv2d_attrs, view_equal, weighted, with_operands
from .fold_constants import folded_constants


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Edit:
    """`output` is written by `write` instead, the `skipped` variables not at all."""

    output: Var
    skipped: tuple[Var, ...]
    write: Callable[[BodyWriter, Callable[[Expr], Expr]], Var]


@dataclass(kw_only=True, slots=True)
class _Simplifier:
    model: Model
    view: DataflowView
    constants: Constants
    names: Names
    params: dict[TensorId, npt.NDArray[Any]]
    new_params: list[Var] = field(default_factory=list[Var])
    folds: list[Fold] = field(default_factory=list[Fold])
    _literals: dict[int, Var] = field(default_factory=dict[int, Var])

    def dequantized_constant(self, var: Var) -> _Edit | None:
        """Turn `var`, a constant that the file keeps in integers to save bytes, into a float constant of the same id."""
        call: Any = call_to(self.view.definition(var), "dequantize")
        if call is None or self.view.is_returned(var):
            return None
        constant = self.constants.find(call.args[0])
        if constant is None or constant.moves or not all(isinstance(arg, GenericConst) for arg in call.args[1:3]):
            return None
        scale, zero_point = (arg.value.numpy().reshape(-1) for arg in call.args[1:3])
        shape = [1] * len(constant.shape)
        if scale.size > 1:
            shape[int(call.attrs.axis)] = scale.size
        # One zero point, or one for each scale.
        start = np.broadcast_to(zero_point.astype(np.int64), scale.shape).reshape(shape)
        values = (self.constants.value(constant).astype(np.int64) - start).astype(np.float32) * scale.reshape(shape)
        root = constant.root
        name = root.name if len(self.view.users(root)) == 1 else self.names.fresh(root.name)
        param = relax.Var(name, relax.TensorType(list(values.shape), "float32"))
        self.params[TensorId(name)] = values.astype(np.float32)
        self.new_params.append(param)
        return _Edit(output=var, skipped=(), write=lambda writer, mapped: param)

    def real(self, var: Var) -> _Edit | None:
        """Read in place of `var`, activations that a dynamic-range file quantizes at run time, the real ones."""
        call: Any = call_to(self.view.definition(var), "dequantize")
        found = None if call is None else find_dynamic(self.view, *call.args[:3])
        if found is None or found.style != "litert" or self.view.is_returned(var):
            return None
        return _Edit(output=var, skipped=(), write=lambda writer, mapped: cast("Var", mapped(found.x)))

    def constant(self, var: Var, value: npt.NDArray[Any]) -> _Edit:
        """Turn `var` into a parameter that holds what it computes."""
        param = relax.Var(var.name, relax.TensorType(list(value.shape), str(value.dtype)))
        self.params[TensorId(param.name)] = value
        self.new_params.append(param)
        return _Edit(output=var, skipped=(), write=lambda writer, mapped: param)

    def literal(self, var: Var) -> _Edit | None:
        """Give `var`, a product by numbers that stand in the text or such a bias behind one, a parameter that holds them.

        One parameter for all who read the same numbers.
        """
        call: Any = call_to(self.view.definition(var), *WEIGHTED, "add")
        if call is None:
            return None
        is_bias = call_to(call, "add") is not None
        if is_bias and all(call_to(self.view.definition(arg), *WEIGHTED) is None for arg in call.args):
            return None
        place = next((place for place, arg in enumerate(call.args) if isinstance(arg, GenericConst)), None)
        shape = () if place is None else static_shape(call.args[place]) or ()
        if place is None or len(shape) < (1 if is_bias else 2) or not (is_bias or place == 1):
            return None
        literal = call.args[place]
        if hash(literal) not in self._literals:
            param = relax.Var(self.names.fresh(f"{var.name}_{'bias' if is_bias else 'weight'}"), literal.ty)
            self.params[TensorId(param.name)] = literal.value.numpy()
            self.new_params.append(param)
            self._literals[hash(literal)] = param
        operands = list(call.args)
        operands[place] = self._literals[hash(literal)]

        def write(writer: BodyWriter, mapped: Callable[[Expr], Expr]) -> Var:
            return writer.emit(var.name, with_operands(call, *map(mapped, operands)), is_output=self.view.is_returned(var))

        return _Edit(output=var, skipped=(), write=write)

    def batch_norm(self, var: Var) -> _Edit | None:
        """Fold `var`, the first result of a batch_norm after a convolution that nobody else reads."""
        item = self.view.definition(var)
        if not isinstance(item, relax.TupleGetItem) or item.index != 0:
            return None
        norm_var = self.view.binding_of(item.tuple_value)
        norm: Any = call_to(self.view.definition(item.tuple_value), "nn.batch_norm")
        if norm is None or norm_var is None or norm.attrs.training or self.view.only_user(norm_var) is None:
            return None
        found = self._convolution_before(norm_var, norm.args[0])
        if found is None or any(self.constants.find(arg) is None for arg in norm.args[1:]):
            return None
        conv_var, skipped, bias = found
        op = weighted(self.constants, self.view.definition(conv_var))
        if isinstance(op, str) or not op.has_channels or int(norm.attrs.axis) % 4 != op.output_axis:
            return None
        if not self._is_read_here_alone(op.weight):
            return None
        gamma, beta, mean, variance = (self._values(arg) for arg in norm.args[1:])
        weight, folded = fold_batch_norm(
            self.params[op.weight.name],
            None if bias is None else self.constants.value(bias.constant).reshape(-1),
            gamma if norm.attrs.scale else np.ones_like(gamma),
            beta if norm.attrs.center else np.zeros_like(beta),
            mean,
            variance,
            epsilon=float(norm.attrs.epsilon),
            axis=op.weight_axis,
        )
        self.params[op.weight.name] = weight
        bias_param = self._bias_param(bias, norm.args[2], folded, var)
        shape: list[Any] = [1] * 4
        shape[op.output_axis] = op.channels

        def write(writer: BodyWriter, mapped: Callable[[Expr], Expr]) -> Var:
            convolved = with_operands(op.call, mapped(op.call.args[0]), mapped(op.call.args[1]))
            conv = writer.emit(self.names.fresh(f"{var.name}_conv"), convolved)
            shaped = writer.emit(self.names.fresh(f"{var.name}_bias"), relax.op.reshape(bias_param, relax.ShapeExpr(shape)))
            return writer.emit(var.name, relax.op.add(conv, shaped), is_output=self.view.is_returned(var))

        gone = skipped[-1]
        self.folds.append(
            Fold(
                op="nn.batch_norm",
                tensor=TensorId(var.name),
                gone=TensorId(gone.name),
                weight=op.weight.name,
                bias=TensorId(bias_param.name),
            )
        )
        return _Edit(output=var, skipped=(*skipped, norm_var), write=write)

    def constant_value(self, expr: Expr) -> npt.NDArray[Any] | None:
        """Return the numbers of a constant or a literal."""
        found, literal = self.constants.find(expr), self.view.definition(expr)
        if found is not None:
            return self.constants.value(found)
        return literal.value.numpy() if isinstance(literal, GenericConst) else None

    def _values(self, expr: Expr) -> npt.NDArray[Any]:
        constant = self.constants.find(expr)
        assert constant is not None, "checked by the caller"
        return self.constants.value(constant).reshape(-1)

    def _convolution_before(self, norm_var: Var, data: Expr) -> tuple[Var, tuple[Var, ...], Bias | None] | None:
        """Return the convolution that feeds a batch_norm, the variables between that die, and the bias between them, if any."""
        first = self.view.binding_of(data)
        if first is None or not self._read_once(first):
            return None
        value = self.view.definition(first)
        if call_to(value, *CONVOLUTIONS) is not None:
            return first, (first,), None
        call = call_to(value, "add")
        for arg in () if call is None else call.args:
            conv_var = self.view.binding_of(arg)
            conv = None if conv_var is None else call_to(self.view.definition(conv_var), *CONVOLUTIONS)
            if conv is None or conv_var is None or not self._read_once(conv_var):
                continue
            op = weighted(self.constants, conv)
            bias = None if isinstance(op, str) else bias_operand(self.view, self.constants, value, conv_var, op)
            if bias is not None:
                return conv_var, (conv_var, first), bias
        return None

    def _read_once(self, var: Var) -> bool:
        return self.view.only_user(var) is not None

    def _is_read_here_alone(self, constant: Constant) -> bool:
        """Return whether a constant may get another value: nobody else reads it, nor is it a result of the model."""
        return all(self.view.only_user(var) is not None for var in (constant.root, *constant.moves))

    def _bias_param(self, bias: Bias | None, beta: Expr, value: npt.NDArray[Any], var: Var) -> Var:
        """Return a parameter of shape (C,) that holds the folded bias: the old bias or beta where nobody else reads it."""
        candidates = [None if bias is None else bias.constant, self.constants.find(beta)]
        for constant in candidates:
            if constant is not None and self._is_read_here_alone(constant) and static_shape(constant.root) == value.shape:
                self.params[constant.name] = value
                return constant.root
        root = relax.Var(self.names.fresh(f"{var.name}_bias"), relax.TensorType(list(value.shape), str(value.dtype)))
        self.params[TensorId(root.name)] = value
        self.new_params.append(root)
        return root

    def layer_norm(self, var: Var) -> _Edit | None:
        """Write `var`, the last step of a normalization in plain ops, as the one op that it is."""
        norm = plain_layer_norm(self.view, var, self.constant_value)
        ends = [] if norm is None else [self.constants.find(end) for end in (norm.gamma, norm.beta)]
        # The steps of other forms are placed one by one: each may stay float where its rounding costs too much.
        if norm is None or not norm.is_ratio or any(end is None or end.moves for end in ends):
            return None
        self.folds += [
            Fold(op="nn.layer_norm", tensor=TensorId(var.name), gone=TensorId(step.name)) for step in norm.members[:-1]
        ]

        def write(writer: BodyWriter, mapped: Callable[[Expr], Expr]) -> Var:
            operands = [mapped(operand) for operand in (norm.data, norm.gamma, norm.beta)]
            value = relax.op.nn.layer_norm(*operands, axes=[-1], epsilon=norm.epsilon)
            return writer.emit(var.name, value, is_output=self.view.is_returned(var))

        return _Edit(output=var, skipped=norm.members[:-1], write=write)

    def group_norm(self, var: Var) -> _Edit | None:
        """Write a normalization by groups, `var` its core, without the reshapes and factors around it."""
        norm = read_group_norm(self.view, var, self.constant_value)
        if norm is None or len(norm.members) == 1:
            return None
        output, params = norm.output, list[Var]()
        for role, values in (("gamma", norm.gamma), ("beta", norm.beta)):
            params.append(relax.Var(self.names.fresh(f"{output.name}_{role}"), relax.TensorType(list(values.shape), "float32")))
            self.params[TensorId(params[-1].name)] = values
        self.new_params += params
        self.folds += [
            Fold(op="nn.group_norm", tensor=TensorId(output.name), gone=TensorId(step.name)) for step in norm.members[:-1]
        ]
        axes = [axis for axis in range(1, len(static_shape(output) or ())) if axis != norm.channel_axis]

        def write(writer: BodyWriter, mapped: Callable[[Expr], Expr]) -> Var:
            gamma, beta = params
            data, axis = mapped(norm.data), norm.channel_axis
            value = relax.op.nn.group_norm(data, gamma, beta, norm.groups, axis, axes, norm.epsilon)
            return writer.emit(output.name, value, is_output=self.view.is_returned(output))

        return _Edit(output=output, skipped=norm.members[:-1], write=write)

    def padding(self, var: Var) -> list[_Edit]:
        """Fold `var`, a zero padding of rows and columns, into the convolutions that read it, if nothing else does."""
        pad: Any = call_to(self.view.definition(var), "nn.pad")
        if pad is None or str(pad.attrs.pad_mode) != "constant" or self.view.is_returned(var) or not _pads_with_zero(pad):
            return []
        data, users = pad.args[0], self.view.users(var)
        calls: list[Any] = [call_to(self.view.definition(user), "nn.conv2d") for user in users]
        extra = {self._extra_padding(call, var, [int(width) for width in pad.attrs.pad_width]) for call in calls}
        padding = extra.pop() if len(extra) == 1 else None
        if padding is None or not isinstance(data, Var):
            return []
        self.folds.append(Fold(op="nn.pad", tensor=TensorId(data.name), gone=TensorId(var.name), padding=padding))
        edits = [self._padded(user, call, data, padding) for user, call in zip(users, calls, strict=True)]
        return [replace(edits[0], skipped=(var,)), *edits[1:]]

    def _extra_padding(self, call: Any, var: Var, widths: list[int]) -> tuple[int, int, int, int] | None:
        """Return (top, left, bottom, right) if a convolution of `var` can take over its padding, else None."""
        if call is None or str(call.attrs.data_layout) not in ("NCHW", "NHWC") or len(widths) != 8 or min(widths) < 0:
            return None
        if not view_equal(self.view, call.args[0], var) or self.constants.find(call.args[1]) is None:
            return None
        axes = {name: 2 * axis for axis, name in enumerate(str(call.attrs.data_layout))}
        if any(widths[axes[name]] or widths[axes[name] + 1] for name in "NC"):
            return None
        return widths[axes["H"]], widths[axes["W"]], widths[axes["H"] + 1], widths[axes["W"] + 1]

    def _padded(self, var: Var, call: Any, data: Expr, padding: tuple[int, int, int, int]) -> _Edit:
        attrs = conv2d_attrs(call)
        attrs["padding"] = [old + new for old, new in zip(attrs["padding"], padding, strict=True)]

        def write(writer: BodyWriter, mapped: Callable[[Expr], Expr]) -> Var:
            value = relax.op.nn.conv2d(mapped(data), mapped(call.args[1]), **attrs)
            return writer.emit(var.name, value, is_output=self.view.is_returned(var))

        return _Edit(output=var, skipped=(), write=write)


def _pads_with_zero(pad: Any) -> bool:
    values = list(pad.args[1:])
    attr = getattr(pad.attrs, "pad_value", 0.0)
    literal = all(isinstance(value, GenericConst) and not value.value.numpy().any() for value in values)
    return literal and float(attr) == 0.0


def simplify(model: Model) -> tuple[Model, tuple[Fold, ...]]:
    """Return the model with batch normalization and zero padding folded into its convolutions, and what was folded.

    Before::

        c = R.nn.conv2d(x, w); n = R.nn.batch_norm(c, gamma, beta, mean, variance); y = n[0]

    After, with new values for w and beta::

        y_conv = R.nn.conv2d(x, w); y = R.add(y_conv, R.reshape(beta, (1, -1, 1, 1)))
    """
    model, _ = _pass(model, lambda work, var: [edit] if (edit := work.real(var)) is not None else [])
    model, _ = _pass(model, lambda work, var: [edit] if (edit := work.dequantized_constant(var)) is not None else [])
    values = folded_constants(model)
    model, _ = _pass(model, lambda work, var: [work.constant(var, values[var])] if var in values else [])
    model, _ = _pass(model, lambda work, var: [edit] if (edit := work.literal(var)) is not None else [])
    sliced = split_to_slices(model.module)
    model = model if sliced is model.module else replace(model, module=sliced)
    # Padding first: a batch norm behind a padded convolution then sees the convolution as it will stay.
    model, padding = _pass(model, lambda work, var: work.padding(var))
    model, norms = _pass(model, lambda work, var: [edit] if (edit := work.batch_norm(var)) is not None else [])
    model, plain = _pass(model, lambda work, var: [edit] if (edit := work.layer_norm(var)) is not None else [])
    model, groups = _pass(model, lambda work, var: [edit] if (edit := work.group_norm(var)) is not None else [])
    return model, (*padding, *norms, *plain, *groups)


def _pass(model: Model, find: Callable[[_Simplifier, Var], list[_Edit]]) -> tuple[Model, tuple[Fold, ...]]:
    view = DataflowView(model.module["main"])
    names = Names({str(name) for name in model.tensors} | {binding.var.name for binding in view.bindings})
    names.take(*(param.name for param in view.function.params))
    work = _Simplifier(model=model, view=view, constants=Constants(view, model.params), names=names, params=dict(model.params))
    edits = {edit.output: edit for binding in view.bindings for edit in find(work, binding.var)}
    if not edits:
        return model, ()
    skipped = {var for edit in edits.values() for var in edit.skipped}
    mapping: dict[Var, Expr] = {}

    def mapped(expr: Expr) -> Expr:
        return replace_operands(expr, lambda var: mapping.get(var, var))

    def body(writer: BodyWriter) -> Expr:
        for binding in view.bindings:
            if binding.var in edits:
                mapping[binding.var] = edits[binding.var].write(writer, mapped)
            elif binding.var not in skipped:
                mapping[binding.var] = writer.emit(
                    binding.var.name, mapped(binding.value), is_output=view.is_returned(binding.var)
                )
        return mapped(view.result)

    return with_main(model, body, [*view.function.params, *work.new_params], work.params), tuple(work.folds)


def with_main(
    model: Model, body: Callable[[BodyWriter], Expr], params: list[Var], values: dict[TensorId, npt.NDArray[Any]]
) -> Model:
    """Return the model with "main" written anew; constants that nothing reads any more are dropped."""
    inputs = params[: len(model.input_ids)]
    function = _emitted(model, body, params)
    view = DataflowView(function)
    read = {var for value in (*(binding.value for binding in view.bindings), view.result) for var in operand_vars(value)}
    kept = [*inputs, *(param for param in params[len(inputs) :] if param in read)]
    function = relax.Function(kept, function.body, function.ret_ty, function.is_pure, function.attrs)
    module = model.module.clone()
    module.update_func(module.get_global_var("main"), function)
    kept_names = {param.name for param in kept}
    return replace(model, module=module, params={name: value for name, value in values.items() if str(name) in kept_names})


def _emitted(model: Model, body: Callable[[BodyWriter], Expr], params: list[Var]) -> relax.Function:
    """Write "main" and drop the bindings that nothing reads."""
    scratch = relax.BlockBuilder()
    write_function(scratch, "main", params, body, attrs_of(model.module["main"]))
    module = model.module.clone()
    module.update_func(module.get_global_var("main"), scratch.get()["main"])
    return relax.transform.DeadCodeElimination(["main"])(module)["main"]
