"""Take an IRModule as a model: its variable names are the ids. Reads no file."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst as Constant

from ..errors import ModelError
from ..ir.graph.dataflow import relax_name
from ..ir.graph.model import SourceFormat
from .assemble import Assembled, assemble
from .fingerprint import Fingerprint
from .source_tensor import SourceTensor


def convert(module: tvm.IRModule) -> Assembled:
    """Build the named module; constants become parameters named after the variable whose binding reads them.

    Raises
    ------
    ModelError
        If there is no function "main" over tensors of static shape, or it has control flow.
    """
    names = [var.name_hint for var in module.get_global_vars()]
    main = module["main"] if "main" in names else None
    if not isinstance(main, relax.Function):
        raise ModelError(f"the IRModule has no Relax function 'main'; it has {', '.join(names) or 'none'}")
    for param in main.params:
        if not isinstance(param.ty, relax.TensorType) or param.ty.shape is None:
            raise ModelError(f"parameter {param.name!r} of main is no tensor of known shape")
    if not isinstance(main.body, relax.SeqExpr):
        raise ModelError("main is not normalized; apply relax.transform.Normalize first")
    sources, holders = _tensors(main)
    positions: list[int] = []
    for value in _returned(main):
        at = next((position for position, holder in enumerate(holders) if holder.same_as(value)), None)
        if at is None:
            raise ModelError(f"main returns {value}, which is no tensor that it binds to a variable")
        positions.append(at)
    return assemble(module, sources, holders, positions)


def _returned(main: relax.Function) -> list[Any]:
    """Return the expression of each result; a tuple of them may have a variable, as TVM's torch frontend gives it."""
    values = relax.analysis.get_var2val(main)
    body: Any = main.body.body
    while isinstance(body, relax.Var) and isinstance(body.ty, relax.TupleType) and body in values:
        body = values[body]
    return list(body.fields) if isinstance(body, relax.Tuple) else [body]


def _tensors(main: relax.Function) -> tuple[list[SourceTensor], list[Any]]:
    """List the parameters, the tensors bound to variables, and before each the constants that its binding reads."""
    count = int(main.attrs["num_input"]) if main.attrs and "num_input" in main.attrs else len(main.params)
    if count != len(main.params):
        raise ModelError(
            f"main has {len(main.params) - count} parameters without values; bind them with relax.transform.BindParams"
        )
    sources: list[SourceTensor] = []
    holders: list[Any] = []

    def add(expr: Any, name: str, kind: Any, op: str = "") -> None:
        if isinstance(expr.ty, relax.TensorType) and expr.ty.shape is not None:
            shape = tuple(int(d) if isinstance(d, tvm.tirx.IntImm) else str(d) for d in expr.ty.shape)
            sources.append(SourceTensor(name=name, kind=kind, op=op, shape=shape, dtype=str(expr.ty.dtype)))
            holders.append(expr)

    for param in main.params:
        add(param, str(param.name), "input")
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                arguments = [field for arg in value.args for field in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
                for position, arg in enumerate(arguments):
                    if isinstance(arg, Constant):
                        add(arg, f"{binding.var.name}_arg{position}", "constant")
            op: Any = getattr(value, "op", None)
            add(binding.var, str(binding.var.name), "activation", relax_name(op) if isinstance(op, tvm.ir.Op) else "")
    return sources, holders


def relax_fingerprint(assembled: Assembled, source_format: SourceFormat = "relax") -> str:
    """Hash format, text, literals and parameter values of the named module.

    The text is printed without its metadata (the arrays of literals): serializing those crashes TVM 0.27.
    """
    result = Fingerprint(source_format)
    result.add(assembled.module.script(show_meta=False))

    def literal(expr: Any) -> None:
        if isinstance(expr, Constant):
            result.add_array(expr.value.numpy())

    relax.analysis.post_order_visit(assembled.module["main"], literal)
    for name, value in assembled.params.items():
        result.add(str(name))
        result.add_array(value)
    return result.digest()
