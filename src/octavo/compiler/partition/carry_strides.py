"""Carry the stride of a 1x1 convolution up through what makes its input, so that pixels which nobody reads are never computed.

Before::

    a = R.nn.conv2d(x, w); b = R.add(a, s); c = R.nn.relu(b); c_q = R.quantize(c, ...); d = R.dequantize(c_q, ...)
    y = R.nn.conv2d(d, v, strides=[2, 2]); z = R.nn.conv2d(d, u, strides=[2, 2])            # 1x1, and nobody else reads d

After::

    a_strided = R.nn.conv2d(x, w, strides=[2, 2]); s_strided = R.strided_slice(s, [2, 3], [0, 0], [H, W], [2, 2])
    b_strided = R.add(a_strided, s_strided); ... y = R.nn.conv2d(d_strided, v); z = R.nn.conv2d(d_strided, u)

Exact: ops that work on each element by itself, and convolutions, give at every second pixel what they gave there before. A tensor
is carried where all its readers leave out the same pixels and a convolution or an addition becomes smaller. It works on the graph
alone, float or QDQ, and chooses no kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    call_to,
    op_name,
    operand_vars,
    replace_operands,
    static_shape,
    view_of_main,
    with_main,
)
from ...ir.identity import NameSupply
from ...ir.qdq.values import constant_value
from ...ir.untyped import relax
from ...target.op_facts import CLAMPS, ELEMENTWISE
from .context import PartitionContext

_CHEAP = frozenset(("quantize", "dequantize", *CLAMPS))
"""What costs nothing behind the op that makes its input, so that a stride at it alone gains nothing."""


_ELEMENTWISE = _CHEAP | frozenset(ELEMENTWISE)


@dataclass(frozen=True, slots=True)
class _Stride:
    """Every `rows`-th index of axis `height` and every `columns`-th one of axis `width`, from 0 on."""

    rows: int
    columns: int
    height: int
    width: int


def carry_strides(module: tvm.IRModule, context: PartitionContext) -> tvm.IRModule:
    """Carry the stride of a 1x1 convolution up to what makes its input: pixels that nobody reads are never computed."""
    view = view_of_main(module)
    carried = _Choice(view).carried()
    if not carried:
        return module
    return with_main(module, lambda writer: _Rewriting(view, carried, writer, context).body())


class _Choice:
    """Which variables are computed at fewer pixels."""

    def __init__(self, view: DataflowView) -> None:
        self._view = view
        self._values: dict[Var, Any] = {binding.var: binding.value for binding in view.bindings}

    def carried(self) -> dict[Var, _Stride]:
        """Return the stride of each such variable."""
        wanted: dict[Var, _Stride] = {}
        for var in reversed(self._values):
            stride = self._common(var, wanted)
            if stride is not None and self._can_stride(self._values[var], stride):
                wanted[var] = stride
        chosen: dict[Var, _Stride] = {}
        for var, stride in ((var, wanted[var]) for var in self._values if var in wanted):
            cut = [operand for operand in _full_operands(self._values[var], stride) if operand not in chosen]
            if not cut or op_name(self._values[var]) not in _CHEAP:
                chosen[var] = stride
        # An op that stays whole keeps what it reads whole.
        while (kept := {var: stride for var, stride in chosen.items() if self._common(var, chosen) == stride}) != chosen:
            chosen = kept
        return chosen

    def _common(self, var: Var, carried: Mapping[Var, _Stride]) -> _Stride | None:
        """Return the stride at which every reader of a tensor reads it; None where one reads all of it, or they differ."""
        if self._view.is_returned(var) or not self._view.users(var):
            return None
        strides = {self._reading(user, var, carried) for user in self._view.users(var)}
        return strides.pop() if len(strides) == 1 else None

    def _reading(self, user: Var, var: Var, carried: Mapping[Var, _Stride]) -> _Stride | None:
        """Return the stride at which `user` reads `var`; None where it reads every pixel."""
        call = self._values[user]
        if call_to(call, "nn.conv2d") is not None:
            is_data = var.same_as(call.args[0]) and not any(var.same_as(other) for other in call.args[1:])
            return _conv_reading(call, carried.get(user)) if is_data else None
        stride = carried.get(user)
        return stride if stride is not None and any(var.same_as(full) for full in _full_operands(call, stride)) else None

    def _can_stride(self, value: Any, stride: _Stride) -> bool:
        """Return whether an op can compute its result at fewer pixels: a convolution, or one that works element by element."""
        shape = static_shape(value)
        if shape is None or len(shape) != 4:
            return False
        if call_to(value, "nn.conv2d") is not None:
            layout = str(value.attrs.data_layout)
            same = str(value.attrs.out_layout) in ("", layout) and sorted(layout) == sorted("NCHW")
            return same and (layout.index("H"), layout.index("W")) == (stride.height, stride.width)
        # Constants, and tensors that are broadcast, must hold for every pixel alike.
        return _is_elementwise(value) and all(
            _same_everywhere(other, stride) or (other == shape and constant_value(self._view, operand) is None)
            for operand, other in _tensors(value)
        )


def _conv_reading(call: Any, carried: _Stride | None) -> _Stride | None:
    """Return the stride at which a convolution reads its input: its own times that of its result."""
    layout, shape = str(call.attrs.data_layout), static_shape(call.args[1])
    kernel_layout = str(call.attrs.kernel_layout)
    if sorted(layout) != sorted("NCHW") or shape is None or sorted(kernel_layout) != sorted("OIHW"):
        return None
    kernel = [shape[kernel_layout.index(axis)] for axis in "HW"]
    if kernel != [1, 1] or any(int(width) for width in call.attrs.padding) or str(call.attrs.out_layout) not in ("", layout):
        return None
    rows, columns = (int(stride) for stride in call.attrs.strides)
    if carried is not None:
        rows, columns = rows * carried.rows, columns * carried.columns
    return None if (rows, columns) == (1, 1) else _Stride(rows, columns, layout.index("H"), layout.index("W"))


def _is_elementwise(value: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op) and op_name(value) in _ELEMENTWISE


def _tensors(call: Any) -> list[tuple[Expr, tuple[int, ...] | None]]:
    """Return the operands that are tensors, each with its shape; of quantize and dequantize the parameters don't count."""
    operands = call.args[:1] if call_to(call, "quantize", "dequantize") is not None else call.args
    return [(operand, static_shape(operand)) for operand in operands if isinstance(operand.ty, relax.TensorType)]


