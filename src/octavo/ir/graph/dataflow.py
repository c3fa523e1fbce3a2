"""Reading and rebuilding the body of a Relax function.

An `If` or a local function is one binding that reads whatever its body reads of the function around it; nothing looks into it.
Knows nothing of quantization: it answers "who defines this, who reads it", and writes functions binding by binding.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, Type
from tvm.relax import Expr, Var
from tvm_ffi import StructuralKey

from ...errors import CompileError
from .nodes import binding_of, call_of, elements, variable
from .sizes import size_of, sizes_in

ALLOCATIONS = (
    *("relax.builtin.alloc_tensor", "relax.memory.alloc_tensor", "relax.memory.alloc_storage"),
    *("relax.vm.alloc_tensor", "relax.vm.alloc_storage"),
)
"""Ops whose result holds nothing until a call fills it."""
BOOKKEEPING = ("relax.memory.kill_tensor", "relax.memory.kill_storage", "relax.vm.kill_object", "relax.null_value")
"""Ops that compute nothing."""


class DataflowView:
    """Definitions and users among the bindings of a function's own body.

    Parameters
    ----------
    function
        A Relax function in A-normal form without match_cast.

    Raises
    ------
    CompileError
        If the body has a match_cast.
    """

    def __init__(self, function: relax.Function) -> None:
        self.function = function
        self.bindings: list[relax.VarBinding] = []
        for block in function.body.blocks:
            for binding in elements(block.bindings):
                if not isinstance(binding, relax.VarBinding):
                    raise CompileError(f"{binding.var.name}: match_cast cannot be compiled; export a graph of static shapes")
                self.bindings.append(binding)
        self.result: Expr = function.body.body
        # By hash, which is the variable's address: `==` of TVM's expressions first asks for their types, which takes ten times as
        # long. The function keeps its variables alive, so no other has the address of one.
        self._definition: dict[int, Expr] = {}
        self._places: dict[int, int] = {}
        self._users: dict[int, list[Var]] = {}
        for place, binding in enumerate(self.bindings):
            var, value = binding.var, binding.value
            key = hash(var)
            self._definition[key], self._places[key] = value, place
            for operand in operand_vars(value):
                self._users.setdefault(hash(operand), []).append(var)
        self._returned = {hash(var) for var in operand_vars(self.result)}

    @functools.cached_property
    def variables(self) -> dict[str, Var]:
        """The parameters and what is bound, by name."""
        return {var.name: var for var in (*self.function.params, *(binding.var for binding in self.bindings))}

    @functools.cached_property
    def ops(self) -> frozenset[str]:
        """Names of all ops that are called."""
        return frozenset(op_name(binding.value) for binding in self.bindings)

    @property
    def names(self) -> list[str]:
        """Names of the parameters and of what is bound, in order."""
        return [*(param.name for param in self.function.params), *(binding.var.name for binding in self.bindings)]

    def definition(self, expr: Expr) -> Expr:
        """Return the value bound to a variable, following renames; other expressions and parameters are returned as they are."""
        while True:
            bound = self._definition.get(hash(expr))
            if bound is None:
                return expr
            expr = bound

    def binding_of(self, expr: Expr) -> Var | None:
        """Return the variable whose bound value is a call, following renames; None for parameters and constants."""
        var: Any = expr
        while _kind(type(bound := self._definition.get(hash(var)))) is Var:
            var = bound
        return var if bound is not None and _kind(type(var)) is Var else None

    def root_of(self, var: Var) -> Var:
        """Return the variable that `var` is another name of, itself if it is none: one bound to a call, or a parameter."""
        value = self.definition(var)
        if isinstance(value, Var):
            return value
        bound = self.binding_of(var)
        return var if bound is None else bound

    def users(self, var: Var) -> list[Var]:
        """Return the variables whose bound values read `var`, once for each reading."""
        return self._users.get(hash(var), [])

    def is_returned(self, var: Var) -> bool:
        """Return whether the function returns `var`."""
        return hash(var) in self._returned

    def is_unread(self, var: Var) -> bool:
        """Return whether neither a binding nor the result reads `var`."""
        return hash(var) not in self._users and hash(var) not in self._returned

    def is_bound_before(self, var: Var, other: Var) -> bool:
        """Return whether the value of `var` is there before that of `other`; a parameter's is before any other."""
        return self._places.get(hash(var), -1) < self._places.get(hash(other), -1)

    def place_of(self, var: Var) -> int:
        """Return which of the bindings binds a variable."""
        return self._places[hash(var)]

    def only_user(self, var: Var) -> Var | None:
        """Return the single reader of `var`, or None if it is returned, unread or read more than once."""
        users = self.users(var)
        return users[0] if len(users) == 1 and not self.is_returned(var) else None


