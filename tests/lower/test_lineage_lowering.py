"""Lineage over Octavo's own pipeline: each source tensor is in the integer kernel that computes it, and named."""

from __future__ import annotations

import numpy as np
import tvm

import octavo
from nets import residual_net
from octavo.kernels import host_target


def test_source_tensors_in_the_final_integer_module() -> None:
    model = residual_net()
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    quantized = octavo.quantize(model, octavo.profile(model, [x]))
    target = host_target()
    lineage = octavo.Lineage(quantized, target=target)
    with target, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        module = octavo.relax_pipeline(ids=quantized.tensors)(quantized.bound())
    assert "octavo.lower" in [step.pass_name for step in lineage.steps]
    assert set(lineage.states) == set(quantized.tensors)
    for tensor in ("r1", "r2", "c3", "r3", "m"):
        state = lineage[tensor]
        assert (state.kind, state.dtype, state.evidence) == ("inside", "uint8", "announced")
        assert module[state.composite].attrs["quantize_info"]["output"]["id"] == tensor
        assert lineage.story(tensor)[1].pass_name == "octavo.lower"
    # The block's inner layers and constants are told from what it gives.
    assert lineage["c1"].composite == lineage["w1"].composite == lineage["r1"].composite
    assert not lineage["c1"].is_alive
    checks = octavo.verify_lineage(quantized, module, x, lineage=lineage)
    assert all(check.is_right for check in checks)
    assert [check.id for check in checks if check.is_compared] == ["x"]
