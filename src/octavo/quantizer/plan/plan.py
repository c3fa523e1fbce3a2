"""The plan of a quantized model: which ops are integer, with which parameters, and why others are not."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import QuantizationError
from ...ir.graph import Model
from ...ir.identity import TensorId
from ...ir.simplify import Fold
from ...numerics import QuantParams
from ...numerics.arrays import equal_arrays
from ...runtime.atomic_write import write_atomically
from ..recipe import Recipe
from .entries import Adjustment, Corrections, FloatOp, IntegerLayer
from .equalization import Equalization
from .file import encode, read_fields
from .journal import Journal


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class QuantizationPlan:
    """What `quantize` decided for a model: which tensors are integer, and how, enough to repeat it on the model.

    ``octavo.quantize(model, plan=plan)`` makes exactly these layers with exactly these parameters, or says which of them the
    target cannot take.

    Parameters
    ----------
    fingerprint
        Of the float model.
    recipe
        What was asked for, less its `tensors`: their parameters stand below.
    names
        Names that tensors of the plan have in the source, by TensorId; steps within a larger op have none.
    activations
        Parameters of each tensor that gets a Q -> DQ pair where it is produced.
    roundings
        How each of them is rounded, names of `target.vocabulary.ROUNDINGS`; by default as its op's target does first.
    weights
        Parameters of each weight.
    weight_values
        Integers of weights and biases, in the layout of the Relax module. They follow from the model's constants: a plan that was
        read from a file has none.
    biases
        Parameters (int32, scale = s_x * s_w, zero point 0) of each bias. They follow from those of inputs and weights.
    corrections
        What running the model told of biases and weights.
    equalization
        By what the channels of tensors were divided before anything was quantized. Parameters are those of the divided tensors.
    layers
        The integer ops, in the order of the graph. Whoever reads the output of one reads it dequantized; the float consumers of
        a tensor that a float op made read it as it is.
    float_ops
        The ops that stay float, each with its reason.
    enclosed
        Results of ops without Q and DQ of their own that run in integers all the same: what they read and what reads them is
        quantized.
    folds
        The ops that were folded away before quantizing.
    adjustments
        Parameters that were chosen otherwise than asked.
    shared
        Tensors that have one scale and zero point, for ops move values between them.
    journal
        Which steps were tried, and what the referee said of them.
    """

    fingerprint: str
    recipe: Recipe
    activations: dict[TensorId, QuantParams]
    weights: dict[TensorId, QuantParams]
    biases: dict[TensorId, QuantParams] = field(default_factory=dict["TensorId", "QuantParams"])
    weight_values: dict[TensorId, npt.NDArray[Any]] = field(default_factory=dict["TensorId", "npt.NDArray[Any]"])
    corrections: Corrections = field(default_factory=Corrections)
    equalization: Equalization = field(default_factory=Equalization)
    names: Mapping[TensorId, str] = field(default_factory=dict["TensorId", "str"])
    roundings: Mapping[TensorId, str] = field(default_factory=dict["TensorId", "str"])
    layers: tuple[IntegerLayer, ...] = ()
    float_ops: tuple[FloatOp, ...] = ()
    enclosed: tuple[TensorId, ...] = ()
    folds: tuple[Fold, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()
    shared: tuple[tuple[TensorId, ...], ...] = ()
    journal: Journal = field(default_factory=Journal, compare=False)

    def __repr__(self) -> str:
        """One line; the file has all."""
        counts = f"{len(self.activations)} activations, {len(self.weights)} weights"
        return f"QuantizationPlan({len(self.layers)} integer layers, {len(self.float_ops)} float ops, {counts})"

    def __eq__(self, other: object) -> bool:
        """Return whether both decided the same, by the same numbers; what was tried on the way does not count."""
        if not isinstance(other, QuantizationPlan):
            return NotImplemented
        compared = [each.name for each in fields(self) if each.compare and each.name != "weight_values"]
        is_one = all(getattr(self, name) == getattr(other, name) for name in compared)
        return is_one and equal_arrays(self.weight_values, other.weight_values)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it holds arrays

    @property
    def widths(self) -> dict[int, int]:
        """How many weights have how many bits, by bits; of a plan that was read once it is applied."""
        found = Counter[int]()
        for name, values in self.weight_values.items():
            if name in self.weights:
                found[self.weights[name].num_bits] += values.size
        return dict(sorted(found.items()))

    @property
    def quantized_fingerprint(self) -> str:
        """That of the quantized model: of the float model, the parameters, and which ops they make integer."""
        content: dict[str, Any] = {
            "model": self.fingerprint,
            "activations": _digests(self.activations),
            "weights": _digests(self.weights),
            "biases": _digests(self.biases),
            "bias_shifts": _digests(self.corrections.bias_shifts),
            "weight_values": _digests(self.corrections.weight_values),
            "equalization": _digests(self.equalization.factors),
            "roundings": {str(key): value for key, value in self.roundings.items()},
            "layers": [str(layer) for layer in self.layers],
        }
        if self.equalization.rotations:
            content["rotations"] = {str(key): str(value) for key, value in self.equalization.rotations.items()}
        return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"

    def lost_products(self, before: QuantizationPlan) -> bool:
        """Return whether no product is integer where some are with another plan: nothing is faster than in float, or smaller."""
        return any(layer.is_product for layer in before.layers) and not any(layer.is_product for layer in self.layers)

    def sharing(self, name: TensorId) -> tuple[TensorId, ...]:
        """Return an activation and those that share its parameters; none of one that has no parameters."""
        group = next((group for group in self.shared if name in group), (name,))
        return tuple(each for each in group if each in self.activations)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON (docs/plan.md), the whole file or nothing; QuantizationError if it can't be."""
        write_atomically(path, encode(self), QuantizationError, "the plan")

    @staticmethod
    def load(path: str | Path) -> QuantizationPlan:
        """Read what `save` wrote, edited or not; QuantizationError says what is wrong with a file that isn't a plan."""
        return QuantizationPlan(**read_fields(path))

    def with_params(self, params: Mapping[TensorId, QuantParams]) -> QuantizationPlan:
        """Return the plan with other parameters of some tensors; those that share theirs with one of them follow it.

        Integers of weights, and biases, are those of the old parameters: it has none until it is applied. A weight that gets
        others is rounded to nearest.

        Raises
        ------
        QuantizationError
            The plan has no such tensor.
        """
        unknown = next((key for key in params if key not in self.activations and key not in self.weights), None)
        if unknown is not None:
            raise QuantizationError(f"the plan has no activation or weight {unknown!r}: it gives no parameters to such a tensor")
        followed = {other: params[key] for group in self.shared for key in group if key in params for other in group}
        wanted = {**followed, **params}
        rounded = {key: value for key, value in self.corrections.weight_values.items() if key not in wanted}
        return replace(
            self,
            corrections=replace(self.corrections, weight_values=rounded),
            activations={key: wanted.get(key, value) for key, value in self.activations.items()},
            weights={key: wanted.get(key, value) for key, value in self.weights.items()},
            biases={},
            weight_values={},
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class QuantizedModel(Model):
    """A model that `quantize` brought into QDQ form, with the plan it followed.

    A model that was quantized before it was imported has no plan that could be repeated: it is a Model in QDQ form.
    """

    plan: QuantizationPlan

    @property
    def float_reasons(self) -> Mapping[TensorId, str]:
        """The plan's."""
        return {op.tensor: op.reason for op in self.plan.float_ops}

    @property
    def notes(self) -> Mapping[TensorId, str]:
        """What was chosen otherwise than asked of the results of layers."""
        made = {layer.output for layer in self.plan.layers}
        return {each.tensor: each.message for each in self.plan.adjustments if each.tensor in made}

    @property
    def divisors(self) -> Mapping[TensorId, npt.NDArray[np.float32]]:
        """The factors of equalization."""
        return self.plan.equalization.factors

    @classmethod
    def of(cls, model: Model, plan: QuantizationPlan) -> QuantizedModel:
        """Return `model`, already in QDQ form, with its plan, and a fingerprint of its own."""
        known: dict[str, Any] = {each.name: getattr(model, each.name) for each in fields(Model)}
        known["fingerprint"] = plan.quantized_fingerprint
        if plan.recipe.block_activations is not None:
            known["block_activations"] = {"": plan.recipe.block_activations}
        return cls(**known, plan=plan)


def _digests(entries: Mapping[TensorId, QuantParams | npt.NDArray[Any]]) -> dict[str, str]:
    return {str(key): _digest(value) for key, value in entries.items()}


def _digest(value: QuantParams | npt.NDArray[Any]) -> str:
    """Return a digest of an array or of parameters: of bytes, for numbers as text take ten times as long."""
    if isinstance(value, QuantParams):
        return f"{_digest(value.scale)} {_digest(value.zero_point)} {value.dtype} {value.qmin} {value.qmax} {value.granularity}"
    array = np.asarray(value)
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + little.tobytes()).hexdigest()
