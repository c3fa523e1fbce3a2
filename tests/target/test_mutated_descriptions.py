"""200 descriptions with a random change: each is an error that names the field, or has an effect, or cannot have one on the net.

"Cannot" is decided here, without the code that partition and quantize check with: what was found for the description before the
change still is all that the changed one asks for.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from target_schema import json_schema
from tvm import relax

import octavo
from nets import model_of
from octavo.compiler.backends import Backend, Code, CSource
from octavo.compiler.backends.protocol import layout_of
from octavo.compiler.partition.constraints import facts_of
from octavo.errors import TargetError
from octavo.ir.composites.attributes import Composite, read_composites
from octavo.ir.graph.dataflow import DataflowView, call_to, static_shape
from octavo.ir.graph.partition_state import read_state
from octavo.ir.qdq.rounding import rounding_of
from octavo.target import OpSupport, TargetDescription
from octavo.target.limits import LIMITS
from octavo.target.vocabulary import OPS

LOOSE: dict[str, Any] = {
    "schema_version": 2,
    "name": "npu",
    "defaults": {"activations": ["int8", "uint8"], "rounding": "half_even", "limits": {"rank": {"one_of": [2, 4]}}},
    "ops": [
        {
            "op": "nn.conv2d",
            "weights": ["int8"],
            "fusions": ["bias", "nn.relu"],
            "float_output": True,
            "weight_granularity": ["per_tensor", "per_axis"],
            "accumulator_bits": 24,
            "tensors": {"weight": {"schemes": ["symmetric"]}, "bias": {"dtypes": ["int32"]}},
            "limits": {"kernel": {"maximum": 3}, "stride": 1, "output_channels": {"multiple_of": 4}},
        },
        {"op": "nn.max_pool2d", "same_params": True, "limits": {"kernel": {"one_of": [2, 3]}, "elements": {"maximum": 200}}},
        {"op": "add", "rounding": ["half_even", "half_up"], "tensors": {"output": {"schemes": ["symmetric", "asymmetric"]}}},
        {"op": "elementwise", "tensors": {"output": {"scale": 0.00390625, "zero_point": -128}}},
        {"op": "quantize"},
        {"op": "dequantize"},
    ],
    "never": ["nn.softmax"],
    "activation_layout": "any",
    "scratch_bytes": 4096,
}
STRICT: dict[str, Any] = {
    "schema_version": 2,
    "name": "dsp",
    "defaults": {
        "activations": ["int8"],
        "activation_schemes": ["symmetric"],
        "scales": "power_of_two",
        "requantize": "shift",
        "rounding": "half_up",
    },
    "ops": [
        {"op": "nn.conv2d", "weights": ["int8"], "fusions": ["bias", "nn.relu"], "weight_range": "narrow", "overflow": "proven"},
        {"op": "nn.max_pool2d", "same_params": True},
        {"op": "add", "limits": {"rank": {"maximum": 4}, "inputs": 2}},
        {"op": "elementwise", "tensors": {"output": {"scale": 0.0078125, "zero_point": 0}, "input": {"scales": "power_of_two"}}},
        {"op": "quantize"},
        {"op": "dequantize"},
    ],
    "never": ["nn.softmax", "concat"],
    "activation_layout": "NHWC",
    "weight_layout": "OHWI",
    "alignment": 16,
    "scratch_bytes": 65536,
}
_OP_OF = {"conv2d": "nn.conv2d", "pool2d": "nn.max_pool2d", "lookup": "elementwise"}
_WORKSPACE = 2048


class Npu(Backend):
    """Takes what a description says; generates nothing."""

    def __init__(self, description: TargetDescription) -> None:
        self.description = description

    def emit(self, *_: Any) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Outcome:
    """What came of a description: composites by the op that a description calls them, and all that can be seen."""

    composites: dict[str, list[tuple[Composite, tuple[int, ...]]]]
    visible: str


class Net:
    """conv + bias + relu, max pooling, the sum of its sigmoid and a conv, conv: profiled once."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        params = {
            "w1": rng.normal(size=(8, 3, 3, 3)).astype(np.float32),
            "b1": rng.normal(size=(1, 8, 1, 1)).astype(np.float32),
            "w2": rng.normal(size=(8, 8, 1, 1)).astype(np.float32),
            "w3": rng.normal(size=(4, 8, 1, 1)).astype(np.float32),
        }

        def body(writer: Any, x: Any, **p: Any) -> Any:
            biased = writer.emit("c", relax.op.add(writer.emit("_c", relax.op.nn.conv2d(x, p["w1"])), p["b1"]))
            pool = writer.emit("m", relax.op.nn.max_pool2d(writer.emit("r", relax.op.nn.relu(biased)), (2, 2), strides=(2, 2)))
            other = writer.emit("o", relax.op.nn.conv2d(pool, p["w2"]))
            total = writer.emit("s", relax.op.add(writer.emit("g", relax.op.sigmoid(pool)), other))
            return writer.emit("y", relax.op.nn.conv2d(total, p["w3"]), is_output=True)

        self.model = model_of({"x": ((1, 3, 6, 6), "float32")}, params, body, ("y",))
        batches = [rng.normal(size=(1, 3, 6, 6)).astype(np.float32) for _ in range(2)]
        self.profile = octavo.profile(self.model, batches)

    def outcome(self, description: TargetDescription) -> Outcome:
        target = Npu(description)
        quantized = octavo.quantize(self.model, self.profile, target=target)
        module = octavo.partition(quantized, target=target)
        values = [each.value for each in DataflowView(quantized.module["main"]).bindings]
        calls = [value for value in values if call_to(value, "quantize") is not None]
        found: dict[str, list[tuple[Composite, tuple[int, ...]]]] = {}
        visible: list[Any] = [[rounding_of(call) for call in calls], dict(read_state(module).rejections)]
        visible.append(dict(read_state(module).declined))
        for composite in read_composites(module).values():
            function: Any = module[composite.name]
            code = Code(source=CSource(text="", symbol="f"), workspace=_WORKSPACE)
            fits = description.scratch_bytes is None or code.workspace <= description.scratch_bytes
            layout = layout_of(code, composite, description)
            visible.append((composite.kind, composite.core, composite.quantize_info, layout, fits))
            if composite.backend == description.name:
                name = _OP_OF.get(composite.op_name, composite.op_name)
                found.setdefault(name, []).append((composite, static_shape(function.body.body) or ()))
        return Outcome(composites=found, visible=repr(visible))


