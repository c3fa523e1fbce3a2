"""Whether a plan's rotations and factors leave what a model computes as it is: refused else."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm.relax import Var

from ...errors import QuantizationError
from ...ir.channels import Factors, Rotation, find_groups, find_rotatable
from ...ir.graph import Model
from ...ir.identity import TensorId


def check_rotations(model: Model, rotations: Mapping[TensorId, Rotation]) -> None:
    """Raise QuantizationError unless rotating the tensors of a model so leaves what it computes as it is."""
    wrong = find_rotatable(model).conflict(rotations) if rotations else ""
    if wrong:
        raise QuantizationError(
            f"the plan: rotations: {wrong} cannot be rotated so: its channels must be rotated as those of the tensors that it is "
            "made of and that are made of it; take out the entries of all of these, or of none"
        )


def check_factors(model: Model, factors: Factors) -> None:
    """Raise QuantizationError unless dividing the tensors of a model by these factors leaves what it computes as it is."""
    found = find_groups(model)
    given = {str(name): value for name, value in factors.items()}
    by_group = found.numbers(lambda var: given.pop(var.name, np.ones(found.of[var].shape, np.float32)), 1.0)
    if isinstance(by_group, Var):
        raise QuantizationError(
            f"the plan: equalization: the factors of {by_group.name} must have the shape {list(found.of[by_group].shape)} and be "
            "those of the tensors that it is made of and that are made of it; take out the entries of all of these, or of none"
        )
    for group, other in found.opposites.items():
        if not np.isclose(by_group[group] * by_group[other], 1.0, rtol=1e-6):
            names = [var.name for var, groups in found.of.items() if (groups == group).any() or (groups == other).any()]
            raise QuantizationError(
                f"the plan: equalization: the factors of {names[0]} and {names[-1]}, which a product multiplies, must be each "
                "other's inverse; take out the entries of both"
            )
    if given:
        raise QuantizationError(f"the plan: equalization: {next(iter(given))} cannot be divided by factors; take the entry out")