_KEPT: ContextVar[list[DataflowView] | None] = ContextVar("kept", default=None)


@contextmanager
def last_view_kept() -> Generator[None]:
    """Let `view_of_main` return the very view of before while modules keep their "main": most passes find nothing to do."""
    token = _KEPT.set([])
    try:
        yield
    finally:
        _KEPT.reset(token)


def view_of_main(module: tvm.IRModule) -> DataflowView:
    """Return the view of a module's "main"."""
    main, kept = module["main"], _KEPT.get()
    if kept and kept[0].function.same_as(main):
        return kept[0]
    view = DataflowView(main)
    if kept is not None:
        kept[:] = [view]
    return view


def operand_vars(expr: Expr) -> list[Var]:
    """Return the variables that an A-normal expression reads, in order, with repetitions."""
    found: list[Var] = []
    _collect(expr, found)
    return found


def computed_results(view: DataflowView) -> list[Var]:
    """Return what "main" gives but for parameters that are constants, which are the same for all inputs."""
    constants = view.function.params[int(attrs_of(view.function).get("num_input", len(view.function.params))) :]
    names = {param.name for param in constants}
    return [var for var in operand_vars(view.result) if view.root_of(var).name not in names]


def _collect(expr: Any, found: list[Var]) -> None:
    kind = _kind(type(expr))
    if kind is Var:
        found.append(expr)
    elif kind is Call:
        found.extend(_local_callee(expr))
        for arg in elements(expr.args):
            _collect(arg, found)
    elif kind is relax.Tuple:
        for field in elements(expr.fields):
            _collect(field, found)
    elif kind is relax.TupleGetItem:
        _collect(expr.tuple_value, found)
    elif kind is relax.If or kind is relax.Function:
        found.extend(relax.analysis.free_vars(expr))


@functools.cache
def _kind(kind: type) -> type | None:
    """Return which class of those that read variables a class is derived from; `isinstance` of TVM's classes is slow."""
    return next((each for each in (Var, Call, relax.Tuple, relax.TupleGetItem, *_NESTED) if issubclass(kind, each)), None)


_NESTED = (relax.If, relax.Function)


def _local_callee(call: Call) -> tuple[Var, ...]:
    callee: Any = call.op
    return (callee,) if _kind(type(callee)) is Var else ()


def replace_operands(expr: Any, replace: Callable[[Var], Expr]) -> Any:
    """Return `expr` with each variable it reads replaced; the expression itself when nothing changes."""
    kind = _kind(type(expr))
    if kind is None:
        return expr
    if kind is Var:
        return replace(expr)
    if kind is Call:
        old = elements(expr.args)
        args = [replace_operands(arg, replace) for arg in old]
        op = next((replace(callee) for callee in _local_callee(expr)), expr.op)
        if op.same_as(expr.op) and all(new.same_as(arg) for new, arg in zip(args, old, strict=True)):
            return expr
        call = call_of(op, args, expr.attrs, expr.ty_args)
        return typed(call, expr.ty) if isinstance(op, tvm.ir.GlobalVar) else call
    if kind is relax.Tuple:
        return relax.Tuple([replace_operands(field, replace) for field in elements(expr.fields)])
    if kind is relax.TupleGetItem:
        return relax.TupleGetItem(replace_operands(expr.tuple_value, replace), expr.index)
    return _replace_free(expr, {var: replace(var) for var in operand_vars(expr)})


def typed(call: Any, ty: Type) -> Any:
    """Return a call of a function of the module with the type of its result, which TVM can't find where it adds open sizes."""
    if isinstance(ty, relax.TensorType):
        _update_type(call, ty)
    return call


def _replace_free(expr: Any, new: Mapping[Var, Expr]) -> Any:
    """Return an If, a local function or a body with its free variables replaced; the very object where none is."""
    if all(value.same_as(var) for var, value in new.items()):
        return expr
    if isinstance(expr, relax.If):
        condition = replace_operands(expr.cond, lambda var: new.get(var, var))
        return relax.If(condition, _replace_free(expr.true_branch, new), _replace_free(expr.false_branch, new), expr.span)
    if isinstance(expr, relax.Function):
        body = _replace_free(expr.body, new)
        return relax.Function(list(expr.params), body, expr.ret_ty, expr.is_pure, expr.attrs, expr.span)
    blocks: list[relax.BindingBlock] = []
    for block in expr.blocks:
        bindings: list[Any] = []
        for binding in block.bindings:
            value = replace_operands(binding.value, lambda var: new.get(var, var))
            is_cast = isinstance(binding, relax.MatchCast)
            bindings.append(relax.MatchCast(binding.var, value, binding.ty) if is_cast else relax.VarBinding(binding.var, value))
        blocks.append(type(block)(bindings))
    return relax.BlockBuilder().normalize(relax.SeqExpr(blocks, replace_operands(expr.body, lambda var: new.get(var, var))))


