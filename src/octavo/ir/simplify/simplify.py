"""Simplify: fold batch normalization and zero padding into convolutions, so that one integer kernel covers them.

Splits become slices, normalizations by layer or group in several ops the one op that they are.

Constants that the file keeps in integers only to save bytes (dynamic-range models) become float, to be quantized as any other,
and so do activations that such a .tflite file quantizes at run time.

Float in, float out: the model computes the same function, with fewer ops. The convolution's own result has another value than in
the source then, so its id is gone; the normalization's output keeps its id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import Expr, Var

from ...numerics.floats.batch_norm import fold_batch_norm
from ...runtime.size import is_open
from ..graph import Model
from ..graph.constants import Constant, Constants
from ..graph.dataflow import BodyWriter, DataflowView, call_to, replace_operands, static_shape
from ..graph.group_norm import read_group_norm
from ..graph.layer_norm import plain_layer_norm
from ..graph.model import rewritten
from ..graph.recurrence import NAME as RECURRENCE
from ..graph.recurrence import read_recurrence, recurrence
from ..graph.sizes import sizes_of
from ..graph.split_to_slices import split_to_slices
from ..graph.weighted import (
    CONVOLUTIONS,
    WEIGHTED,
    Bias,
    bias_operand,
    conv2d_attrs,
    stack_of,
    swapped_matrices,
    view_equal,
    weighted,
    with_operands,
)
from ..identity import TensorEntry, TensorId
from ..identity.naming import NameSupply
from ..qdq.dynamic import find_dynamic
from .fold import Fold
from .fold_constants import folded_constants
from .gathered_weights import GatheredWeights, gathered_weights
from .sink_squeeze import with_images

Mapped = Callable[[Expr], Expr]
"""Returns an expression of the old function as the new one has it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Edit:
    """`output` becomes what `value` returns, the `skipped` variables are not written at all."""

    output: Var
    value: Callable[[BodyWriter, Mapped], Expr]
    skipped: tuple[Var, ...] = ()


