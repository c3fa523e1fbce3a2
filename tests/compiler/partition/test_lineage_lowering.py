"""Lineage over Octavo's own pipeline: each source tensor is in the integer kernel that computes it, and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from integer_results import INTEGER_RESULTS
from lineage_nets import branched_net
from nets import model_of, residual_net
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter, attrs_of
from octavo.ir.qdq.results import read_params
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU

op: Any = relax.op
Followed = tuple[Model, tvm.IRModule, octavo.Lineage, np.ndarray]


@pytest.fixture(scope="module")
def followed() -> Followed:
    """A float model, what quantizing, lowering and TVM's passes made of it, and the lineage that saw them."""
    model = residual_net()
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    lineage, module = followed_to_kernels(model, x)
    return model, module, lineage, x


def followed_to_kernels(
    model: Model, x: np.ndarray, described: octavo.TargetDescription = CPU
) -> tuple[octavo.Lineage, tvm.IRModule]:
    """Quantize and lower a model, calibrated on `x`, under a lineage."""
    profile = octavo.profile(model, [x])
    target = host_target()
    lineage = octavo.Lineage(model, target=target)
    with target, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        quantized = octavo.quantize(model, profile, target=described)
        module = octavo.relax_pipeline(ids=quantized.tensors)(quantized.bound())
    return lineage, module


def test_source_tensors_in_the_final_integer_module(followed: Followed) -> None:
    model, module, lineage, _ = followed
    assert {"octavo.quantize", "octavo.lower"} < {step.pass_name for step in lineage.steps}
    assert set(lineage.states) == set(model.tensors)
    for tensor in ("r1", "r2", "c3", "r3", "m", "y"):
        state = lineage[tensor]
        dtype = "float32" if tensor in ("c3", "y") else "uint8"
        assert (state.kind, state.dtype, state.evidence) == ("inside", dtype, "announced")
        assert module[state.composite].attrs["quantize_info"]["output"]["id"] == tensor
        told = [change.pass_name for change in lineage.story(tensor)]
        assert told.index("octavo.quantize") < told.index("octavo.lower")
    assert lineage["r1"].relation.permutation == (0, 2, 3, 1)
    assert (lineage["f"].kind, lineage["f"].dtype) == ("kept", "uint8")
    # The block's inner layers and constants are told from what it gives.
    for inner, result in {"c1": "r1", "w1": "r1", "b1": "r1", "c2": "r2", "s": "r3", "w4": "y"}.items():
        assert (lineage[inner].kind, lineage[inner].composite) == ("inside", lineage[result].composite)
        assert not lineage[inner].is_alive


def test_integers_are_compared_with_the_float_tensors(followed: Followed) -> None:
    model, module, lineage, x = followed
    checks = octavo.verify_lineage(model, module, x, lineage=lineage)
    assert all(check.is_right for check in checks)
    assert [check.id for check in checks if check.is_compared] == ["x", "r1", "r2", "c3", "r3", "m", "f", "y", "p"]
    integers = {check.id: check.sqnr_db for check in checks if check.is_integer}
    assert set(integers) == {"r1", "r2", "r3", "m", "f"}
    assert all(38 < ratio < 60 for ratio in integers.values())
    [result] = [check for check in checks if check.id == "y"]
    assert 38 < result.sqnr_db < 60, "in float it is compared, too"