def call_to(expr: Any, *names: str) -> Any | None:
    """Return `expr` if it is a call to one of the named Relax ops ("nn.conv2d"), else None.

    Any, since an op's attributes have no static types.
    """
    return expr if _kind(type(expr)) is Call and _name_of_callee(expr.op) in names else None


def relax_name(op: tvm.ir.Op) -> str:
    """Name a Relax op without namespace; our own, "relax.octavo.x", refine the plain "relax.x" and go by its name."""
    return str(op.name).removeprefix("relax.").removeprefix("octavo.")


_OP_NAMES: dict[int, str] = {}
"""By hash, which is the op's address: TVM keeps each op, so nothing else ever has that. To read a name takes longer."""


def _name_of_callee(callee: Any) -> str | None:
    """Return the name of a Relax op; None of what is called and is no op."""
    key = hash(callee)
    name = _OP_NAMES.get(key)
    if name is None and isinstance(callee, tvm.ir.Op):
        name = _OP_NAMES[key] = relax_name(callee)
    return name


def op_name(expr: Expr) -> str:
    """Name what an expression computes: a Relax op without "relax.", the callee of a call_tir, or "tuple"."""
    if isinstance(expr, Call):
        op = expr.op
        name = _name_of_callee(op)
        if name in ("call_tir", "call_dps_packed", "call_pure_packed"):
            callee = expr.args[0]
            return callee.name_hint if isinstance(callee, tvm.ir.GlobalVar) else str(getattr(callee, "global_symbol", name))
        if name is not None:
            return name
        if isinstance(op, tvm.ir.GlobalVar):
            return str(op.name_hint)
    if isinstance(expr, _NESTED):
        return "if" if isinstance(expr, relax.If) else "function"
    return "constant" if isinstance(expr, GenericConst) else "tuple"


def static_shape(expr: Expr) -> tuple[int, ...] | None:
    """Return the shape of a tensor expression, an open dimension as a Size; None if it isn't a tensor of known shape."""
    ty: Any = expr.ty
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return None
    dims: list[Any] = []
    for dim in elements(shape.values):
        size = int(dim.value) if isinstance(dim, tvm.tirx.IntImm) else size_of(dim)
        if size is None:
            return None
        dims.append(size)
    return tuple(dims)


def dtype_of(expr: Expr) -> str:
    """Return the element type of a tensor expression, "" if it isn't a tensor."""
    return str(getattr(expr.ty, "dtype", "")) if isinstance(expr.ty, relax.TensorType) else ""


class BodyWriter:
    """Emits the bindings of the function that `write_function` makes, keeping the names it is given.

    Bindings are collected here and not in the builder's own blocks: those must be closed even when an error is on its way.
    """

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self.bindings: list[relax.VarBinding] = []

    def emit(self, name: str, value: Expr, *, is_output: bool = False) -> Var:
        """Bind `value` to a variable of exactly this name and return it; `is_output` lets the function return it."""
        normal = normalized(self._builder, value)
        var = variable(name, normal.ty, is_output=is_output)
        self.bindings.append(binding_of(var, normal))
        return var


def write_function(
    builder: relax.BlockBuilder,
    name: str,
    params: Sequence[Var],
    body: Callable[[BodyWriter], Expr],
    attrs: Mapping[str, Any] | None = None,
    *,
    is_private: bool = False,
) -> tvm.ir.GlobalVar:
    """Add a function to the builder's module.

    `body` emits the bindings, one dataflow block of them but for control flow, and returns the result: a variable emitted as
    output, a parameter, or a tuple of these.
    """
    return builder.add_func(_function(builder, name, params, body, attrs, is_private=is_private), name)


def _function(
    builder: relax.BlockBuilder,
    name: str,
    params: Sequence[Var],
    body: Callable[[BodyWriter], Expr],
    attrs: Mapping[str, Any] | None,
    *,
    is_private: bool = False,
) -> relax.Function:
    writer = BodyWriter(builder)
    with sizes_in(params):
        result = body(writer)
    blocks: list[relax.BindingBlock] = [relax.DataflowBlock(list[relax.Binding](writer.bindings))]
    if any(_kind(type(binding.value)) in _NESTED for binding in writer.bindings):
        blocks, result = _blocks_around_control_flow(writer.bindings, result)
    sequence = builder.normalize(relax.SeqExpr(blocks, builder.normalize(result)))
    function: Any = relax.Function(list(params), sequence, ret_ty=result.ty)
    return function.with_attrs({**(attrs or {}), **({} if is_private else {"global_symbol": name})})


