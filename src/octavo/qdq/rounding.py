"""The rounding of a quantized op, which its own quantize or dequantize says: two Relax ops with a fourth argument.

    y_q = R.octavo.quantize(lv, R.const(0.1, "float32"), R.const(3, "int32"), R.str("half_up"), out_dtype="int8", axis=0)

`R.quantize` and `R.dequantize` round as TVM defines them, half to even about the zero point ("half_even"). A model of a framework
that rounds otherwise says so with `R.octavo.quantize` on the results of the ops concerned, and with `R.octavo.dequantize` on the
operands of comparisons, which have no quantize. Both have the arguments and attributes of the plain op, plus the rounding;
`graph.dataflow` names them as the plain op, and TVM's own build computes them so. They print, parse back and survive JSON
wherever this module is imported. What a rounding means to an op is for the matchers; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import SimpleNamespace
from typing import Any

import tvm
import tvm.ir._ffi_api as _ir_ffi
from tvm.ir import Call, Op, StringImm
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax import op as _relax_op
from tvm.relax import script as _script
from tvm.relax.script import parser as _parser

from ..errors import CompileError
from ..graph.dataflow import DataflowView, call_to, op_name

HALF_EVEN = "half_even"
HALF_EVEN_STORED = "half_even_stored"
HALF_UP = "half_up"
HALF_AWAY = "half_away"
FLOAT32 = "float32"
WHOLE_STEPS = "whole_steps"
FIXED_POINT = "fixed_point"
FIXED_POINT_WIDE_BIAS = "fixed_point_wide_bias"

ROUNDINGS = {
    HALF_EVEN: "rint(real / scale) + zero_point, ties to even: what R.quantize says",
    HALF_EVEN_STORED: "rint(real / scale + zero_point): a tie becomes an even integer of the result; mean, multiply, add",
    HALF_UP: "in integers, ties up: add, subtract; a fixed-point factor: a change of parameters, nn.leakyrelu, nn.prelu; "
    'the shift of an integer sum: image.resize2d by method "linear"',
    HALF_AWAY: "nn.avg_pool2d of equal parameters: over the integers as they are stored, ties away from 0",
    FLOAT32: 'every float32 operation of ONNX Runtime, in its order: nn.avg_pool2d, image.resize2d by method "linear"',
    WHOLE_STEPS: "nn.softmax: 1 / scale of the result counts as a whole number, rounded down",
    FIXED_POINT: "TFLite's fixed point: ops of int16 tensors; the norm that an l2 normalization divides by; comparisons",
    FIXED_POINT_WIDE_BIAS: "TFLite's fixed point of an int16 op whose bias has 64 bits, for which it has other roundings",
}
"""Every rounding, what it means and the ops that know it; an op to which one means nothing rounds half to even."""

PASSED_THROUGH = (
    *("nn.max_pool2d", "reshape", "squeeze", "expand_dims", "permute_dims", "nn.batch_flatten", "flatten"),
    *("nn.relu", "clip"),
)
"""Ops of single values that a quantize may stand behind without rounding otherwise: they choose, move or clamp them."""


def rounding_of(call: Any) -> str:
    """Return the rounding that a quantize or dequantize says."""
    return str(call.args[3].value) if len(call.args) > 3 else HALF_EVEN


def result_rounding(view: DataflowView, members: Iterable[Var], known: Collection[str] = ROUNDINGS) -> str:
    """Return the rounding of the quantize that ends a region of these variables.

    Half to even where there is none, or where it is none of those that the op knows.
    """
    calls = [call for var in members if (call := call_to(view.definition(var), "quantize")) is not None]
    asked = rounding_of(calls[-1]) if calls else HALF_EVEN
    return asked if asked in known else HALF_EVEN


def operand_rounding(view: DataflowView, call: Any) -> str:
    """Return the rounding of the dequantizes that an op reads; half to even where it reads none."""
    found = [call_to(view.definition(arg), "dequantize") for arg in call.args]
    return next((rounding_of(made) for made in found if made is not None and rounding_of(made) != HALF_EVEN), HALF_EVEN)


def is_fixed_point(rounding: str) -> bool:
    """Return whether an op of int16 tensors is computed in fixed point, as TFLite does it."""
    return rounding in (FIXED_POINT, FIXED_POINT_WIDE_BIAS)


def with_rounding(call: Any, rounding: str) -> Any:
    """Return a quantize or dequantize that says `rounding`: a plain Relax op where that is half to even."""
    name = op_name(call)
    if rounding == HALF_EVEN:
        return Call(Op.get(f"relax.{name}"), list(call.args[:3]), call.attrs)
    return Call(Op.get(f"relax.octavo.{name}"), [*call.args[:3], _checked(name, rounding)], call.attrs)


def source_op(data: Any, definition: Callable[[Any], Any]) -> str:
    """Name the op that computes what a quantize of `data` rounds, behind ops that leave values as they are or clamp them."""
    value = definition(data)
    while call_to(value, *PASSED_THROUGH) is not None:
        value = definition(value.args[0])
    return op_name(value)


def _checked(name: str, rounding: Any) -> StringImm:
    """Return the argument that says a rounding; raise for anything else."""
    word = rounding.value if isinstance(rounding, StringImm) else rounding
    if word not in ROUNDINGS:
        raise CompileError(f"octavo.{name}: expected a rounding of {', '.join(ROUNDINGS)} as fourth argument, got {word!r}")
    return StringImm(str(word))


def _register(name: str, python_op: Callable[..., Any]) -> Callable[..., Any]:
    """Register `relax.octavo.<name>` with TVM and return its constructor for TVMScript."""
    ffi: Any = _ir_ffi
    full, plain = f"relax.octavo.{name}", Op.get(f"relax.{name}")
    ffi.RegisterOp(full, f"relax.{name} that says its rounding.")
    op: Any = Op.get(full)
    op.set_num_inputs(4)
    op.set_attrs_type_key("relax.attrs.QuantizeAttrs")
    for argument, kind in (("data", "Tensor"), ("scale", "Tensor"), ("zero_point", "Tensor"), ("rounding", "StringImm")):
        op.add_argument(argument, kind, "")

    def infer(call: Any, builder: BlockBuilder) -> Any:
        _checked(name, call.args[3] if len(call.args) > 3 else None)
        return plain.get_attr("FInferType")(Call(plain, list(call.args[:3]), call.attrs), builder)

    op.set_attr("FInferType", infer)
    op.set_attr("FPurity", True)
    op.set_attr("RequiresArgumentShapes", False)  # else the string, which has none, keeps LegalizeOps away
    op.set_attr("FLegalize", plain.get_attr("FLegalize"))

    def construct(data: Expr, scale: Expr, zero_point: Expr, rounding: Any, **attributes: Any) -> Any:
        call = python_op(data, scale, zero_point, **attributes)
        return Call(op, [*call.args, _checked(name, rounding)], call.attrs)

    return construct


def _register_once() -> None:
    if "relax.octavo.quantize" in tvm.ir.Op.list_op_names():
        return
    namespace = SimpleNamespace(
        quantize=_register("quantize", _relax_op.quantize), dequantize=_register("dequantize", _relax_op.dequantize)
    )
    # `R` of a module's source text is the one, of a decorated class the other.
    for module in (_script, _parser):
        module.octavo = namespace


_register_once()