def test_a_wrong_announcement_is_found(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    model, module, lineage, x = followed
    states = lineage.states
    swapped = {**states, "r1": states["r2"], "c3": states["r1"], "f": states["x"]}
    monkeypatch.setattr(octavo.Lineage, "states", property(lambda _self: swapped))
    checks = octavo.verify_lineage(model, module, x, lineage=lineage)
    assert [check.id for check in checks if not check.is_right] == ["r1", "c3", "f"]


def noisy_net() -> Model:
    """One channel is much larger than the others, and nobody reads it: what rounding leaves of these is mostly noise."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        wide = writer.emit("wide", op.nn.conv2d(v["x"], v["w"]))
        sides = [writer.emit(name, op.nn.conv2d(wide, v[f"{name}_w"])) for name in ("left", "right")]
        return writer.emit("y", op.nn.relu(writer.emit("sum", op.add(*sides))), is_output=True)

    rng = np.random.default_rng(5)
    weights = {name: rng.standard_normal((4, 4, 1, 1)).astype(np.float32) for name in ("w", "left_w", "right_w")}
    weights["w"][0] *= 250
    weights["left_w"][:, 0] = weights["right_w"][:, 0] = 0
    return model_of({"x": ((1, 4, 8, 8), "float32")}, weights, body, ("y",))


def test_swapped_links_are_found_where_quantization_leaves_mostly_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy_net()
    x = np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)
    lineage, module = followed_to_kernels(model, x)
    checks = {check.id: check for check in octavo.verify_lineage(model, module, x, lineage=lineage)}
    assert max(checks[tensor].sqnr_db for tensor in ("left", "right")) < 6
    assert [check.id for check in checks.values() if not check.is_right] == []
    assert all(check.steps_off is not None and check.steps_off < 1.5 for check in checks.values() if check.is_integer)
    states = lineage.states
    swapped = {**states, "left": states["right"], "right": states["left"]}
    monkeypatch.setattr(octavo.Lineage, "states", property(lambda _self: swapped))
    checks = {check.id: check for check in octavo.verify_lineage(model, module, x, lineage=lineage)}
    assert [check.id for check in checks.values() if not check.is_right] == ["left", "right"]


def test_ranges_are_found_from_what_kernels_say() -> None:
    """Of every tensor that a kernel reads, gives or fuses the profile knows the range, batch norm folded or not."""
    model = branched_net()
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    profile = octavo.profile(model, [x])
    quantized = octavo.quantize(model, profile)
    with host_target():
        module = octavo.relax_pipeline(ids=quantized.tensors)(quantized.bound())
    told: set[str] = set()
    for function in module.functions.values():
        attrs = attrs_of(function)
        for role, entry in attrs.get("quantize_info", {}).items():
            if str(role).startswith(("input", "output")):
                params = read_params(entry)
                assert (params is None) == (entry["dtype"] == "float32")
                told.add(str(entry["id"]))
                if params is None:
                    continue
                seen = profile[str(entry["id"])]
                low, high = ((end - int(params.zero_point)) * float(params.scale) for end in (params.qmin, params.qmax))
                assert low - params.scale <= min(seen.minimum, 0)
                assert high + params.scale >= max(seen.maximum, 0)
        told |= {str(tensor) for tensor in attrs.get("tensor_ids", ())}
    assert told <= set(profile)
    gone = {"conv", "unread"}
    assert told == {entry.id for entry in model.tensors.values() if entry.kind != "constant"} - gone - {"doubled"}


def detector_net() -> Model:
    """Two convolutions whose results are flattened and joined, as detection heads do, and one that is only reshaped."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        convs = [writer.emit(f"conv{index}", op.nn.conv2d(v["x"], v[f"w{index}"], strides=index)) for index in (1, 2)]
        flat = [writer.emit(f"flat{index}", op.reshape(conv, (1, 6, -1))) for index, conv in enumerate(convs, 1)]
        joined = writer.emit("joined", op.concat(flat, axis=2))
        turned = writer.emit("turned", op.permute_dims(joined, (0, 2, 1)))
        return writer.emit("y", op.reshape(turned, (-1, 6)), is_output=True)

    rng = np.random.default_rng(3)
    weights = {f"w{index}": rng.standard_normal((6, 3, 1, 1)).astype(np.float32) for index in (1, 2)}
    return model_of({"x": ((1, 3, 4, 4), "float32")}, weights, body, ("y",))


def test_views_of_memory_say_what_they_hold() -> None:
    """A reshape writes no memory and has no attributes: the kernel behind it says what it holds, the integers are compared."""
    model = detector_net()
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32)
    lineage, module = followed_to_kernels(model, x, INTEGER_RESULTS)
    checks = {check.id: check for check in octavo.verify_lineage(model, module, x, lineage=lineage)}
    assert [check.id for check in checks.values() if not check.is_right] == []
    for tensor in ("flat1", "flat2", "joined", "turned", "y"):
        assert lineage[tensor].is_alive, str(lineage[tensor])
        assert checks[tensor].is_integer == (lineage[tensor].dtype == "uint8")
    assert lineage["flat1"].dtype == lineage["flat2"].dtype == "uint8"
    assert min(check.sqnr_db for check in checks.values() if check.is_integer) > 30
