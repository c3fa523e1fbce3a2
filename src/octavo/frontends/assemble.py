"""Turn what a frontend built into the module of a Model: ids as variable names, constants as parameters, one dataflow block.

The frontend's function is only read. Nothing is computed, fused or folded here; bindings that no output depends on are dropped.

Before (as TVM's importer leaves it)::

    with R.dataflow():
        lv = R.nn.conv2d(input, metadata["ir.GenericConst"][0], ...)
        lv1 = R.reshape(metadata["ir.GenericConst"][1], [1, 64, 1, 1])
        lv2 = R.add(lv, lv1)
        gv = lv2
        R.output(gv)

After ("conv1" is the source's name of the result, "conv1_w" and "conv1_b" of the constants)::

    def main(input, conv1_w, conv1_b):
        with R.dataflow():
            conv1_conv2d = R.nn.conv2d(input, conv1_w, ...)
            conv1_reshape = R.reshape(conv1_b, [1, 64, 1, 1])
            conv1 = R.add(conv1_conv2d, conv1_reshape)
            R.output(conv1)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy.typing as npt
import tvm
from tvm import relax
from tvm.ir import GenericConst as Constant

from ..errors import ModelError
from ..ir.graph import Model
from ..ir.graph.computed_indices import last_rows
from ..ir.graph.dataflow import call_to, dtype_of
from ..ir.graph.model import SourceFormat
from ..ir.graph.needed_sizes import needed_sizes
from ..ir.graph.nodes import elements
from ..ir.identity import NameSupply, TensorEntry, TensorId, TensorTable, assign_ids
from ..runtime.inputs import Bounds
from ..runtime.size import Size
from ..runtime.tensors import values_of
from .keep_slices import Slices
from .source_tensor import SourceTensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """The parts of a Model that depend on the Relax module; see Model for their meaning.

    `ids` are those of all source tensors, in the order of the source.
    """

    module: tvm.IRModule
    tensors: TensorTable
    params: dict[TensorId, npt.NDArray[Any]]
    input_ids: tuple[TensorId, ...]
    output_ids: tuple[TensorId, ...]
    output_names: tuple[str, ...]
    ids: tuple[TensorId, ...]

    def model(
        self,
        fingerprint: str,
        source_format: SourceFormat,
        source: Any = None,
        sizes: Mapping[str, Bounds] = MappingProxyType({}),
    ) -> Model:
        """Return the Model of these parts; `sizes` bound its symbols, and so do tables that rows are picked of."""
        sizes = {**sizes, **_bounds_of_tables(self.module, sizes)}
        needed_sizes(self.module)  # raises for what no size mends
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "ids"}
        parts["module"] = _with_bounds(self.module, sizes) if sizes else self.module
        return Model(**parts, fingerprint=fingerprint, source_format=source_format, source=source, sizes=dict(sizes))


def _bounds_of_tables(module: tvm.IRModule, sizes: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """Return narrower bounds of symbols up to which the indices that are computed of them lie in their tables."""
    found: dict[str, Bounds] = {}
    for last, rows in ((each.last, each.rows) for each in (last_rows(module) if sizes else ())):
        if not isinstance(last, Size) or not isinstance(rows, int) or len(last.names) > 1:
            continue
        [name] = last.names
        start, step = last.evaluate({name: 0}), last.evaluate({name: 1}) - last.evaluate({name: 0})
        if name in sizes and last == Size.named(name) * step + start and step > 0:
            low, high = found.get(name, sizes[name])
            most = (rows - 1 - start) // step
            if most < low:
                raise ModelError(f"dimension {name} takes {low} or more, and {last} picks one of a table's {rows} rows")
            found[name] = low, most if high is None else min(high, most)
    return found


def _with_bounds(module: tvm.IRModule, sizes: Mapping[str, Bounds]) -> tvm.IRModule:
    """Write the bounds of symbols as the attributes of "main" in which TVM looks for them."""
    bounds = {
        "tir_var_lower_bound": {name: low for name, (low, _) in sizes.items()},
        "tir_var_upper_bound": {name: high for name, (_, high) in sizes.items() if high is not None},
    }
    main: Any = module["main"]
    result = module.clone()
    result.update_func(result.get_global_var("main"), main.with_attrs({key: value for key, value in bounds.items() if value}))
    return result


@dataclass(kw_only=True, slots=True)
class _Group:
    """Source tensors that one Relax expression holds; the first is the one that was produced."""

    members: list[SourceTensor]
    holder: Any
    id: TensorId = field(default_factory=lambda: TensorId(""))

    @property
    def name(self) -> str:
        """Source name that stands for all: that of a graph output where an op's result is known by several."""
        if self.members[0].kind == "activation":
            return next((member.name for member in self.members if member.is_output), self.members[0].name)
        return self.members[0].name

    def entry(self, *, in_module: bool) -> TensorEntry:
        """Return the entry of the table."""
        first = self.members[0]
        return TensorEntry(
            id=self.id,
            source_name=self.name,
            kind="constant" if isinstance(self.holder, Constant) else first.kind,
            op=first.op,
            layer=first.layer,
            shape=first.shape,
            dtype=first.dtype,
            is_output=any(member.is_output for member in self.members),
            aliases=tuple(dict.fromkeys(m.name for m in self.members if m.name != self.name)),
            in_module=in_module,
        )


