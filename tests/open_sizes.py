"""A module of static sizes with some of its sizes replaced: by names, which are open then, or by other numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax, tirx

from octavo.runtime.size import Size

_UNTYPED: Any = relax


def with_sizes(module: tvm.IRModule, sizes: Mapping[int, int | Size]) -> tvm.IRModule:
    """Return the module with these numbers replaced, wherever they are dimensions of tensors or of shapes, or divide them.

    They must divide nothing else: take primes, whose sums, which are to be entered as well, are primes too (7, 11, 26, 37).
    """
    variables: dict[str, Any] = {}

    def expression(name: str) -> Any:
        return variables.setdefault(name, tirx.Var(name, "int64"))

    def dimension(dim: Any) -> Any:
        number, size = int(dim), 1
        for divisor, other in sizes.items():
            while number and number % divisor == 0:
                number, size = number // divisor, size * other
        size = size * number
        return tirx.IntImm("int64", size) if isinstance(size, int) else size.expression(expression)

    known: dict[Any, Any] = {}

    def replaced(expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return known[expr]
        if isinstance(expr, relax.ShapeExpr):
            return relax.ShapeExpr([dimension(dim) for dim in expr.values])
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([replaced(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(replaced(expr.tuple_value), expr.index)
        if isinstance(expr, _UNTYPED.Call):
            return _UNTYPED.Call(expr.op, [replaced(arg) for arg in expr.args], expr.attrs, expr.ty_args)
        return expr

    main: Any = module["main"]
    for param in main.params:
        shape = [dimension(dim) for dim in param.ty.shape.values]
        known[param] = relax.Var(param.name, relax.TensorType(shape, param.ty.dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [known[param] for param in main.params], attrs=dict(main.attrs)):
        with builder.dataflow():
            for block in main.body.blocks:
                for binding in block.bindings:
                    value = builder.normalize(replaced(binding.value))
                    var = relax.DataflowVar(binding.var.name, value.ty)
                    builder.emit_normalized(relax.VarBinding(var, value))
                    known[binding.var] = var
            result = builder.emit_output(replaced(main.body.body))
        builder.emit_func_output(result)
    return builder.finalize()
