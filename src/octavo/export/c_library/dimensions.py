"""What a C library's interface names beside its tensors: the open dimensions, as fields of C, and the state that is carried."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ...errors import DataError
from ...ir.graph.growing_states import GrowingState
from ...runtime.description import OutputSpec
from ...runtime.inputs import InputSpec
from ...runtime.session import check_pair
from ...runtime.size import names_in
from .library import CDimension

_KEYWORDS = (
    "alignas alignof and asm auto bool break case catch char class concept const constexpr continue decltype default delete do "
    "double else enum explicit export extern false final float for friend goto if inline int long mutable namespace new "
    "noexcept not nullptr operator or override private protected public register requires restrict return short signed sizeof "
    "static struct switch template this throw true try typedef typeid typename typeof union unsigned using virtual void volatile "
    "wchar_t while xor linux unix"
)
"""Words of C and C++ that name no field, and two that GNU's dialects define."""


def dimensions_of(inputs: Sequence[InputSpec]) -> tuple[CDimension, ...]:
    """Return the open dimensions of inputs in their order, each with a field of its own."""
    bounds = {name: each for spec in inputs for name, each in spec.bounds.items()}
    found: dict[str, CDimension] = {}
    for spec in inputs:
        for dim in spec.shape:
            for name in sorted(names_in([dim]) - found.keys()):
                low, high = bounds.get(name, (0, None))
                field = _field(name, {each.field for each in found.values()})
                found[name] = CDimension(name=name, field=field, low=low, high=high)
    return tuple(found.values())


def _field(name: str, taken: set[str]) -> str:
    """Return a C identifier for a dimension that no other has."""
    field = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if field in _KEYWORDS.split() or not field[0].isalpha():
        field = f"size_{field}"
    while field in taken:
        field += "_"
    return field


def carried_pairs(
    inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec], growing: Sequence[GrowingState], carry: Mapping[str, str]
) -> tuple[tuple[int, int], ...]:
    """Return what is carried as (output, input), in the order of the inputs.

    Raises
    ------
    DataError
        An unknown name; an output that does not fit its input; a state that changes its size and that no kernel writes in place;
        of states that grow along one dimension only some.
    """
    ins, outs = {spec.source_name: spec for spec in inputs}, {spec.source_name: spec for spec in outputs}
    for output, name in carry.items():
        check_pair(output, outs, name, ins)
    if len(set(carry.values())) != len(carry):
        raise DataError(f"carry: two outputs are carried to one input, of {', '.join(sorted(carry.values()))}")
    places = [list(ins), list(outs)]
    pairs = sorted(((places[1].index(output), places[0].index(name)) for output, name in carry.items()), key=lambda pair: pair[1])
    grown = {(each.output, each.input): each.dimension for each in growing}
    along = {grown[pair] for pair in pairs if pair in grown}
    for pair, dimension in grown.items():
        if dimension in along and pair not in pairs:
            output, name = outputs[pair[0]].source_name, inputs[pair[1]].source_name
            raise DataError(
                f"carry: {output!r} grows along {dimension!r} as others that are carried do: carry it to {name!r}, too"
            )
    for output, source in pairs:
        made, taken = outputs[output], inputs[source]
        is_in_place = (output, source) in grown
        if not is_in_place and (made.shape != taken.shape or names_in(taken.shape) & along):
            shapes = [", ".join(map(str, each.shape)) for each in (made, taken)]
            raise DataError(
                f"carry {made.source_name!r} to {taken.source_name!r}: [{shapes[0]}] is another size than [{shapes[1]}], and no "
                "kernel writes it in place; a C library keeps states of one size, and float32 ones that a concat extends"
            )
    return tuple(pairs)
