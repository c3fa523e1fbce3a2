"""How many bits the weights of each layer get, and how many inputs share a scale, as a recipe asks. Chooses no scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ...ir.graph.dataflow import call_to, static_shape
from ...ir.graph.weighted import WEIGHTED, weighted
from ...ir.identity import TensorId
from ...numerics import PerBlock
from ..placement import Layer, NamedOps, PlanInputs
from ..plan import Adjustment
from ..recipe import ANY, BLOCK_BITS, WEIGHT_BITS, Recipe


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightWidths:
    """Widths and blocks of the weights of one model."""

    inputs: PlanInputs
    _named: NamedOps = field(init=False)

    def __post_init__(self) -> None:
        """Look up the names of the recipe."""
        bits = self.inputs.recipe.weight_bits
        names = [name for name in bits if name != ANY] if isinstance(bits, Mapping) else ()
        object.__setattr__(self, "_named", NamedOps(names, self.inputs.form, field="weight_bits"))

    def width(self, layer: Layer) -> int:
        """Return the width of a layer's weights: 8 bits of one that was to have blocks, and cannot."""
        return WEIGHT_BITS if self._obstacle_of_recipe(layer) else self._own_width(layer)

    def block(self, layer: Layer) -> int:
        """Return how many inputs share a scale; 0: all. Parameters of blocks that are asked for are blocks, any others none."""
        request = self.inputs.request_of_weight(layer)
        if request is not None and request.params is not None:
            granularity = request.params.granularity
            return granularity.size if isinstance(granularity, PerBlock) and not _obstacle(layer, granularity.size) else 0
        return 0 if self._obstacle_of_recipe(layer) != "" else self.inputs.recipe.weight_block or 0

    def adjustments(self, layers: tuple[Layer, ...]) -> Iterator[Adjustment]:
        """Yield the results of layers that were to have blocks, and cannot."""
        for layer in layers:
            if reason := self._obstacle_of_recipe(layer):
                yield Adjustment(tensor=layer.name, message=f"its weights keep {WEIGHT_BITS} bits, per axis: {reason}")

    def _obstacle_of_recipe(self, layer: Layer) -> str | None:
        """Return why a layer cannot have the blocks of the recipe, "" where it can; None where nobody asks for them."""
        size = self.inputs.recipe.weight_block
        if layer.op is None or layer.support.op != "matmul" or size is None:
            return None
        is_asked = layer.op.weight.name not in self.inputs.requests and self._own_width(layer) <= BLOCK_BITS
        return _obstacle(layer, size) if is_asked else None

    def _own_width(self, layer: Layer) -> int:
        """Return the width that is asked for a layer, by an override, the recipe, or what spares the smallest."""
        own, bits = self.inputs.overrides.of_layer(layer).weight_bits, self.inputs.recipe.weight_bits
        if own is not None:
            return own
        name = self._named.hit(layer.support.op, [var.name for var in layer.members])
        if isinstance(bits, Mapping) and name is not None:
            return bits[name]
        return WEIGHT_BITS if layer.op is not None and layer.op.weight.name in self._spared else usual_width(self.inputs.recipe)

    @cached_property
    def _spared(self) -> set[TensorId]:
        """The weights that keep 8 bits: those that are chosen, else the smallest, together no more than the recipe's share."""
        chosen, share = self.inputs.choices.wide_weights, self.inputs.recipe.wide_weights
        if chosen or not share:
            return {*chosen}
        sizes: dict[TensorId, int] = {}
        for binding in self.inputs.view.bindings:
            call = call_to(binding.value, *WEIGHTED)
            op = None if call is None else weighted(self.inputs.constants, call)
            if op is not None and not isinstance(op, str):
                sizes[op.weight.name] = self.inputs.params[op.weight.name].size
        room, found = share * sum(sizes.values()), set[TensorId]()
        for name, size in sorted(sizes.items(), key=lambda entry: entry[1]):
            room -= size
            if room < 0:
                break
            found.add(name)
        return found


def usual_width(recipe: Recipe) -> int:
    """Return the width of the weights of which a recipe says nothing of their own."""
    bits = recipe.weight_bits
    return bits.get(ANY, WEIGHT_BITS) if isinstance(bits, Mapping) else bits


def _obstacle(layer: Layer, size: int) -> str:
    """Return why a layer cannot have blocks of a size, "" where it can."""
    if layer.op is None or size not in layer.support.weight_blocks:
        return f"target {layer.taker} takes no blocks of {size} inputs of {layer.support.op}"
    inputs = layer.op.weight.shape[0]
    if inputs % size:
        return f"it has {inputs} inputs, which blocks of {size} do not divide"
    if len(static_shape(layer.op.weight.root) or ()) != 2:
        return f"its weight {layer.op.weight.name} is reshaped to a matrix"
    return ""
