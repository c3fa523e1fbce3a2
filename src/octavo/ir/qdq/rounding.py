"""The rounding of a quantized op, which its own quantize or dequantize says: two Relax ops with a fourth argument.

    y_q = R.octavo.quantize(lv, R.const(0.1, "float32"), R.const(3, "int32"), R.str("half_up"), out_dtype="int8", axis=0)

`R.quantize` and `R.dequantize` round as TVM defines them, half to even about the zero point ("half_even"). A model of a framework
that rounds otherwise says so with `R.octavo.quantize` on the results of the ops concerned, and with `R.octavo.dequantize` on the
operands of comparisons, which have no quantize. Both have the arguments and attributes of the plain op, plus the rounding;
`ir.graph.dataflow` names them as the plain op, and TVM's own build computes them so. They print, parse back and survive JSON
wherever this module is imported. What a rounding means to an op is for the matchers; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import tvm
import tvm.ir._ffi_api as _ir_ffi
from tvm.ir import Call, GenericConst, Op, StringImm
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax import const as _relax_const
from tvm.relax import op as _relax_op

from ...errors import CompileError
from ...numerics.affine import TieRounding
from ...numerics.rounding.fixed_point import FixedPointRounding
from ...target import OpSupport
from ...target.vocabulary import (
    FIXED_POINT,
    FIXED_POINT_WIDE_BIAS,
    FIXED_POINTS,
    FLOAT_MULTIPLIER,
    HALF_AWAY,
    HALF_EVEN,
    HALF_UP,
    ROUNDINGS,
    SHIFTS,
)
from ..composites.base import Arithmetic, CompositeOp
from ..composites.reduction import ResizeOp
from ..graph.dataflow import DataflowView, call_to, op_name
from ..graph.rules import Region, Rejection
from ..graph.script_names import enter
from ..graph.value_graph import WITH_LITERALS

PASSED_THROUGH = (
    *("nn.max_pool2d", "reshape", "squeeze", "expand_dims", "permute_dims", "nn.batch_flatten", "flatten"),
    *("nn.relu", "clip"),
)
"""Ops of single values that a quantize may stand behind without rounding otherwise: they choose, move or clamp them."""


_OF_ACCELERATORS = (*SHIFTS, *FIXED_POINTS)
_OF_ANY_OP = (HALF_UP, HALF_AWAY, *_OF_ACCELERATORS)
"""Roundings that mean the same behind every op."""


def rounding_of(call: Any) -> str:
    """Return the rounding that a quantize or dequantize says."""
    return _word(call.args[3]) if len(call.args) > 3 else HALF_EVEN


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


def unsupported_rounding(view: DataflowView, region: Region[CompositeOp], support: OpSupport, target: str) -> Rejection | None:
    """Return why Octavo's kernels can't round a region for a target as its quantize says; None where they can."""
    asked, arithmetic = _asked(view, region), region.op.arithmetic()
    if asked is None:
        return None
    offered, computed = ", ".join(support.roundings), arithmetic.rounding
    if asked not in support.roundings:
        return _not_offered(region, asked, support, target)
    scales = {entry["id"]: entry["scale"] for entry in region.op.roles().values() if entry["scale"] is not None}
    problem = unscalable(asked, scales)
    if problem is not None:
        return problem
    if asked in _OF_ACCELERATORS:
        is_other = f"{arithmetic.requantize}_{computed}" != asked or isinstance(region.op, ResizeOp)
    else:
        is_other = computed == HALF_EVEN and computed not in support.roundings
    if is_other:
        reason = f"no kernel rounds {support.op} {asked}, only {computed}; target {target} rounds it {offered}"
        return Rejection(reason=reason, matched=True)
    return None


def vendor_arithmetic(view: DataflowView, region: Region[CompositeOp], support: OpSupport, target: str) -> Arithmetic | Rejection:
    """Return how a vendor's own code forms a region's result, or why it can't as the quantize says.

    Its description alone decides, whatever Octavo's kernels compute. Hardware that does not requantize by float multipliers takes
    its own first rounding where the quantize says one of these, as those of a framework's model do.
    """
    found, asked = region.op.arithmetic(), _asked(view, region)
    if asked is None:
        return found
    if support.requantize != FLOAT_MULTIPLIER:
        word = asked if asked in support.roundings else support.roundings[0]
        return replace(found, requantize=support.requantize, rounding=word.removeprefix(f"{support.requantize}_"))
    if asked not in support.roundings:
        return _not_offered(region, asked, support, target)
    return replace(found, rounding=asked) if found.rounding == HALF_EVEN else found


def _asked(view: DataflowView, region: Region[CompositeOp]) -> str | None:
    """Return the rounding that a region's quantize, or a comparison's dequantizes, say; None where nothing is rounded."""
    computed = region.op.arithmetic().rounding
    calls = [call for var in region.members if (call := call_to(view.definition(var), "quantize")) is not None]
    # A comparison has no quantize, and is in fixed point only where its dequantizes say so.
    said = [rounding_of(call) for call in calls][-1:] or ([FIXED_POINT] if computed == FIXED_POINT else [])
    if computed in ("none", "integers") or not said:
        return None
    # Others than ties are how a framework computes one op: the same quantize behind another op says nothing.
    return said[0] if computed != HALF_EVEN or said[0] in _OF_ANY_OP else HALF_EVEN


def _not_offered(region: Region[CompositeOp], asked: str, support: OpSupport, target: str) -> Rejection:
    offered = ", ".join(support.roundings)
    reason = f"{region.output.name} is rounded {asked}; target {target} rounds {support.op} {offered}"
    return Rejection(reason=reason, matched=True)


def fixed_point_of(quantize: Any) -> FixedPointRounding | None:
    """Return how a quantize asks to round in the integers of accelerators; None where it says another rounding."""
    asked = rounding_of(quantize)
    return cast("FixedPointRounding", asked.removeprefix(f"{FIXED_POINT}_")) if asked in _OF_ACCELERATORS else None


def unscalable(rounding: str, scales: Mapping[str, npt.ArrayLike]) -> Rejection | None:
    """Return which tensor's scale is no power of two where sums are shifted; None where all are, or nothing is shifted."""
    for name, scale in scales.items():
        values = np.atleast_1d(np.asarray(scale, np.float32))
        others = values[np.frexp(values)[0] != 0.5]
        if rounding in SHIFTS and others.size:
            reason = f"{name} has scale {others[0]:.7g}; {rounding} takes powers of two alone: quantize with scales power_of_two"
            return Rejection(reason=reason, matched=True)
    return None


