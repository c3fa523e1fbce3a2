"""The integer ops of a target as patterns of TVM's registry: a vendor's own FuseOpsByPattern finds what `partition` finds.

A pattern says the outline of an op in QDQ form; whether it is one the target takes is asked of the matcher that `partition` uses,
on the bindings that TVM matched. What a composite says of itself comes from that matcher, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax import Expr, Var
from tvm.relax.backend import pattern_registry
from tvm.relax.dpl import DFPattern, is_op, is_tuple, wildcard
from tvm.relax.transform import FusionPattern, PatternCheckContext

from ...ir.composites.base import CompositeOp
from ...ir.graph.dataflow import BodyWriter, DataflowView, call_to, operand_vars, replace_operands, with_main
from ...ir.graph.rules import Region
from ...ir.qdq.rounding import with_rounding, with_rounding_as_constant
from ...target import TargetDescription
from ..partition.adopt_roundings import roundings_to_adopt
from ..partition.context import PartitionContext
from ..partition.outline_integer import COMPUTE
from ..partition.target_rules import describe, rules_for

_MAX_INPUTS = 6
"""Of a concatenation: TVM has no pattern for a tuple of any length."""
_Outline = Callable[[], tuple[DFPattern, DFPattern]]
"""Returns the pattern of an op's result, still float, and of the op itself."""


def register_patterns(description: TargetDescription) -> None:
    """Put the patterns of a target into TVM's registry, for ``get_patterns_with_prefix(NAME)``."""
    found = patterns(description)
    names = {str(each.name) for each in found}
    registry: Any = pattern_registry
    # A description of this name that took more ops leaves none of its patterns.
    before = {str(each.name) for each in registry.get_patterns_with_prefix(f"{description.name}.")}
    registry._ffi_api.RemovePatterns(sorted(names | before))
    # TVM removes at Python's end what it knows by tuples alone: patterns whose checks outlive Python crash it.
    registry._REGISTERED_PATTERN_NAMES.update(names)
    registry.register_patterns(found[::-1])


def patterns(description: TargetDescription) -> list[FusionPattern]:
    """Return the patterns of what a target takes, those that match more first.

    They are for graphs whose constants are bound and in which each op reads a dequantize of its own (`duplicate_dequantize`).
    Ops that partition recognizes in several steps (normalizations, tables of several ops, comparisons) have none: they are left
    to the host.
    """
    found: list[FusionPattern] = []
    for kind, outlines in _OUTLINES.items():
        rows = tuple(row for row in COMPUTE if row[0] == kind)
        ops = {op for _, names, _ in rows for op in names}
        if not any(description.support(op) for op in (*ops, *_GENERAL.get(kind, ()))):
            continue
        for outline in outlines:
            for quantize in ("relax.quantize", "relax.octavo.quantize"):
                result, core = outline()
                more = [wildcard()] if quantize.startswith("relax.octavo") else []
                root = is_op(quantize)(result, wildcard(), wildcard(), *more)
                found.append(_fusion(f"{description.name}.{kind}", root, core, rows, description))
    return found


def duplicate_dequantize() -> Any:
    """Return the pass that gives each reader of a dequantize one of its own: TVM puts a value into one composite at most.

    Roundings become constants on the way: TVM would make parameters of texts.

    It is named by the tensor that it is of, "r1_dq2", which is how a composite finds its inputs' TensorIds once others are calls.
    """
    return tvm.transform.module_pass(_duplicated, opt_level=0, name="octavo.duplicate_dequantize")