def _same_everywhere(shape: tuple[int, ...] | None, stride: _Stride) -> bool:
    """Return whether an operand of this shape, broadcast to four axes, is the same for every pixel."""
    if shape is None or len(shape) > 4:
        return False
    full = (1,) * (4 - len(shape)) + shape
    return full[stride.height] == full[stride.width] == 1


def _full_operands(call: Any, stride: _Stride) -> list[Var]:
    """Return the operands of an elementwise op that are needed at fewer pixels."""
    if call_to(call, "nn.conv2d") is not None:
        return []
    return [operand for operand, shape in _tensors(call) if isinstance(operand, Var) and not _same_everywhere(shape, stride)]


class _Rewriting:
    """One walk down the function, which writes it anew; variables that stay whole keep their names."""

    def __init__(self, view: DataflowView, carried: Mapping[Var, _Stride], writer: BodyWriter, context: PartitionContext) -> None:
        self._context = context
        self._view = view
        self._carried = carried
        self._writer = writer
        self._new: dict[Var, Var] = {}
        self._sliced: dict[tuple[Var, _Stride], Var] = {}
        params = [param.name for param in view.function.params]
        self._names = NameSupply([*params, *(binding.var.name for binding in view.bindings)])

    def body(self) -> Expr:
        """Write every binding and return the result."""
        for binding in self._view.bindings:
            var, value = binding.var, binding.value
            stride = self._carried.get(var)
            if stride is None:
                new_value = self._strided_conv(value, None) if self._reads_carried(value) else self._substitute(value)
                self._new[var] = self._writer.emit(var.name, new_value, is_output=not isinstance(var, relax.DataflowVar))
            elif call_to(value, "nn.conv2d") is not None:
                self._new[var] = self._emit(var, self._strided_conv(value, stride))
            else:
                self._new[var] = self._emit(var, self._strided(value, stride))
        result = self._substitute(self._view.result)
        self._drop_unread(result)
        return result

    def _drop_unread(self, result: Expr) -> None:
        """Remove what only the whole tensors were made of: dequantized values that are dequantized at fewer pixels now."""
        read = set(operand_vars(result))
        unread_before = {self._new[binding.var] for binding in self._view.bindings if not self._view.users(binding.var)}
        for index in reversed(range(len(self._writer.bindings))):
            binding = self._writer.bindings[index]
            if binding.var in read or binding.var in unread_before or not isinstance(binding.var, relax.DataflowVar):
                read.update(operand_vars(binding.value))
            else:
                del self._writer.bindings[index]

    def _emit(self, source: Var, value: Expr) -> Var:
        """Write what holds some of the pixels of `source`."""
        new = self._writer.emit(self._names.fresh(f"{source.name}_strided"), value)
        self._context.sources[new.name] = source.name
        return new

    def _substitute(self, expr: Any) -> Any:
        return replace_operands(expr, lambda var: self._new.get(var, var))

    def _reads_carried(self, value: Any) -> bool:
        return call_to(value, "nn.conv2d") is not None and value.args[0] in self._carried

    def _strided_conv(self, call: Any, stride: _Stride | None) -> Expr:
        """Return a convolution with the stride of its result on top of its own, less what its input has taken over."""
        rows, columns = (int(own) for own in call.attrs.strides)
        if stride is not None:
            rows, columns = rows * stride.rows, columns * stride.columns
        taken = self._carried.get(call.args[0])
        if taken is not None:
            assert (rows, columns) == (taken.rows, taken.columns), "a reader of fewer pixels reads those alone"
            rows, columns = 1, 1
        attrs = call.attrs
        return relax.op.nn.conv2d(
            *(self._substitute(arg) for arg in call.args),
            strides=(rows, columns),
            padding=tuple(int(width) for width in attrs.padding),
            dilation=tuple(int(width) for width in attrs.dilation),
            groups=int(attrs.groups),
            data_layout=str(attrs.data_layout),
            kernel_layout=str(attrs.kernel_layout),
            out_layout=str(attrs.out_layout),
            out_dtype=str(attrs.out_dtype) if attrs.out_dtype else None,
        )

    def _strided(self, call: Any, stride: _Stride) -> Expr:
        """Return an elementwise op over fewer pixels."""
        full = _full_operands(call, stride)
        args = [self._slice(arg, stride) if isinstance(arg, Var) and arg in full else self._substitute(arg) for arg in call.args]
        return relax.Call(call.op, args, call.attrs)

    def _slice(self, var: Var, stride: _Stride) -> Var:
        """Return a tensor at fewer pixels: computed so, or cut from the whole, integers rather than reals."""
        if var in self._carried:
            return self._new[var]
        if (var, stride) not in self._sliced:
            value: Any = self._view.definition(var)
            if call_to(value, "dequantize") is not None and isinstance(value.args[0], Var):
                made = relax.Call(value.op, [self._slice(value.args[0], stride), *value.args[1:]], value.attrs)
            else:
                shape = static_shape(var)
                assert shape is not None, "the result has a static shape"
                axes = [stride.height, stride.width]
                ends = [shape[axis] for axis in axes]
                made = relax.op.strided_slice(self._new.get(var, var), axes, [0, 0], ends, [stride.rows, stride.columns])
            self._sliced[var, stride] = cut = self._emit(var, made)
            self._context.cuts.add(cut.name)
        return self._sliced[var, stride]
