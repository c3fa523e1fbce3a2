"""Which ops a recipe names: by the tensor they make, or by their kind. What becomes of them is not decided here."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from ...errors import QuantizationError
from ...ir.graph.dataflow import DataflowView, op_name
from ...ir.identity import TensorEntry, TensorId, TensorTable
from ..equalized_float import EqualizedFloat
from ..recipe import fits, has_wildcards


class OpNames:
    """The names that ops of one model answer to: TensorIds, source names of tensors, op names in the source's terms or Relax's.

    In what names them * and ? stand for other characters.

    Parameters
    ----------
    form
        The model: a convolution that took over a normalization still answers to its own name.
    """

    def __init__(self, form: EqualizedFloat) -> None:
        self._view, self._tensors = form.view, form.model.tensors
        self._gone = {str(fold.tensor): fold.gone for fold in form.folds if fold.op == "nn.batch_norm"}

    @cached_property
    def _makes(self) -> dict[str, tuple[str, ...]]:
        return _made_by_unnamed(self._view, self._tensors)

    def hit(self, names: Collection[str], op: str, members: Iterable[str]) -> str | None:
        """Return the first of some names that is an op's, made of the variables `members`, or None."""
        if not names:
            return None
        members = tuple(members)
        known = {op, *members}
        for name in members:
            for key in (name, self._gone.get(name), *self._makes.get(name, ())):
                entry = None if key is None else self._tensors.get(TensorId(key))
                known.update(() if entry is None else _names_of(entry))
        return next((name for name in names if any(fits(name, each) for each in known)), None)

    def check(self, names: Collection[str], *, field: str = "exclude", takes_tensors: bool = False) -> None:
        """Raise QuantizationError for a name in a field of the recipe that fits no op of the model.

        Parameters
        ----------
        takes_tensors
            Whether names may be those of inputs and constants, too.
        """
        if not names:
            return
        known = {name for binding in self._view.bindings for name in (binding.var.name, op_name(binding.value))}
        for entry in self._tensors.values():
            if takes_tensors or entry.kind == "activation":
                known.update(_names_of(entry))
        unknown = [name for name in names if not any(fits(name, each) for each in known)]
        if unknown:
            hint = _hint(unknown[0], sorted(known))
            what = "op or tensor" if takes_tensors else "op or result"
            raise QuantizationError(f"recipe: {field} names {unknown[0]!r}, but the model has no such {what}; {hint}")


def _hint(name: str, known: list[str]) -> str:
    """Return what to write in place of a name that fits nothing: names are whole ones."""
    part = f"*{name.strip('*')}*"
    within = [each for each in known if fits(part, each)] if name.strip("*") else []
    near = difflib.get_close_matches(name, known, n=3)
    if within and (has_wildcards(name) or not near):
        return f"{part!r} fits {len(within)}, {within[0]} first"
    return f"did you mean {' or '.join(near)}?" if near else "give the name of an op's result, or a kind of op such as Conv"


def _made_by_unnamed(view: DataflowView, tensors: TensorTable) -> dict[str, tuple[str, ...]]:
    """Return for each variable that the source does not know the tensors that it is computed for: an LSTM is written as many ops.

    Where those are of ops of several kinds it is none's own.
    """
    found: dict[str, tuple[str, ...]] = {}
    for binding in reversed(view.bindings):
        name = binding.var.name
        if TensorId(name) in tensors:
            continue
        made: dict[str, None] = {}
        for user in view.users(binding.var):
            made |= dict.fromkeys((user.name,) if TensorId(user.name) in tensors else found.get(user.name, ()))
        if len({tensors[TensorId(each)].op for each in made}) == 1:
            found[name] = tuple(made)
    return found


def _names_of(entry: TensorEntry) -> Iterator[str]:
    yield from (str(entry.id), entry.source_name, *entry.aliases)
    if entry.op:
        yield entry.op