# ---------------------------------------------------------------------------------- whether a change must have an effect


def keeps(before: TargetDescription, after: TargetDescription, found: Outcome) -> str | None:
    """Why what was found for `before` is all that `after` asks for too; None where it is not."""
    if before.name != after.name:
        return None
    uses = after.scratch_bytes is not None and after.scratch_bytes < _WORKSPACE
    used = before.scratch_bytes is not None and before.scratch_bytes < _WORKSPACE
    if uses is not used or (before.activation_layout != after.activation_layout and "NHWC" in _layouts(before, after)):
        return None
    for op, composites in found.composites.items():
        first, second = before.support(op), after.support(op)
        if second is None or first is None:
            return None
        if first.roundings[0] != second.roundings[0]:
            return None
        if not all(_op_keeps(composite, shape, second) for composite, shape in composites):
            return None
    return "what was found keeps to it"


def _layouts(*descriptions: TargetDescription) -> set[str]:
    return {each.activation_layout for each in descriptions}


def _op_keeps(composite: Composite, shape: tuple[int, ...], support: OpSupport) -> bool:
    info, op = composite.quantize_info, composite.op
    entries = {role: entry for role, entry in info.items() if isinstance(entry, dict)}
    facts = facts_of(op, shape, len(composite.inputs))
    limited = all(limit.allows(number) for name, limit in support.limits.items() for number in facts.get(name, ()))
    same = not support.same_params or len({(e["scale"], e["zero_point"]) for r, e in entries.items() if r != "weight"}) == 1
    weight: Any = getattr(op, "weight", None)
    if weight is not None:
        fused = {"bias"} if weight.bias_name else set()
        fused |= {"nn.relu"} if info["clamp"] is not None else set()
        is_narrow = support.weight_range == "full" or not (weight.values == -128).any()
        in_float = entries["output"]["scale"] is None
        bits = info["accumulator_bits"] == support.accumulator_bits
        if not (fused <= set(support.fusions) and is_narrow and bits and (support.float_output or not in_float)):
            return False
    return limited and same and all(_tensor_keeps(role, entry, support) for role, entry in entries.items())


def _tensor_keeps(role: str, entry: dict[str, Any], support: OpSupport) -> bool:
    if entry["scale"] is None:
        return True
    allowed = support.tensor(role)
    scales, zero_points = np.atleast_1d(np.float32(entry["scale"])), np.atleast_1d(entry["zero_point"])
    return (
        (allowed.dtypes is None or entry["dtype"] in allowed.dtypes)
        and (allowed.schemes is None or "asymmetric" in allowed.schemes or not zero_points.any())
        and (role == "bias" or allowed.granularity is None or "per_axis" in allowed.granularity or entry["axis"] is None)
        and (allowed.scales != "power_of_two" or bool((np.frexp(scales)[0] == 0.5).all()))
        and (allowed.scale is None or bool((scales == np.float32(allowed.scale)).all()))
        and (allowed.zero_point is None or bool((zero_points == allowed.zero_point).all()))
    )


