"""Functions at given sizes of their open dimensions: for whoever computes values of a module, not for what is compiled.

    def main(x: R.Tensor((n, 64))): R.matmul(x, w)  # n: 16      def main(x: R.Tensor((16, 64))): R.matmul(x, w)

Dimensions go by their names, which passes keep. Bindings keep their order and their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from tvm import relax, tirx
from tvm.relax import Var

_Key = TypeVar("_Key")


def at_sizes(functions: Mapping[_Key, Any], sizes: Mapping[str, int]) -> dict[_Key, Any]:
    """Return functions whose dimensions of these names are numbers; what has none, and what is no Relax function, as it is."""
    return {name: _at_sizes(function, sizes) for name, function in functions.items()} if sizes else dict(functions)


def _at_sizes(function: Any, sizes: Mapping[str, int]) -> Any:
    if not isinstance(function, relax.Function):
        return function
    free: Any = list(relax.analysis.free_symbolic_vars(function))
    symbols = [*relax.analysis.defined_symbolic_vars(function), *free]
    known: Any = {symbol: tirx.IntImm("int64", sizes[symbol.name]) for symbol in symbols if symbol.name in sizes}
    if not known:
        return function
    # TVM binds what a parameter has as a size; of one that has a multiple of it alone, 32 * h, it would say that there is none.
    given = relax.Var("free", relax.ShapeType(free))
    bound = _with_params(function, [*function.params, given]).bind_symbolic_vars(known)
    return _with_params(bound, list(bound.params)[:-1])


def _with_params(function: relax.Function, params: list[Var]) -> relax.Function:
    return relax.Function(params, function.body, function.body.ty, function.is_pure, function.attrs, function.span)


def same_variables(one: Any, other: Any) -> dict[Var, Var]:
    """Return the variables of a function by those of what `at_sizes` made of it, or the other way round."""
    return dict(zip(_variables(one), _variables(other), strict=True))


def _variables(function: Any) -> list[Var]:
    return [*function.params, *(binding.var for block in function.body.blocks for binding in block.bindings)]
