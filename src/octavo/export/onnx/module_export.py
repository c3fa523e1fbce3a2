"""A quantized module as ONNX in QDQ form, op by op, where there is no ONNX file to edit: a model that came quantized from TFLite.

Convolutions and pools over NHWC become ONNX's over NCHW, and what works element by element between them stays in that layout, so
that a Transpose stands only where the layout has to change. A quantize whose rounding ONNX has no word for becomes a
QuantizeLinear all the same: the file's metadata says it, and other runtimes may differ from Octavo in ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import Expr, Var

from ...errors import QuantizationError
from ...frontends.onnx.roundings import METADATA_KEY, assumed_rounding, roundings_metadata
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...ir.graph.recurrence import NAME as RECURRENCE
from ...ir.graph.sizes import size_of
from ...ir.identity import TensorId
from ...ir.identity.naming import NameSupply
from ...ir.qdq.rounding import rounding_of, source_op
from ...runtime.shapes import Line, dimension_places
from ...runtime.size import Size, is_open
from ...target.op_facts import movers
from .recurrent_node import recurrent_node

_OPSET, _IR_VERSION = 18, 8
_WIDE_OPSET, _WIDE_IR_VERSION = 21, 10
"""The first ones that have integers of 16 bits."""
_LAST = 2**63 - 1
_NHWC, _NCHW = "NHWC", "NCHW"
_TO = {_NCHW: (0, 3, 1, 2), _NHWC: (0, 2, 3, 1)}
_AXES = (0, 2, 3, 1)
"""By an axis of NHWC the same one of NCHW."""
_ELEMENTWISE = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "nn.relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "negative": "Neg",
    "erf": "Erf",
    "power": "Pow",
}
_REDUCTIONS = {"mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}
_POOLS = {"nn.avg_pool2d": "AveragePool", "nn.max_pool2d": "MaxPool"}
_WEIGHTS = {"HWIO": (3, 2, 0, 1), "HWOI": (2, 3, 0, 1), "OHWI": (0, 3, 1, 2), "OIHW": (0, 1, 2, 3)}
"""Of a weight's layout the axes of OIHW."""


def module_as_onnx(model: Model) -> Any:
    """Return an onnx.ModelProto that computes a model; QuantizationError names the first op that has no counterpart here."""
    return ModuleWriter(model=model, view=DataflowView(model.module["main"])).run()