def with_main(module: tvm.IRModule, body: Callable[[BodyWriter], Expr]) -> tvm.IRModule:
    """Return the module with another body of "main"; its parameters, its attributes and the other functions stay as they are."""
    main = module["main"]
    function = new_main(list(main.params), body, attrs_of(main))
    result = module.clone()
    result.update_func(result.get_global_var("main"), function)
    return result


Renewed = Callable[[Any], Any]
"""From an expression of the function that is written anew to the same over its new variables."""


def with_values(
    module: tvm.IRModule, view: DataflowView, values: Mapping[Var, Callable[[BodyWriter, Renewed], Expr]]
) -> tvm.IRModule:
    """Return the module with other values of some variables of "main", without what nobody reads then; itself if there are none.

    `view` is that of "main". Every variable keeps its name; what makes a value may emit others before it.
    """
    if not values:
        return module
    new: dict[Var, Expr] = {}

    def renewed(expr: Expr) -> Expr:
        return replace_operands(expr, lambda var: new.get(var, var))

    def body(writer: BodyWriter) -> Expr:
        for binding in view.bindings:
            var = binding.var
            value = values[var](writer, renewed) if var in values else renewed(binding.value)
            new[var] = writer.emit(var.name, value, is_output=not isinstance(var, relax.DataflowVar))
        return renewed(view.result)

    return eliminate_dead_code(with_main(module, body))


def new_main(params: Sequence[Var], body: Callable[[BodyWriter], Expr], attrs: Mapping[str, Any]) -> relax.Function:
    """Return a function "main" as `write_function` writes it, in no module: a builder would hash all of its constants."""
    return _function(relax.BlockBuilder(), "main", params, body, attrs)


def _blocks_around_control_flow(bindings: Sequence[relax.VarBinding], result: Expr) -> tuple[list[relax.BindingBlock], Expr]:
    """Return the bindings in dataflow blocks with control flow between them; what other blocks read is no dataflow variable."""
    new: dict[Var, Var] = {
        binding.var: relax.Var(binding.var.name, binding.var.ty)
        for binding in bindings
        if isinstance(binding.var, relax.DataflowVar)
    }

    def replace(var: Var) -> Var:
        return new.get(var, var)

    blocks: list[relax.BindingBlock] = []
    for is_nested, group in itertools.groupby(bindings, lambda binding: isinstance(binding.value, _NESTED)):
        emitted: list[relax.Binding] = [
            relax.VarBinding(replace(each.var), replace_operands(each.value, replace)) for each in group
        ]
        blocks.append(relax.BindingBlock(emitted) if is_nested else relax.DataflowBlock(emitted))
    return blocks, replace_operands(result, replace)


def entry_points(module: tvm.IRModule) -> list[str]:
    """Return the names of the Relax functions that a caller sees: "main" and those that have a symbol."""
    found = [(str(var.name_hint), function) for var, function in module.functions.items() if isinstance(function, relax.Function)]
    return [name for name, function in found if name == "main" or (function.attrs and "global_symbol" in function.attrs)]


def eliminate_dead_code(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module without what none of its entry points needs."""
    return relax.transform.DeadCodeElimination(entry_points(module))(module)


def attrs_of(function: relax.Function | tvm.tirx.PrimFunc) -> dict[str, Any]:
    """Return a function's attributes as a plain dict."""
    return {str(key): function.attrs[key] for key in function.attrs.keys()} if function.attrs else {}  # noqa: SIM118 (not a Mapping)


_LAYOUT_OPS = frozenset(
    hash(tvm.ir.Op.get(f"relax.{name}"))  # its address: TVM keeps each op
    for name in (
        "nn.conv1d",
        "nn.conv2d",
        "nn.conv1d_transpose",
        "nn.conv2d_transpose",
        "nn.max_pool2d",
        "nn.avg_pool2d",
        "nn.adaptive_avg_pool2d",
        "image.resize2d",
    )
)
"""TVM proves things of their layouts symbol by symbol: that takes 1 to 2 ms for a call, as long as all else that a pass does."""

_known: dict[StructuralKey, Type] = {}
"""By op, attributes and operand types. A few entries for each network: no call and no constant is kept."""

_update_type: Any = tvm.get_global_func("relax.UpdateType")


def normalized(builder: relax.BlockBuilder, value: Expr) -> Expr:
    """Return what a builder makes of a value: in A-normal form, with its type."""
    if _kind(type(value)) is not Call or hash(value.op) not in _LAYOUT_OPS or isinstance(value.ty, relax.TensorType):
        return builder.normalize(value)
    operands = elements(value.args)
    if not all(isinstance(each, (relax.Var, GenericConst)) for each in operands):
        return builder.normalize(value)
    key = StructuralKey([value.op, value.attrs, *(each.ty for each in operands)])
    ty = _known.get(key)
    if ty is None:
        value = builder.normalize(value)
        _known[key] = value.ty
    else:
        _update_type(value, ty)
    return value