@dataclass(kw_only=True, slots=True)
class _Simplifier:
    model: Model
    view: DataflowView
    constants: Constants
    names: NameSupply
    params: dict[TensorId, npt.NDArray[Any]]
    new_params: list[Var] = field(default_factory=list[Var])
    folds: list[Fold] = field(default_factory=list[Fold])
    _literals: dict[int, Var] = field(default_factory=dict[int, Var])
    _folded: dict[Var, npt.NDArray[Any]] | None = None

    def _param(self, name: str, value: npt.NDArray[Any]) -> Var:
        """Return a new parameter that holds a value."""
        param = relax.Var(name, relax.TensorType(list(value.shape), str(value.dtype)))
        self.params[TensorId(name)] = value
        self.new_params.append(param)
        return param

    def _known(self, var: Var, name: str, value: npt.NDArray[Any]) -> _Edit:
        """Read in place of `var` a parameter of a name."""
        param = self._param(name, value)
        return _Edit(output=var, value=lambda writer, mapped: param)

    def _folds_of(self, op: str, output: Var, steps: Sequence[Var]) -> None:
        self.folds += [Fold(op=op, tensor=TensorId(output.name), gone=TensorId(step.name)) for step in steps]

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
        return self._known(var, name, values.astype(np.float32))

    def real(self, var: Var) -> _Edit | None:
        """Read in place of `var`, activations that a dynamic-range file quantizes at run time, the real ones."""
        call: Any = call_to(self.view.definition(var), "dequantize")
        found = None if call is None else find_dynamic(self.view, *call.args[:3])
        if found is None or found.style != "litert" or self.view.is_returned(var):
            return None
        return _Edit(output=var, value=lambda writer, mapped: mapped(found.x))

    def constant(self, var: Var) -> _Edit | None:
        """Turn `var`, what is computed of constants alone, into a parameter that holds it."""
        if self._folded is None:
            self._folded = folded_constants(self.model)
        return self._known(var, var.name, self._folded[var]) if var in self._folded else None

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
        operands = list(call.args)
        operands[place] = self._param_of(call.args[place], f"{var.name}_{'bias' if is_bias else 'weight'}")
        return _Edit(output=var, value=lambda writer, mapped: with_operands(call, *map(mapped, operands)))

    def _param_of(self, literal: Any, name: str) -> Var:
        """Return the parameter of numbers that stand in the text."""
        if hash(literal) not in self._literals:
            self._literals[hash(literal)] = self._param(self.names.fresh(name), literal.value.numpy())
        return self._literals[hash(literal)]

    def recurrent_weights(self, var: Var) -> _Edit | None:
        """Give `var`, a recurrence over steps by weights that stand in the text, a parameter that holds them."""
        call: Any = call_to(self.view.definition(var), RECURRENCE)
        if call is None:
            return None
        what, operands = read_recurrence(call)
        if not isinstance(operands["weights"], GenericConst):
            return None
        operands["weights"] = self._param_of(operands["weights"], f"{var.name}_weight")

        def value(writer: BodyWriter, mapped: Mapped) -> Expr:
            del writer
            x, weights, *others = (mapped(each) for each in operands.values())
            return recurrence(x, weights, dict(zip(what.operands, others, strict=True)), what)

        return _Edit(output=var, value=value)

    def stacked(self, var: Var) -> _Edit | None:
        """Read in `var`, a product of a batch of matrices by constant ones, these as rows of one parameter: [experts * out, in].

        So each expert's output is a channel of it. A stack of one is a plain matrix.
        """
        call: Any = call_to(self.view.definition(var), "matmul")
        constant = None if call is None else self.constants.find(call.args[1])
        x = None if call is None or self.constants.is_constant(call.args[0]) else static_shape(call.args[0])
        if call is None or constant is None or x is None or len(constant.shape) < 3:
            return None
        *batch, inputs, outputs = constant.shape
        count, is_single = math.prod(batch), math.prod(batch) == 1 and len(x) >= len(constant.shape)
        if not is_single and stack_of(x, constant.shape) is None:
            return None
        values, shape = self.constants.value(constant), (inputs, outputs) if is_single else (count * outputs, inputs)
        values = (values if is_single else np.swapaxes(values, -1, -2)).reshape(shape)
        is_alone = self._is_read_here_alone(constant)
        param = self._param(constant.name if is_alone else self.names.fresh(constant.name), np.ascontiguousarray(values))

        def value(writer: BodyWriter, mapped: Mapped) -> Expr:
            if is_single:
                return with_operands(call, mapped(call.args[0]), param)
            rows = relax.op.reshape(param, relax.ShapeExpr(list[Any]((*batch, outputs, inputs))))
            experts = writer.emit(self.names.fresh(f"{param.name}_experts"), rows)
            turned = relax.op.permute_dims(experts, swapped_matrices(len(constant.shape)))
            return with_operands(call, mapped(call.args[0]), writer.emit(self.names.fresh(f"{param.name}_turned"), turned))

        return _Edit(output=var, value=value)

    def gathered(self, var: Var) -> list[_Edit]:
        """Read in `var`, a product by weights that are gathered when run, rows of one parameter: [experts * out, in].

        They stand on the right, gathered and then transposed; a product that has them on the left is that of both transposed.
        What it is multiplied by meets all that are gathered, repeated where it was broadcast.
        """
        call: Any = call_to(self.view.definition(var), "matmul")
        if call is None:
            return []
        for place in (1, 0):
            found = gathered_weights(self.view, self.constants, call.args[place], var)
            shape = None if found is None else _met(static_shape(call.args[1 - place]), static_shape(found.operand))
            if found is not None and shape is not None and not self.constants.is_constant(call.args[1 - place]):
                self.folds.append(Fold(op="take", tensor=TensorId(var.name), gone=TensorId(found.operand.name)))
                return self._gathered(var, call, found, shape, is_left=place == 0)
        return []

    def _gathered(self, var: Var, call: Any, found: GatheredWeights, shape: tuple[Any, ...], *, is_left: bool) -> list[_Edit]:
        values, other = found.rows(self.constants, is_left=is_left), call.args[1 if is_left else 0]
        name = found.constant.name
        name = name if self._is_read_here_alone(found.constant) else self.names.fresh(name)
        param = self._param(name, np.ascontiguousarray(values.reshape(-1, values.shape[-1])))
        axes = swapped_matrices(len(shape))

        def turned(writer: BodyWriter, expr: Expr, stem: str) -> Expr:
            return writer.emit(self.names.fresh(f"{stem}_turned"), relax.op.permute_dims(expr, axes))

        def weights(writer: BodyWriter, mapped: Mapped) -> Expr:
            experts = relax.op.reshape(param, relax.ShapeExpr(list[Any](values.shape)))
            experts = writer.emit(self.names.fresh(f"{name}_experts"), experts)
            indices = mapped(found.indices)
            if static_shape(found.indices) != shape[:-2]:
                laid = relax.op.reshape(indices, relax.ShapeExpr(list(found.operand.ty.shape.values)[:-2]))
                indices = writer.emit(self.names.fresh(f"{found.operand.name}_indices"), laid)
            rows = relax.op.take(experts, indices, axis=0, mode="clip")
            if is_left:
                return rows
            return relax.op.permute_dims(writer.emit(self.names.fresh(f"{found.operand.name}_rows"), rows), axes)

        def product(writer: BodyWriter, mapped: Mapped) -> Expr:
            x, operand = mapped(other), mapped(found.operand)
            x = self._repeated(writer, x, static_shape(other) or (), shape, var.name)
            if not is_left:
                return with_operands(call, x, operand)
            x, operand = turned(writer, x, f"{var.name}_input"), turned(writer, operand, found.operand.name)
            made = writer.emit(self.names.fresh(f"{var.name}_rows"), with_operands(call, x, operand))
            return relax.op.permute_dims(made, axes)

        return [_Edit(output=found.operand, value=weights, skipped=found.steps), _Edit(output=var, value=product)]

    def _repeated(self, writer: BodyWriter, x: Expr, shape: tuple[Any, ...], wanted: tuple[Any, ...], stem: str) -> Expr:
        """Return matrices as often as they were broadcast."""
        missing = len(wanted) - len(shape)
        if missing:
            x = writer.emit(self.names.fresh(f"{stem}_input"), relax.op.expand_dims(x, list(range(missing))))
        for axis, (size, count) in enumerate(zip((1,) * missing + shape, wanted, strict=True)):
            if size != count:
                x = writer.emit(self.names.fresh(f"{stem}_repeated"), relax.op.repeat(x, count, axis))
        return x

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

        def value(writer: BodyWriter, mapped: Mapped) -> Expr:
            convolved = with_operands(op.call, mapped(op.call.args[0]), mapped(op.call.args[1]))
            conv = writer.emit(self.names.fresh(f"{var.name}_conv"), convolved)
            shaped = writer.emit(self.names.fresh(f"{var.name}_bias"), relax.op.reshape(bias_param, relax.ShapeExpr(shape)))
            return relax.op.add(conv, shaped)

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
        return _Edit(output=var, value=value, skipped=(*skipped, norm_var))

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
        return self._param(self.names.fresh(f"{var.name}_bias"), value)

    def layer_norm(self, var: Var) -> _Edit | None:
        """Write `var`, the last step of a normalization in plain ops, as the one op that it is."""
        norm = plain_layer_norm(self.view, var, self.constants.numbers)
        ends = [] if norm is None else [self.constants.find(end) for end in (norm.gamma, norm.beta)]
        # The steps of other forms are placed one by one: each may stay float where its rounding costs too much.
        if norm is None or not norm.is_ratio or any(end is None or end.moves for end in ends):
            return None
        self._folds_of("nn.layer_norm", var, norm.members[:-1])

        def value(writer: BodyWriter, mapped: Mapped) -> Expr:
            return relax.op.nn.layer_norm(*map(mapped, (norm.data, norm.gamma, norm.beta)), axes=[-1], epsilon=norm.epsilon)

        return _Edit(output=var, value=value, skipped=norm.members[:-1])

    def group_norm(self, var: Var) -> _Edit | None:
        """Write a normalization by groups, `var` its core, without the reshapes and factors around it."""
        norm = read_group_norm(self.view, var, self.constants.numbers)
        if norm is None or len(norm.members) == 1:
            return None
        output, axis = norm.output, norm.channel_axis
        gamma = self._param(self.names.fresh(f"{output.name}_gamma"), norm.gamma)
        beta = self._param(self.names.fresh(f"{output.name}_beta"), norm.beta)
        self._folds_of("nn.group_norm", output, norm.members[:-1])
        axes = [each for each in range(1, len(static_shape(output) or ())) if each != axis]

        def value(writer: BodyWriter, mapped: Mapped) -> Expr:
            return relax.op.nn.group_norm(mapped(norm.data), gamma, beta, norm.groups, axis, axes, norm.epsilon)

        return _Edit(output=output, value=value, skipped=norm.members[:-1])

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
        return [replace(edit, skipped=(var,)) for edit in edits]

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
        return _Edit(output=var, value=lambda writer, mapped: relax.op.nn.conv2d(mapped(data), mapped(call.args[1]), **attrs))


