"""Make a pre-quantized model round as the hardware of a description does, where its quantizes name another requantize form.

Before, for a target whose nn.conv2d requantizes by "fixed_point" and rounds "twice_away"::

    y = R.nn.conv2d(x, w); y_q = R.quantize(y, ...)                      # a framework's own rounding

After::

    y = R.nn.conv2d(x, w); y_q = R.octavo.quantize(y, ..., R.str("fixed_point_twice_away"))

Hardware without float multipliers can't round as a framework's kernels on CPUs do. Changes quantizes alone, and only those of ops
that the target takes; a rounding that the description lists stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax import Expr, Var

from ...ir.composites.base import CompositeOp
from ...ir.graph.dataflow import BodyWriter, DataflowView, call_to, replace_operands, view_of_main, with_main
from ...ir.graph.rules import Region
from ...ir.qdq.rounding import rounding_of, with_rounding
from ...target.vocabulary import FIXED_POINTS, SHIFTS

_IN_INTEGERS = (*SHIFTS, *FIXED_POINTS)


def asks_other_roundings(view: DataflowView) -> bool:
    """Return whether a quantize names a rounding that no hardware without float multipliers has."""
    calls = (call_to(binding.value, "quantize") for binding in view.bindings)
    return any(call is not None and rounding_of(call) not in _IN_INTEGERS for call in calls)


def adopt_roundings(module: tvm.IRModule, regions: Iterable[Region[CompositeOp]]) -> tvm.IRModule:
    """Return the module with quantizes that say what a vendor's composites of these regions of "main" would."""
    view = view_of_main(module)
    words = roundings_to_adopt(view, regions)
    return with_main(module, lambda writer: _write(view, words, writer)) if words else module


def roundings_to_adopt(view: DataflowView, regions: Iterable[Region[CompositeOp]]) -> dict[Var, str]:
    """Return what the quantizes of a target's regions must say, by their variables, where they do not.

    Parameters
    ----------
    regions
        What the target takes, claimed as a vendor's: their quantize_info says requantize form and rounding.
    """
    words: dict[Var, str] = {}
    for region in regions:
        info = region.attrs["quantize_info"]
        word = f"{info['requantize']}_{info['rounding']}"
        made = [var for var in region.members if call_to(view.definition(var), "quantize") is not None][-1:]
        words |= {var: word for var in made if word in _IN_INTEGERS and rounding_of(view.definition(var)) != word}
    return words


def _write(view: DataflowView, words: Mapping[Var, str], writer: BodyWriter) -> Expr:
    new: dict[Var, Expr] = {}

    def substitute(expr: Any) -> Any:
        return replace_operands(expr, lambda var: new.get(var, var))

    for binding in view.bindings:
        value, word = substitute(binding.value), words.get(binding.var)
        value = value if word is None else with_rounding(value, word)
        new[binding.var] = writer.emit(binding.var.name, value, is_output=not isinstance(binding.var, relax.DataflowVar))
    return substitute(view.result)
