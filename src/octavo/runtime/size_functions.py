"""Numbers of many sizes in one call: what every call of an executable with open dimensions asks for.

A polynomial that is walked takes 5 to 40 us, all sizes of a decoder's step in one compiled function 2 us. It is made from the
terms of sizes: numbers and the operations that sizes have; no text of a file is compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

from .size import Size, names_in

Numbers = Callable[..., tuple[int, ...]]
"""From the sizes of dimensions, in the order of their names, to numbers."""

_NAME = "numbers"
_KEPT = 64
"""Sizes that were asked for last: most callers come back with the same."""


def size_function(sizes: Sequence[int | Size], names: Sequence[str]) -> Numbers:
    """Return what gives the numbers that sizes are, from those of the dimensions `names`."""
    assert names_in(sizes) <= set(names), f"{names_in(sizes)} are not all in {names}"
    writer = _Writer({name: f"d{number}" for number, name in enumerate(names)})
    result = ast.Return(ast.Tuple([writer.number(size) for size in sizes], ast.Load()))
    signature = ast.arguments([], [ast.arg(argument) for argument in writer.arguments.values()], None, [], [], None, [])
    function = ast.FunctionDef(_NAME, signature, [*writer.steps, result], [])
    scope: dict[str, Any] = {"__builtins__": {}, "max": max, "min": min}
    exec(compile(ast.fix_missing_locations(ast.Module([function], [])), "<sizes>", "exec"), scope)
    return lru_cache(_KEPT)(scope[_NAME])


class _Writer:
    """Expressions of sizes. A quotient or a maximum is a step of its own: the places of a network hold each many times.

    Parameters
    ----------
    arguments
        What stands for each dimension.
    """

    def __init__(self, arguments: dict[str, str]) -> None:
        self.arguments = arguments
        self.steps: list[ast.stmt] = []
        self._known: dict[Any, str] = {}

    def number(self, size: int | Size) -> ast.expr:
        """Return the expression of a size."""
        if not isinstance(size, Size):
            return ast.Constant(int(size))
        products = [
            reduce(lambda a, b: ast.BinOp(a, ast.Mult(), b), map(self._factor, monomial), ast.Constant(count))
            for monomial, count in size.terms.items()
        ]
        return reduce(lambda a, b: ast.BinOp(a, ast.Add(), b), products)

    def _factor(self, each: Any) -> ast.expr:
        if isinstance(each, str):
            return ast.Name(self.arguments[each], ast.Load())
        if each not in self._known:
            left, right = self.number(each.left), self.number(each.right)
            if each.op == "floordiv":
                value: ast.expr = ast.BinOp(left, ast.FloorDiv(), right)
            else:
                value = ast.Call(ast.Name(each.op, ast.Load()), [left, right], [])
            self._known[each] = f"t{len(self._known)}"
            self.steps.append(ast.Assign([ast.Name(self._known[each], ast.Store())], value))
        return ast.Name(self._known[each], ast.Load())
