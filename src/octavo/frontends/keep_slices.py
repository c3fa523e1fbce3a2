"""Keep volumes as their slices from op to op: what works value by value, or channel by channel, reads and makes the slices.

Importers write an op of volumes as steps to slices, an op of images, and steps back (`volumes`). Before, of two such ops with a
relu between them::

    y = R.permute_dims(R.reshape(y_slices, [1, 8, 16, 28, 28]), [0, 2, 1, 3, 4])
    z = R.nn.relu(y)
    z_slices = R.reshape(R.permute_dims(z, [0, 2, 1, 3, 4]), [8, 16, 28, 28])

After::

    z_slices = R.nn.relu(y_slices)

Whoever else reads `y` or `z` still finds it. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm_ffi import structural_equal

from ..ir.graph.dataflow import call_to
from ..ir.graph.nodes import call_of, elements
from ..ir.untyped import ops
from ..target.op_facts import ELEMENTWISE
from .relax_ops import shape_of
from .volumes import SWAPPED, known_size

_BY_VALUE = (*ELEMENTWISE, "quantize", "dequantize")
"""Ops that make each value of those at its place, and of parameters by channel."""


class Slices:
    """One run over the bindings of a function in A-normal form.

    Attributes
    ----------
    bindings
        What was given, with slices between ops of volumes; volumes that nobody reads any more are there, too.
    of
        By the hash of a volume's variable, that of its slices.
    renamed
        By the hash of a variable that is slices anew, what it is another name of.
    """

    def __init__(self, bindings: Sequence[Any]) -> None:
        self.bindings: list[Any] = []
        self.of: dict[int, Any] = {}
        self.renamed: dict[int, Any] = {}
        self._values: dict[int, Any] = {}
        for binding in bindings:
            self._add(binding)

    def _add(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        self._values[hash(var)] = value
        if isinstance(binding, relax.VarBinding):
            swapped = self._swapped(value)
            parts = None if swapped is None else call_to(self._value(swapped), "reshape")
            if parts is not None and _are_slices(shape_of(parts.args[0]), shape_of(swapped)):
                self.of[hash(var)] = self._resolved(parts.args[0])
            known = self._known_slices(var, value)
            if known is not None:
                self.renamed[hash(var)] = known
            made = self._over_slices(value)
            if made is not None:
                binding = relax.VarBinding(var, self._volume(var, made))
        self.bindings.append(binding)

    def _resolved(self, expr: Any) -> Any:
        return self.renamed.get(hash(expr), expr)

    def _value(self, expr: Any) -> Any:
        return self._values.get(hash(expr))

    def _swapped(self, value: Any) -> Any:
        """Return the volume whose channels and depth a value has in each other's place; None for any other value."""
        call = call_to(value, "permute_dims")
        return call.args[0] if call is not None and [int(axis) for axis in call.attrs.axes or ()] == SWAPPED else None

    def _known_slices(self, var: Any, value: Any) -> Any:
        """Return the slices of which a volume was put together that is turned into them again."""
        call = call_to(value, "reshape")
        volume = None if call is None else self._swapped(self._value(call.args[0]))
        slices = None if volume is None else self.of.get(hash(volume))
        return slices if slices is not None and _same(shape_of(slices), shape_of(var)) else None

    def _volume(self, var: Any, made: Any) -> Any:
        """Return the volume of slices that are new, as a value."""
        slices = self.of[hash(var)] = self._bound(made)
        batch, channels, depth, height, width = shape_of(var)
        return _typed(ops.permute_dims(self._bound(ops.reshape(slices, [batch, depth, channels, height, width])), SWAPPED))

    def _bound(self, value: Any) -> Any:
        value = _typed(value)
        var = relax.DataflowVar("slices", value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def _over_slices(self, value: Any) -> Any:
        """Return what a value is of slices where all that it reads has them or is the same for each; None where not."""
        if isinstance(value, relax.TupleGetItem):
            norm: Any = call_to(self._value(value.tuple_value), "nn.batch_norm")
            if norm is None or value.index > 0 or int(norm.attrs.axis) != 1 or hash(norm.args[0]) not in self.of:
                return None
            args = [self.of[hash(norm.args[0])], *elements(norm.args)[1:]]
            return relax.TupleGetItem(self._bound(call_of(norm.op, args, norm.attrs)), 0)
        call: Any = call_to(value, *_BY_VALUE, "concat")
        if call is None:
            return None
        args = elements(call.args)
        if call_to(call, "concat") is not None:
            parts = [self.of.get(hash(part)) for part in elements(getattr(args[0], "fields", ()))]
            is_by_channel = bool(parts) and _all_known(parts) and int(call.attrs.axis or 0) == 1
            return ops.concat(parts, 1) if is_by_channel else None
        operands = self._operands(call, args, shape_of(value))
        return call_of(call.op, operands, call.attrs, call.ty_args) if operands and _all_known(operands) else None

    def _operands(self, call: Any, args: list[Any], shape: list[Any]) -> list[Any]:
        """Return what an op that works value by value reads of slices, None in it for what they can't say; [] of no volume."""
        if call_to(call, "quantize", "dequantize") is not None:
            is_by_channel = args[1].ty.ndim == 0 or int(call.attrs.axis) == 1
            return [self.of.get(hash(args[0])) if is_by_channel else None, *args[1:]]
        is_volume = [hash(arg) in self.of and _same(shape_of(arg), shape) for arg in args]
        if not any(is_volume):
            return []
        return [self.of[hash(arg)] if has else self._same_for_all(arg) for arg, has in zip(args, is_volume, strict=True)]

    def _same_for_all(self, operand: Any) -> Any:
        """Return an operand that is the same for each slice of each volume without the axis of depth; None for any other."""
        if not isinstance(operand.ty, relax.TensorType):
            return operand
        shape = shape_of(operand)
        if len(shape) < 3:
            return operand
        if not _same([shape[-3], *shape[:-4]], [1] * (len(shape) - 3)):
            return None
        return self._bound(ops.reshape(operand, [*shape[:-3], *shape[-2:]]))


def _all_known(values: Sequence[Any]) -> bool:
    return all(value is not None for value in values)


def _are_slices(shape: Sequence[Any], swapped: Sequence[Any]) -> bool:
    """Return whether these are the sizes of the slices of a volume, of which others are with channels and depth swapped."""
    return len(shape) == 4 and _same(shape[1:], swapped[2:]) and known_size(shape[0] - swapped[0] * swapped[1]) == 0


def _same(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(shape) == len(other) and all(map(structural_equal, shape, other))


def _typed(value: Any) -> Any:
    return relax.BlockBuilder().normalize(value)