@dataclass(kw_only=True, slots=True)
class ModuleWriter:
    """Writes ops of a module: all of them (`run`), or those that are asked for (`write`).

    Parameters
    ----------
    channels_last
        Whether tensors of four axes have their channels last.
    """

    model: Model
    view: DataflowView
    channels_last: bool = True
    nodes: list[Any] = field(default_factory=list[Any])
    initializers: list[Any] = field(default_factory=list[Any])
    roundings: dict[str, str] = field(default_factory=dict[str, str])
    """By the integers of a QuantizeLinear how they are rounded, where files do not mean it unsaid."""
    names: NameSupply = field(default_factory=NameSupply)
    _constants: dict[tuple[Any, ...], str] = field(default_factory=dict[tuple[Any, ...], str])
    _made: dict[tuple[Var, str], str] = field(default_factory=dict[tuple[Var, str], str])
    """By a variable and the layout of its four axes, "" of other ranks, the tensor that holds it."""
    _biases: dict[Var, tuple[Var, Expr]] = field(default_factory=dict[Var, "tuple[Var, Expr]"])
    """By a convolution what adds its bias, and the bias."""

    def run(self) -> Any:
        """Write the graph."""
        model, view = self.model, self.view
        inputs, outputs = [], []
        for param, tensor in zip(view.function.params, model.input_ids, strict=False):
            name = model.tensors[tensor].source_name
            inputs.append(helper.make_tensor_value_info(name, _onnx_type(dtype_of(param)), _dims(param)))
            self._made[param, self._home(param)] = name
        result = view.result
        results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        names = model.output_names or tuple(model.tensors[tensor].source_name for tensor in model.output_ids)
        self.names = NameSupply([*(each.name for each in inputs), *names])
        for binding in view.bindings:
            self.write(binding.var, binding.value)
        for name, value in zip(names, results, strict=True):
            self.nodes.append(helper.make_node("Identity", [self._read(value, self._home(value))], [name]))
            outputs.append(helper.make_tensor_value_info(name, _onnx_type(dtype_of(value)), _dims(value)))
        graph = helper.make_graph(self.nodes, "octavo", inputs, outputs, self.initializers)
        is_wide = any(dtype_of(binding.var) in ("int16", "uint16") for binding in view.bindings)
        opset, version = (_WIDE_OPSET, _WIDE_IR_VERSION) if is_wide else (_OPSET, _IR_VERSION)
        opsets = [helper.make_opsetid("", opset)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="octavo")
        if self.roundings:
            proto.metadata_props.add(key=METADATA_KEY, value=roundings_metadata(self.roundings))
        onnx.checker.check_model(proto)
        return proto

    def give(self, var: Var, name: str) -> None:
        """Say which tensor holds a variable."""
        self._set(var, self._home(var), name)

    def read(self, value: Expr) -> str:
        """Return the tensor of a value, in the module's layout."""
        return self._read(value, self._home(value))

    # ---------------------------------------------------------------------------------------------------------- the ops

    def write(self, var: Var, value: Expr) -> None:
        """Write an op whose operands are there."""
        if isinstance(value, Var):
            self._made |= {(var, layout): name for (known, layout), name in self._made.items() if known.same_as(value)}
            return
        if var in self._biases or self._is_constant(var):
            return
        name = op_name(value) if isinstance(value, relax.Call) else type(value).__name__
        if (handler := HANDLERS.get(name)) is None:
            entry = self.model.tensors.get(TensorId(var.name))
            where = var.name if entry is None else entry.source_name
            came = f"a model that came from {self.model.source_format}"
            raise QuantizationError(f"{where}: {name} of {came} has no form in ONNX here; compile it as it is")
        handler(self, var, value)

    def convert(self, var: Var, call: Any) -> None:
        """Write a quantize or a dequantize."""
        self._converted(var, call, self._layout_of(call.args[0]))

    def _converted(self, var: Var, call: Any, layout: str) -> None:
        is_quantize = op_name(call) == "quantize"
        dtype = dtype_of(var) if is_quantize else dtype_of(call.args[0])
        axis = int(call.attrs.axis)
        scale, zero_point = (np.asarray(arg.value.numpy()) for arg in call.args[1:3])
        rank = len(static_shape(var) or ())
        axis = _AXES[axis % rank] if layout == _NCHW else axis % max(rank, 1)
        operands = [self._read(call.args[0], layout), self.constant(scale), self.constant(zero_point.astype(dtype))]
        extra = {"axis": axis} if scale.ndim else {}
        name = self.node("QuantizeLinear" if is_quantize else "DequantizeLinear", operands, var, **extra)
        if is_quantize and rounding_of(call) != assumed_rounding(source_op(call.args[0], self.view.definition)):
            self.roundings[name] = rounding_of(call)
        self._set(var, layout, name)

    def elementwise(self, var: Var, call: Any) -> None:
        """Write an op of one or two tensors element by element, in the layout of what it reads."""
        layout = self._common(call.args, var)
        operands = [self._read(arg, layout, static_shape(var)) for arg in call.args]
        self._set(var, layout, self.node(_ELEMENTWISE[op_name(call)], operands, var))

    def clip(self, var: Var, call: Any) -> None:
        """Write a clip, of integers, too."""
        layout = self._layout_of(call.args[0])
        bounds = [self.constant(np.asarray(bound.value, dtype_of(var))) for bound in call.args[1:3]]
        self._set(var, layout, self.node("Clip", [self._read(call.args[0], layout), *bounds], var))

    def conv(self, var: Var, call: Any) -> None:
        """Write a convolution, with the bias behind it."""
        attrs = call.attrs
        layout = _NCHW
        if str(attrs.data_layout) not in (_NHWC, _NCHW) or str(attrs.kernel_layout) not in _WEIGHTS:
            raise QuantizationError(f"{var.name}: layouts {attrs.data_layout}, {attrs.kernel_layout} have no form in ONNX here")
        order = _WEIGHTS[str(attrs.kernel_layout)]
        operands = [self._read(call.args[0], layout, own=str(attrs.data_layout)), self._weight(call.args[1], order)]
        end, bias = self._bias_of(var)
        if bias is not None:
            operands.append(self._weight(bias, None))
            self._biases[end] = var, bias
        fields = {"strides": attrs.strides, "pads": attrs.padding, "dilations": attrs.dilation}
        numbers = {name: [int(each) for each in each_of] for name, each_of in fields.items()}
        made = self.node("Conv", operands, end, group=int(attrs.groups), **numbers)
        self._set(end, layout if str(attrs.data_layout) == _NHWC else self._home(end), made)

    def matmul(self, var: Var, call: Any) -> None:
        """Write a matrix product."""
        operands = [self._read(arg, self._home(arg)) for arg in call.args]
        self._set(var, self._home(var), self.node("MatMul", operands, var))

    def pool(self, var: Var, call: Any) -> None:
        """Write a pooling."""
        attrs = call.attrs
        numbers = {"kernel_shape": attrs.pool_size, "strides": attrs.strides, "pads": attrs.padding}
        extra: dict[str, Any] = {name: [int(each) for each in each_of] for name, each_of in numbers.items()}
        extra["ceil_mode"] = int(bool(attrs.ceil_mode))
        if op_name(call) == "nn.avg_pool2d":
            extra["count_include_pad"] = int(bool(attrs.count_include_pad))
        own = str(attrs.layout)
        made = self.node(_POOLS[op_name(call)], [self._read(call.args[0], _NCHW, own=own)], var, **extra)
        self._set(var, _NCHW if own == _NHWC else self._home(var), made)

    def reduce(self, var: Var, call: Any) -> None:
        """Write a reduction; over rows and columns in the layout of what it reads."""
        layout, rank = self._layout_of(call.args[0]), len(static_shape(call.args[0]) or ())
        axes = [int(axis) % rank for axis in (call.attrs.axis if call.attrs.axis is not None else range(rank))]
        keep = bool(call.attrs.keepdims)
        if layout == _NCHW and not keep and sorted(axes) not in ([1, 2], [1, 2, 3], [0, 1, 2, 3]):
            layout = self._home(call.args[0])
        axes = [_AXES[axis] for axis in axes] if layout == _NCHW else axes
        operands = [self._read(call.args[0], layout), self.constant(np.asarray(axes, np.int64))]
        made = self.node(_REDUCTIONS[op_name(call)], operands, var, keepdims=int(keep))
        self._set(var, layout if keep else self._home(var), made)

    def concat(self, var: Var, call: Any) -> None:
        """Write a concatenation, of a stack along an axis of its own."""
        parts: list[Expr] = list(self.view.definition(call.args[0]).fields)  # pyright: ignore[reportOptionalMemberAccess]
        is_stack, axis = op_name(call) == "stack", int(call.attrs.axis) % len(static_shape(var) or (1,))
        layout = self._home(var) if is_stack else self._common(parts, var)
        operands = [self.read(part) if is_stack else self._read(part, layout) for part in parts]
        if is_stack:
            places = self.constant(np.asarray([axis], np.int64))
            operands = [self.node("Unsqueeze", [part, places], f"{var.name}_part") for part in operands]
        self._set(var, layout, self.node("Concat", operands, var, axis=_AXES[axis] if layout == _NCHW else axis))

    def softmax(self, var: Var, call: Any) -> None:
        """Write a softmax."""
        axis = int(call.attrs.axis)
        made = self.node("Softmax", [self._read(call.args[0], self._home(call.args[0]))], var, axis=axis)
        self._set(var, self._home(var), made)

    def reshape(self, var: Var, call: Any) -> None:
        """Write a change of shape."""
        source = call.args[0]
        shape = self._shape(static_shape(source) or (), static_shape(var) or ())
        self._set(var, self._home(var), self.node("Reshape", [self._read(source, self._home(source)), shape], var))

    def slice(self, var: Var, call: Any) -> None:
        """Write a slice."""
        axes, begin, end, *steps = ([_dim(each) for each in part.fields] for part in call.args[1:])
        shape = static_shape(call.args[0]) or ()
        # An end at an open size is the last one.
        ends = [_LAST if is_open(each) and each == shape[axis] else each for axis, each in zip(axes, end, strict=True)]
        if any(map(is_open, (*begin, *ends))):
            raise QuantizationError(f"{var.name}: a slice between open places has no form in ONNX here")
        layout = self._home(call.args[0])
        places = [self.constant(np.asarray(part, np.int64)) for part in (begin, ends, axes, *steps)]
        self._set(var, layout, self.node("Slice", [self._read(call.args[0], layout), *places], var))

    def take(self, var: Var, call: Any) -> None:
        """Write a gather along an axis."""
        operands = [self._read(arg, self._home(arg)) for arg in call.args]
        self._set(var, self._home(var), self.node("Gather", operands, var, axis=int(call.attrs.axis or 0)))

    def zeros(self, var: Var, _: Any) -> None:
        """Write zeros of a shape."""
        value = numpy_helper.from_array(np.zeros(1, dtype_of(var)))
        self._set(var, self._home(var), self.node("ConstantOfShape", [self._sizes(static_shape(var) or ())], var, value=value))

    def recurrence(self, var: Var, call: Any) -> None:
        """Write a recurrence over steps."""
        self._set(var, self._home(var), recurrent_node(self, var, call))

    def pad(self, var: Var, call: Any) -> None:
        """Write a padding with a constant."""
        layout, rank = self._layout_of(call.args[0]), len(static_shape(var) or ())
        if str(call.attrs.pad_mode) != "constant":
            raise QuantizationError(f"{var.name}: a padding of mode {call.attrs.pad_mode} has no form in ONNX here")
        widths = np.asarray(_numbers(call.attrs.pad_width)).reshape(rank, 2)
        widths = widths[list(_TO[_NCHW])] if layout == _NCHW else widths
        amounts = self.constant(widths.T.reshape(-1).astype(np.int64))
        value = self.constant(np.asarray(float(call.attrs.pad_value), dtype_of(var)))
        self._set(var, layout, self.node("Pad", [self._read(call.args[0], layout), amounts, value], var))

    def permute(self, var: Var, call: Any) -> None:
        """Write a transposition."""
        made = self.node("Transpose", [self._read(call.args[0], self._home(call.args[0]))], var, perm=_numbers(call.attrs.axes))
        self._set(var, self._home(var), made)

    # --------------------------------------------------------------------------------------------------------- the sizes

    def _shape(self, before: Sequence[int | Size], after: Sequence[int | Size]) -> str:
        """Return the tensor of a shape that a tensor of shape `before` is to take."""
        # To Reshape 0 is the size that was there, and -1, which may stand once, what is left.
        kept = [0 if is_open(dim) and before[place : place + 1] == (dim,) else dim for place, dim in enumerate(after)]
        if sum(map(is_open, kept)) < 2:
            return self.constant(np.asarray([-1 if is_open(dim) else dim for dim in kept], np.int64))
        return self._sizes(after)

    def _sizes(self, shape: Sequence[int | Size]) -> str:
        """Return the tensor of a shape, computed where it is open."""
        if not any(map(is_open, shape)):
            return self.constant(np.asarray(shape, np.int64))
        parts = [self.constant(np.asarray([dim], np.int64)) if isinstance(dim, int) else self._size(dim) for dim in shape]
        return self.node("Concat", parts, "shape", axis=0)

    def _size(self, size: Size) -> str:
        """Return an open size, computed from the shapes of the inputs, as int64 (1,)."""
        params = self.view.function.params[: len(self.model.input_ids)]
        places = dimension_places([static_shape(param) or () for param in params])

        def dimension(name: str) -> _Number:
            number, axis, line = places[name]
            read = self._made[params[number], self._home(params[number])]
            shape, place = self.node("Shape", [read], name), self.constant(np.asarray([axis]))
            found = _Number(writer=self, name=self.node("Gather", [shape, place], name))
            return found if line == Line(name) else (found + -line.offset) // line.factor

        return size.expression(dimension).name

    def number(self, op: str, *operands: _Number | int) -> _Number:
        """Write an op of sizes."""
        names = [each.name if isinstance(each, _Number) else self.constant(np.asarray([each], np.int64)) for each in operands]
        return _Number(writer=self, name=self.node(op, names, "size"))

    # -------------------------------------------------------------------------------------------------------- the values

    def _source(self, var: Any) -> str:
        return str(getattr(var, "name", var))

    def _home(self, value: Expr) -> str:
        """Return the layout that the module has a value in."""
        return _NHWC if self.channels_last and len(static_shape(value) or ()) == 4 else ""

    def _is_constant(self, expr: Expr) -> bool:
        """Return whether an expression is a parameter's constant, or what is dequantized of one."""
        if isinstance(expr, GenericConst):
            return True
        if not isinstance(expr, Var):
            return False
        if TensorId(expr.name) in self.model.params:
            return True
        call: Any = call_to(self.view.definition(expr), "dequantize")
        return call is not None and self._is_constant(call.args[0])

    def _layout_of(self, value: Expr) -> str:
        """Return a layout in which a value is there."""
        if isinstance(value, Var):
            found = [layout for (var, layout) in self._made if var.same_as(value)]
            if found:
                return found[0]
        return self._home(value)

    def _common(self, values: Sequence[Expr], var: Var) -> str:
        """Return NCHW where all tensors that are computed are there in it, and have the shape of the result's rank."""
        read = [value for value in values if not self._is_constant(value)]
        is_first = all(self._layout_of(value) == _NCHW for value in read)
        return _NCHW if is_first and len(static_shape(var) or ()) == 4 else self._home(var)

    def _set(self, var: Var, layout: str, name: str) -> None:
        self._made[var, layout] = name

    def _read(self, expr: Expr, layout: str, shape: tuple[int, ...] | None = None, *, own: str = _NHWC) -> str:
        """Return the tensor of a value in a layout; constants are broadcast to the rank of `shape`."""
        if self._is_constant(expr):
            order = None
            if layout == _NCHW and shape is not None and own == _NHWC:
                order = _TO[_NCHW]
            return self._weight(expr, order, rank=4 if order else None)
        assert isinstance(expr, Var), "what is computed is a variable"
        if own == _NCHW:
            layout = self._home(expr)
        if (expr, layout) not in self._made:
            [(other, name)] = [(known, name) for (var, known), name in self._made.items() if var.same_as(expr)]
            assert {other, layout} == {_NCHW, _NHWC}, f"{expr.name}: {other} in place of {layout}"
            call: Any = call_to(self.view.definition(expr), "dequantize")
            if call is not None:
                # Integers are transposed, so that a dequantize stands before what reads it, where runtimes look for it.
                self._converted(expr, call, layout)
                return self._made[expr, layout]
            self._made[expr, layout] = self.node("Transpose", [name], f"{expr.name}_{layout.lower()}", perm=list(_TO[layout]))
        return self._made[expr, layout]

    def _weight(self, expr: Expr, order: tuple[int, ...] | None, rank: int | None = None) -> str:
        """Return a constant, its axes in another order, dequantized where the module does."""
        call: Any = call_to(self.view.definition(expr), "dequantize") if isinstance(expr, Var) else None
        if call is None:
            return self.constant(_transposed(self.value(expr), order, rank))
        integers = self.value(call.args[0])
        scale, zero_point = (np.asarray(arg.value.numpy()) for arg in call.args[1:3])
        axis = int(call.attrs.axis) % max(integers.ndim, 1)
        axis = order.index(axis) if order is not None and rank is None else axis
        moved = self.constant(_transposed(integers, order, rank))
        operands = [moved, self.constant(scale), self.constant(zero_point.astype(integers.dtype), of=moved)]
        if scale.ndim and rank is not None:
            raise QuantizationError(f"{self._source(expr)}: a constant with a scale by channel has no form in ONNX here")
        return self.node("DequantizeLinear", operands, f"{self._source(expr)}_real", **({"axis": axis} if scale.ndim else {}))

    def value(self, expr: Any) -> npt.NDArray[Any]:
        """Return a constant's value, its integers where it is quantized."""
        return np.asarray(expr.value.numpy()) if isinstance(expr, GenericConst) else self.model.params[TensorId(expr.name)]

    def _bias_of(self, conv: Var) -> tuple[Var, Expr | None]:
        """Return the addition of a constant vector behind a convolution, and the vector; the convolution itself without one."""
        user = self.view.only_user(conv)
        call: Any = None if user is None else call_to(self.view.definition(user), "add")
        if user is None or call is None:
            return conv, None
        bias = next((arg for arg in call.args if self._is_constant(arg) and len(static_shape(arg) or ()) == 1), None)
        return (conv, None) if bias is None else (user, bias)

    def constant(self, value: npt.NDArray[Any], *, of: str = "") -> str:
        """Return the initializer of a value, one for all that are equal, or that are equal and belong to the same tensor.

        ONNX Runtime makes the zero point of a weight anew where it wants other integers, and fails where two weights share one.
        """
        key = (str(value.dtype), value.shape, value.tobytes(), of)
        if key not in self._constants:
            self._constants[key] = self.names.fresh(f"constant{len(self.initializers)}")
            tensor = numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), self._constants[key])
            self.initializers.append(tensor)
        return self._constants[key]

    def node(self, op: str, inputs: Sequence[str], made: Var | str, **attrs: Any) -> str:
        """Add a node; its result is named like the source's tensor."""
        wish = str(made)
        if isinstance(made, Var):
            entry = self.model.tensors.get(TensorId(made.name))
            wish = str(made.name) if entry is None else entry.source_name
        name = self.names.fresh(wish)
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        return name


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Number:
    """A tensor that holds a size, whose arithmetic writes nodes."""

    writer: ModuleWriter
    name: str

    def __add__(self, other: _Number | int) -> _Number:
        return self.writer.number("Add", self, other)

    def __mul__(self, other: _Number | int) -> _Number:
        return self.writer.number("Mul", self, other)

    def __floordiv__(self, other: _Number | int) -> _Number:
        return self.writer.number("Div", self, other)  # of what is at least 0 it rounds down

    __radd__ = __add__
    __rmul__ = __mul__


