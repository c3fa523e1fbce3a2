"""Values that differ by little: a link is made between equal values only, however small a bias is beside its tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from lineage_nets import followed, rewriting
from nets import model_of
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter

op: Any = relax.op

SHARES = [1e-3, 1e-4, 3e-5]
"""Of the bias in the tensor's largest magnitude."""

NAMED = [*zip(SHARES, (False, True, False), strict=True), (SHARES[-1], True)]
"""Each share with the name of the sum before the bias or without; the least with both."""

CHANGED = [*zip(SHARES[:-1], (2.0, 0.5), strict=True), *((SHARES[-1], factor) for factor in (0.0, 2.0))]
"""Shares and by what the bias is multiplied; the least share with both ends."""


def biased_net(share: float, *, is_named: bool = True, channels: int = 8) -> Model:
    """Two convolutions, each with a small bias; the sum without the bias is a tensor of its own if `is_named`."""
    rng = np.random.default_rng(3)
    params = {
        "w": rng.standard_normal((channels, 4, 3, 3)).astype(np.float32),
        "deep": (rng.standard_normal((channels, channels, 1, 1)) / 3).astype(np.float32),
        # The convolutions reach about 70 on the inputs that a lineage makes up.
        "bias": (70 * share * rng.uniform(0.5, 1, (1, channels, 1, 1))).astype(np.float32),
    }
    prefix = "" if is_named else "_"

    def body(writer: BodyWriter, **v: Any) -> Any:
        conv = writer.emit(f"{prefix}conv", op.nn.conv2d(v["x"], v["w"], padding=1))
        biased = writer.emit("biased", op.add(conv, v["bias"]))
        active = writer.emit("active", op.nn.relu(biased))
        deep = writer.emit(f"{prefix}deep_conv", op.nn.conv2d(active, v["deep"]))
        return writer.emit("y", op.add(deep, v["bias"]), is_output=True)

    return model_of({"x": ((1, 4, 8, 8), "float32")}, params, body, ("y",))


def split_in_two(writer: BodyWriter, model: Model, name: str, data: Any, weight: str, **attrs: Any) -> list[Any]:
    values = model.params[next(each for each in model.params if each == weight)]
    half = len(values) // 2
    parts = (values[:half], values[half:])
    return [writer.emit(f"{name}_{index}", op.nn.conv2d(data, relax.const(part), **attrs)) for index, part in enumerate(parts)]


@pytest.mark.parametrize(("share", "is_named"), NAMED)
def test_the_sum_before_the_bias_takes_the_name_of_the_one_with_it(share: float, is_named: bool) -> None:
    model = biased_net(share, is_named=is_named)
    prefix = "" if is_named else "_"

    def split(writer: BodyWriter, name: str, value: Any, new: dict[str, Any]) -> Any:
        if name == f"{prefix}conv":
            parts = split_in_two(writer, model, "half", new["x"], "w", padding=1)
            return writer.emit("biased", op.concat(parts, axis=1))
        if name == f"{prefix}deep_conv":
            return writer.emit("y", op.concat(split_in_two(writer, model, "deep_half", new["active"], "deep"), axis=1))
        return None

    lineage = followed(model, rewriting("SplitOutputs", split))
    for tensor in ("biased", "y"):
        assert lineage[tensor].expression.startswith("add("), str(lineage[tensor])
    assert lineage["active"].kind == "kept"


@pytest.mark.parametrize(("share", "is_named"), NAMED)
def test_halves_that_get_their_bias_before_they_are_joined(share: float, is_named: bool) -> None:
    """The value without bias is gone; the one with it is the joined halves, which has the name of the other."""
    model = biased_net(share, is_named=is_named)
    prefix = "" if is_named else "_"

    def split(writer: BodyWriter, name: str, value: Any, new: dict[str, Any]) -> Any:
        if name == f"{prefix}conv":
            return op.zeros_like(new["x"])  # nothing reads it any more
        if name == "biased":
            parts = split_in_two(writer, model, "half", new["x"], "w", padding=1)
            bias = model.params[next(each for each in model.params if each == "bias")]
            sums = [op.add(part, relax.const(values)) for part, values in zip(parts, np.split(bias, 2, axis=1), strict=True)]
            joined = op.concat([writer.emit(f"sum_{index}", each) for index, each in enumerate(sums)], axis=1)
            return writer.emit("conv", joined)
        return None

    lineage = followed(model, rewriting("SplitBiased", split))
    assert lineage["biased"].kind == "kept", str(lineage["biased"])
    assert lineage["y"].kind == "kept"
    if is_named:
        assert lineage["conv"].kind == "gone", str(lineage["conv"])


@pytest.mark.parametrize(("share", "factor"), CHANGED)
def test_a_bias_that_a_pass_changes(share: float, factor: float) -> None:
    """Here the value itself is another one; there is nothing that it could be."""
    model = biased_net(share)

    def change(writer: BodyWriter, name: str, value: Any, new: dict[str, Any]) -> Any:
        if name == "conv":
            return op.concat(split_in_two(writer, model, "half", new["x"], "w", padding=1), axis=1)
        if name == "biased":
            bias = model.params[next(each for each in model.params if each == "bias")]
            return op.add(new["conv"], relax.const(bias * np.float32(factor)))
        return None

    lineage = followed(model, rewriting("ChangeBias", change))
    assert lineage["conv"].kind in ("kept", "merged")
    for tensor in ("biased", "active", "deep_conv", "y"):
        assert not lineage[tensor].is_alive, f"{tensor}: {lineage[tensor]}"


@pytest.mark.parametrize("factor", [0.0, 2.0], ids=["dropped", "doubled"])
def test_a_bias_of_one_small_channel_that_a_pass_changes(factor: float) -> None:
    """A hundredth of the tensor's magnitude is the channel's, and a thousandth of that the bias."""
    model = biased_net(1e-5)
    params = {name: np.array(value) for name, value in model.params.items()}
    params["w"][5] /= 100
    model = Model(**{**{name: getattr(model, name) for name in model.__dataclass_fields__}, "params": params})

    def change(writer: BodyWriter, name: str, value: Any, new: dict[str, Any]) -> Any:
        if name != "biased":
            return None
        bias = params["bias"].copy()
        bias[0, 5] *= factor
        return op.add(new["conv"], relax.const(bias))

    lineage = followed(model, rewriting("ChangeBias", change))
    assert not lineage["biased"].is_alive, str(lineage["biased"])
