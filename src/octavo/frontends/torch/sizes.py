"""The open sizes of a torch program: its symbols by the names of its Dims, and what the caller of `load` says of them.

PyTorch itself works out the shape of every value; here its expressions become sizes. Imports neither PyTorch nor SymPy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from tvm import tirx

from ...errors import ModelError, check_type
from ...ir.graph.sizes import is_dimension, size_of
from ...runtime.shapes import line_of
from ..frontend import RejectedOpError
from ..input_shapes import ShapeOption
from ..symbols import Bounds, Size, SizeOption, Symbols, symbol_name

ORIGIN = "torch program"
_NAME = re.compile(r"[A-Za-z_]\w*")
_DIVISIONS = frozenset({"FloorDiv", "CleanDiv"})
_REMAINDERS = frozenset({"Mod", "PythonMod"})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ProgramSizes:
    """What is known of a program's sizes.

    Parameters
    ----------
    names
        PyTorch's symbol ("s77") -> name of the dimension.
    symbols
        What is known of these.
    """

    names: Mapping[str, str]
    symbols: Symbols

    def of(self, dim: Any) -> Size:
        """Return a dimension, or another value of a node that is a size: an int or a SymInt."""
        return dim if isinstance(dim, int) else self.symbols.simplify(self._expression(dim.node.expr))

    def shape(self, value: Any) -> tuple[Size, ...]:
        """Return the shape of a (fake) tensor."""
        return tuple(self.of(dim) for dim in value.shape)

    def is_open(self, value: Any, arguments: Any = ()) -> bool:
        """Return whether the shape of a (fake) tensor, or of one of several, is open, or one of the arguments of a node."""
        if isinstance(value, tuple | list):
            return any(self.is_open(each) for each in value) or self.is_open(None, arguments)
        if any(self._is_open_dim(dim) for dim in getattr(value, "shape", ())):
            return True
        return any(_holds_size(argument) for argument in arguments)

    def _is_open_dim(self, dim: Any) -> bool:
        """Return whether a dimension is open; one that depends on values is none that has a name."""
        is_named = not isinstance(dim, int) and {str(symbol) for symbol in dim.node.expr.free_symbols} <= self.names.keys()
        return is_named and not isinstance(self.of(dim), int)

    def text(self, dim: Any) -> str:
        """Write a dimension by the names that it has."""
        return str(dim) if isinstance(dim, int) else _text(dim.node.expr, self.names)

    def of_batch(self, name: str, size: int) -> ProgramSizes:
        """Return the sizes of a batch of `size`, where no other dimension is open."""
        symbols = Symbols(self.names.values())
        symbols.restrict({name: size}, ORIGIN)
        return ProgramSizes(names=self.names, symbols=symbols)

    def _expression(self, expr: Any) -> Size:
        """Return what SymPy's expression of PyTorch's symbols is."""
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            if str(expr) not in self.names:
                raise RejectedOpError("the shape of its result depends on values, which must be known before the run")
            return self.symbols.parse(self.names[str(expr)])
        name, parts = type(expr).__name__, [self._expression(part) for part in expr.args]
        if expr.is_Add:
            return sum(parts[1:], parts[0])
        if expr.is_Mul:
            return reduce(lambda product, part: product * part, parts)
        if expr.is_Pow and isinstance(parts[1], int) and parts[1] > 0:
            return reduce(lambda product, part: product * part, [parts[0]] * parts[1])
        if name in _DIVISIONS:
            return self.symbols.quotient(parts[0], parts[1])
        if name in _REMAINDERS:
            return self.symbols.simplify(tirx.floormod(*map(_expr, parts)))
        if name in ("Max", "Min"):
            return reduce(self.symbols.maximum if name == "Max" else self.symbols.minimum, parts)
        raise RejectedOpError(f"the size {_text(expr, self.names)} is no arithmetic of whole numbers; {self.symbols.advice()}")


def is_open_size(value: Any) -> bool:
    """Return whether an argument of a node is a size that is open."""
    return isinstance(value, tirx.Expr) and is_dimension(value)


def _holds_size(argument: Any) -> bool:
    if isinstance(argument, tuple | list):
        return any(map(_holds_size, argument))
    if is_open_size(argument):
        return True
    shape = getattr(getattr(argument, "ty", None), "shape", None)
    return shape is not None and not all(isinstance(size, tirx.IntImm) for size in shape)


def _expr(size: Size) -> Any:
    return tirx.IntImm("int64", size) if isinstance(size, int) else size


def _text(expr: Any, names: Mapping[str, str]) -> str:
    return re.sub(r"\b[a-z]\d+\b", lambda found: names.get(found[0], found[0]), str(expr))


def open_dims(values: Mapping[str, Any]) -> list[tuple[str, int, Any]]:
    """Return input, axis and SymPy's expression of each open dimension of inputs, which are given as fake tensors."""
    return [
        (name, axis, dim.node.expr)
        for name, value in values.items()
        for axis, dim in enumerate(value.shape)
        if not isinstance(dim, int)
    ]


