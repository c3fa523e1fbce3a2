"""Reading a module as values: one walk through the entry function and what it calls, every value numbered.

Relax functions, local ones too, and both branches of an `If` are entered, so a value is seen wherever a pass put it; ops are
numbered as what they legalize to, and fused functions also as the kernel that they become, so these steps change no number. Calls
that write into an allocated tensor count as the definition of that tensor. Knows nothing of quantization.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, GenericConst, GlobalVar
from tvm.relax import Expr, Var

from .dataflow import ALLOCATIONS, BOOKKEEPING, attrs_of, op_name, operand_vars
from .probes import read_probe
from .value_numbers import Node, Structure, ValueNumbers

Functions = Mapping[str, Any]
"""The functions of a module by name, as they were when the module was seen."""

_RESHAPE: Any = tvm.ir.Op.get("relax.reshape")
WITH_LITERALS = "octavo.WithLiterals"
"""Attribute of an op: what writes a call anew with literals where constants stand for them, so that both are one op."""
_CHECKS = ("vm.builtin.check_tensor_info", "vm.builtin.match_shape", "vm.builtin.check_shape_info", "vm.builtin.null_value")


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One variable that holds a value: its number, itself, where it stands, and what it is bound to.

    Parameters
    ----------
    path
        Names of the functions around it, from the one that the entry calls; empty in the entry itself. A local function is named
        by the function around it and its "Composite" attribute, "fused_conv2d_npu/npu.conv2d", or its variable; a branch of an
        `If` by the variable of its result, "y/then".
    operands
        Numbers of what the binding reads.
    """

    number: int
    var: Var
    path: tuple[str, ...]
    value: Expr | None
    ty: Any
    operands: tuple[int, ...]

    @property
    def name(self) -> str:
        """The variable's name."""
        return self.var.name

    @property
    def expression(self) -> str:
        """What the variable is bound to, in one line."""
        if self.value is None:
            return "input"
        if not isinstance(self.value, (Call, relax.Tuple, relax.TupleGetItem, Var)):
            return "constant"
        read = ", ".join(var.name for var in operand_vars(self.value))
        return read if isinstance(self.value, Var) else f"{op_name(self.value)}({read})"


@dataclass(slots=True, eq=False)
class ValueGraph:
    """What one module computes: its places in the order of execution, what it reads and what it returns."""

    places: list[Place] = field(default_factory=list[Place])
    constants: dict[int, Any] = field(default_factory=dict[int, Any])
    result: int = -1
    by_number: dict[int, list[Place]] = field(default_factory=dict[int, list[Place]])
    recomputed: dict[int, int] = field(default_factory=dict[int, int])
    """Index of a place whose number was given -> the number of its computation there."""

    def close(self) -> ValueGraph:
        """Fill the index."""
        for place in self.places:
            self.by_number.setdefault(place.number, []).append(place)
        return self

    def holds(self, number: int) -> bool:
        """Whether a variable or a constant of the module has this value."""
        return number in self.by_number or number in self.constants


