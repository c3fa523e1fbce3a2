"""Lineage through vendors' regions, in both flows: every tensor is found and each claim checked with what their code gives."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm

import octavo
from octavo.compiler.backends import CSource
from vendors import Vendor, network, samples_of, through_tvm, with_code

TARGET = tvm.target.Target("llvm")


@pytest.fixture(name="net", scope="module")
def fixture_net() -> tuple[Any, Any, Any]:
    """A network, samples, and its profile on them."""
    model = network()
    batches = samples_of(model)
    return model, batches, octavo.profile(model, batches)


def followed(model: Any, profile: Any, *vendors: Any, flow: str, merged: bool = True) -> tuple[Any, tvm.IRModule]:
    """A lineage of the float model to the final module of kernels and object code, and that module."""
    lineage = octavo.Lineage(model)
    with tvm.transform.PassContext(opt_level=3, instruments=[lineage]), TARGET:
        quantized = octavo.quantize(model, profile, target=Vendor("npu"))
        if flow == "octavo":
            final = octavo.relax_pipeline(ids=quantized.tensors, target=[*vendors, "cpu"])(quantized.bound())
        else:
            module = through_tvm(quantized.bound(), *vendors, merged=merged)
            final = octavo.relax_pipeline(ids=quantized.tensors, target="llvm")(module)
    return lineage, final


FLOWS = {"octavo": {"flow": "octavo"}, "merged": {"flow": "tvm"}, "single": {"flow": "tvm", "merged": False}}


@pytest.mark.parametrize(("flow", "vendors"), [("octavo", ("npu", "dsp")), ("merged", ("npu", "dsp")), ("single", ("npu",))])
def test_every_tensor_is_found_and_right(net, flow, vendors) -> None:
    model, batches, profile = net
    taken = {"npu": ("nn.conv2d", "mean"), "dsp": ()} if len(vendors) > 1 else {"npu": ()}
    lineage, final = followed(model, profile, *(Vendor(name, *taken[name]) for name in vendors), **FLOWS[flow])
    gone = {str(name): str(lineage[name]) for name in lineage.ids if lineage[name].kind == "gone"}
    assert list(gone) == ["axis"], "an attribute of CumSum, which no variable holds"
    checks = octavo.verify_lineage(model, final, batches[0], lineage=lineage)
    assert [str(check) for check in checks if not check.is_right] == []
    compared = {str(check.id): check for check in checks if check.is_compared}
    assert {"z", "r"} <= set(compared)
    if flow != "merged":
        assert {"d", "s", "t", "m", "v", "k", "y"} <= {name for name, check in compared.items() if check.is_integer}


@pytest.mark.parametrize("flow", ["octavo", "merged"])
def test_code_that_computes_something_else_is_found_out(net, flow) -> None:
    """The adds' operands are swapped out for the first one: what a tensor's neighbours prove of it fails."""
    model, batches, profile = net

    def first_twice(composite: Any, code: Any) -> Any:
        text = re.sub(r"add\(a, b,", "add(a, a,", code.source.text)
        return replace(code, source=CSource(text=text, symbol=code.source.symbol))

    lineage, final = followed(model, profile, with_code("npu", "add", code=first_twice), **FLOWS[flow])
    wrong = [str(check.id) for check in octavo.verify_lineage(model, final, batches[0], lineage=lineage) if not check.is_right]
    assert {"s", "t"} & set(wrong), "the region's own values are compared"
    assert not {"r", "d", "c", "v"} & set(wrong), "what is computed beside"


def test_resnet8_on_the_toy_npu(shared) -> None:
    model = octavo.load(shared / "models" / "tflite" / "resnet8_cifar10_fp32.tflite")
    (name,) = model.input_ids
    rng = np.random.default_rng(0)
    batches = [rng.uniform(0, 255, model.tensors[name].shape).astype(np.float32) for _ in range(3)]
    lineage, final = followed(model, octavo.profile(model, batches[:2]), Vendor("npu"), flow="octavo")
    kinds = {str(tensor): lineage[tensor].kind for tensor in lineage.ids}
    assert [tensor for tensor, kind in kinds.items() if kind == "gone"] == ["model_flatten_Const"], "a shape"
    checks = octavo.verify_lineage(model, final, batches[2], lineage=lineage)
    assert [check.id for check in checks if not check.is_right] == []
    assert sum(check.is_integer for check in checks) >= 12
