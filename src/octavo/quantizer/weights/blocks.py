"""Which dense layers have a scale for each block of inputs, and why others that were to have one don't. Chooses no scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...ir.graph.dataflow import static_shape
from ...numerics import PerBlock
from ..constraints import Requests
from ..placement import Layer
from ..plan import Adjustment
from ..recipe import BLOCK_BITS, WEIGHT_BITS, Recipe


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightBlocks:
    """Blocks of the weights of one model.

    Parameters
    ----------
    requests
        What is asked of single tensors: parameters of blocks are blocks, any others none.
    bits_of
        Says the width of a layer's weights, whatever they share.
    """

    recipe: Recipe
    requests: Requests
    bits_of: Callable[[Layer], int]

    def size(self, layer: Layer) -> int:
        """Return how many inputs share a scale; 0: all."""
        request = None if layer.op is None else self.requests.get(layer.op.weight.name)
        if request is not None and request.params is not None:
            granularity = request.params.granularity
            return granularity.size if isinstance(granularity, PerBlock) and not self._obstacle(layer, granularity.size) else 0
        return self.recipe.weight_block or 0 if self._is_asked(layer) and not self._reason(layer) else 0

    def width(self, layer: Layer) -> int:
        """Return the width of a layer's weights: 8 bits of one that was to have blocks, and cannot."""
        return WEIGHT_BITS if self._is_asked(layer) and self._reason(layer) else self.bits_of(layer)

    def adjustments(self, layers: tuple[Layer, ...]) -> Iterator[Adjustment]:
        """Yield the results of layers that were to have blocks, and cannot."""
        for layer in layers:
            reason = self._reason(layer) if self._is_asked(layer) else ""
            if reason:
                yield Adjustment(tensor=layer.name, message=f"its weights keep {WEIGHT_BITS} bits, per axis: {reason}")

    def _is_asked(self, layer: Layer) -> bool:
        """Return whether a recipe asks for blocks, and nobody says otherwise of the weight."""
        if layer.op is None or layer.support.op != "matmul" or self.recipe.weight_block is None:
            return False
        return layer.op.weight.name not in self.requests and self.bits_of(layer) <= BLOCK_BITS

    def _reason(self, layer: Layer) -> str:
        assert self.recipe.weight_block is not None, "checked by the caller"
        return self._obstacle(layer, self.recipe.weight_block)

    def _obstacle(self, layer: Layer, size: int) -> str:
        """Return why a layer cannot have blocks of a size, "" where it can."""
        if layer.op is None or size not in layer.support.weight_blocks:
            return f"target {layer.taker} takes no blocks of {size} inputs of {layer.support.op}"
        inputs = layer.op.weight.shape[0]
        if inputs % size:
            return f"it has {inputs} inputs, which blocks of {size} do not divide"
        if len(static_shape(layer.op.weight.root) or ()) != 2:
            return f"its weight {layer.op.weight.name} is reshaped to a matrix"
        return ""