def is_exact(rounding: str) -> bool:
    """Return whether a table's entries are of float64: no accelerator's table is rounded to float32 first."""
    return rounding in _OF_ACCELERATORS


_TIES: dict[str, TieRounding] = {
    HALF_UP: "half_up",
    HALF_AWAY: "half_away",
    "shift_half_up": "half_up",
    "shift_half_away": "half_away",
    "fixed_point_once": "half_up",
    "fixed_point_twice": "half_up",
    "fixed_point_twice_away": "half_away",
}


def tie_rounding(rounding: str) -> TieRounding:
    """Return where ties of a table, or of a tensor that enters as float, go; other roundings have tables of their own."""
    return _TIES.get(rounding, "half_even")


def is_fixed_point(rounding: str) -> bool:
    """Return whether an op of int16 tensors is computed in fixed point, as TFLite does it."""
    return rounding in (FIXED_POINT, FIXED_POINT_WIDE_BIAS)


def with_rounding(call: Any, rounding: str) -> Any:
    """Return a quantize or dequantize that says `rounding`: a plain Relax op where that is half to even."""
    name = op_name(call)
    if rounding == HALF_EVEN:
        return Call(Op.get(f"relax.{name}"), list(call.args[:3]), call.attrs)
    return Call(Op.get(f"relax.octavo.{name}"), [*call.args[:3], _checked(name, rounding)], call.attrs)


def with_rounding_as_constant(call: Any) -> Any:
    """Return the call with its rounding as a tensor of bytes: TVM's fusion makes parameters of texts, and none of constants."""
    if len(call.args) <= 3:
        return call
    word = _relax_const(np.frombuffer(rounding_of(call).encode(), np.uint8).copy())
    return Call(call.op, [*call.args[:3], word], call.attrs)


def source_op(data: Any, definition: Callable[[Any], Any]) -> str:
    """Name the op that computes what a quantize of `data` rounds, behind ops that leave values as they are or clamp them."""
    value = definition(data)
    while call_to(value, *PASSED_THROUGH) is not None:
        value = definition(value.args[0])
    return op_name(value)


def _word(argument: Any) -> str:
    if isinstance(argument, GenericConst):
        return argument.value.numpy().tobytes().decode("ascii", "replace")
    return str(argument.value)


def _checked(name: str, rounding: Any) -> StringImm:
    """Return the argument that says a rounding; raise for anything else."""
    word = _word(rounding) if isinstance(rounding, (GenericConst, StringImm)) else rounding
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

    def with_text(call: Any) -> Any:
        return Call(call.op, [*call.args[:3], _checked(name, call.args[3])], call.attrs)

    op.set_attr("FInferType", infer)
    op.set_attr(WITH_LITERALS, with_text)
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
    for name, python_op in (("quantize", _relax_op.quantize), ("dequantize", _relax_op.dequantize)):
        enter(name, _register(name, python_op))


_register_once()
