"""What a recipe's overrides say of single ops and tensors of one model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tvm.relax import Var

from ...ir.graph.dataflow import DataflowView
from ...ir.identity import TensorTable
from ..override import Override
from ..plan import Fold
from .layer import Layer
from .named_ops import NamedOps


class NamedOverrides:
    """The overrides of a recipe, looked up in one model: of several that fit the later one counts, field by field.

    Raises
    ------
    QuantizationError
        For a name that fits nothing in the model.
    """

    def __init__(
        self, overrides: Mapping[str, Override], tensors: TensorTable, folds: Iterable[Fold], view: DataflowView
    ) -> None:
        folds = tuple(folds)
        self._entries = [
            (NamedOps((name,), tensors, folds, view, field="overrides", takes_tensors=True), override)
            for name, override in overrides.items()
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