def _key(expr: Any) -> int:
    """Key of an IR node: two handles on one node have the same (`==` on expressions builds a comparison)."""
    return hash(expr)


def _is_literal(call: Any, position: int) -> bool:
    """Whether a constant at this place of a call stays in the text: scale and zero point of quantize and dequantize."""
    return position > 0 and call_to(call, "quantize", "dequantize") is not None


def _operands(expr: Any, *, literals: bool = True) -> Iterable[Any]:
    """Yield the variables and constants that an expression reads, constants that stay in the text only if `literals`."""
    if isinstance(expr, relax.Var | Constant):
        yield expr
    elif isinstance(expr, relax.Call):
        for position, arg in enumerate(elements(expr.args)):
            if literals or not (isinstance(arg, Constant) and _is_literal(expr, position)):
                yield from _operands(arg, literals=literals)
    elif isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from _operands(field, literals=literals)
    elif isinstance(expr, relax.TupleGetItem):
        yield from _operands(expr.tuple_value, literals=literals)
    elif isinstance(expr, relax.If | relax.Function | relax.SeqExpr):
        raise ModelError(f"main holds a nested {type(expr).__name__}; Octavo takes branch-free graphs without control flow")


def _suffix(binding: relax.Binding) -> str:
    """Word that says what an unnamed intermediate is: its op, without namespace."""
    value = binding.value
    if isinstance(binding, relax.MatchCast):
        return "match_cast"
    if isinstance(value, relax.Call):
        if isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.call_tir":
            return str(value.args[0].name_hint)
        return str(value.op.name).rsplit(".", 1)[-1] if isinstance(value.op, tvm.ir.Op) else "call"
    return f"item{value.index}" if isinstance(value, relax.TupleGetItem) else "value"