def _dims(value: Expr) -> list[int | str] | None:
    """Return a shape as ONNX has it, where an open dimension goes by its name, or by what it is computed as."""
    shape = static_shape(value)
    return None if shape is None else [str(dim) if isinstance(dim, Size) else dim for dim in shape]


def _transposed(value: npt.NDArray[Any], order: tuple[int, ...] | None, rank: int | None) -> npt.NDArray[Any]:
    if order is None:
        return value
    if rank is not None:
        value = value.reshape(*[1] * (rank - value.ndim), *value.shape)
    return value.transpose(order)


def _dim(value: Any) -> int | Size:
    return value if isinstance(value, int) else size_of(value)


def _numbers(values: Any) -> list[int]:
    return [int(value) for value in values]


def _onnx_type(dtype: str) -> int:
    return int(getattr(TensorProto, {"float32": "FLOAT"}.get(dtype, dtype.upper())))


HANDLERS: dict[str, Callable[[ModuleWriter, Var, Any], None]] = {
    **dict.fromkeys(("quantize", "dequantize"), ModuleWriter.convert),
    **dict.fromkeys(_ELEMENTWISE, ModuleWriter.elementwise),
    **dict.fromkeys(_REDUCTIONS, ModuleWriter.reduce),
    **dict.fromkeys(_POOLS, ModuleWriter.pool),
    **dict.fromkeys(movers("view"), ModuleWriter.reshape),
    "clip": ModuleWriter.clip,
    "concat": ModuleWriter.concat,
    "matmul": ModuleWriter.matmul,
    "nn.conv2d": ModuleWriter.conv,
    "nn.pad": ModuleWriter.pad,
    "nn.softmax": ModuleWriter.softmax,
    "permute_dims": ModuleWriter.permute,
    RECURRENCE: ModuleWriter.recurrence,
    "stack": ModuleWriter.concat,
    "strided_slice": ModuleWriter.slice,
    "take": ModuleWriter.take,
    "zeros": ModuleWriter.zeros,
}
"""By the Relax op."""
