"""How many bits the weights of each layer get, as a recipe asks. Chooses no scales."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ...ir.graph.constants import Constants
from ...ir.graph.dataflow import DataflowView, call_to
from ...ir.graph.model import Model
from ...ir.graph.weighted import weighted
from ...ir.identity import TensorId
from ...ir.simplify import Fold
from ..placement import Layer, NamedOps
from ..recipe import ANY, WEIGHT_BITS, Recipe


def widths(
    recipe: Recipe,
    simple: Model,
    folds: Iterable[Fold],
    view: DataflowView,
    wide: Collection[TensorId],
    own_bits: Callable[[Layer], int | None] = lambda _: None,
) -> Callable[[Layer], int]:
    """Return what says the width of a layer's weights.

    Parameters
    ----------
    simple
        The float model as it is quantized; `folds` became of the imported one, `view` shows its "main".
    wide
        The weights that keep 8 bits; those of the smallest layers without any.
    own_bits
        Returns the width that is asked for a layer alone.
    """
    bits = recipe.weight_bits
    named = NamedOps(
        [name for name in bits if name != ANY] if isinstance(bits, Mapping) else (),
        simple.tensors,
        folds,
        view,
        field="weight_bits",
    )
    rest = usual_width(recipe)
    spared = wide or _smallest(recipe.wide_weights, simple, view)

    def bits_of(layer: Layer) -> int:
        own = own_bits(layer)
        if own is not None:
            return own
        name = named.hit(layer.support.op, [var.name for var in layer.members])
        if isinstance(bits, Mapping) and name is not None:
            return bits[name]
        return WEIGHT_BITS if layer.op is not None and layer.op.weight.name in spared else rest

    return bits_of


def usual_width(recipe: Recipe) -> int:
    """Return the width of the weights of which a recipe says nothing of their own."""
    bits = recipe.weight_bits
    return bits.get(ANY, WEIGHT_BITS) if isinstance(bits, Mapping) else bits


def _smallest(share: float, simple: Model, view: DataflowView) -> set[TensorId]:
    """Return the smallest weights of a model's layers that together are no more than a share of all."""
    constants = Constants(view, simple.params)
    sizes: dict[TensorId, int] = {}
    for binding in view.bindings if share else ():
        call = call_to(binding.value, "nn.conv2d", "nn.conv2d_transpose", "matmul")
        op = None if call is None else weighted(constants, call)
        if op is not None and not isinstance(op, str):
            sizes[op.weight.name] = simple.params[op.weight.name].size
    room = share * sum(sizes.values())
    found: set[TensorId] = set()
    for name, size in sorted(sizes.items(), key=lambda entry: entry[1]):
        room -= size
        if room < 0:
            break
        found.add(name)
    return found
