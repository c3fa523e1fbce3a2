"""The values of a float model's tensors on samples, as Octavo's kernels leave them in memory."""

from dataclasses import replace

import numpy as np
import pytest

from nets import residual_net
from octavo.compiler import float_values
from octavo.compiler.backends.cpu.lowering import lower_composites
from octavo.compiler.float_values import FloatValues
from octavo.compiler.partition.pipeline import partition_module
from octavo.compiler.target_choice import resolve_target
from octavo.ir.graph.results import with_results
from tvm_alone import tvm_alone

NAMES = ("r1", "c2", "s", "m", "y")
HERE = resolve_target(None)


def test_values_have_the_order_of_the_model_and_lie_as_kernels_keep_them():
    model, rng = residual_net(), np.random.default_rng(0)
    samples = [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(2)]
    plain = tvm_alone(with_results(model.bound(), NAMES, keep=True))
    values = FloatValues(HERE.host, HERE.isas, HERE.llvm)
    for (results, found), x in zip(values.on(model, NAMES, [[x] for x in samples]), samples, strict=True):
        wanted = plain(x)
        for got, expected in zip([*results, *found], wanted, strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        assert found[0].transpose(0, 2, 3, 1).flags.c_contiguous
        assert not found[0].flags.c_contiguous


def test_the_model_s_own_results_alone_are_brought_into_its_layout():
    parts = partition_module(with_results(residual_net().bound(), NAMES, keep=True), HERE.host)
    kernels = {
        stored_from: [
            placed.name for placed in lower_composites(parts, HERE.host, HERE.isas, 1, stored_from=stored_from).kernels.values()
        ]
        for stored_from in (None, 1)
    }
    assert kernels[None].count("transpose") == kernels[1].count("transpose") + 3  # r1, c2 and s; one pixel needs none
    assert lower_composites(parts, HERE.host, HERE.isas, 1, stored_from=1).stored == (True, True, True, True, False)


def test_results_of_the_last_run_s_first_samples_are_known():
    """They are the very arrays; of other samples, and of another model, the model is run."""
    model, rng = residual_net(), np.random.default_rng(0)
    samples = [[rng.normal(size=(1, 3, 8, 8)).astype(np.float32)] for _ in range(3)]
    values = FloatValues(HERE.host, HERE.isas, HERE.llvm)
    ran = [results for results, _ in values.on(model, NAMES, samples)]
    values.forget()
    known = values.results(model, samples[:2])
    assert [id(array) for results in known for array in results] == [id(array) for results in ran[:2] for array in results]
    others = [[-x] for (x,) in samples]
    doubled = replace(model, params={name: 2 * value for name, value in model.params.items()})
    for each in (model, doubled):
        expected = [results for results, _ in FloatValues(HERE.host, HERE.isas, HERE.llvm).on(each, [], others)]
        np.testing.assert_array_equal(values.results(each, others), expected)


def test_what_was_built_for_more_variables_is_not_built_again(monkeypatch: pytest.MonkeyPatch):
    model, x = residual_net(), np.ones((1, 3, 8, 8), np.float32)
    expected = next(FloatValues(HERE.host, HERE.isas, HERE.llvm).on(model, NAMES[:2], [[x]]))
    values = FloatValues(HERE.host, HERE.isas, HERE.llvm)
    next(values.on(model, NAMES, [[x]]))
    monkeypatch.setattr(float_values, "partition_module", None)
    results, found = next(values.on(model, NAMES[:2], [[x]]))
    for got, wanted in zip([*results, *found], [*expected[0], *expected[1]], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
