"""Symbols: the open sizes of a model's inputs, what is known of them, and arithmetic with them. Knows no file format.

A size is an int or a PrimExpr over tirx.Var of dtype int64. What a graph says of its sizes is found while it is converted: two
that meet in one sum must be equal. Then what is known grows, `NewlyKnownError` is raised, and the conversion starts anew.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from math import lcm
from typing import Any

import tvm.sym
import tvm_ffi
from tvm import tirx
from tvm_ffi import structural_walk

from ..errors import ModelError, check_type
from ..runtime.shapes import LARGEST
from .frontend import NewlyKnownError, RejectedOpError

Size = Any
"""An int, or a PrimExpr of dtype int64."""
Bounds = tuple[int, int | None]
"""Least and greatest size, both inclusive; None: no bound."""
SizeOption = int | tuple[int | None, int | None]
"""How a caller of `load` restricts a dimension: to one size, or to inclusive bounds of which either may be None."""

_UNBOUNDED = 2**40
"""What proofs take for the greatest size; products of three such do not fit 64 bits, but no tensor has one."""
_LARGEST_MULTIPLE = 4096
_QUOTIENTS = tirx.FloorDiv | tirx.FloorMod
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_INTEGER = re.compile(r"T\.int64\((-?\d+)\)")


def symbol_name(text: str) -> str:
    """Return an identifier for a dimension that a source calls `text`."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"


