"""Numbers of many sizes in one call: what every call of an executable with open dimensions asks for.

A polynomial that is walked takes 5 to 40 us, all sizes of a decoder's step in one compiled expression 2 us. The expression is
made from the terms of sizes: numbers and the operations that sizes have; no text of a file is compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from .size import Size, names_in

Numbers = Callable[..., tuple[int, ...]]
"""From the sizes of dimensions, in the order of their names, to numbers."""


def size_function(sizes: Sequence[int | Size], names: Sequence[str]) -> Numbers:
    """Return what gives the numbers that sizes are, from those of the dimensions `names`."""
    assert names_in(sizes) <= set(names), f"{names_in(sizes)} are not all in {names}"
    arguments = {name: f"d{number}" for number, name in enumerate(names)}
    body = ast.Tuple([_node(size, arguments) for size in sizes], ast.Load())
    signature = ast.arguments([], [ast.arg(argument) for argument in arguments.values()], None, [], [], None, [])
    expression = ast.fix_missing_locations(ast.Expression(ast.Lambda(signature, body)))
    return eval(compile(expression, "<sizes>", "eval"), {"__builtins__": {}, "max": max, "min": min})


def _node(size: int | Size, arguments: dict[str, str]) -> ast.expr:
    if not isinstance(size, Size):
        return ast.Constant(int(size))
    products = [
        reduce(lambda a, b: ast.BinOp(a, ast.Mult(), b), [_factor(each, arguments) for each in monomial], ast.Constant(count))
        for monomial, count in size.terms.items()
    ]
    return reduce(lambda a, b: ast.BinOp(a, ast.Add(), b), products)


def _factor(each: Any, arguments: dict[str, str]) -> ast.expr:
    if isinstance(each, str):
        return ast.Name(arguments[each], ast.Load())
    left, right = _node(each.left, arguments), _node(each.right, arguments)
    if each.op == "floordiv":
        return ast.BinOp(left, ast.FloorDiv(), right)
    return ast.Call(ast.Name(each.op, ast.Load()), [left, right], [])
