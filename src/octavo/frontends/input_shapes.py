"""The shapes of a model's inputs: what its file states of them, with what the caller of `load` says. Knows no file format.

A dimension is a size, or the name of one that is open. Dimensions of one name have one size. A name that is arithmetic of others
("past + sequence") is that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ModelError, check_type
from .symbols import Size, SizeOption, Symbols, symbol_name

ShapeOption = Sequence[int | str]
"""How a caller of `load` states a shape: sizes, and names of dimensions that stay open."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_MULTIPLE = re.compile(r"^\s*(?:[1-9]\d*\s*\*\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*\*\s*[1-9]\d*)\s*$")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller of `load` asks of the inputs of a file.

    Parameters
    ----------
    shapes
        Shapes of inputs by name, in place of the file's.
    sizes
        Sizes or bounds of dimensions by name.
    origin
        The file's name, for messages.
    """

    shapes: Mapping[str, ShapeOption]
    sizes: Mapping[str, SizeOption]
    origin: str

    def check(self, inputs: Mapping[str, Any]) -> None:
        """Raise ModelError for a shape of no input, and for what is no shape."""
        unknown = [name for name in self.shapes if name not in inputs]
        if unknown:
            known = ", ".join(inputs)
            raise ModelError(f"{self.origin}: there is no input {unknown[0]!r} to give a shape; the inputs are {known}")
        for name, given in self.shapes.items():
            expected = f"a tuple of whole numbers and names as the shape of input {name!r}"
            check_type(given, tuple | list, ModelError, expected)
            for dim in given:
                check_type(dim, int | np.integer | str, ModelError, expected)

    def with_open(self, in_file: Mapping[str, Sequence[int | str]]) -> tuple[Asked, dict[str, int]]:
        """Return what is asked with the sizes left open that are not those the file states, and these, or the most, by name."""
        most = {name: size if isinstance(size, int) else size[1] for name, size in self.sizes.items()}
        fixed = {name: size for name, size in most.items() if size is not None}
        shapes: dict[str, ShapeOption] = {}
        for name, given in self.shapes.items():
            dims = list(given)
            for axis, (dim, before) in enumerate(zip(given, in_file[name], strict=False)):
                if not isinstance(dim, str) and dim != before:
                    dims[axis] = symbol = str(before) if _NAME.fullmatch(str(before)) else symbol_name(f"{name}_dim{axis}")
                    fixed[symbol] = int(dim)
            shapes[name] = dims
        return Asked(shapes, {name: size for name, size in self.sizes.items() if name not in fixed}, self.origin), fixed


@dataclass(frozen=True, kw_only=True, slots=True)
class InputShapes:
    """The shape of every input.

    Parameters
    ----------
    declared
        Input -> its dimensions: sizes, and names of open ones.
    symbols
        What is known of these.
    """

    declared: Mapping[str, tuple[int | str, ...]]
    symbols: Symbols

    @property
    def shapes(self) -> dict[str, tuple[Size, ...]]:
        """Input -> its shape, as much of it as is known now."""
        return {name: tuple(self._size(dim) for dim in dims) for name, dims in self.declared.items()}

    def _size(self, dim: int | str) -> Size:
        return dim if isinstance(dim, int) else self.symbols.parse(dim)

    @property
    def is_static(self) -> bool:
        """Whether nothing is open."""
        return all(isinstance(size, int) for shape in self.shapes.values() for size in shape)

    @property
    def open_batch(self) -> str | None:
        """The symbol that the first dimension of every input is and no other dimension has; None if there is none."""
        shapes = list(self.shapes.values())
        firsts = {str(shape[0]) for shape in shapes if shape and not isinstance(shape[0], int)}
        rest = [size for shape in shapes for size in shape[1:]]
        ends = all(shape and not isinstance(shape[0], int) for shape in shapes)
        if not ends or not shapes or not all(isinstance(size, int) for size in rest):
            return None
        return firsts.pop()

    def of_batch(self, size: int) -> InputShapes:
        """Return the shapes for a batch of one size."""
        return static_shapes({name: (size, *(int(dim) for dim in shape[1:])) for name, shape in self.shapes.items()})


def static_shapes(shapes: Mapping[str, Sequence[int]]) -> InputShapes:
    """Return shapes without open dimensions."""
    return InputShapes(declared={name: tuple(shape) for name, shape in shapes.items()}, symbols=Symbols(()))


def combined(dims_of: Mapping[str, tuple[int | str, ...]], asked: Asked) -> InputShapes:
    """Return the inputs' dimensions as a file states them, with shapes in place of those of some inputs."""
    shapes = asked.shapes
    declared: dict[str, tuple[int | str, ...]] = {}
    given = _given_by_name(dims_of, shapes, asked.origin)
    for name, dims in dims_of.items():
        if name in shapes:
            declared[name] = tuple(dim if isinstance(dim, str) else int(dim) for dim in shapes[name])
        else:
            declared[name] = tuple(given.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
    return _with_symbols(declared)


def _with_symbols(declared: Mapping[str, tuple[int | str, ...]]) -> InputShapes:
    """Make a symbol of each open dimension that is no arithmetic of others; of what is a multiple, of what it is one of."""
    texts = [dim for dims in declared.values() for dim in dims if isinstance(dim, str)]
    alone = {text: _MULTIPLE.sub(lambda found: found[1] or found[2], text) for text in texts}
    plain = [name for name in alone.values() if _NAME.fullmatch(name)]
    known = Symbols(map(symbol_name, plain))
    names: list[str] = []
    for text, name in alone.items():
        if name in plain:
            names.append(symbol_name(name))
            continue
        try:
            known.parse(text)
        except KeyError:
            names.append(symbol_name(text))
    return InputShapes(declared=declared, symbols=Symbols(names))


def _given_by_name(
    dims_of: Mapping[str, tuple[int | str, ...]], shapes: Mapping[str, ShapeOption], origin: str
) -> dict[str, int | str]:
    """Return what the given shapes say of names, which hold for inputs that are given none."""
    others = {dim for name, dims in dims_of.items() if name not in shapes for dim in dims}
    found: dict[str, int | str] = {}
    for name, given in shapes.items():
        for dim, new in zip(dims_of[name], given, strict=False):
            if isinstance(dim, str) and dim in others and found.setdefault(dim, new) != new:
                raise ModelError(f"{origin}: shapes give dimension {dim!r} the sizes {found[dim]} and {new}; give one")
    return {dim: new if isinstance(new, str) else int(new) for dim, new in found.items()}