class GraphReader:
    """Reads modules under one set of numbers.

    Parameters
    ----------
    numbers
        Shared by all modules that are to be compared.
    externs
        By symbol, for calls to external symbols: PrimFuncs that they stand for, and Relax functions in whose place object code
        is called.
    by_meaning
        Whether to number ops as what they legalize to, fused functions as their kernels, and object code as the functions in
        whose place it is. Off, everything is read as it stands, which is what an independent check wants.
    """

    def __init__(self, numbers: ValueNumbers, externs: Mapping[str, Any] | None = None, *, by_meaning: bool = True) -> None:
        self.numbers = numbers
        self.externs: dict[str, Any] = dict(externs or {})
        self.by_meaning = by_meaning
        self._legal: dict[Hashable, Functions | None] = {}
        self._fused: dict[int, tuple[Any, Functions | None]] = {}

    def read(
        self, functions: Functions, entry: str, params: Mapping[int, int], known: Mapping[int, int] | None = None
    ) -> ValueGraph:
        """Read a module from its entry function.

        Parameters
        ----------
        params
            Numbers of parameters that are known to be constants, by index; the others are inputs by their index.
        known
            Place in the order of execution -> the number that the value there was shown to have.
        """
        graph = ValueGraph()
        function = functions[entry]
        env: dict[Var, int] = {}
        for index, param in enumerate(function.params):
            number = params[index] if index in params else self.numbers.input(index, param.ty)
            env[param] = number
            graph.places.append(Place(number, param, (), None, param.ty, ()))
        walk = _Walk(self, functions, graph, known or {})
        graph.result = walk.body(function.body, env, ())
        return graph.close()

    def legal_number(self, key: Any, operands: tuple[int, ...], write: Any, ty: Any) -> int:
        """Return the number of an op's result: that of what it legalizes to, if it does."""
        known = self.numbers.find_call(key, operands)
        if known is not None:
            return known
        number: int | None = None
        if self.by_meaning:
            looks = tuple(self._looks(operand) for operand in operands)
            params: list[Var] = []
            read: list[int] = []
            args = [self._placeholder(operand, params, read) for operand in operands]
            if (key, looks) not in self._legal:
                self._legal[key, looks] = self._legalized(params, args, write)
            functions = self._legal[key, looks]
            if functions is not None:
                number = self._number_of(functions, tuple(read))
        if number is None:
            return self.numbers.call(key, operands, write, ty)
        self.numbers.name_call(key, operands, number)
        return number

    def name_fused(self, function: relax.Function, functions: Functions, operands: tuple[int, ...], number: int) -> None:
        """Say that the kernel which a primitive function will be fused to computes the value `number`."""
        cached = self._fused.get(hash(function))
        if cached is None or not cached[0].same_as(function):
            cached = self._fused[hash(function)] = (function, self._fuse(function, functions))
        if cached[1] is not None:
            fused = self._number_of(cached[1], operands)
            if fused is not None:
                self.numbers.identify(fused, number)

    def _number_of(self, functions: Functions, operands: tuple[int, ...]) -> int | None:
        """Number what a small module computes from these operands; None where it holds what has no number."""
        function = functions["main"]
        walk = _Walk(self, functions, ValueGraph(), {}, is_inner=True)
        first = len(self.numbers.nodes)
        number = walk.body(function.body, dict(zip(function.params, operands, strict=True)), ())
        return None if any(node.kind == "opaque" for node in self.numbers.nodes[first:]) else number

    def _looks(self, operand: int) -> Hashable:
        """Return what legalizing sees of an operand: its type, or the value of a scalar constant, which may end in the kernel."""
        node = self.numbers.nodes[operand]
        if node.kind == "tuple":
            return tuple(self._looks(field) for field in node.operands)
        return operand if _is_scalar(node) else Structure.of(node.ty)

    def _placeholder(self, operand: int, params: list[Var], read: list[int]) -> Expr:
        """Return an operand as an op reads it: tuples and scalar constants written out, anything else a parameter.

        Parameters
        ----------
        params, read
            The parameters so far and the numbers that they stand for; what is new is added.
        """
        node = self.numbers.nodes[operand]
        if node.kind == "tuple":
            return relax.Tuple([self._placeholder(field, params, read) for field in node.operands])
        if _is_scalar(node):
            return relax.const(node.payload.numpy(), str(node.ty.dtype))
        param = relax.Var(f"p{len(params)}", node.ty)
        params.append(param)
        read.append(operand)
        return param

    def _legalized(self, params: list[Var], args: list[Expr], write: Any) -> Functions | None:
        try:
            module = _one_call(params, write(args), {})
            call = module["main"].body.blocks[0].bindings[-1].value
            with tvm.transform.PassContext(opt_level=3):
                functions = functions_of(relax.transform.LegalizeOps()(module))
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, tvm.error.InternalError):
            return None  # an op that does not legalize is numbered as it stands
        last = functions["main"].body.blocks[0].bindings[-1].value
        return None if op_name(last) == op_name(call) and len(functions) == 1 else functions

    def _fuse(self, function: relax.Function, functions: Functions) -> Functions | None:
        try:
            called = {callee.name_hint: callee for callee in _callees(function)}
            module = tvm.IRModule({var: functions[name] for name, var in called.items()})
            params = [relax.Var(param.name, param.ty) for param in function.params]
            module = _one_call(params, None, {"fused": function}, module)
            with tvm.transform.PassContext(opt_level=3):
                return functions_of(relax.transform.FuseTIR()(module))
        except (RuntimeError, ValueError, TypeError, AttributeError, tvm.error.InternalError):
            return None  # a function that does not fuse has no kernel to wait for


def _is_scalar(node: Node) -> bool:
    return node.kind == "constant" and len(node.payload.shape) == 0


def functions_of(module: tvm.IRModule) -> dict[str, Any]:
    """Return the functions of a module by name; later updates of the module don't show."""
    return {var.name_hint: function for var, function in module.functions.items()}