def program_sizes(
    program: Any,
    values: Mapping[str, Any],
    shapes: Mapping[str, ShapeOption],
    sizes: Mapping[str, SizeOption],
    may_be_empty: Callable[[str], bool],
) -> ProgramSizes:
    """Read the open dimensions of a program's inputs, and restrict them as the caller says.

    Parameters
    ----------
    values
        Input -> the fake tensor that it was exported with.
    shapes
        Shapes of inputs by name.
    sizes
        Sizes or bounds of dimensions by name.
    may_be_empty
        Whether a symbol of PyTorch's stands only where an input may have no elements.

    Raises
    ------
    ModelError
        For options that do not fit the program.
    """
    names = _names(values)
    given = _given(values, shapes, names)
    renamed = {symbol: size for symbol, size in given.items() if isinstance(size, str)}
    names = {symbol: renamed.get(symbol, name) for symbol, name in names.items()}
    bounds = {name: _declared_bounds(program, symbol, may_be_empty(symbol)) for symbol, name in names.items()}
    symbols = Symbols(names.values())
    symbols.restrict(bounds, ORIGIN)
    fixed = {names[symbol]: size for symbol, size in given.items() if not isinstance(size, str)}
    for wanted in (fixed, sizes):
        symbols.restrict(wanted, ORIGIN)
        for name, size in wanted.items():
            _check_range(name, size, bounds[name])
    found = ProgramSizes(names=names, symbols=symbols)
    _check_places(values, found)
    return found


def _names(values: Mapping[str, Any]) -> dict[str, str]:
    """Name PyTorch's symbols: by the Dim that the program was exported with, else by input and axis ("x_dim2")."""
    names: dict[str, str] = {}
    dims = open_dims(values)
    for name, axis, expr in sorted(dims, key=lambda dim: not dim[2].is_Symbol):
        known = _dim_names(values[name].shape[axis].node.shape_env)
        for symbol in sorted(expr.free_symbols, key=str):
            text = known.get(str(symbol))  # symbols of one Dim have one size
            if str(symbol) not in names:
                plain = symbol_name(text or (f"{name}_dim{axis}" if expr.is_Symbol else str(symbol)))
                names[str(symbol)] = plain if text or plain not in names.values() else f"{plain}_{symbol}"
    order = [str(symbol) for *_, expr in dims for symbol in sorted(expr.free_symbols, key=str)]
    return {symbol: names[symbol] for symbol in dict.fromkeys(order)}


def _dim_names(shape_env: Any) -> dict[str, str]:
    """Return the names that Dims gave symbols; a program that was read from a file has lost them."""
    symbols, texts = (getattr(shape_env, name, None) or {} for name in ("source_to_var", "source_name_to_debug_name"))
    found: dict[str, str] = {}
    for source, text in texts.items():
        if source in symbols and _NAME.fullmatch(str(text)):
            found.setdefault(str(symbols[source]), str(text))
    for source, symbol in symbols.items():  # h, where the input has 4 * h alone
        if _NAME.fullmatch(str(source)):
            found.setdefault(str(symbol), str(source))
    return found


def _declared_bounds(program: Any, symbol: str, may_be_empty: bool) -> Bounds:
    """Return the sizes that the program states for a symbol.

    A smallest of 2 is PyTorch's own (it specializes sizes 0 and 1), so 1 is allowed there; and its 0 is what a Dim without
    bounds has.
    """
    allowed = next((span for each, span in program.range_constraints.items() if str(each) == symbol), None)
    if allowed is None:
        return 1, None
    low, high = (int(bound) if bound.is_Integer else None for bound in (allowed.lower, allowed.upper))
    low = 0 if low == 0 and may_be_empty else 1 if low is None or low <= 2 else low
    return low, high