def _met(x: tuple[Any, ...] | None, weights: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Return the shape in which an operand meets matrices, one each; None where it has more of them.

    It may have one for several, where it is known how many these are.
    """
    if x is None or weights is None or not 2 <= len(x) <= len(weights):
        return None
    padded, batch = (1,) * (len(weights) - len(x)) + x, weights[:-2]
    sizes = zip(padded[:-2], batch, strict=True)
    fits = all(size == wanted or (size == 1 and not is_open(wanted)) for size, wanted in sizes)
    return (*batch, *x[-2:]) if fits else None


def _pads_with_zero(pad: Any) -> bool:
    values = list(pad.args[1:])
    attr = getattr(pad.attrs, "pad_value", 0.0)
    literal = all(isinstance(value, GenericConst) and not value.value.numpy().any() for value in values)
    return literal and float(attr) == 0.0


def simplify(model: Model, planned: Collection[Fold] | None = None) -> tuple[Model, tuple[Fold, ...]]:
    """Return the model with batch normalization and zero padding folded into its convolutions, and what was folded.

    Before::

        c = R.nn.conv2d(x, w); n = R.nn.batch_norm(c, gamma, beta, mean, variance); y = n[0]

    After, with new values for w and beta::

        y_conv = R.nn.conv2d(x, w); y = R.add(y_conv, R.reshape(beta, (1, -1, 1, 1)))

    Parameters
    ----------
    planned
        What was folded for a plan, which knows the tensors that were left: rows are computed as images where it says so. All of
        them that can be by default.
    """
    for rule in (
        _Simplifier.real,
        _Simplifier.dequantized_constant,
        _Simplifier.constant,
        _Simplifier.literal,
        _Simplifier.recurrent_weights,
        _Simplifier.stacked,
    ):
        model, _ = _pass(model, rule)
    taken = None if planned is None else {fold.tensor for fold in planned if fold.op == "take"}
    model, folds = _pass(model, lambda work, var: work.gathered(var) if taken is None or var.name in taken else None)
    module, holders = rows_as_images(model.module, model.tensors, planned)
    model = model if module is model.module else replace(model, module=module)
    folds += [Fold(op="squeeze", tensor=TensorId(holder), gone=TensorId(name)) for name, holder in holders.items()]
    # Padding first: a batch norm behind a padded convolution then sees the convolution as it will stay.
    for rule in (_Simplifier.padding, _Simplifier.batch_norm, _Simplifier.layer_norm, _Simplifier.group_norm):
        model, found = _pass(model, rule)
        folds += found
    return model, tuple(folds)


def rows_as_images(
    module: tvm.IRModule, tensors: Mapping[TensorId, TensorEntry], planned: Collection[Fold] | None
) -> tuple[tvm.IRModule, dict[str, str]]:
    """Return a float module with rows as the images that they are for `simplify`, and nothing else folded; see `with_images`."""
    wanted = None if planned is None else {fold.gone for fold in planned if fold.op == "squeeze"}
    return with_images(split_to_slices(module), tensors, wanted)


def _pass(model: Model, rule: Callable[[_Simplifier, Var], _Edit | list[_Edit] | None]) -> tuple[Model, list[Fold]]:
    view = DataflowView(model.module["main"])
    names = NameSupply([*model.tensors, *view.names])
    work = _Simplifier(model=model, view=view, constants=Constants(view, model.params), names=names, params=dict(model.params))
    edits: dict[Var, _Edit] = {}
    with sizes_of(view.function):
        for binding in view.bindings:
            found = rule(work, binding.var)
            edits |= {edit.output: edit for edit in (found if isinstance(found, list) else [found]) if edit is not None}
    if not edits:
        return model, []
    skipped = {var for edit in edits.values() for var in edit.skipped}
    mapping: dict[Var, Expr] = {}

    def mapped(expr: Expr) -> Expr:
        return replace_operands(expr, lambda var: mapping.get(var, var))

    def body(writer: BodyWriter) -> Expr:
        for binding in view.bindings:
            var = binding.var
            if var in skipped and var not in edits:
                continue
            value = edits[var].value(writer, mapped) if var in edits else mapped(binding.value)
            is_there = var in edits and isinstance(value, Var)
            mapping[var] = value if is_there else writer.emit(var.name, value, is_output=view.is_returned(var))
        return mapped(view.result)

    return rewritten(model, body, [*view.function.params, *work.new_params], work.params), work.folds
