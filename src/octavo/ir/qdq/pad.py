"""Zero padding in front of a convolution becomes the convolution's own. Claims nothing itself: `conv2d` and `gather` ask here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Var

from ...numerics import QuantParams
from ..graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from .values import Dequantized, dequantized, params_of

Widths = tuple[int, int, int, int]
"""Rows above, columns left, rows below, columns right."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoldedPad:
    """What a convolution reads instead of the padded tensor, its padding then, and the variables that this takes in."""

    source: Dequantized
    widths: Widths
    members: tuple[Var, ...]


def folded_pad(view: DataflowView, conv: Any) -> FoldedPad | None:
    """Return the padding that alone feeds a nn.conv2d and pads rows and columns with real 0, less than the kernel is wide.

    Before (the inner quantize and dequantize may be missing, or the padding may be one of integers by the zero point)::

        lv = R.dequantize(x_q, s, z); lv1 = R.nn.pad(lv, [0, 0, 1, 1, 1, 1, 0, 0]); lv2 = R.quantize(lv1, s, z)
        lv3 = R.dequantize(lv2, s, z); lv4 = R.nn.conv2d(lv3, w, padding=[0, 0, 0, 0])

    After::

        lv4 = R.nn.conv2d(R.dequantize(x_q, s, z), w, padding=[1, 1, 1, 1])
    """
    chain = [var for var in (view.binding_of(conv.args[0]),) if var is not None]
    if not chain or view.only_user(chain[0]) is None:
        return None
    outer = dequantized(view, chain[0])
    if outer is None:
        pad = call_to(view.definition(chain[0]), "nn.pad")
        inner = None if pad is None else dequantized(view, pad.args[0])
        if pad is None or inner is None or float(pad.attrs.pad_value) != 0.0:
            return None
        return _folded(inner, _checked_widths(pad, conv), (*_bound(inner), *chain))
    integers = view.binding_of(outer.source)
    if integers is None or view.only_user(integers) is None:
        return None
    pad = call_to(view.definition(integers), "nn.pad")
    if pad is not None:
        if not isinstance(pad.args[0], Var) or float(pad.attrs.pad_value) != float(outer.params.zero_point):
            return None
        inner = Dequantized(source=pad.args[0], params=outer.params, var=None)
        return _folded(inner, _checked_widths(pad, conv), (integers, *chain))
    return _requantized_pad(view, conv, outer, integers, chain)


def _requantized_pad(view: DataflowView, conv: Any, outer: Dequantized, integers: Var, chain: list[Var]) -> FoldedPad | None:
    """Return the padding in front of a quantize and dequantize that change nothing."""
    quantize = call_to(view.definition(integers), "quantize")
    padded = None if quantize is None else view.binding_of(quantize.args[0])
    if quantize is None or padded is None or view.only_user(padded) is None:
        return None
    pad = call_to(view.definition(padded), "nn.pad")
    inner = None if pad is None else dequantized(view, pad.args[0])
    params = params_of(quantize, dtype_of(integers))
    if pad is None or inner is None or params is None or float(pad.attrs.pad_value) != 0.0:
        return None
    if not (_same(inner.params, params) and _same(params, outer.params)):
        return None
    return _folded(inner, _checked_widths(pad, conv), (*_bound(inner), padded, integers, *chain))


def is_folded(view: DataflowView, pad: Var) -> bool:
    """Return whether the convolution behind a padding will take it in."""
    current: Var | None = pad
    for _ in range(4):  # the padding, quantize, dequantize, convolution
        current = view.only_user(current) if current is not None else None
        conv = None if current is None else call_to(view.definition(current), "nn.conv2d")
        if conv is not None:
            found = folded_pad(view, conv)
            return found is not None and any(member.same_as(pad) for member in found.members)
    return False


def _folded(source: Dequantized, widths: Widths | None, members: tuple[Var, ...]) -> FoldedPad | None:
    if widths is None or not isinstance(source.source, Var):
        return None
    return FoldedPad(source=source, widths=widths, members=members)


def _bound(x: Dequantized) -> tuple[Var, ...]:
    return () if x.var is None else (x.var,)


def _checked_widths(pad: Any, conv: Any) -> Widths | None:
    """Return the widths if they pad rows and columns alone, each less than the kernel's extent there."""
    if str(pad.attrs.pad_mode) != "constant":
        return None
    layout, kernel_layout = str(conv.attrs.data_layout), str(conv.attrs.kernel_layout)
    amounts = [int(amount) for amount in pad.attrs.pad_width]
    kernel = static_shape(conv.args[1])
    if sorted(layout) != sorted("NCHW") or sorted(kernel_layout) != sorted("OIHW") or len(amounts) != 8 or kernel is None:
        return None
    pairs = {name: (amounts[2 * i], amounts[2 * i + 1]) for i, name in enumerate(layout)}
    before = [int(width) for width in conv.attrs.padding]
    extents = [
        int(dilation) * (kernel[kernel_layout.index(name)] - 1) + 1
        for name, dilation in zip("HW", conv.attrs.dilation, strict=True)
    ]
    top, left, bottom, right = (own + pairs["HW"[i % 2]][i // 2] for i, own in enumerate(before))
    if pairs["N"] != (0, 0) or pairs["C"] != (0, 0) or max(top, bottom) >= extents[0] or max(left, right) >= extents[1]:
        return None
    return top, left, bottom, right


def _same(a: QuantParams, b: QuantParams) -> bool:
    return a.dtype == b.dtype and np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point)
