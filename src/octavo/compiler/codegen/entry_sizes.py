"""Open sizes in the entry of a Program: read once a call, and what is computed of them, each once for all kernels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ...ir.untyped import tirx
from ...runtime.size import Size


class EntrySizes:
    """The variables of an entry that hold sizes.

    Parameters
    ----------
    dimensions
        Names of the open dimensions.
    """

    def __init__(self, dimensions: Collection[str]) -> None:
        self._dimensions = {name: tirx.Var(name, "int64") for name in sorted(dimensions)}
        self._variables: dict[Any, Any] = {}
        self._made: list[Any] = []

    def statements(self, given: Any, starts: dict[int, Any], sizes: Iterable[int]) -> list[Any]:
        """Return the statements that read the dimensions, and compute `sizes` and where the slots of the workspace begin.

        Parameters
        ----------
        given
            The entry's buffer of dimensions.
        starts
            Of the slots by their numbers; those that are computed become variables.
        """
        self._made += [tirx.Bind(variable, given[number]) for number, variable in enumerate(self._dimensions.values())]
        before: Any = 0  # the size that the slot before begins at
        for slot, start in starts.items():
            if isinstance(start, Size):
                starts[slot] = self._bound(f"slot{slot}", self._value(start - before) + starts[slot - 1])
            before = start
        for size in sizes:
            self._value(size)
        return self._made

    def number(self, size: int, dtype: str) -> Any:
        """Return a size, or a number, which `statements` computed."""
        return self._value(size).astype(dtype)

    def _value(self, size: int) -> Any:
        if not isinstance(size, Size):
            return tirx.IntImm("int64", size)
        if size.name is not None:
            return self._dimensions[size.name]
        [(monomial, count), *others] = size.terms.items()
        if not others and count == 1 and len(monomial) == 1:
            return self._combined(monomial[0])
        if size not in self._variables:
            self._variables[size] = self._bound("size", self._sum(size.terms))
        return self._variables[size]

    def _sum(self, terms: Mapping[Any, int]) -> Any:
        """Return a polynomial; of quotients, maxima and minima their variables, for other sizes have the same."""
        total: Any = None
        for monomial, count in terms.items():
            product: Any = tirx.IntImm("int64", count)
            for number, factor in enumerate(monomial):
                value = self._dimensions[factor] if isinstance(factor, str) else self._combined(factor)
                product = value if number == 0 and count == 1 else product * value
            total = product if total is None else total + product
        return total

    def _combined(self, term: Any) -> Any:
        if term not in self._variables:
            left, right = self._value(term.left), self._value(term.right)
            if term.op == "floordiv" and isinstance(term.right, int) and term.right.bit_count() == 1 < term.right:
                # Which rounds down, too. LLVM does not optimize an entry: it would divide.
                value = tirx.shift_right(left, tirx.IntImm("int64", term.right.bit_length() - 1))
            elif term.op == "floordiv":
                value = tirx.truncdiv(left, right)
                if (isinstance(term.left, Size) and term.left.may_be_negative) or (isinstance(term.left, int) and term.left < 0):
                    # By hand: what TVM makes of a quotient that is rounded down binds variables within expressions.
                    quotient = self._bound("quotient", value)
                    value = quotient - ((left - quotient * right) * right < 0).astype("int64")
            else:
                value = tirx.max(left, right) if term.op == "max" else tirx.min(left, right)
            self._variables[term] = self._bound(term.op, value)
        return self._variables[term]

    def _bound(self, name: str, value: Any) -> Any:
        # Stored, and loaded again: TVM writes what it sees a variable to be made of wherever that is read.
        buffer = tirx.decl_buffer((1,), "int64", name=name, scope="local")
        variable = tirx.Var(name, "int64")
        self._made += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, [0]), tirx.Bind(variable, buffer[0])]
        return variable
