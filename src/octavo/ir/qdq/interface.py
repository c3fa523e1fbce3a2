"""What stands between a QDQ graph's integers and its inputs and outputs: their scales and zero points."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.relax import Expr, Tuple

from ...numerics import QuantParams
from ..graph.dataflow import DataflowView, call_to, dtype_of
from .values import params_of


def results_of(view: DataflowView) -> list[Expr]:
    """Return the expressions that "main" returns, one for each output."""
    return list(view.result.fields) if isinstance(view.result, Tuple) else [view.result]


def input_params(module: tvm.IRModule) -> list[QuantParams | None]:
    """Return with what parameters the graph dequantizes each parameter of a bound module's "main"; None where it does not."""
    view = DataflowView(module["main"])
    found: list[QuantParams | None] = []
    for param in view.function.params:
        calls = [call_to(view.definition(user), "dequantize") for user in view.users(param)]
        known = [params_of(call, dtype_of(param)) for call in calls if call is not None and call.args[0].same_as(param)]
        found.append(known[0] if known else None)
    return found


def output_params(module: tvm.IRModule) -> list[QuantParams | None]:
    """Return with what parameters the graph quantized each result of "main"; None where it did not."""
    view = DataflowView(module["main"])
    found: list[QuantParams | None] = []
    for result in results_of(view):
        call: Any = call_to(view.definition(result), "quantize")
        found.append(None if call is None else params_of(call, dtype_of(result)))
    return found