# ------------------------------------------------------------------------------------------------------------ mutations


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all that an object or a list within a description holds."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from places(each, (*path, key))


def at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


_RETYPED = (None, True, -1, 0, 1.5, "", "int8", [], ["int8"], {}, {"minimum": 1}, [[]], "npu")
_SCHEMA = json_schema()


def values_for(path: tuple[Any, ...], rng: random.Random) -> Any:
    """A value that the schema allows at a path, where it lists any; else a number."""
    key = next(key for key in reversed(path) if isinstance(key, str))
    if key in LIMITS:
        return rng.choice([rng.randint(0, 9), {"maximum": rng.randint(0, 9)}, {"multiple_of": rng.randint(1, 9)}])
    definitions = _SCHEMA["$defs"]
    known = {**_SCHEMA["properties"], **definitions["op"]["properties"], **definitions["tensor"]["properties"]}
    options = [known.get(key, {}), *known.get(key, {}).get("anyOf", [])]
    names = next((each["enum"] for each in options if "enum" in each), None)
    listed = next((each["items"]["enum"] for each in options if "enum" in each.get("items", {})), None)
    if isinstance(path[-1], int) and listed:
        return rng.choice(listed)
    if listed:
        return rng.sample(listed, rng.randint(1, min(3, len(listed))))
    return rng.choice(names) if names else rng.choice([rng.randint(0, 70), 2.0 ** -rng.randint(0, 9), not rng.randint(0, 1)])


_TOGETHER = ("requantize", "rounding", "scales", "scale")
"""Fields that are checked together: an error may name another of them."""


def mutated(data: dict[str, Any], rng: random.Random) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """A description with one random change, what it is, and the names of which an error must have one."""
    data = copy.deepcopy(data)
    path = rng.choice(list(places(data)))
    parent, key, new = at(data, path[:-1]), path[-1], ""
    kind = rng.choice(["drop", "rename", "retype", "change", "change", "change", "add"])
    if kind == "drop":
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        new = rng.choice([f"{key}s", str(key)[:-1], rng.choice([*LIMITS, *(each.name for each in fields(OpSupport))])])
        parent[new] = parent.pop(key)
    elif kind == "retype":
        parent[key] = rng.choice(_RETYPED)
    elif kind == "add" and "ops" in path[:1] and len(path) > 1:
        field = rng.choice([each.name for each in fields(OpSupport) if each.name not in ("op", "tensors", "limits")])
        data["ops"][path[1]][field] = values_for((field,), rng)
        path = (*path[:2], field)
    else:
        parent[key] = values_for(path, rng)
    name = next(str(each) for each in reversed(path) if isinstance(each, str))
    names = (name, *([new] if new else []), *(_TOGETHER if name in _TOGETHER else ()))
    return data, f"{kind} {'.'.join(map(str, path))} {new}", names


def read(data: dict[str, Any]) -> TargetDescription | TargetError:
    try:
        return TargetDescription.from_json(json.loads(json.dumps(data)))
    except TargetError as error:
        return error


@pytest.fixture(scope="module", name="net")
def fixture_net() -> Net:
    return Net()


def test_all_ops_of_the_net_are_taken(net) -> None:
    for data in (LOOSE, STRICT):
        description = TargetDescription.from_json(data)
        found = net.outcome(description)
        assert set(found.composites) >= {"nn.conv2d", "nn.max_pool2d", "add", "elementwise"}, data["name"]
        assert keeps(description, description, found), "what is found keeps to what was asked"


@pytest.mark.parametrize("data", [LOOSE, STRICT], ids=["loose", "strict"])
def test_a_changed_description_is_an_error_or_has_an_effect(net, data: dict[str, Any]) -> None:
    rng = random.Random(data["name"])
    before = TargetDescription.from_json(data)
    base = net.outcome(before)
    outcomes: Counter[str] = Counter()
    for _ in range(100):
        changed, what, names = mutated(data, rng)
        after = read(changed)
        if isinstance(after, TargetError):
            outcomes["error"] += 1
            assert any(name in str(after) for name in names), f"{what}: {after}"
            continue
        if after == before:
            outcomes["says the same"] += 1
            continue
        why = keeps(before, after, base)
        if why is not None:
            outcomes["keeps"] += 1
            continue
        assert net.outcome(after).visible != base.visible, f"{what} had no effect: {json.dumps(changed)}"
        outcomes["effect"] += 1
    assert outcomes["error"] >= 32, outcomes
    assert outcomes["effect"] >= 12, outcomes
    assert set(OPS) >= set(base.composites)
