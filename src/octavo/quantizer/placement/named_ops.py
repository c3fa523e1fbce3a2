"""Which ops a recipe names: by the tensor they make, or by their kind. What becomes of them is not decided here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

from tvm.relax import Var

from ...errors import QuantizationError
from ...ir.graph.dataflow import DataflowView, op_name
from ...ir.identity import TensorEntry, TensorId, TensorTable
from ..equalized_float import EqualizedFloat
from ..override import Override
from ..recipe import fits, has_wildcards
from .layer import Layer


class NamedOps:
    """The names of ops in a field of a recipe, looked up in one model.

    Parameters
    ----------
    names
        TensorIds, source names of tensors, or op names in the source's terms or Relax's; * and ? stand for other characters.
    form
        The model: a convolution that took over a normalization still answers to its own name.
    field
        Of the recipe, as errors name it.
    takes_tensors
        Whether names may be those of inputs and constants, too.

    Raises
    ------
    QuantizationError
        For a name that fits no op of the model.
    """

    def __init__(
        self,
        names: Iterable[str],
        form: EqualizedFloat,
        *,
        field: str = "exclude",
        takes_tensors: bool = False,
    ) -> None:
        self._names = tuple(dict.fromkeys(names))
        self._field = field
        self._tensors = form.model.tensors
        self._gone = {str(fold.tensor): fold.gone for fold in form.folds if fold.op == "nn.batch_norm"}
        self._makes = _made_by_unnamed(form.view, self._tensors) if self._names else {}
        self._check(form.view, takes_tensors)

    def hit(self, op: str, members: Iterable[str]) -> str | None:
        """Return the first name that is an op's, made of the variables `members`, or None."""
        names = {op, *members}
        for name in members:
            for entry in self._entries(name):
                names.update(_names_of(entry))
        return next((name for name in self._names if any(fits(name, each) for each in names)), None)

    def _entries(self, name: str) -> Iterator[TensorEntry]:
        for key in (name, self._gone.get(name), *self._makes.get(name, ())):
            entry = None if key is None else self._tensors.get(TensorId(key))
            if entry is not None:
                yield entry

    def _check(self, view: DataflowView, takes_tensors: bool) -> None:
        known = {name for binding in view.bindings for name in (binding.var.name, op_name(binding.value))}
        for entry in self._tensors.values():
            if takes_tensors or entry.kind == "activation":
                known.update(_names_of(entry))
        unknown = [name for name in self._names if not any(fits(name, each) for each in known)]
        if unknown:
            hint = _hint(unknown[0], sorted(known))
            what = "op or tensor" if takes_tensors else "op or result"
            raise QuantizationError(f"recipe: {self._field} names {unknown[0]!r}, but the model has no such {what}; {hint}")


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


class NamedOverrides:
    """The overrides of a recipe, looked up in one model: of several that fit the later one counts, field by field.

    Raises
    ------
    QuantizationError
        For a name that fits nothing in the model.
    """

    def __init__(self, overrides: Mapping[str, Override], form: EqualizedFloat) -> None:
        self._entries = [
            (NamedOps((name,), form, field="overrides", takes_tensors=True), override) for name, override in overrides.items()
        ]

    def of_op(self, op: str, members: Iterable[str]) -> Override:
        """Return what is said of an op, by its kind or by the tensors `members` in it; or of one tensor, of no `op`."""
        names, said = tuple(members), Override()
        for named, override in self._entries:
            if named.hit(op, names) is not None:
                said = said.with_later(override)
        return said

    def of_layer(self, layer: Layer) -> Override:
        """Return what is said of an integer op, by a name of its weight, too."""
        weight = () if layer.op is None else (str(layer.op.weight.name),)
        return self.of_op(layer.support.op, [*(var.name for var in layer.members), *weight])

    def of_activations(self, layers: Iterable[Layer]) -> dict[Var, Override]:
        """Return what is said of each activation that integer ops read or make, where it is anything."""
        return dict(self._activations(tuple(layers))) if self._entries else {}

    def _activations(self, layers: tuple[Layer, ...]) -> Iterator[tuple[Var, Override]]:
        maker = {layer.output: layer for layer in layers}
        for var in dict.fromkeys(var for layer in layers for var in (*layer.quantized_inputs, layer.output)):
            said = self.of_layer(maker[var]) if var in maker else self.of_op("", [var.name])
            if said != Override():
                yield var, said
