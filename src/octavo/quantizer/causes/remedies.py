"""What is done about each cause, as steps for the loop: it judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...ir.graph import Model
from ...ir.identity import TensorId
from ...numerics import QuantParams
from ...target import OpSupport
from ..equalized_float import equalized_float
from ..plan.entries import IntegerLayer
from ..plan.plan import QuantizationPlan
from ..ranges import QuantScheme
from ..ranges.of_params import range_of, scheme_of
from ..recipe import WEIGHT_BITS, bits_of
from ..steps import FloatTensors, SetParams, Step, WithoutShift
from .experiments import needed_scales
from .table import RootCause


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Remedy:
    """One thing to try.

    Parameters
    ----------
    said
        What it does, in words.
    step
        None for what the recipe left out: the model is quantized anew with that.
    is_free
        Whether the model runs as fast with it.
    """

    said: str
    step: Step | None
    is_free: bool


ANEW = Remedy(said="quantized anew with the corrections and the equalization that the recipe left out", step=None, is_free=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedies:
    """Finds what can be done in a model.

    Parameters
    ----------
    support
        What the target says of a layer's op.
    kept
        Tensors of which the user's recipe says what they must be, by id or source name: they stay.
    """

    model: Model
    support: Callable[[IntegerLayer], OpSupport | None]
    kept: frozenset[str]

    def of(self, plan: QuantizationPlan, row: RootCause) -> Iterator[Remedy]:
        """Yield what can be done about a root cause, what costs least first; nothing about a rounding that is gone."""
        layer = next((layer for layer in plan.layers if layer.output == row.id), None)
        is_activation = row.part == "activation"
        if (is_activation and (row.id not in plan.activations or {str(row.id), row.source_name} & self.kept)) or (
            not is_activation and layer is None
        ):
            return
        match row.cause:
            case "coarse scale" | "clipping" if row.fitting is not None:
                params = scheme_of(plan.activations[row.id]).params(*row.fitting)
                said = "its range is [{:.5g}; {:.5g}], that of its values".format(*row.fitting)
                yield self._params(row, said, dict.fromkeys(group_of(plan, row.id), params))
            case "weight scale" if layer is not None and layer.weight is not None:
                yield self._rescaled(plan, row, layer.weight, "the scales of its weights are those of each channel's values")
            case "bias":
                yield self._params(row, "its bias is quantized anew", {})
                if row.id in plan.corrections.bias_shifts:
                    said = "its bias is the float one's, without a correction"
                    yield Remedy(said=said, step=WithoutShift(layer=row.id), is_free=True)
            case "shifted mean":
                yield ANEW
            case "weight rounding" if layer is not None and layer.weight is not None:
                yield ANEW
                if bits_of(plan.weights[layer.weight]) < WEIGHT_BITS:
                    yield self._rescaled(plan, row, layer.weight, f"its weights have {WEIGHT_BITS} bits", bits=WEIGHT_BITS)
            case "unlike channels":
                yield ANEW
                yield from self._wider(plan, row)
            case "rounding":
                yield from self._wider(plan, row)
            case _:
                return

    @staticmethod
    def _params(row: RootCause, said: str, params: dict[TensorId, QuantParams], *, is_free: bool = True) -> Remedy:
        return Remedy(said=said, step=SetParams(what=f"{row.id}: {said}", params=params), is_free=is_free)

    def _rescaled(self, plan: QuantizationPlan, row: RootCause, name: TensorId, said: str, bits: int | None = None) -> Remedy:
        """Give a weight the scales that its values need, with as many bits as it has, or more."""
        old = plan.weights[name]
        most = old.qmax if bits is None else 2 ** (bits - 1) - 1
        ends = replace(old, qmin=old.qmin if bits is None else -most, qmax=most)
        needed = needed_scales(ends, equalized_float(self.model, plan.equalization).params[name])
        scale = np.maximum(needed, np.finfo(np.float32).tiny).astype(np.float32).reshape(old.scale.shape)
        return self._params(row, said, {name: replace(ends, scale=scale)}, is_free=bits is None)

    def _wider(self, plan: QuantizationPlan, row: RootCause) -> Iterator[Remedy]:
        """Give an activation and those that share its parameters 16 bits, where all around take such; else leave them float."""
        group = group_of(plan, row.id)
        names = _with_neighbours(plan, group)
        around = [layer for layer in plan.layers if not set(names).isdisjoint((layer.output, *layer.inputs))]
        takes = all((found := self.support(layer)) is not None and "int16" in found.activations for layer in around)
        if takes and all(plan.activations[name].dtype != "int16" for name in group):
            params = {name: _wide(plan.activations[name]) for name in names}
            yield self._params(row, "it has 16 bits", params, is_free=False)
        alone = f"rounding it to 8 bits, and nothing else, leaves {row.sqnr_db:.1f} dB"
        step = FloatTensors(names=group, reasons=(alone,) * len(group))
        yield Remedy(said="it stays float", step=step, is_free=False)


def _wide(params: QuantParams) -> QuantParams:
    """Return parameters of 16 bits for the same range."""
    scheme = QuantScheme(dtype="int16", symmetric=True, power_of_two=scheme_of(params).power_of_two)
    return scheme.params(*range_of(params))


def _with_neighbours(plan: QuantizationPlan, names: tuple[TensorId, ...]) -> list[TensorId]:
    """Return activations with those that have their width: what ops but products with weights read and make beside them."""
    found, count = list(names), 0
    while count < len(found):
        count = len(found)
        for layer in plan.layers:
            around = (layer.output, *layer.inputs)
            if layer.weight is None and not set(found).isdisjoint(around):
                found.extend(name for name in around if name in plan.activations and name not in found)
    return found


def group_of(plan: QuantizationPlan, name: TensorId) -> tuple[TensorId, ...]:
    """Return a tensor and those that share its parameters."""
    found = next((group for group in plan.shared if name in group), (name,))
    return tuple(each for each in found if each in plan.activations)