def _one_call(
    params: list[Var], call: Expr | None, functions: Mapping[str, Any], module: tvm.IRModule | None = None
) -> tvm.IRModule:
    """Make a module whose "main" is one call of an op, or of the one function given."""
    builder = relax.BlockBuilder(module) if module is not None else relax.BlockBuilder()
    for name, function in functions.items():
        call = Call(builder.add_func(function, name), list(params))
    assert call is not None
    value = builder.normalize(call)
    result = relax.Var("result", value.ty)
    block = relax.DataflowBlock(list[relax.Binding]([relax.VarBinding(result, value)]))
    sequence = builder.normalize(relax.SeqExpr([block], result))
    main = relax.Function(params, sequence, ret_ty=value.ty).with_attr("global_symbol", "main")
    builder.add_func(main, "main")
    return builder.get()


def _callees(function: relax.Function) -> list[GlobalVar]:
    """Return the functions that the body of a primitive function calls."""
    values = [binding.value for block in function.body.blocks for binding in block.bindings]
    return [
        arg for value in values if isinstance(value, Call) for arg in (value.op, *value.args[:1]) if isinstance(arg, GlobalVar)
    ]


class _Walk:
    """One reading of one module."""

    def __init__(
        self, reader: GraphReader, functions: Functions, graph: ValueGraph, known: Mapping[int, int], *, is_inner: bool = False
    ) -> None:
        self._reader = reader
        self._numbers = reader.numbers
        self._functions = functions
        self._graph = graph
        self._known = known
        self._is_inner = is_inner
        self._pending: dict[Var, Any] = {}
        self._local_functions: dict[Var, tuple[relax.Function, dict[Var, int]]] = {}
        self._active: list[relax.Function] = []
        self._analyzer: Any = tvm.sym.Analyzer()

    def body(self, body: Any, env: dict[Var, int], path: tuple[str, ...]) -> int:
        """Read a function's body and return the number of its result."""
        for block in body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, Call) and self._is_effect(value, env, path):
                    continue
                if isinstance(value, Call) and self._is_allocation(value):
                    self._pending[binding.var] = value
                    continue
                if isinstance(value, Var) and value in self._pending and value not in env:
                    self._pending[binding.var] = value
                    continue
                if isinstance(value, relax.Function):
                    self._local_functions[binding.var] = (value, env)
                    continue
                if isinstance(value, Var) and value in self._local_functions:
                    self._local_functions[binding.var] = self._local_functions[value]
                    continue
                if isinstance(value, relax.If):
                    number = self._conditional(value, binding.var, env, path)
                    operands = self._numbers.nodes[number].operands
                else:
                    number = self.number(value, env, path)
                    operands = tuple(self.number(leaf, env, path) for leaf in _leaves(value))
                env[binding.var] = self._place(number, binding.var, path, value, operands)
        return self.number(body.body, env, path)

    def _place(self, number: int, var: Var, path: tuple[str, ...], value: Expr, operands: tuple[int, ...]) -> int:
        known = self._known.get(len(self._graph.places))
        if known is not None:
            self._graph.recomputed[len(self._graph.places)] = number
            self._numbers.identify(number, known)
            number = known
        self._graph.places.append(Place(number, var, path, value, var.ty, operands))
        return number

    def number(self, expr: Any, env: dict[Var, int], path: tuple[str, ...]) -> int:
        """Return the number of an expression."""
        if isinstance(expr, Var):
            return env[expr] if expr in env else self._numbers.opaque((), expr.ty)
        if isinstance(expr, GenericConst):
            number = self._numbers.constant(expr.value, expr.ty)
            self._graph.constants.setdefault(number, expr)
            return number
        if isinstance(expr, relax.Tuple):
            return self._numbers.tuple(tuple(self.number(field, env, path) for field in expr.fields), expr.ty)
        if isinstance(expr, relax.TupleGetItem):
            return self._numbers.item(self.number(expr.tuple_value, env, path), int(expr.index), expr.ty)
        if isinstance(expr, Call):
            return self._call(expr, env, path)
        if isinstance(getattr(expr, "ty", None), tvm.ir.PrimType):  # a size, as a kernel for open dimensions takes it
            size = self._analyzer.simplify(expr)
            if isinstance(size, tirx.IntImm):
                return self._numbers.call(("size", int(size)), (), lambda _: size, size.ty)
        return self._numbers.opaque((), getattr(expr, "ty", None))

    def _call(self, call: Any, env: dict[Var, int], path: tuple[str, ...]) -> int:
        probe = read_probe(call)
        if probe is not None:  # who looks at a value does not change it
            return self.number(probe[0], env, path)
        if isinstance(call.op, GlobalVar):
            name = str(call.op.name_hint)
            return self._function_call(call, self._functions.get(name), name, {}, env, path)
        if isinstance(call.op, Var) and call.op in self._local_functions:
            function, captured = self._local_functions[call.op]
            name = "/".join((*path[-1:], str(attrs_of(function).get("Composite", call.op.name))))
            return self._function_call(call, function, name, captured, env, path)
        name = str(call.op.name) if isinstance(call.op, tvm.ir.Op) else ""
        if name in ("relax.call_tir", "relax.call_dps_packed"):
            symbol = str(getattr(call.args[0], "global_symbol", ""))
            kernel = self._functions.get(call.args[0].name_hint) if not symbol else self._reader.externs.get(symbol)
            if isinstance(kernel, tvm.tirx.PrimFunc):
                operands = self._operands(call.args[1], env, path)
                return self._numbers.kernel(kernel, operands, tuple(call.args[2:]), call.ty)
            if isinstance(kernel, relax.Function):
                return self._external_call(kernel, symbol, self._operands(call.args[1], env, path), call.ty, path)
        return self._op_call(call, env, path)

    def _operands(self, args: Any, env: dict[Var, int], path: tuple[str, ...]) -> tuple[int, ...]:
        """Return the numbers of a kernel's arguments, which are a tuple or a variable of one."""
        number = self.number(args, env, path)
        node = self._numbers.nodes[number]
        if node.kind == "tuple":
            return node.operands
        fields = getattr(args.ty, "fields", None)
        if fields is None:
            return (number,)
        return tuple(self._numbers.item(number, index, ty) for index, ty in enumerate(fields))

    def _function_call(
        self, call: Any, function: Any, name: str, captured: dict[Var, int], env: dict[Var, int], path: tuple[str, ...]
    ) -> int:
        """Enter a function; `captured` holds what a local one may read of the function around it."""
        operands = tuple(self.number(arg, env, path) for arg in call.args)
        if not isinstance(function, relax.Function) or any(function.same_as(active) for active in self._active):
            return self._numbers.opaque(operands, call.ty)
        self._active.append(function)
        number = self.body(function.body, {**captured, **dict(zip(function.params, operands, strict=True))}, (*path, name))
        self._active.pop()
        if self._reader.by_meaning and not self._is_inner and function.attrs and "Primitive" in function.attrs and not captured:
            self._reader.name_fused(function, self._functions, operands, number)
        return number

    def _external_call(self, function: Any, symbol: str, operands: tuple[int, ...], ty: Any, path: tuple[str, ...]) -> int:
        """Return what object code gives: what the function does in whose place it is called, whose variables are no more."""
        if self._reader.by_meaning:
            env = dict(zip(function.params, operands, strict=True))
            return _Walk(self._reader, self._functions, ValueGraph(), {}).body(function.body, env, (*path, symbol))
        out = list(ty.fields) if isinstance(ty, relax.TupleType) else ty

        def write(args: list[Expr]) -> Expr:
            return relax.call_dps_packed(symbol, relax.Tuple(args), out_ty=out)

        return self._numbers.call(("external", symbol), operands, write, ty)

    def _conditional(self, value: Any, var: Var, env: dict[Var, int], path: tuple[str, ...]) -> int:
        """Read both branches; the result is a choice between two values, which are what they are whichever is taken."""
        name = "/".join((*path[-1:], var.name))
        condition = self.number(value.cond, env, path)
        then, other = (
            self.body(branch, dict(env), (*path, f"{name}/{label}"))
            for branch, label in ((value.true_branch, "then"), (value.false_branch, "else"))
        )
        return self._choice(condition, then, other, var.ty)

    def _choice(self, condition: int, then: int, other: int, ty: Any) -> int:
        if isinstance(ty, relax.TupleType):
            item = self._numbers.item
            fields = [
                self._choice(condition, item(then, index, field), item(other, index, field), field)
                for index, field in enumerate(ty.fields)
            ]
            return self._numbers.tuple(tuple(fields), ty)
        operands = (condition, then, other)
        types = [self._numbers.nodes[number].ty for number in (then, other)]
        if not all(tvm_ffi.structural_equal(each, ty) for each in types):
            return self._numbers.opaque(operands, ty)  # branches of several shapes: no op chooses between them
        return self._numbers.call(("if",), operands, lambda args: relax.op.where(*args), ty)

    def _op_call(self, call: Any, env: dict[Var, int], path: tuple[str, ...]) -> int:
        ty = call.ty
        with_literals = call.op.get_attr(WITH_LITERALS) if isinstance(call.op, tvm.ir.Op) else None
        call = call if with_literals is None else with_literals(call)
        operands: list[int] = []
        literals: list[Any] = []
        for arg in call.args:
            # A tuple of numbers (the bounds of a slice) is a literal.
            is_value = isinstance(arg, (Var, GenericConst, relax.TupleGetItem, Call)) or bool(_leaves(arg))
            if is_value:
                operands.append(self.number(arg, env, path))
            literals.append(None if is_value else arg)
        # The VM's reshape is the op under another name.
        op = _RESHAPE if str(getattr(call.op, "global_symbol", "")) == "vm.builtin.reshape" else call.op
        if not isinstance(op, tvm.ir.Op) or not _is_pure(op):
            return self._numbers.opaque(tuple(operands), ty)
        key = (
            str(op.name),
            Structure.of(call.attrs) if call.attrs is not None else None,
            tuple(map(Structure.of, call.ty_args)) if op is call.op else (),
            tuple("value" if literal is None else Structure.of(literal) for literal in literals),
        )

        def write(values: list[Expr]) -> Expr:
            left = iter(values)
            args = [next(left) if literal is None else literal for literal in literals]
            return Call(op, args, call.attrs, call.ty_args if op is call.op else ())

        if self._is_inner:
            found = self._numbers.find_call(key, tuple(operands))
            return found if found is not None else self._numbers.call(key, tuple(operands), write, ty)
        return self._reader.legal_number(key, tuple(operands), write, ty)

    def _is_allocation(self, call: Any) -> bool:
        return isinstance(call.op, tvm.ir.Op) and call.op.name in ALLOCATIONS

    def _is_effect(self, call: Any, env: dict[Var, int], path: tuple[str, ...]) -> bool:
        """Whether a call is made for what it does; one that fills allocated tensors defines them."""
        if isinstance(call.op, tvm.ir.Op):
            return call.op.name in BOOKKEEPING
        if read_probe(call) is not None and not isinstance(call.ty, relax.TensorType):
            return True
        symbol = str(getattr(call.op, "global_symbol", ""))
        if symbol in _CHECKS:
            return True
        kernel = self._functions.get(call.op.name_hint) if isinstance(call.op, GlobalVar) else self._reader.externs.get(symbol)
        if not isinstance(kernel, tvm.tirx.PrimFunc) and not (symbol and isinstance(kernel, relax.Function)):
            return False
        outputs = [arg for arg in call.args if isinstance(arg, Var) and arg in self._pending and arg not in env]
        inputs = [arg for arg in call.args if not any(arg.same_as(output) for output in outputs)]
        tensors = [arg for arg in inputs if isinstance(arg, (Var, GenericConst, relax.TupleGetItem, relax.Tuple))]
        literals = tuple(arg for arg in inputs if not any(arg.same_as(tensor) for tensor in tensors))
        operands = tuple(self.number(arg, env, path) for arg in tensors)
        types = [output.ty for output in outputs]
        ty = types[0] if len(types) == 1 else relax.TupleType(types)
        if isinstance(kernel, relax.Function):
            full = self._external_call(kernel, symbol, operands, ty, path)
        else:
            full = self._numbers.kernel(kernel, operands, literals, ty)
        for index, output in enumerate(outputs):
            number = full if len(outputs) == 1 else self._numbers.item(full, index, output.ty)
            env[output] = self._place(number, output, path, call, operands)
        return True


def _leaves(expr: Any) -> list[Any]:
    """Return the variables and constants that an expression reads, in order."""
    if isinstance(expr, (Var, GenericConst)):
        return [expr]
    if isinstance(expr, Call):
        return [leaf for arg in expr.args for leaf in _leaves(arg)]
    if isinstance(expr, relax.Tuple):
        return [leaf for field in expr.fields for leaf in _leaves(field)]
    return _leaves(expr.tuple_value) if isinstance(expr, relax.TupleGetItem) else []


def _is_pure(op: Any) -> bool:
    purity = op.get_attr("FPurity")
    return purity is None or bool(purity)
