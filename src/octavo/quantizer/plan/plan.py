"""The plan of a quantized model: which ops are integer, with which parameters, and why others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...errors import QuantizationError, check_path
from ...ir.graph import Model
from ...ir.identity import TensorId
from ...numerics import QuantParams
from ..recipe import bits_of
from .contents import PlanContents
from .file import read_plan, write_plan


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class QuantizationPlan(PlanContents):
    """What `quantize` decided for a model, and decides again when it is given the plan: see `PlanContents` for the fields.

    ``octavo.quantize(model, plan=plan)`` makes exactly these layers with exactly these parameters, or says which of them the
    target cannot take.
    """

    def __repr__(self) -> str:
        """One line; the file has all."""
        counts = f"{len(self.activations)} activations, {len(self.weights)} weights"
        return f"QuantizationPlan({len(self.layers)} integer layers, {len(self.float_ops)} float ops, {counts})"

    @property
    def widths(self) -> dict[int, int]:
        """How many weights have how many bits, by bits; of a plan that was read once it is applied."""
        found = Counter[int]()
        for name, values in self.weight_values.items():
            if name in self.weights:
                found[bits_of(self.weights[name])] += values.size
        return dict(sorted(found.items()))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON (docs/plan.md), the whole file or nothing; QuantizationError if it can't be."""
        write_plan(self, check_path(path, QuantizationError, "the path of the plan to write"))

    @staticmethod
    def load(path: str | Path) -> QuantizationPlan:
        """Read what `save` wrote, edited or not; QuantizationError says what is wrong with a file that isn't a plan."""
        contents = read_plan(check_path(path, QuantizationError, "the path of a plan"))
        return QuantizationPlan(**{each.name: getattr(contents, each.name) for each in fields(PlanContents)})

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
        """Return `model`, already in QDQ form, with its plan."""
        return cls(**{field.name: getattr(model, field.name) for field in fields(Model)}, plan=plan)
