"""The float model that a quantized one stands for, by variables: its channels rotated and divided. It rounds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.channels import rotated, scaled
from ..ir.graph import Model
from ..ir.graph.constants import Constants
from ..ir.graph.dataflow import DataflowView
from ..ir.graph.value_sources import ValueSources
from ..ir.identity import TensorId
from ..ir.simplify import Fold
from ..profiling import Profile
from .plan.equalization import Equalization, equalized_statistics
from .ranges import TensorRange


@dataclass(frozen=True, kw_only=True, eq=False)
class EqualizedFloat:
    """A simplified model with its channels divided, and what is looked up in it.

    `simple` is as it was before, but rotated. Without a profile of its tensors a plan says the parameters of all.
    """

    simple: Model
    folds: tuple[Fold, ...]
    equalization: Equalization
    profile: Profile | None

    @cached_property
    def model(self) -> Model:
        """What is quantized: where integers saturate at a clip's bounds it has none."""
        return scaled(self.simple, self.equalization.factors, exact=False)

    @cached_property
    def statistics(self) -> Mapping[TensorId, TensorRange] | None:
        """Those of the model's tensors, once their channels are divided."""
        return None if self.profile is None else equalized_statistics(self.profile, self.equalization)

    @cached_property
    def view(self) -> DataflowView:
        """Of the model's "main"."""
        return DataflowView(self.model.module["main"])

    @cached_property
    def sources(self) -> ValueSources:
        """Says which tensor of the profile tells a variable's range."""
        return ValueSources(self.view, self.profile or ())

    @cached_property
    def constants(self) -> Constants:
        """The model's."""
        return Constants(self.view, self.model.params)

    @cached_property
    def exact(self) -> Model:
        """What computes the same as the model before: its variables are those that become integer.

        Weights that are equal to the other model's are that one's own: large ones take most of the memory.
        """
        others = self.model.params

        def kept_as(name: TensorId, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
            other = others.get(name)
            return value if other is None or not np.array_equal(other, value) else other

        return scaled(self.simple, self.equalization.factors, exact=True, kept_as=kept_as)


def equalized(simple: Model, equalization: Equalization) -> Model:
    """Return a simplified model as it is before it is quantized with these factors; what it computes is the model's own."""
    return scaled(rotated(simple, equalization.rotations), equalization.factors, exact=True)
