"""Compute what follows convolutions of rows on the images that these convolve, and take the axis of one row off behind it.

A convolution of rows [batch, channels, width] is written as one of images of one row; only the axis between them keeps what
follows from its kernel.

Before::

    a = R.nn.conv2d(x, w); b = R.squeeze(a, [2]); c = R.nn.relu(b); d = R.expand_dims(c, 2); y = R.nn.conv2d(d, v)

After::

    a = R.nn.conv2d(x, w); c = R.nn.relu(a); y = R.nn.conv2d(c, v)

Exact: ops that work on each element by itself, pad, cut or join rows do the same beside an axis of size 1. What reads rows gets
them by a squeeze, which moves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm.relax import Expr, Tuple, TupleGetItem, Var

from ...target.op_facts import ELEMENTWISE
from ..graph.dataflow import (
    BodyWriter,
    DataflowView,
    call_to,
    operand_vars,
    replace_operands,
    static_shape,
    view_of_main,
    with_main,
)
from ..graph.nodes import elements
from ..identity import NameSupply, TensorEntry
from ..untyped import relax

_RANK = 3
"""Of rows."""
_NORM = "nn.batch_norm"
_NONE: Mapping[Any, TensorEntry] = {}
_BY_ELEMENT = (*ELEMENTWISE, "quantize", "dequantize")
_BY_CHANNEL = ("nn.prelu", _NORM)
"""Ops with an attribute `axis` of their first operand, along which their others lie."""


def sink_squeeze(module: tvm.IRModule) -> tvm.IRModule:
    """Compute what follows convolutions of rows on the images that these convolve, so that kernels hold both."""
    return with_images(module)[0]


def with_images(
    module: tvm.IRModule, tensors: Mapping[Any, TensorEntry] = _NONE, only: Collection[str] | None = None
) -> tuple[tvm.IRModule, dict[str, str]]:
    """Return the module with rows computed as images; by the names of variables that are, or were, such the one that holds each.

    Parameters
    ----------
    tensors
        What variables are in the source, by name. An image bears the name of its rows where it is none of these and nobody reads
        them any more. What one op makes and another squeezes stays as it is.
    only
        Names of the rows that may be computed so; all by default.
    """
    view = view_of_main(module)
    found = _find(view, tensors, only)
    if not found.axes:
        return module, {}
    rewriting = _Rewriting(view, found, tensors)
    module = with_main(module, rewriting.body)
    return module, rewriting.holders


@dataclass(kw_only=True, slots=True, eq=False)
class _Found:
    """Which variables are computed as images.

    Parameters
    ----------
    axes
        By rows the axis of size 1 that their image has.
    squeezed
        Those of them that are a squeeze of their image.
    expanded
        Images of rows that were made of them by another axis.
    """

    axes: dict[Var, int] = field(default_factory=dict[Var, int])
    squeezed: set[Var] = field(default_factory=set[Var])
    expanded: set[Var] = field(default_factory=set[Var])

    def reads_images(self, var: Var) -> bool:
        """Return whether a variable is computed of images of the rows that it reads."""
        return var in self.expanded or (var in self.axes and var not in self.squeezed)


def _find(view: DataflowView, tensors: Mapping[Any, TensorEntry], only: Collection[str] | None) -> _Found:
    found = _Found()
    for binding in view.bindings:
        var: Var = binding.var
        if only is None or var.name in only:
            axis = _squeezed_axis(view, var, tensors)
            if axis is not None:
                found.squeezed.add(var)
            axis = _axis_of_op(binding.value, found.axes) if axis is None else axis
            if axis is not None:
                found.axes[var] = axis
        if _is_expanded(view, var, found.axes):
            found.expanded.add(var)
    for var in [var for var in found.squeezed if not any(map(found.reads_images, view.users(var)))]:
        found.squeezed.remove(var)
        del found.axes[var]
    return found


def _squeezed_axis(view: DataflowView, var: Var, tensors: Mapping[Any, TensorEntry]) -> int | None:
    """Return which axis of an image of one row a variable lacks; None if it is no squeeze of one."""
    call = call_to(view.definition(var), "squeeze")
    image = None if call is None else view.binding_of(call.args[0])
    shape = None if image is None else static_shape(image)
    if call is None or image is None or shape is None or len(shape) != _RANK + 1 or not _is_made(view, image):
        return None
    made, rows = tensors.get(image.name), tensors.get(var.name)
    if made is not None and (rows is None or (made.op, made.layer) != (rows.op, rows.layer)):
        return None
    axes = [int(axis) % len(shape) for axis in elements(call.attrs.axis or ())]
    return axes[0] if len(axes) == 1 else None


def _is_made(view: DataflowView, image: Var) -> bool:
    """Return whether an op that works on images gives one: elements of what is given alone are as well rows."""
    line, seen = [image], {image}
    for var in line:  # which grows
        value = view.definition(var)
        if isinstance(value, Var):
            continue
        if not isinstance(value, TupleGetItem) and call_to(value, *_BY_ELEMENT, *_BY_CHANNEL) is None:
            return True
        line.extend(read for read in operand_vars(value) if read not in seen)
        seen.update(operand_vars(value))
    return False


def _is_expanded(view: DataflowView, var: Var, axes: Mapping[Var, int]) -> bool:
    """Return whether a variable is the image of rows that have one."""
    call, shape = call_to(view.definition(var), "expand_dims", "reshape"), static_shape(var)
    rows: Any = None if call is None else call.args[0]
    if rows not in axes or shape is None or view.is_returned(var):
        return False
    return shape == _with_axis(static_shape(rows) or (), axes[rows])


def _with_axis(shape: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    return (*shape[:axis], 1, *shape[axis:])


def _axis_of_op(value: Any, axes: Mapping[Var, int]) -> int | None:
    """Return the axis that the images have of which an op can be computed in place of rows; None if there are none."""
    if isinstance(value, TupleGetItem):
        full: Any = value.tuple_value
        return axes.get(full) if value.index == 0 else None
    data: list[Any] = _data(value)
    found = {axes[each] for each in data if each in axes}
    shapes = [static_shape(each) for each in data]
    if len(found) != 1 or None in shapes or max(len(shape or ()) for shape in shapes) != _RANK:
        return None
    axis = found.pop()
    if call_to(value, *_BY_CHANNEL) is not None and int(value.attrs.axis) % _RANK >= axis:
        return None
    is_by_axis = call_to(value, "quantize", "dequantize") is not None and value.args[1].ty.ndim > 0
    return None if is_by_axis else axis


def _data(value: Any) -> list[Expr]:
    """Return the tensors that an op combines element by element, or moves along axes of their own; none of another op."""
    if call_to(value, "quantize", "dequantize", "nn.pad", "strided_slice", "clip", *_BY_CHANNEL) is not None:
        return [value.args[0]]
    if call_to(value, *_BY_ELEMENT) is not None:
        return [arg for arg in value.args if isinstance(arg.ty, relax.TensorType)]
    if call_to(value, "concat") is not None and isinstance(value.args[0], Tuple):
        return elements(value.args[0].fields)
    return []


class _Rewriting:
    """One walk down the function, which writes it anew; variables that stay keep their names."""

    def __init__(self, view: DataflowView, found: _Found, tensors: Mapping[Any, TensorEntry]) -> None:
        self._view, self._found = view, found
        self.holders: dict[str, str] = {}
        """By rows, and by images that were made of these, what holds them now: they themselves where somebody reads them."""
        self._names = NameSupply(view.names)
        self._new: dict[Var, Any] = {}
        self._images: dict[tuple[Var, int], Any] = {}
        """By rows and the axis that their images have."""
        self._renamed: dict[Var, str] = {}
        for var in found.squeezed:
            image = view.binding_of(view.definition(var).args[0])
            if image is None or image.name in tensors or view.is_returned(image):
                continue
            if var.name in tensors and not self._is_read(var):
                self._renamed.setdefault(image, var.name)

    def _is_read(self, var: Var) -> bool:
        """Return whether anybody still reads rows that have an image."""
        return self._view.is_returned(var) or not all(map(self._found.reads_images, self._view.users(var)))

    def body(self, writer: BodyWriter) -> Expr:
        """Write every binding and return the result."""
        for binding in self._view.bindings:
            var, axis = binding.var, self._found.axes.get(binding.var)
            if var in self._found.expanded:
                rows = binding.value.args[0]
                self._new[var] = image = self._images[rows, self._found.axes[rows]]
                self.holders[var.name] = image.name
            elif axis is None:
                name = self._renamed.get(var, var.name)
                self._new[var] = writer.emit(name, self._renew(binding.value), is_output=self._view.is_returned(var))
            else:
                self._write_image(writer, var, axis)
        return self._renew(self._view.result)

    def _renew(self, expr: Any) -> Any:
        return replace_operands(expr, lambda var: self._new.get(var, var))

    def _write_image(self, writer: BodyWriter, var: Var, axis: int) -> None:
        """Write the image of rows, and for who reads them the rows: one of the two bears their name."""
        is_tuple, is_returned = not isinstance(var.ty, relax.TensorType), self._view.is_returned(var)
        is_read = self._is_read(var) and not is_tuple
        rows = var.name
        if var in self._found.squeezed:
            image = self._renew(self._view.definition(var).args[0])
        else:
            name = self._names.fresh(f"{rows}_image") if is_returned else rows
            image = writer.emit(name, self._computed(writer, self._view.definition(var), axis))
            rows = self._names.fresh(f"{rows}_rows") if is_read and not is_returned else rows
        self._images[var, axis] = image
        self.holders[var.name] = var.name if is_read and rows == var.name else image.name
        if is_tuple:
            self._new[var] = image
        elif is_read:
            self._new[var] = writer.emit(rows, relax.op.squeeze(image, [axis]), is_output=is_returned)

    def _computed(self, writer: BodyWriter, value: Any, axis: int) -> Expr:
        """Return an op on images in place of rows."""
        if isinstance(value, TupleGetItem):
            return TupleGetItem(self._renew(value.tuple_value), value.index)
        replaced = [self._image(writer, each, axis) for each in _data(value)]
        if call_to(value, "concat") is not None:
            along = int(value.attrs.axis) % _RANK
            return relax.op.concat(Tuple(replaced), along + (along >= axis))
        if call_to(value, "nn.pad") is not None:
            widths = [int(width) for width in value.attrs.pad_width]
            widths[2 * axis : 2 * axis] = [0, 0]
            rest = {"pad_value": float(value.attrs.pad_value), "pad_mode": str(value.attrs.pad_mode)}
            return relax.op.nn.pad(replaced[0], widths, **rest)
        others: list[Any] = [self._renew(arg) for arg in value.args[len(replaced) :]]
        if call_to(value, "strided_slice") is not None:
            axes = [int(each) % _RANK for each in elements(value.args[1].fields)]
            others[0] = Tuple([tvm.tirx.IntImm("int64", each + (each >= axis)) for each in axes])
        return relax.Call(value.op, [*replaced, *others], value.attrs)

    def _image(self, writer: BodyWriter, expr: Any, axis: int) -> Expr:
        """Return an operand with the axis that images have, of as few axes as it needs to stand beside them."""
        if (expr, axis) in self._images:
            return self._images[expr, axis]
        place = len(static_shape(expr) or ()) - (_RANK - axis)
        if place < 0 or not len(static_shape(expr) or ()):
            return self._renew(expr)
        if not isinstance(expr, Var):
            return relax.const(expr.value.numpy().reshape(_with_axis(static_shape(expr) or (), place)))
        name = self._names.fresh(f"{expr.name}_image")
        self._images[expr, axis] = image = writer.emit(name, relax.op.expand_dims(self._renew(expr), place))
        return image