class _Assembly:
    """One run of `assemble`: the groups of source tensors and the bindings that stay."""

    def __init__(
        self, function: relax.Function, sources: Sequence[SourceTensor], holders: Sequence[Any], *, drops_casts: bool
    ) -> None:
        self.renamed: dict[int, Any] = {}
        self.bindings: list[Any] = []
        for block in function.body.blocks:
            for binding in block.bindings:
                same = _same(binding, drops_casts=drops_casts)
                if same is not None:
                    self.renamed[_key(binding.var)] = self.resolve(same)
                else:
                    self.bindings.append(binding)
        slices = Slices(self.bindings)
        self.bindings, self.slices = slices.bindings, slices.of
        self.renamed |= {each: self.resolve(known) for each, known in slices.renamed.items()}
        self.groups: list[_Group] = []
        self.by_holder: dict[int, _Group] = {}
        self.by_position: list[_Group] = []
        for source, holder in zip(sources, holders, strict=True):
            self._add(source, self.resolve(holder))
        # Where names collide, what flows through the graph keeps the plain one.
        ranked = sorted(self.groups, key=lambda group: group.members[0].kind == "constant")
        for group, tensor_id in zip(ranked, assign_ids([group.name for group in ranked]), strict=True):
            group.id = tensor_id

    def resolve(self, expr: Any) -> Any:
        """Follow "gv = lv" to the variable that is bound to a value."""
        return self.renamed.get(_key(expr), expr) if isinstance(expr, relax.Var) else expr

    def _add(self, source: SourceTensor, holder: Any) -> None:
        is_expr = isinstance(holder, relax.Var | Constant)
        group = self.by_holder.get(_key(holder)) if is_expr else None
        if group is None:
            group = _Group(members=[source], holder=holder)
            self.groups.append(group)
            if is_expr:
                self.by_holder[_key(holder)] = group
        else:
            group.members.append(source)
        self.by_position.append(group)

    def keep_live(self, outputs: Iterable[Any]) -> None:
        """Drop the bindings that no output depends on; a MatchCast stays, for it defines symbolic dimensions."""
        live = {_key(output) for output in outputs}
        kept: list[Any] = []
        for binding in reversed(self.bindings):
            if _key(binding.var) in live or isinstance(binding, relax.MatchCast):
                kept.append(binding)
                live.update(_key(self.resolve(operand)) for operand in _operands(binding.value))
        self.bindings = kept[::-1]
        for group in self.groups:
            slices = None if _key(group.holder) in live else self.resolve(self.slices.get(_key(group.holder)))
            if slices is not None and _key(slices) in live:
                group.holder = slices
                self.by_holder.setdefault(_key(slices), group)

    def named_constants(self, outputs: Iterable[Any]) -> list[_Group]:
        """Return the constants that the live bindings read as data, in the order they are read."""
        found: dict[int, _Group] = {}
        values = [binding.value for binding in self.bindings]
        for operand in (o for value in [*values, *outputs] for o in _operands(value, literals=False)):
            group = self.by_holder.get(_key(operand)) if isinstance(operand, Constant) else None
            if group is not None:
                found.setdefault(_key(operand), group)
        return list(found.values())

    def variable_names(self) -> dict[int, str]:
        """Name every live binding: by its id, or after the next source tensor, in whose making it is a step."""
        supply = NameSupply(group.id for group in self.groups)
        names: dict[int, str] = {}
        pending: list[Any] = []
        owner = "result"
        for binding in self.bindings:
            group = self.by_holder.get(_key(binding.var))
            if group is None:
                pending.append(binding)
                continue
            owner = names[_key(binding.var)] = str(group.id)
            for step in pending:
                names[_key(step.var)] = supply.fresh(f"{owner}_{_suffix(step)}")
            pending.clear()
        for step in pending:
            names[_key(step.var)] = supply.fresh(f"{owner}_{_suffix(step)}")
        return names

    def named_bindings(self, new: dict[int, Any], *, returned: Collection[int]) -> list[Any]:
        """Return the bindings with variables of the names that stay; `new` has the expressions for those of before, by key."""
        names, found = self.variable_names(), list[Any]()
        for binding in self.bindings:
            make = relax.Var if _key(binding.var) in returned else relax.DataflowVar
            value = self.substitute(binding.value, new)
            var = new[_key(binding.var)] = make(names[_key(binding.var)], binding.var.ty)
            if isinstance(value, relax.Tuple | relax.TupleGetItem):
                value = relax.BlockBuilder().normalize(value)
            found.append(_rebind(binding, var, value))
        return found

    def substitute(self, expr: Any, new: dict[int, Any]) -> Any:
        """Return `expr` with every variable and every named constant replaced."""
        if isinstance(expr, relax.Var | Constant):
            return new.get(_key(self.resolve(expr)), expr)
        if isinstance(expr, relax.Call):
            args: list[Any] = [
                arg if isinstance(arg, Constant) and _is_literal(expr, position) else self.substitute(arg, new)
                for position, arg in enumerate(elements(expr.args))
            ]
            return relax.Call(expr.op, args, expr.attrs, expr.ty_args, expr.span, ret_ty=expr.ty)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.substitute(field, new) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self.substitute(expr.tuple_value, new), expr.index)
        return expr