class Symbols:
    """The symbols of one model.

    Parameters
    ----------
    names
        Of the dimensions that inputs have, in order.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._vars: dict[str, Any] = {name: tirx.Var(name, "int64") for name in dict.fromkeys(names)}
        self._bounds: dict[str, Bounds] = dict.fromkeys(self._vars, (1, None))
        self._values: dict[str, Size] = {}
        self._limits: list[tuple[Any, int]] = []
        self._multiples: dict[str, tuple[str, int]] = {}
        """Symbol -> of which it is how many times smaller, where the graph takes multiples alone."""
        self._analyzer: Any = None
        self._bind()

    def _bind(self) -> None:
        self._analyzer = tvm.sym.Analyzer()
        for name, (low, high) in self._bounds.items():
            span = tvm.sym.ConstIntBound(low, _UNBOUNDED if high is None else high)
            self._analyzer.update(self._vars[name], span, True)

    @property
    def bounds(self) -> dict[str, Bounds]:
        """Least and greatest size of each symbol that is left."""
        return {name: bound for name, bound in self._bounds.items() if name not in self._values}

    def parse(self, text: str) -> Size:
        """Return the size that `text` stands for: a symbol, or arithmetic of symbols; what else it may be is a symbol's name."""
        name = symbol_name(text)
        if name in self._vars:
            return self.simplify(self._vars[name])
        try:
            return self.simplify(self._evaluated(ast.parse(text.strip(), mode="eval").body))
        except (SyntaxError, KeyError, ValueError) as error:
            raise KeyError(text) from error

    def _evaluated(self, tree: Any) -> Size:
        if isinstance(tree, ast.BinOp):
            return _OPERATORS[type(tree.op)](self._evaluated(tree.left), self._evaluated(tree.right))
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
            return tree.value
        if isinstance(tree, ast.Name):
            return self._vars[tree.id]
        raise ValueError(tree)

    def restrict(self, sizes: Mapping[str, SizeOption], where: str) -> None:
        """Fix symbols to a size, or bound them; ModelError for what is none, or no symbol."""
        for name, wanted in sizes.items():
            if name not in self._vars:
                known = f"the open ones are {', '.join(self._vars)}" if self._vars else "all dimensions are fixed"
                raise ModelError(f"{where}: there is no dimension {name!r} to give a size; {known}")
            if isinstance(wanted, tuple | list):
                self._bounds[name] = _checked_bounds(name, wanted, self._bounds[name][0], where)
            else:
                check_type(wanted, int, ModelError, f"a size, or a pair of bounds, of dimension {name!r}")
                if wanted < 0:
                    raise ModelError(f"{where}: size {wanted} of dimension {name!r} must not be negative")
                _check_countable(name, wanted, where)
                self._values[name] = wanted
        self._bind()

    def allow_zero(self, name: str) -> None:
        """Let a symbol be 0, too."""
        self._bounds[name] = (0, self._bounds[name][1])
        self._bind()

    def simplify(self, size: Size) -> Size:
        """Return a size in its simplest form, an int where it is known."""
        if isinstance(size, int):
            return size
        if self._values:
            size = _substituted(size, {self._vars[name]: _expr(value) for name, value in self._values.items()})
        size = self._analyzer.simplify(_expr(size))
        return int(size) if isinstance(size, tirx.IntImm) else size

    def is_equal(self, first: Size, second: Size) -> bool:
        """Return whether two sizes are equal whatever the symbols are."""
        if isinstance(first, int) and isinstance(second, int):
            return first == second
        return bool(self._analyzer.can_prove_equal(_expr(first), _expr(second)))

    def can_prove(self, condition: Any) -> bool:
        """Return whether a condition holds whatever the symbols are."""
        return bool(condition) if isinstance(condition, bool | int) else bool(self._analyzer.can_prove(condition))

    def at_least(self, size: Size, bound: int) -> bool:
        """Return whether a size is `bound` or more whatever the symbols are."""
        return self.can_prove(size >= bound) or self._repeats_above(size, bound)

    def _repeats_above(self, size: Size, bound: int) -> bool:
        ends = self.ends_of_repeats(size)
        return ends is not None and ends[0] >= bound

    def ends_of_repeats(self, size: Size) -> tuple[int, int | None] | None:
        """Return the ends of quotients of one symbol: what they add up to repeats, but for a slope, which must not fall.

        height // 2 - height // 4 * 2 is 0 or 1, which TVM cannot prove. None where a size is not of this kind; no greatest
        where there is a slope.
        """
        names = [name for name in self.bounds if name in re.findall(r"\w+", size_text(size))]
        divisors = _divisors(size)
        if len(names) != 1 or divisors is None or math.prod(divisors) > _LARGEST_MULTIPLE:
            return None
        low, period = self._bounds[names[0]][0], math.prod(divisors)
        values = [_value(size, low + step) for step in range(period + 1)]
        if values[-1] < values[0]:
            return None
        return min(values), max(values) if values[-1] == values[0] else None

    def minimum(self, first: Size, second: Size) -> Size:
        """Return the lesser size; a limit that the graph implies counts."""
        if any(limit == second and self.is_equal(size, first) for size, limit in self._limits if isinstance(second, int)):
            return self.simplify(first)
        return self.simplify(tirx.min(_expr(first), _expr(second)))

    def maximum(self, first: Size, second: Size) -> Size:
        """Return the greater size."""
        return self.simplify(tirx.max(_expr(first), _expr(second)))

    def meet(self, first: Size, second: Size) -> Size:
        """Return the one size that two sizes are; what follows for the symbols becomes known.

        Raises
        ------
        NewlyKnownError
            If more is known of the symbols now.
        RejectedOpError
            If they cannot be equal.
        """
        if self.is_equal(first, second):
            return first
        for one, other in ((first, second), (second, first)):
            if isinstance(one, tirx.Min) and isinstance(one.b, tirx.IntImm) and self.is_equal(one.a, other):
                self._limit(other, int(one.b))
        symbol = self._solvable(first, second)
        if symbol is None and self._find_multiple(first, second):
            raise NewlyKnownError
        if symbol is None:
            raise RejectedOpError(
                f"sizes {self.text(first)} and {self.text(second)} meet, which are not equal; {self.advice(first, second)}"
            )
        name, value = symbol
        low, high = self._bounds[name]
        if isinstance(value, int) and (value < low or (high is not None and value > high)):
            raise RejectedOpError(f"dimension {name} must be {value} here, which its bounds {low}..{high or ''} exclude")
        self._set(name, value)
        raise NewlyKnownError

    def _set(self, name: str, value: Size) -> None:
        self._bounds[name] = self._bounds.pop(name)
        self._values = {each: self._replaced(old, name, value) for each, old in self._values.items()} | {name: value}
        self._bind()

    def _find_multiple(self, first: Size, second: Size) -> bool:
        """Let a symbol, or all that two sizes depend on, be multiples of the least number with which the sizes are equal.

        Sizes that are halved and doubled again are those that they were for even ones alone: (h + 1) // 2 is h // 2 then. It is
        found among what divides the divisors, so for some networks it allows less than they do, never more.
        """
        names, divisor = self._parts(first, second)
        multiples = [number for number in range(2, divisor + 1) if divisor % number == 0]
        for chosen in [*([name] for name in names), *([names] if len(names) > 1 else [])]:
            for multiple in multiples:
                trial = copy(self)
                trial._vars, trial._bounds = dict(self._vars), dict(self._bounds)
                if all(trial._be_multiple(name, multiple) for name in chosen) and trial.is_equal(
                    trial.simplify(first), trial.simplify(second)
                ):
                    self.__dict__ |= trial.__dict__
                    return True
        return False

    def _be_multiple(self, name: str, factor: int) -> bool:
        """Let a symbol be a multiple, of a new symbol; False where its bounds hold none."""
        low, high = self._bounds[name]
        source, before = self._multiples.get(name, (name, 1))
        new = f"{source}_{before * factor}"
        while new in self._vars:
            new += "_"
        least, most = -(-low // factor), None if high is None else high // factor
        if most is not None and most < max(least, 1):
            return False
        self._vars[new] = tirx.Var(new, "int64")
        self._bounds[new] = least, most
        self._multiples = {**self._multiples, new: (source, before * factor)}
        self._set(name, self._vars[new] * factor)
        return True

    def _parts(self, *sizes: Size) -> tuple[list[str], int]:
        """Return the symbols of some sizes that are left, in order, and the least common multiple of what they are divided by."""
        names = names_in(sizes)
        divisors = [1]
        for size in sizes:
            if not isinstance(size, int):
                structural_walk(size, (tirx.FloorDiv, lambda each: divisors.append(_divisor(each))))
                structural_walk(size, (tirx.FloorMod, lambda each: divisors.append(_divisor(each))))
        divisor = lcm(*divisors)
        return [name for name in self.bounds if name in names], divisor if divisor <= _LARGEST_MULTIPLE else 1

    def be_size(self, size: Size, least: int = 0) -> bool:
        """Take in that a tensor has this size, which is `least` or more then: where one symbol alone makes it and makes it grow.

        Returns
        -------
        bool
            Whether more is known of the symbols now: a bound of one.

        Raises
        ------
        RejectedOpError
            If the symbol's bounds exclude it.
        """
        if isinstance(size, int) or self.at_least(size, least):
            return False
        for name in self._vars:
            low, high = self._bounds[name]
            if not self._grows_with(size, name):
                continue
            if isinstance(first := self._at(size, name, low), int) and first < least:
                values = range(low, (_UNBOUNDED if high is None else high) + 1)
                place = bisect_left(values, least, key=lambda value, name=name: self._at(size, name, value))
                if place == len(values):
                    made = f"{self.text(size)} is less than {least}"
                    raise RejectedOpError(f"dimension {name} may be {high} at most, for which {made}")
                self._bounds[name] = (values[place], high)
                self._bind()
                return True
        return False

    def be_pixels(self, given: Sequence[Size], left: Sequence[Size]) -> bool:
        """Take in that windows leave so many pixels of those that are given, along each axis: at least one.

        Returns
        -------
        bool
            Whether more is known of the symbols now: a bound of one.

        Raises
        ------
        RejectedOpError
            If they leave none.
        """
        sizes = [self.simplify(size) for size in left]
        if any(isinstance(size, int) and size < 1 for size in sizes):
            before, after = (" x ".join(map(size_text, each)) for each in (given, sizes))
            raise RejectedOpError(f"its windows leave {after} pixels of {before}; larger inputs are needed")
        are_new = [self.be_size(size, 1) for size in sizes]
        return any(are_new)

    def be_at_most(self, size: Size, limit: int) -> None:
        """Let a size be `limit` at most, where one symbol alone makes it and makes it grow.

        Raises
        ------
        NewlyKnownError
            If more is known of the symbols now.
        """
        if self.can_prove(size <= limit):
            return
        for name in self._parts(size)[0]:
            low, high = self._bounds[name]
            if not (self._grows_with(size, name) and isinstance(first := self._at(size, name, low), int) and first <= limit):
                continue
            values = range(low, (_UNBOUNDED if high is None else high) + 1)
            most = bisect_right(values, limit, key=lambda value, name=name: self._at(size, name, value)) - 1
            self._bounds[name] = (low, values[most])
            self._bind()
            raise NewlyKnownError

    def _at(self, size: Size, name: str, value: int) -> Size:
        return self.simplify(_substituted(size, {self._vars[name]: _expr(value)}))

    def _grows_with(self, size: Size, name: str) -> bool:
        var = self._vars[name]
        return self.can_prove(_substituted(size, {var: var + 1}) >= size)

    def _replaced(self, size: Size, name: str, value: Size) -> Size:
        return size if isinstance(size, int) else self.simplify(_substituted(size, {self._vars[name]: _expr(value)}))

    def _limit(self, size: Any, limit: int) -> None:
        """Take in that a size is `limit` at most, for the graph cuts something of `limit` elements to it."""
        self._limits.append((size, limit))
        for name, var in self._vars.items():
            low, high = self._bounds[name]
            grown = self.simplify(_substituted(size, {var: var + 1}) - size)
            if not isinstance(grown, int) or grown < 1:
                continue
            least = self._analyzer.const_int_bound(_substituted(size, {var: _expr(0)})).min_value
            most = (limit - int(least)) // grown
            if high is None or most < high:
                if most < low:
                    raise RejectedOpError(f"dimension {name} may be {most} at most here, and {low} at least")
                self._bounds[name] = (low, most)
        self._bind()
        raise NewlyKnownError

    def _solvable(self, first: Size, second: Size) -> tuple[str, Size] | None:
        """Return a symbol and what it must be for two sizes to be equal; of several that stand alone, the last input's."""
        names = list(self.bounds)[::-1]
        alone = [
            name
            for name in names
            if any(not isinstance(size, int) and size.same_as(self._vars[name]) for size in (first, second))
        ]
        difference = self.simplify(first - second)
        for name in (*alone, *names):
            if isinstance(difference, int):
                break
            var = self._vars[name]
            step = self.simplify(_substituted(difference, {var: var + 1}) - difference)
            rest = self.simplify(_substituted(difference, {var: _expr(0)}))
            if isinstance(step, int) and step in (1, -1):
                return name, self.simplify(-rest if step == 1 else rest)
            if isinstance(step, int) and step and isinstance(rest, int) and rest % step == 0:
                return name, -rest // step
        return None

    def broadcast(self, *shapes: Sequence[Size]) -> list[Size]:
        """Return the shape that shapes broadcast to; sizes that meet are equal then, as `meet` finds."""
        result: list[Size] = []
        for place in range(max(map(len, shapes), default=0), 0, -1):
            size: Size = 1
            for shape in shapes:
                if len(shape) >= place and not _is_one(shape[-place]):
                    size = shape[-place] if _is_one(size) else self.meet(size, shape[-place])
            result.append(size)
        return result

    def quotient(self, dividend: Size, divisor: Size) -> Size:
        """Return dividend / divisor, rounded down where symbols leave a remainder open."""
        if isinstance(dividend, int) and isinstance(divisor, int):
            return dividend // divisor
        return self.simplify(tirx.floordiv(_expr(dividend), _expr(divisor)))

    def is_multiple(self, dividend: Size, divisor: Size) -> bool:
        """Return whether a size is divisible by another whatever the symbols are."""
        return self.is_equal(self.simplify(tirx.floormod(_expr(dividend), _expr(divisor))), 0)

    def text(self, size: Size) -> str:
        """Write a size as a source would: "past + sequence"."""
        return size_text(size)

    def advice(self, *sizes: Size) -> str:
        """Say how a dimension is given a size: one that these sizes depend on, any where none is given."""
        words = set(re.findall(r"\w+", " ".join(map(size_text, sizes))))
        return advice_of([name for name in self.bounds if name in words] or list(self.bounds))


def advice_of(names: Iterable[str]) -> str:
    """Say how one of these dimensions is given a size."""
    names = list(names) or ["batch"]
    choice = "one of " if len(names) > 1 else ""
    return f'fix {choice}{", ".join(names)}: sizes={{"{names[0]}": N}} in Python, --size {names[0]}=N on the command line'


def names_in(sizes: Iterable[Size]) -> list[str]:
    """Return the names of the dimensions that sizes depend on, in the order in which they occur."""
    names: dict[str, None] = {}
    for size in sizes:
        if not isinstance(size, int):
            structural_walk(size, (tirx.Var, lambda var: names.setdefault(str(var.name))))
    return list(names)


def size_text(size: Size) -> str:
    """Write a size as a source would: "past + sequence"."""
    return _INTEGER.sub(r"\1", str(size)).replace("T.", "")


def _substituted(size: Any, values: Mapping[Any, Any]) -> Any:
    return tvm_ffi.structural_map(size, (tirx.Var, lambda var: values.get(var, var)), order="post")


def _divisors(size: Any) -> list[int] | None:
    """Return the divisors in a size that is made of symbols, numbers, sums, multiples, quotients and remainders; else None."""
    if isinstance(size, int | tirx.IntImm | tirx.Var):
        return []
    if isinstance(size, tirx.Mul | _QUOTIENTS) and not isinstance(size.b, tirx.IntImm):
        return None
    if not isinstance(size, tirx.Add | tirx.Sub | tirx.Mul | _QUOTIENTS):
        return None
    left, right = _divisors(size.a), _divisors(size.b)
    if left is None or right is None:
        return None
    return [*left, *right, *([_divisor(size)] if isinstance(size, _QUOTIENTS) else [])]


def _value(size: Any, value: int) -> int:
    """Return a size that `_divisors` takes, at a value of its symbol."""
    if isinstance(size, int | tirx.IntImm):
        return int(size)
    if isinstance(size, tirx.Var):
        return value
    left, right = _value(size.a, value), _value(size.b, value)
    if isinstance(size, _QUOTIENTS):
        return left // right if isinstance(size, tirx.FloorDiv) else left % right
    return left * right if isinstance(size, tirx.Mul) else left + right if isinstance(size, tirx.Add) else left - right


def _expr(size: Size) -> Any:
    return tirx.IntImm("int64", size) if isinstance(size, int) else size


def _divisor(quotient: Any) -> int:
    return max(int(quotient.b), 1) if isinstance(quotient.b, tirx.IntImm) else 1


def _is_one(size: Size) -> bool:
    return isinstance(size, int) and size == 1


def _checked_bounds(name: str, wanted: Sequence[Any], least: int, where: str) -> Bounds:
    expected = f"bounds (least, greatest) of dimension {name!r}, whole numbers or None"
    if len(wanted) != 2:
        raise ModelError(f"{where}: expected {expected}, got {tuple(wanted)}")
    for bound in wanted:
        check_type(bound, int | None, ModelError, expected)
    low, high = least if wanted[0] is None else wanted[0], wanted[1]
    if low < 0 or (high is not None and high < max(low, 1)):
        raise ModelError(f"{where}: bounds {low}..{'' if high is None else high} of dimension {name!r} hold no size")
    _check_countable(name, max(low, high or 0), where)
    return low, high


def _check_countable(name: str, size: int, where: str) -> None:
    if size > LARGEST:
        raise ModelError(f"{where}: size {size} of dimension {name!r} is above {LARGEST}, the most that kernels count to")
