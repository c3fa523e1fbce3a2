"""A vendor's own quantizer: scales for single tensors, from the profile to the code that is generated."""

from __future__ import annotations

import re

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.compiler.backends import Code, CodeGenerator, CSource
from octavo.errors import QuantizationError
from octavo.ir.composites.attributes import read_composites
from octavo.quantizer.recipe import Recipe
from octavo.target import OpSupport, TargetDescription
from octavo.target.tensor_support import TensorSupport

NPU = TargetDescription(
    name="own_scales",
    ops=(
        OpSupport(
            op="nn.conv2d", activations=("int8",), weights=("int8",), weight_schemes=("symmetric",), fusions=("bias", "nn.relu")
        ),
        OpSupport(op="add", activations=("int8",), fusions=("nn.relu",)),
    ),
)


@pytest.fixture(name="profiled")
def fixture_profiled(rng):
    model = residual_net()
    shape = model.tensors[model.input_ids[0]].shape
    return model, octavo.profile(model, [rng.normal(size=shape).astype(np.float32) for _ in range(4)])


def overrides_of(model, profile) -> dict[str, TensorSupport]:
    """Scales of a vendor's own: the standard range of three tensors, an eighth wider."""
    plan = octavo.quantize(model, profile, target=NPU).plan
    chosen = [name for name in plan.activations if name not in model.input_ids][:3]
    assert len(chosen) == 3
    return {
        str(name): TensorSupport(
            scale=float(np.float32(max(-profile[name].minimum, profile[name].maximum) * 1.125 / 127)),
            zero_point=0,
            dtypes=("int8",),
        )
        for name in chosen
    }


class Printer(CodeGenerator):
    """C that says the numbers that it was given; what it computes does not matter here."""

    description = NPU

    def generate(self, composite) -> Code:
        info = composite.quantize_info
        said = [
            f"/* {info[role]['id']} {info[role]['scale']!r} {info[role]['zero_point']} */"
            for role in info
            if "id" in str(info[role])
        ]
        return Code(source=CSource(text="\n".join(said), symbol=composite.name))


def test_they_reach_the_composites_and_the_c_source_exactly(profiled) -> None:
    model, profile = profiled
    wanted = overrides_of(model, profile)
    quantized = octavo.quantize(model, profile, target=NPU, recipe=Recipe(tensors=wanted))
    for name, support in wanted.items():
        params = quantized.plan.activations[name]
        assert (params.dtype, float(params.scale), int(params.zero_point)) == ("int8", support.scale, 0)
    others = octavo.quantize(model, profile, target=NPU).plan.activations
    assert all(quantized.plan.activations[name] == others[name] for name in others if name not in wanted)
    composites = [
        each for each in read_composites(octavo.partition(quantized, target=Printer())).values() if each.backend == NPU.name
    ]
    entries = [entry for each in composites for entry in each.quantize_info.values() if isinstance(entry, dict)]
    text = "\n".join(Printer().generate(each).source.text for each in composites)
    for name, support in wanted.items():
        found = [entry for entry in entries if entry["id"] == name]
        assert found
        assert {(entry["scale"], entry["zero_point"]) for entry in found} == {(support.scale, 0)}
        assert set(re.findall(rf"/\* {re.escape(name)} (\S+) (\S+) \*/", text)) == {(repr(support.scale), "0")}


def test_the_source_s_name_names_a_tensor_too(profiled) -> None:
    model, profile = profiled
    name, support = next(iter(overrides_of(model, profile).items()))
    by_source = {model.tensors[name].source_name: support}
    quantized = octavo.quantize(model, profile, target=NPU, recipe=Recipe(tensors=by_source))
    assert float(quantized.plan.activations[name].scale) == support.scale


def test_what_the_target_cannot_do_leaves_the_op_float_with_both_named(profiled) -> None:
    model, profile = profiled
    name = next(iter(overrides_of(model, profile)))
    quantized = octavo.quantize(model, profile, target=NPU, recipe=Recipe(tensors={name: TensorSupport(dtypes=("uint8",))}))
    assert name not in quantized.plan.activations
    assert any("the recipe uint8" in op.reason and "int8" in op.reason for op in quantized.plan.float_ops)
    assert any(each.tensor == name and "no integer op reads or makes it" in each.message for each in quantized.plan.adjustments)


def test_a_name_that_no_tensor_has_is_an_error(profiled) -> None:
    model, profile = profiled
    name = next(iter(overrides_of(model, profile)))
    with pytest.raises(QuantizationError, match=rf"the model has no tensor '{name}x'; did you mean '{name}'\?"):
        octavo.quantize(model, profile, target=NPU, recipe=Recipe(tensors={f"{name}x": TensorSupport(zero_point=0)}))
    with pytest.raises(QuantizationError, match="tensors must be a mapping of names to TensorSupport"):
        Recipe(tensors={name: 0.5})


def test_the_simulation_computes_with_them(profiled, rng) -> None:
    model, profile = profiled
    recipe = Recipe(tensors=overrides_of(model, profile))
    quantized = octavo.quantize(model, profile, target=NPU, recipe=recipe)
    plain = octavo.quantize(model, profile, target=NPU)
    x = rng.normal(size=model.tensors[model.input_ids[0]].shape).astype(np.float32)
    first, second = (next(iter(octavo.compile(each)(x).values())) for each in (quantized, plain))
    assert quantized.fingerprint != plain.fingerprint
    assert not np.array_equal(first, second)