def _duplicated(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
    view = DataflowView(module["main"])
    shared = {binding.var: binding.value for binding in view.bindings if call_to(binding.value, "dequantize") is not None}

    def name_of(var: Var) -> str:
        """Return the name of a copy; that of a constant is its own."""
        integers: Any = operand_vars(shared[var])
        quantize = call_to(view.definition(integers[0]), "quantize") if integers else None
        source = quantize.args[0] if quantize is not None else integers[0] if integers else None
        return f"{source.name}_dq" if isinstance(source, Var) else str(var.name)

    def body(writer: BodyWriter) -> Expr:
        emitted: dict[Var, Var] = {}

        def read(var: Var) -> Var:
            return emitted.get(var, var)

        for binding in view.bindings:
            if binding.var in shared and not view.is_returned(binding.var):
                continue
            own = {
                var: writer.emit(name_of(var), replace_operands(with_rounding_as_constant(shared[var]), read))
                for var in dict.fromkeys(operand_vars(binding.value))
                if var in shared
            }
            value: Any = replace_operands(binding.value, lambda var: own.get(var, read(var)))  # noqa: B023
            if call_to(value, "quantize", "dequantize") is not None:
                value = with_rounding_as_constant(value)
            emitted[binding.var] = writer.emit(binding.var.name, value, is_output=view.is_returned(binding.var))
        return replace_operands(view.result, read)

    return with_main(module, body)


def _fusion(name: str, root: DFPattern, core: DFPattern, rows: tuple[Any, ...], description: TargetDescription) -> FusionPattern:
    """Return a pattern whose matches are those of the matchers of `rows`."""
    accepted: list[Region[CompositeOp]] = []

    def check(context: PatternCheckContext) -> bool:
        region = _region(context, rows, description)
        accepted[:] = [] if region is None else [region]
        return region is not None

    def attributes(_matched: Mapping[str, Expr]) -> dict[str, Any]:
        # TVM asks for the attributes of a match right after it was accepted.
        (region,) = accepted
        return {"Primitive": True, **region.attrs, **describe(region)}

    return FusionPattern(name, root, {"core": core, "root": root}, check, attributes)


def _region(context: PatternCheckContext, rows: tuple[Any, ...], description: TargetDescription) -> Region[CompositeOp] | None:
    """Return what a matcher finds in the bindings that TVM matched, where it takes all of them."""
    bindings = dict(context.matched_bindings.items())
    function = _function_of(bindings)
    view = DataflowView(function)
    bound = {var.name: var for var in bindings}
    core = next(var for var, value in bindings.items() if value.same_as(context.annotated_expr["core"]))
    context_of = PartitionContext(target=description, tensors=_tensors(context))
    rules = rules_for(context_of, rows, description, description.name)
    for rule in rules:
        found = rule.match(view, core)
        words = roundings_to_adopt(view, [found]) if isinstance(found, Region) else {}
        if words:  # matched again: what the target rounds otherwise may be another composite
            new = {var: with_rounding(value, words[var]) if var in words else value for var, value in bindings.items()}
            view = DataflowView(_function_of(new))
            found = rule.match(view, core)
        if isinstance(found, Region) and found.output.name in bound and found.output.same_as(view.bindings[-1].var):
            entering = list(function.params)
            if set(found.inputs) == set(entering):
                return found
    return None


def _tensors(context: PatternCheckContext) -> dict[str, str]:
    """Return which tensor the integers of a variable are of: what a quantize reads, or what its dequantize is named by."""
    found: dict[str, str] = {}
    for var, value in context.matched_bindings.items():
        quantize, dequantize = call_to(value, "quantize"), call_to(value, "dequantize")
        if quantize is not None and isinstance(quantize.args[0], Var):
            found[var.name] = quantize.args[0].name
        elif dequantize is not None and isinstance(dequantize.args[0], Var):
            found[dequantize.args[0].name] = re.sub(r"_dq\d*$", "", str(var.name))
    return found


def _function_of(bindings: Mapping[Var, Expr]) -> relax.Function:
    """Return a function of these bindings, its parameters what they read and do not bind."""
    ordered: list[Var] = []
    params: list[Var] = []

    def visit(var: Var) -> None:
        if var in ordered or var in params:
            return
        if var not in bindings:
            params.append(var)
            return
        for read in operand_vars(bindings[var]):
            visit(read)
        ordered.append(var)

    for var in bindings:
        visit(var)
    block = relax.DataflowBlock([relax.VarBinding(var, bindings[var]) for var in ordered])
    return relax.Function(params, relax.SeqExpr([block], ordered[-1]), ordered[-1].ty, is_pure=True)


def _dequantized() -> DFPattern:
    return is_op("relax.dequantize")(wildcard(), wildcard(), wildcard())


def _weights() -> Iterator[DFPattern]:
    """A weight or bias: a dequantized constant, as it is or reshaped."""
    yield _dequantized()
    yield is_op("relax.reshape")(_dequantized(), wildcard())
    yield is_op("relax.permute_dims")(_dequantized())
    yield is_op("relax.expand_dims")(_dequantized())


def _clamped(make: _Outline) -> Iterator[_Outline]:
    """The op with a clamp behind it, then alone."""

    def relu() -> tuple[DFPattern, DFPattern]:
        result, core = make()
        return is_op("relax.nn.relu")(result), core

    def clip() -> tuple[DFPattern, DFPattern]:
        result, core = make()
        return is_op("relax.clip")(result, wildcard(), wildcard()), core

    yield from (relu, clip, make)


def _product(op: str, weight: Callable[[], DFPattern], bias: Callable[[], DFPattern] | None) -> _Outline:
    def make() -> tuple[DFPattern, DFPattern]:
        core = is_op(op)(_dequantized(), weight())
        return (core if bias is None else is_op("relax.add")(core, bias())), core

    return make


def _nth(number: int) -> Callable[[], DFPattern]:
    return lambda: list(_weights())[number]


def _products(op: str) -> list[_Outline]:
    count = len(list(_weights()))
    plain = [_product(op, _nth(weight), None) for weight in range(count)]
    biased = [_product(op, _nth(weight), _nth(bias)) for weight in range(count) for bias in range(count)]
    return [outline for make in (*biased, *plain) for outline in _clamped(make)]


def _of(op: str, *extra: int) -> list[_Outline]:
    """Ops of one tensor, with so many operands more that are no tensors."""

    def with_extra(count: int) -> _Outline:
        def make() -> tuple[DFPattern, DFPattern]:
            core = is_op(op)(_dequantized(), *(wildcard() for _ in range(count)))
            return core, core

        return make

    return [outline for count in extra or (0,) for outline in _clamped(with_extra(count))]


def _of_two(op: str) -> list[_Outline]:
    def make() -> tuple[DFPattern, DFPattern]:
        core = is_op(op)(_dequantized(), _dequantized())
        return core, core

    return list(_clamped(make))


def _concats() -> list[_Outline]:
    def of(count: int) -> _Outline:
        def make() -> tuple[DFPattern, DFPattern]:
            core = is_op("relax.concat")(is_tuple([_dequantized() for _ in range(count)]))
            return core, core

        return make

    return [of(count) for count in range(_MAX_INPUTS, 0, -1)]


_POOLS = ("nn.avg_pool2d", "nn.adaptive_avg_pool2d", "mean", "nn.max_pool2d")
_TABLES = ("sigmoid", "tanh", "exp", "nn.silu", "nn.gelu", "nn.leakyrelu", "sqrt", "rsqrt", "abs", "negative", "log")
_OUTLINES: dict[str, list[_Outline]] = {
    "conv2d": _products("relax.nn.conv2d"),
    "matmul": _products("relax.matmul"),
    "add": _of_two("relax.add"),
    "mul": _of_two("relax.multiply"),
    "sub": _of_two("relax.subtract"),
    "pool2d": [outline for op in _POOLS for outline in _of(f"relax.{op}")],
    "concat": _concats(),
    "move": [*_of("relax.reshape", 1), *_of("relax.squeeze"), *_of("relax.permute_dims"), *_of("relax.expand_dims")],
    "lookup": [outline for op in _TABLES for outline in _of(f"relax.{op}")],
    "softmax": _of("relax.nn.softmax"),
}
_GENERAL = {"lookup": ("elementwise",)}
