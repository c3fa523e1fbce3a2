"""A target of powers of two, and edits of a plan's file as its user makes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import octavo
from handmade_profile import ranged
from nets import residual_net
from octavo.quantizer.plan.plan import QuantizationPlan
from octavo.target import OpSupport, TargetDescription

SHIFTS = {"scales": "power_of_two", "activation_schemes": ("symmetric",), "requantize": "shift"}
INT8 = {"activations": ("int8",), **SHIFTS}
NPU = TargetDescription(
    name="npu",
    ops=(
        OpSupport(
            op="nn.conv2d",
            weights=("int8",),
            weight_schemes=("symmetric",),
            fusions=("bias", "nn.relu", "clip"),
            rounding=("half_up", "half_even"),
            **INT8,
        ),
        OpSupport(op="add", fusions=("nn.relu",), **INT8),
        OpSupport(op="mean", **INT8),
        OpSupport(op="reshape", same_params=True, **INT8),
    ),
)
Edit = Callable[[dict[str, Any]], None]


@cache
def _plan() -> QuantizationPlan:
    model = residual_net()
    return octavo.quantize(model, ranged(model), target=NPU).plan


def save_plan(path: Path) -> Path:
    """Save a plan of `residual_net` for NPU."""
    _plan().save(path)
    return path


def edited(path: Path, edit: Edit) -> Path:
    """Change a plan as its user does: as JSON."""
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data, indent=2))
    return path


def scale(group: str, key: str, value: Any) -> Edit:
    def edit(data: dict[str, Any]) -> None:
        data[group][key]["scale"] = value

    return edit


def put(group: str, key: str, **more: Any) -> Edit:
    def edit(data: dict[str, Any]) -> None:
        data[group][key].update(more)

    return edit


def layer(place: int, **more: Any) -> Edit:
    def edit(data: dict[str, Any]) -> None:
        data["layers"][place].update(more)

    return edit


def drop(*path: Any) -> Edit:
    def edit(data: dict[str, Any]) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return edit
