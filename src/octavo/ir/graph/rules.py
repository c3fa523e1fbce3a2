"""Rules: pattern, check, rewrite. A rule looks at one op, claims a region around it, or says why not.

The mechanism knows nothing of quantization; the rules themselves live with the stage that uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import tvm
from tvm import relax
from tvm.relax import Expr, Var

from ...runtime.size import OpenSizeError
from .dataflow import (
    BodyWriter,
    DataflowView,
    eliminate_dead_code,
    op_name,
    replace_operands,
    typed,
    view_of_main,
    with_main,
    write_function,
)
from .nodes import call_of
from .sizes import is_dimension

OpT_co = TypeVar("OpT_co", covariant=True)
"""What a stage's rules find."""

Repeatable = Callable[[DataflowView, Var], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """Why a rule does not apply, with the value that decided: "weight fc_w is not a constant".

    Of several rules the first one's reason counts, or that of one whose pattern `matched`: its numbers alone decided.
    """

    reason: str
    matched: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Region(Generic[OpT_co]):
    """A part of a function that becomes one composite.

    Parameters
    ----------
    core
        The variable of the op that the rule looked at.
    output
        The variable whose value the composite returns.
    members
        Every variable bound inside, in the order of the function; those that others read too are computed again outside.
    inputs
        Variables that enter, in the order of the composite's parameters.
    op
        What the composite computes, for the rule's own stage.
    attrs
        Attributes of the composite function.
    recomputes
        Whether its inner values cost nothing inside, so that others may read them: those compute them on their own.
    """

    core: Var
    output: Var
    members: tuple[Var, ...]
    inputs: tuple[Var, ...]
    op: OpT_co
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    recomputes: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Pattern (the ops it looks at), check and match in one function: a Region, or a Rejection with its reason."""

    composite: str
    ops: tuple[str, ...]
    match: Callable[[DataflowView, Var], Region[Any] | Rejection]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Partition:
    """What `partition` found: the new module, the region of each composite by its function's name, and rejections by core."""

    module: tvm.IRModule
    regions: dict[str, Region[Any]]
    rejections: dict[str, Rejection]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Claims:
    """What rules claim of a function: each region by its output, with its rule, and rejections by core; nothing is outlined."""

    regions: dict[Var, Region[Any]]
    rule_of: dict[Var, Rule]
    rejections: dict[str, Rejection]


Describe = Callable[[Region[Any]], Mapping[str, Any]]


def partition(module: tvm.IRModule, rules: Sequence[Rule], *, repeatable: Repeatable, describe: Describe) -> Partition:
    """Outline every region that a rule claims in "main" into a composite function.

    Before::

        lv1 = R.dequantize(x_q, ...); lv2 = R.nn.conv2d(lv1, ...); y_q = R.quantize(lv2, ...)

    After::

        y_q = cls.octavo_conv2d_y_q(x_q)      # a private function with attribute Composite = "octavo.conv2d"

    What nobody reads dies on the way; with nothing to outline and nothing dead the module is the very one that was given.

    Parameters
    ----------
    rules
        Tried in order for each op they name; the first that claims a region wins.
    repeatable
        Says of a value whether it may be computed both inside a composite and outside (it is cheap); a region whose other
        inner values are read outside is dropped by a Rejection.
    describe
        Further attributes of a region's composite: all that whoever reads the module needs of it.
    """
    view = view_of_main(module)
    return _outline(module, view, claim(view, rules, repeatable=repeatable), describe)


def claim(view: DataflowView, rules: Sequence[Rule], *, repeatable: Repeatable) -> Claims:
    """Return the regions that `partition` outlines."""
    regions: dict[Var, Region[Any]] = {}
    rule_of: dict[Var, Rule] = {}
    rejections: dict[str, Rejection] = {}
    taken: set[Var] = set()
    for binding in view.bindings:
        if binding.var in taken:
            continue
        op = op_name(binding.value)
        for rule in rules:
            if op not in rule.ops:
                continue
            found = _match(rule, view, binding.var)
            if isinstance(found, Region):
                found = _check_region(view, found, taken, repeatable)
            if isinstance(found, Rejection):
                if found.matched or binding.var.name not in rejections:
                    rejections[binding.var.name] = found
                continue
            rejections.pop(binding.var.name, None)
            regions[found.output] = found
            rule_of[found.output] = rule
            taken.update(_claimed(view, found, repeatable))
            break
    return Claims(regions=regions, rule_of=rule_of, rejections=rejections)


def _match(rule: Rule, view: DataflowView, var: Var) -> Region[Any] | Rejection:
    try:
        return rule.match(view, var)
    except OpenSizeError as error:
        return Rejection(reason=str(error))


def _claimed(view: DataflowView, region: Region[Any], repeatable: Repeatable) -> Iterator[Var]:
    """Yield the members that no other region can have."""
    within = set(region.members)
    for var in region.members:
        others = view.is_returned(var) or any(user not in within for user in view.users(var))
        if not repeatable(view, var) and (var.same_as(region.output) or not (region.recomputes and others)):
            yield var


def _check_region(view: DataflowView, region: Region[Any], taken: set[Var], repeatable: Repeatable) -> Region[Any] | Rejection:
    within = set(region.members)
    for var in region.members:
        if var in taken:
            return Rejection(reason=f"{var.name} already belongs to another kernel")
        if var.same_as(region.output) or region.recomputes or repeatable(view, var):
            continue
        readers = [user.name for user in view.users(var) if user not in within]
        if readers or view.is_returned(var):
            return Rejection(reason=f"{var.name} is also read by {', '.join(readers) or 'the output'} outside the kernel")
    return region


def _outline(module: tvm.IRModule, view: DataflowView, claims: Claims, describe: Describe) -> Partition:
    regions, rule_of = claims.regions, claims.rule_of
    if not regions and not any(view.is_unread(binding.var) for binding in view.bindings):
        return Partition(module=module, regions={}, rejections=claims.rejections)
    builder = relax.BlockBuilder(module)
    functions: dict[Var, tvm.ir.GlobalVar] = {}
    by_name: dict[str, Region[Any]] = {}
    for output, region in regions.items():
        name = f"{rule_of[output].composite.replace('.', '_')}_{output.name}"
        attrs = {"Composite": rule_of[output].composite, "Primitive": True, **region.attrs, **describe(region)}
        functions[output] = _write_composite(builder, name, view, region, attrs)
        by_name[functions[output].name_hint] = region
    result = _rewrite_main(builder.get(), view, regions, functions)
    return Partition(module=eliminate_dead_code(result), regions=by_name, rejections=claims.rejections)


def _write_composite(
    builder: relax.BlockBuilder, name: str, view: DataflowView, region: Region[Any], attrs: Mapping[str, Any]
) -> tvm.ir.GlobalVar:
    params = [relax.Var(var.name, var.ty) for var in region.inputs]
    mapping: dict[int, Expr] = {hash(var): param for var, param in zip(region.inputs, params, strict=True)}
    members = sorted(set(region.members), key=view.place_of)

    def replaced(var: Var) -> Expr:
        return var if is_dimension(var) else mapping[hash(var)]

    def body(writer: BodyWriter) -> Expr:
        result: Expr | None = None
        for var in members:
            value = replace_operands(view.bindings[view.place_of(var)].value, replaced)
            is_output = var.same_as(region.output)
            made = mapping[hash(var)] = writer.emit(var.name, value, is_output=is_output)
            result = made if is_output else result
        assert result is not None, f"{name}: the output is not a member"
        return result

    return write_function(builder, name, params, body, attrs, is_private=True)


def _rewrite_main(
    module: tvm.IRModule, view: DataflowView, regions: dict[Var, Region[Any]], functions: dict[Var, tvm.ir.GlobalVar]
) -> tvm.IRModule:
    """Replace each region's output by a call; bindings that only regions read die with DeadCodeElimination."""
    mapping: dict[int, Expr] = {}

    def mapped(var: Var) -> Expr:
        return mapping.get(hash(var), var)

    def body(writer: BodyWriter) -> Expr:
        for binding in view.bindings:
            region = regions.get(binding.var)
            value = binding.value
            if region is not None:
                value = typed(call_of(functions[binding.var], region.inputs), binding.var.ty)
            is_output = view.is_returned(binding.var)
            mapping[hash(binding.var)] = writer.emit(binding.var.name, replace_operands(value, mapped), is_output=is_output)
        return replace_operands(view.result, mapped)

    return with_main(module, body)