def _check_range(name: str, size: SizeOption, allowed: Bounds) -> None:
    """Raise ModelError for a size, or bounds, outside of what the program says of its dimension (torch.export.Dim)."""
    least, most = allowed
    asked = [bound for bound in size if bound is not None] if isinstance(size, tuple | list) else [size]
    if any(bound < least or (most is not None and bound > most) for bound in asked):
        span = f"{least} or more" if most is None else f"[{least}; {most}]"
        text = "..".join("" if bound is None else str(bound) for bound in size) if isinstance(size, tuple | list) else str(size)
        raise ModelError(
            f"{ORIGIN}: dimension {name} is {text}, the program was exported for {span}; give such a size or export with another "
            "torch.export.Dim"
        )


def _given(values: Mapping[str, Any], shapes: Mapping[str, ShapeOption], names: Mapping[str, str]) -> dict[str, int | str]:
    """Return what the given shapes say of PyTorch's symbols; inputs that share one share what is said of it."""
    found: dict[str, int | str] = {}
    unknown = [name for name in shapes if name not in values]
    for name, given in shapes.items():
        expected = f"a tuple of whole numbers and names as the shape of input {name!r}"
        check_type(given, tuple | list, ModelError, expected)
        for size in given:
            check_type(size, int | np.integer | str, ModelError, expected)
    if unknown:
        raise ModelError(f"{ORIGIN}: no input {sorted(unknown)}; the inputs are {sorted(values)}")
    for name, given in shapes.items():
        declared = tuple(values[name].shape)
        is_fit = len(given) == len(declared) and all(
            _is_name(size) if isinstance(size, str) else size >= 0 and (not isinstance(dim, int) or dim == size)
            for dim, size in zip(declared, given, strict=True)
        )
        if not is_fit or any(isinstance(dim, int) and isinstance(size, str) for dim, size in zip(declared, given, strict=True)):
            shape = ", ".join(str(dim) if isinstance(dim, int) else _text(dim.node.expr, names) for dim in declared)
            raise ModelError(f"{ORIGIN}: input {name!r} has shape ({shape}); {tuple(given)} does not fit it")
        for dim, size in zip(declared, given, strict=True):
            if isinstance(dim, int) or not dim.node.expr.is_Symbol:
                continue
            wanted = size if isinstance(size, str) else int(size)
            if found.setdefault(str(dim.node.expr), wanted) != wanted:
                known = found[str(dim.node.expr)]
                raise ModelError(
                    f"{ORIGIN}: dimension {_text(dim.node.expr, names)} of input {name!r} is {wanted}, and {known} elsewhere; "
                    "give one size"
                )
    for name, axis, expr in open_dims({name: values[name] for name in shapes}):
        _solve(found, expr, shapes[name][axis], name, names)
    return found


def _solve(found: dict[str, int | str], expr: Any, size: int | str, name: str, names: Mapping[str, str]) -> None:
    """Take in the size of a dimension that is computed of others; one symbol may follow from it."""
    if expr.is_Symbol or isinstance(size, str):
        return
    left = expr.subs({symbol: found[str(symbol)] for symbol in expr.free_symbols if isinstance(found.get(str(symbol)), int)})
    open_ones = list(left.free_symbols)
    if len(open_ones) == 1:
        zero = left.subs(open_ones[0], 0)
        step = left.subs(open_ones[0], 1) - zero
        if step and (int(size) - zero) % step == 0:
            value = (int(size) - zero) // step
            if left.subs(open_ones[0], value) == int(size):
                found[str(open_ones[0])] = int(value)
                return
    if left != int(size):
        raise ModelError(f"{ORIGIN}: dimension {_text(expr, names)} of input {name!r} can't be {size}, for it is {left} there")


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _check_places(values: Mapping[str, Any], sizes: ProgramSizes) -> None:
    """Raise ModelError for an open dimension that no input has as it is, or a multiple of it: a call could not tell its size."""
    found = [size_of(_expr(size)) for value in values.values() for size in sizes.shape(value)]
    alone = {line.name for size in found if size is not None and (line := line_of(size)) is not None}
    for name, axis, expr in open_dims(values):
        hidden = [sizes.names[str(symbol)] for symbol in expr.free_symbols]
        missing = sorted(each for each in hidden if each in sizes.symbols.bounds and each not in alone)
        if missing:
            raise ModelError(
                f"{ORIGIN}: dimension {axis} of input {name!r} is {_text(expr, sizes.names)}, and no input has the dimension "
                f'{missing[0]} itself; fix it: sizes={{"{missing[0]}": N}}'
            )