def _same(binding: Any, *, drops_casts: bool) -> Any:
    """Return the variable that a binding gives another name: as it is, or cast to the type that it has."""
    if isinstance(binding, relax.MatchCast):
        return None
    cast = call_to(binding.value, "astype") if drops_casts else None
    value = binding.value if cast is None else cast.args[0]
    is_same = isinstance(value, relax.Var) and (cast is None or dtype_of(value) == str(cast.attrs.dtype))
    return value if is_same else None


def _rebind(binding: Any, var: Any, value: Any) -> Any:
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(var, value, binding.ty)
    return relax.VarBinding(var, value)


def _used_functions(module: tvm.IRModule, bindings: Iterable[Any]) -> dict[Any, Any]:
    """Return the PrimFuncs that the bindings call."""
    used: dict[Any, Any] = {}
    for binding in bindings:
        value = binding.value
        callees = [value.op, *value.args] if isinstance(value, relax.Call) else []
        for callee in callees:
            if isinstance(callee, tvm.ir.GlobalVar):
                if not isinstance(module[callee], tvm.tirx.PrimFunc):
                    raise ModelError(f"main calls the Relax function {callee.name_hint!r}; inline it before loading the module")
                used[callee] = module[callee]
    return used


def _main(params: list[Any], bindings: list[Any], results: list[Any], *, num_input: int) -> relax.Function:
    """Return the function of one dataflow block; the first `num_input` parameters are inputs, the others constants."""
    body = results[0] if len(results) == 1 else relax.BlockBuilder().normalize(relax.Tuple(results))
    main: Any = relax.Function(params, relax.SeqExpr([relax.DataflowBlock(bindings)], body), body.ty)
    main = relax.BlockBuilder().normalize(main)
    return main.with_attrs({"num_input": num_input, "global_symbol": "main"})


def assemble(
    module: tvm.IRModule,
    sources: Sequence[SourceTensor],
    holders: Sequence[Any],
    output_positions: Sequence[int],
    *,
    drops_casts: bool = False,
) -> Assembled:
    """Build the named module, the table and the parameter values.

    Parameters
    ----------
    module
        What a frontend built; "main" is read, with the PrimFuncs it calls.
    sources
        Every tensor of the source graph, in its order.
    holders
        For each source tensor the Relax expression that holds its value: a variable or a constant of "main"; anything else
        (None, a shape, a number) means that the frontend folded it.
    output_positions
        Positions in `sources` of the graph's outputs, in order.
    drops_casts
        Whether casts to the type that a tensor has are other names of it.

    Raises
    ------
    ModelError
        If "main" has control flow, calls Relax functions, or returns something that is no tensor.
    """
    function = module["main"]
    assembly = _Assembly(function, sources, holders, drops_casts=drops_casts)
    outputs = [assembly.by_position[position] for position in output_positions]
    for group in outputs:
        if not isinstance(group.holder, relax.Var | Constant):
            raise ModelError(f"output {group.name!r} is a shape or a number known while importing; there is nothing to compute")
    assembly.keep_live(group.holder for group in outputs)
    constants = assembly.named_constants(group.holder for group in outputs)
    inputs = list(function.params)

    new: dict[int, Any] = {}
    for holder in [*inputs, *(group.holder for group in constants)]:
        new[_key(holder)] = relax.Var(str(assembly.by_holder[_key(holder)].id), holder.ty)
    params = [new[_key(holder)] for holder in inputs] + [new[_key(group.holder)] for group in constants]
    bindings = assembly.named_bindings(new, returned={_key(group.holder) for group in outputs})
    main = _main(params, bindings, [new[_key(group.holder)] for group in outputs], num_input=len(inputs))
    functions = {tvm.ir.GlobalVar("main"): main, **_used_functions(module, assembly.bindings)}
    return Assembled(
        module=tvm.IRModule(functions),
        tensors=TensorTable(group.entry(in_module=_key(group.holder) in new) for group in assembly.groups),
        params={group.id: values_of(group.holder.value) for group in constants},
        input_ids=tuple(assembly.by_holder[_key(holder)].id for holder in inputs),
        output_ids=tuple(group.id for group in outputs),
        output_names=tuple(sources[position].name for position in output_positions),
        ids=tuple(group.id for group in assembly.by_position),
    )
