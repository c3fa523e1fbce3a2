"""Looking into a model that a vendor's code computes: errors by layer, and observers on the tensors that it reads and gives."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from octavo.compiler.backends import CSource
from octavo.ir.graph.evaluate import unchecked, unoptimized
from octavo.profiling.observers import Compare, Record, Statistics
from vendors import Vendor, network, samples_of, with_code

TARGET = tvm.target.Target("llvm")


@pytest.fixture(name="case", scope="module")
def fixture_case():
    model = network()
    batches = samples_of(model, 2)
    return model, octavo.quantize(model, octavo.profile(model, batches), target=Vendor("npu")), batches


def first_twice(_: Any, code: Any) -> Any:
    """An add that adds its first operand to itself."""
    return replace(code, source=CSource(text=re.sub(r"add\(a, b,", "add(a, a,", code.source.text), symbol=code.source.symbol))


def test_errors_by_layer_are_those_of_the_vendors_code(case) -> None:
    model, quantized, batches = case
    own = {row.id: row for row in octavo.layer_errors(model, quantized, batches, target="cpu")}
    vendor = {row.id: row for row in octavo.layer_errors(model, quantized, batches, target=Vendor("npu"))}
    assert vendor == own, "it computes what Octavo's kernels do"
    assert {"r", "d", "s", "c", "t", "m", "v", "k", "y"} <= set(own)
    wrong = {
        row.id: row for row in octavo.layer_errors(model, quantized, batches, target=with_code("npu", "add", code=first_twice))
    }
    changed = {str(name) for name, row in wrong.items() if row.sqnr_db != own[name].sqnr_db}
    assert {"s", "t"} <= changed
    assert not {"r", "d", "c", "v"} & changed
    assert wrong["s"].sqnr_db < own["s"].sqnr_db - 10


def test_observers_see_what_a_vendor_reads_and_gives(case) -> None:
    model, quantized, batches = case
    target = [Vendor("npu", "nn.conv2d", "matmul", "mean"), Vendor("dsp", "add")]
    names = ["r", "d", "s", "c", "t", "y"]
    record = Record()
    octavo.compile(octavo.observe(model, names, record))(batches[0])
    with TARGET:
        final = octavo.relax_pipeline(ids=quantized.tensors, target=target)(quantized.bound())
    compare, statistics = Compare(record.tensors), Statistics()
    observed = octavo.observe(octavo.observe(final, names, compare), names, statistics)
    with unchecked():
        library = relax.build(observed, target=unoptimized(TARGET), relax_pipeline=None)
    relax.VirtualMachine(library, tvm.cpu())["main"](*(tvm.runtime.tensor(value) for value in batches[0].values()))
    assert set(compare.tensors) == set(statistics.tensors) == set(names)
    assert all(seen[0].sqnr_db > 8 for seen in compare.tensors.values())
    dequantized = {row.id: row for row in octavo.layer_errors(model, quantized, batches[:1], target=target)}
    for name in names:
        assert compare.tensors[name][0].sqnr_db == pytest.approx(dequantized[name].sqnr_db, abs=1e-3)
    assert np.isfinite(statistics.tensors["r"].maximum)
