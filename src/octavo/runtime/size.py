"""Size: a dimension that is known only when a model runs, as a polynomial of named ones; one that is known is a plain int.

    batch * sequence      64 * past + 64      floordiv(height - 1, 2) + 1

Arithmetic of sizes gives sizes, and an int wherever the names cancel out. Two sizes are equal where they are the same polynomial.
Code that is written for ints works on sizes as long as it asks nothing that depends on the names: an order, a remainder, a loop.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import gcd, inf, prod
from typing import Any, Literal

import tvm_ffi

from ..errors import OctavoError

Dim = "int | Size"
"""One dimension of a tensor."""

Expressions = Callable[[str], Any]
"""From the name of a dimension to the expression of TVM that stands for it."""

_EXPRESSIONS: ContextVar[Expressions | None] = ContextVar("expressions", default=None)
_EXPRESSION_OF: ContextVar[Callable[[Size], Any] | None] = ContextVar("expression_of", default=None)


class OpenSizeError(OctavoError):
    """Something was asked of a size that depends on dimensions which are known only when the model runs."""


@contextmanager
def expressed_by(expressions: Expressions, expression_of: Callable[[Size], Any] | None = None) -> Generator[None]:
    """Let TVM take a Size for the expression that this function of names gives, meanwhile; or for what `expression_of` gives.

    A name for which it raises KeyError is what it was before.
    """
    before = _EXPRESSIONS.get()

    def expression(name: str) -> Any:
        try:
            return expressions(name)
        except KeyError:
            if before is None:
                raise
            return before(name)

    tokens = _EXPRESSIONS.set(expression), _EXPRESSION_OF.set(expression_of)
    try:
        yield
    finally:
        _EXPRESSIONS.reset(tokens[0])
        _EXPRESSION_OF.reset(tokens[1])


@dataclass(frozen=True, slots=True)
class _Term:
    """A factor that is no plain name: a quotient rounded down, or the larger or smaller of two sizes."""

    op: Literal["floordiv", "max", "min"]
    left: int | Size
    right: int | Size

    def __str__(self) -> str:
        return f"{self.op}({self.left}, {self.right})"

    def evaluate(self, values: Mapping[str, int]) -> int:
        return int(
            _OPERATIONS[self.op](*(side.evaluate(values) if isinstance(side, Size) else side for side in (self.left, self.right)))
        )


_Factor = str | _Term
_Monomial = tuple[_Factor, ...]
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {"floordiv": lambda a, b: a // b, "max": max, "min": min}


_Convertible: Any = tvm_ffi.ObjectConvertible
"""Without its type, which lets checkers take a Size wherever an int is expected: it is written to stand there."""


class Size(_Convertible):
    """A polynomial with integer coefficients. Made by `Size.named`, by arithmetic, or by `Size.parse`; never constant.

    Every name stands for a number that is at least 0.
    """

    __slots__ = ("_hash", "_least", "_names", "_terms", "_text")

    def __init__(self, terms: Mapping[_Monomial, int]) -> None:
        self._terms = dict(sorted(terms.items(), key=lambda item: (-len(item[0]), str(item[0]))))
        self._hash = hash(tuple(self._terms.items()))
        # Every call of an executable asks for them.
        self._text: str | None = None
        self._names: frozenset[str] | None = None
        self._least: float | None = None

    @staticmethod
    def named(name: str) -> Size:
        """Return the dimension of this name."""
        return Size({(name,): 1})

    @staticmethod
    def parse(text: str | int) -> int | Size:
        """Read what `str` wrote; ValueError for anything else. Nothing is executed."""
        if isinstance(text, int):
            return text
        try:
            return _parsed(ast.parse(text, mode="eval").body)
        except (SyntaxError, KeyError, RecursionError) as error:
            raise ValueError(f"{text!r} is no size") from error

    # ---------------------------------------------------------------------------------------------------- arithmetic

    def __add__(self, other: Any) -> Any:
        """Return the sum; with an expression of TVM, one of TVM."""
        if not isinstance(other, int | Size):
            return self.asobject() + other
        return _sum(self, other)

    def __mul__(self, other: Any) -> Any:
        """Return the product."""
        if not isinstance(other, int | Size):
            return self.asobject() * other
        return _product(self, other)

    def __neg__(self) -> Any:
        """Return the negative."""
        return self * -1

    def __sub__(self, other: Any) -> Any:
        """Return the difference."""
        return self + other * -1 if isinstance(other, int | Size) else self.asobject() - other

    def __rsub__(self, other: Any) -> Any:
        """Return the difference."""
        return self * -1 + other if isinstance(other, int | Size) else other - self.asobject()

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        """Return the quotient, rounded down."""
        if not isinstance(other, int | Size):
            return self.asobject() // other
        return _quotient(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        """Return the quotient, rounded down."""
        return _quotient(other, self) if isinstance(other, int) else other // self.asobject()

    def __mod__(self, other: Any) -> Any:
        """Return the remainder of the quotient that is rounded down."""
        return self - (self // other) * other if isinstance(other, int | Size) else self.asobject() % other

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        """Return quotient and remainder."""
        return self // other, self % other

    # ----------------------------------------------------------------------------------------------------- questions

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same polynomial: two that differ may still have one value."""
        return isinstance(other, Size) and self._terms == other._terms

    def __hash__(self) -> int:
        """Return the same for equal sizes."""
        return self._hash

    def __lt__(self, other: Any) -> bool:
        """Return the order where it holds for all values; else OpenSizeError."""
        return not _is_at_least(self, other)

    def __ge__(self, other: Any) -> bool:
        """Return the order where it holds for all values; else OpenSizeError."""
        return _is_at_least(self, other)

    def __gt__(self, other: Any) -> bool:
        """Return the order where it holds for all values; else OpenSizeError."""
        return _is_at_least(self, other + 1)

    def __le__(self, other: Any) -> bool:
        """Return the order where it holds for all values; else OpenSizeError."""
        return not _is_at_least(self, other + 1)

    def __bool__(self) -> bool:
        """Return whether it is other than 0, where that holds for all values; else OpenSizeError."""
        if self.least > 0:
            return True
        raise OpenSizeError(f"the size {self} is open, and whether it is 0 decides")

    def __index__(self) -> int:
        """Raise OpenSizeError: a number is asked for."""
        raise OpenSizeError(f"the size {self} is open")

    __int__ = __index__

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def names(self) -> frozenset[str]:
        """The dimensions that it depends on."""
        if self._names is None:
            self._names = frozenset(
                name
                for monomial in self._terms
                for each in monomial
                for name in ([each] if isinstance(each, str) else names_in((each.left, each.right)))
            )
        return self._names

    @property
    def terms(self) -> Mapping[_Monomial, int]:
        """Coefficients by products of names, those of the most factors first."""
        return self._terms

    @property
    def name(self) -> str | None:
        """The dimension's name where it is that alone; None of what is computed of dimensions."""
        [(monomial, factor), *others] = self._terms.items()
        return monomial[0] if not others and factor == 1 and len(monomial) == 1 and isinstance(monomial[0], str) else None

    @property
    def may_be_negative(self) -> bool:
        """Whether it is not seen to be at least 0 for all values."""
        return self.least < 0

    @property
    def least(self) -> float:
        """What no value is below; minus infinity where nothing is seen to be."""
        if self._least is None:
            self._least = _least(self._terms)
        return self._least

    def most(self, each: int) -> float:
        """Return what no value surpasses where every dimension is `each` at most; infinity where nothing is seen to."""
        return _most(self._terms, each)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return its value; KeyError for a dimension that has none."""
        total = 0
        for monomial, product in self._terms.items():
            for each in monomial:
                product *= values[each] if isinstance(each, str) else each.evaluate(values)
            total += product
        return total

    def substitute(self, sizes: Mapping[str, int | Size]) -> int | Size:
        """Return it with these sizes in place of dimensions."""
        return self._folded(lambda name: sizes.get(name, Size.named(name)))

    def expression(self, expressions: Expressions) -> Any:
        """Return it as an expression of TVM."""
        with expressed_by(expressions):
            return self.asobject()

    def asobject(self) -> Any:
        """Return it as an expression of TVM, of the dimensions that `expressed_by` gives."""
        expressions, expression_of = _EXPRESSIONS.get(), _EXPRESSION_OF.get()
        if expression_of is not None:
            return expression_of(self)
        if expressions is None:
            raise OpenSizeError(f"the size {self} is open, and stands where nothing says what its dimensions are")
        return self._folded(expressions)

    def _folded(self, value_of: Callable[[str], Any]) -> Any:
        def factor(each: _Factor) -> Any:
            if isinstance(each, str):
                return value_of(each)
            sides = [side._folded(value_of) if isinstance(side, Size) else side for side in (each.left, each.right)]
            if all(isinstance(side, int) for side in sides):
                return _OPERATIONS[each.op](*sides)
            if any(isinstance(side, Size) for side in sides):
                return joined(each.op, sides[0], sides[1])
            if each.op == "floordiv":
                is_plain = isinstance(each.right, Size) and _least_of(each.left) >= 0
                return _tirx().truncdiv(*sides) if is_plain else sides[0] // sides[1]
            return getattr(_tirx(), each.op)(*sides)

        total: Any = 0
        for monomial, count in self._terms.items():
            value: Any = (
                reduce(lambda product, each: product * factor(each), monomial[1:], factor(monomial[0])) if monomial else 1
            )
            value = value if count == 1 else value * count
            total = value if isinstance(total, int) and total == 0 else total + value
        return total

    def __str__(self) -> str:
        """Return e.g. "64*past + 64"."""
        if self._text is not None:
            return self._text
        text = ""
        for monomial, factor in self._terms.items():
            parts = ([] if abs(factor) == 1 and monomial else [str(abs(factor))]) + [str(each) for each in monomial]
            sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
            text += sign + "*".join(parts)
        self._text = text
        return text

    __repr__ = __str__


def names_in(shape: Iterable[Any]) -> frozenset[str]:
    """Return the open dimensions that the sizes of a shape depend on."""
    return frozenset[str]().union(*(dim.names for dim in shape if isinstance(dim, Size)))


def dimension(size: int | Size) -> Any:
    """Return a size as TVM takes dimensions where it takes no Size: an int, or an expression of the dimensions alone."""
    if not isinstance(size, Size):
        return size
    expressions = _EXPRESSIONS.get()
    return size.asobject() if expressions is None else size.expression(expressions)


def is_open(value: Any) -> bool:
    """Return whether a size is known only when the model runs."""
    return isinstance(value, Size)


def is_surely(large: int | Size, small: int | Size) -> bool:
    """Return whether a size is at least another for all values."""
    return _least_of(large - small) >= 0


def _tirx() -> Any:
    from tvm import tirx  # only who builds expressions needs it

    return tirx


def _terms_of(value: int | Size) -> Mapping[_Monomial, int]:
    return value.terms if isinstance(value, Size) else {(): value}


def _made(terms: Iterable[tuple[_Monomial, int]]) -> int | Size:
    total: dict[_Monomial, int] = {}
    for monomial, factor in terms:
        total[monomial] = total.get(monomial, 0) + factor
    kept = {monomial: factor for monomial, factor in total.items() if factor}
    return kept.get((), 0) if not kept.keys() - {()} else Size(kept)


# Layers compute the same few sizes again and again, each of their passes from the dimensions on.
@lru_cache(1 << 13)
def _sum(one: Size, other: int | Size) -> int | Size:
    return _made((*one.terms.items(), *_terms_of(other).items()))


@lru_cache(1 << 13)
def _product(one: Size, other: int | Size) -> int | Size:
    return _made(
        (tuple(sorted((*left, *right), key=str)), some * others)
        for left, some in one.terms.items()
        for right, others in _terms_of(other).items()
    )


def _least(terms: Mapping[_Monomial, int]) -> float:
    """Return a bound that no value is below; minus infinity where there is none to be seen."""
    least: float = 0
    for monomial, factor in terms.items():
        lows = [_least_factor(each) for each in monomial]
        is_bounded = not monomial or (factor > 0 and (len(lows) == 1 or min(lows) >= 0))
        least += factor * prod(lows) if is_bounded else -inf
    return least


def _least_of(value: int | Size) -> float:
    return value.least if isinstance(value, Size) else value


def _least_factor(factor: _Factor) -> float:
    if isinstance(factor, str):
        return 0
    left, right = _least_of(factor.left), _least_of(factor.right)
    if factor.op == "floordiv":
        if left == -inf or (left < 0 and isinstance(factor.right, Size)):
            return -inf
        return left // factor.right if isinstance(factor.right, int) else 0
    return max(left, right) if factor.op == "max" else min(left, right)


def _most(terms: Mapping[_Monomial, int], each: int) -> float:
    most: float = 0
    for monomial, factor in terms.items():
        lows = [_least_factor(part) for part in monomial]
        if min(lows, default=0) < 0:
            return inf
        most += factor * prod(lows if factor < 0 else [_most_factor(part, each) for part in monomial])
    return most


def _most_factor(factor: _Factor, each: int) -> float:
    if isinstance(factor, str):
        return each
    left, right = (_most(_terms_of(side), each) for side in (factor.left, factor.right))
    if factor.op == "floordiv":
        return left // factor.right if isinstance(factor.right, int) else left
    return max(left, right) if factor.op == "max" else min(left, right)


def _is_at_least(one: Any, other: Any) -> bool:
    difference = one - other
    if _least_of(difference) >= 0:
        return True
    if _least_of(-difference) > 0:
        return False
    raise OpenSizeError(f"the order of {one} and {other} is open")


@lru_cache(1 << 13)
def joined(op: str, one: int | Size, other: int | Size) -> int | Size:
    """Return the larger or smaller of two sizes, or a quotient."""
    if op == "floordiv":
        return _quotient(one, other)
    if is_surely(one, other):
        return one if op == "max" else other
    if is_surely(other, one):
        return other if op == "max" else one
    if isinstance(one, int) or (isinstance(other, Size) and str(other) < str(one)):
        one, other = other, one
    constant = _terms_of(one).get((), 0)
    if constant:  # written in one way: max(x - 2, 0) is max(x, 2) - 2
        return joined(op, one - constant, other - constant) + constant
    return Size({(_Term("max" if op == "max" else "min", one, other),): 1})


@lru_cache(1 << 13)
def _quotient(number: int | Size, divisor: int | Size) -> int | Size:
    if isinstance(divisor, int) and divisor < 0:  # TVM rounds up by one: H - H % -2
        return _quotient(-number, -divisor)
    if divisor == 0:
        raise OpenSizeError(f"the size {number} is divided by 0")
    terms = _terms_of(number)
    if isinstance(divisor, int) and (common := gcd(divisor, *(count for monomial, count in terms.items() if monomial))) > 1:
        # (common * x + rest) // (common * b) == (x + rest // common) // b
        return _made((monomial, count // common) for monomial, count in terms.items()) // (divisor // common)
    if isinstance(divisor, int) and (inner := _only_quotient(terms)) is not None:
        # (x // a + rest) // b == (x + a * rest) // (a * b), for the quotient of two steps to be that of one.
        beside = number - Size({(inner,): 1})
        return _quotient(inner.left + beside * inner.right, inner.right * divisor)
    [(common, factor), *others] = _terms_of(divisor).items()
    if others:
        exact = _exact_quotient(number, divisor)
        return Size({(_Term("floordiv", number, divisor),): 1}) if exact is None else exact
    quotient: dict[_Monomial, int] = {}
    rest: dict[_Monomial, int] = {}
    for monomial, count in terms.items():
        left = _without(monomial, common)
        if left is None:
            rest[monomial] = count
        elif not left and not common:  # a constant, divided by a constant
            quotient[left], rest[monomial] = divmod(count, factor)
        elif count % factor:
            rest[monomial] = count
        else:
            quotient[left] = count // factor
    made, over = _made(quotient.items()), _made(rest.items())
    if isinstance(over, int) and isinstance(divisor, int):
        return made + over // divisor
    if isinstance(divisor, int) and next(iter(_terms_of(over).values())) < 0:  # rounded up is written in one way, too
        return made - (-over + (divisor - 1)) // divisor
    return made if over == 0 else made + Size({(_Term("floordiv", over, divisor),): 1})


def _only_quotient(terms: Mapping[_Monomial, int]) -> _Term | None:
    """Return the one quotient by a number among the terms; None where there is none, or another, or not once."""
    found = [
        (each, count if len(monomial) == 1 else 0)
        for monomial, count in terms.items()
        for each in monomial
        if isinstance(each, _Term) and each.op == "floordiv"
    ]
    if len(found) != 1 or found[0][1] != 1 or not isinstance(found[0][0].right, int):
        return None
    return found[0][0]


def _exact_quotient(number: int | Size, divisor: int | Size) -> int | Size | None:
    """Return the quotient of a division of polynomials without remainder; None where there is one.

    The first terms are those of the highest degree, as `Size` sorts them: each step divides these, which must come out whole.
    """
    [(lead, factor), *_] = _terms_of(divisor).items()
    quotient: int | Size = 0
    left = number
    for _ in range(len(_terms_of(number)) * len(_terms_of(divisor)) + 1):
        if left == 0:
            return quotient
        [(monomial, count), *_] = _terms_of(left).items()
        rest = _without(monomial, lead)
        if rest is None or count % factor:
            return None
        term = _made([(rest, count // factor)])
        quotient, left = quotient + term, left - term * divisor
    return None


def _without(monomial: _Monomial, common: _Monomial) -> _Monomial | None:
    """Return the factors of a product without these; None where it has not all of them."""
    left = list(monomial)
    for each in common:
        if each not in left:
            return None
        left.remove(each)
    return tuple(left)


def _parsed(node: ast.expr) -> int | Size:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return Size.named(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_parsed(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _parsed(node.left), _parsed(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OPERATIONS and len(node.args) == 2:
        return joined(node.func.id, *map(_parsed, node.args))
    raise ValueError(f"{ast.unparse(node)!r} is no size")
