"""All that says how one model is quantized, as data, and what names in it stand for. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy.typing as npt

from ...ir.graph.constants import Constants
from ...ir.graph.dataflow import DataflowView
from ...ir.identity import TensorId, TensorTable
from ...target import TargetDescription
from ..choices import Choices
from ..equalized_float import EqualizedFloat
from ..recipe import Recipe
from ..request import Request, Requests, width_of
from .layer import Layer
from .named_ops import NamedOps, NamedOverrides


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanInputs:
    """What is decided of, and by what.

    Parameters
    ----------
    form
        The float model as it is quantized, with its statistics.
    recipe
        With the range estimator that is chosen.
    choices
        What is decided besides.
    target
        Who takes what targets share.
    targets
        Who may take an op, in the order in which they choose.

    Raises
    ------
    QuantizationError
        The recipe names what the model does not have.
    """

    form: EqualizedFloat
    recipe: Recipe
    choices: Choices
    target: TargetDescription
    targets: tuple[TargetDescription, ...]
    exclusion: NamedOps = field(init=False)
    """The ops that the recipe leaves float by name."""
    overrides: NamedOverrides = field(init=False)
    """What the recipe says of single ops."""

    def __post_init__(self) -> None:
        """Look up the names of the recipe."""
        object.__setattr__(self, "exclusion", NamedOps(self.recipe.exclude, self.form))
        object.__setattr__(self, "overrides", NamedOverrides(self.recipe.overrides, self.form))

    @property
    def view(self) -> DataflowView:
        """Of the float model's "main"."""
        return self.form.view

    @property
    def tensors(self) -> TensorTable:
        """Of the source."""
        return self.form.model.tensors

    @property
    def params(self) -> Mapping[TensorId, npt.NDArray[Any]]:
        """The float model's constants."""
        return self.form.model.params

    @property
    def constants(self) -> Constants:
        """Finds them behind what ops read."""
        return self.form.constants

    @cached_property
    def requests(self) -> Requests:
        """What is asked of single tensors."""
        return self.choices.asked

    def request_of_weight(self, layer: Layer) -> Request | None:
        """Return what is asked of the weight of a layer."""
        return None if layer.op is None else self.requests.get(layer.op.weight.name)

    @cached_property
    def preferred(self) -> str:
        """The dtype of activations that nothing restricts."""
        return self.recipe.preferred_dtype(self.target)

    @property
    def is_wide(self) -> bool:
        """Whether activations have 16 bits where the target lets them."""
        return width_of(self.preferred) > 8
