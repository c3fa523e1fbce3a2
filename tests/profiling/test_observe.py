"""Observers on tensors: what they see is what is there, what is computed stays as it is, and they come off without a trace."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm_ffi import structural_equal

import octavo
from nets import residual_net
from octavo.errors import DataError, ExecutableError, ModelError
from octavo.ir.graph import Model
from octavo.ir.graph.evaluate import unoptimized
from octavo.ir.graph.probes import PROBE
from octavo.profiling.observers import Compare, Dump, ObservedValue, Print, Record, Statistics
from octavo.runtime.llvm_host import host_target

INTEGERS = ("x", "r1", "r2", "c3", "r3", "m", "f", "y")


def nothing(_value: ObservedValue) -> None:
    """Look away."""


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> Model:
    return residual_net()


@pytest.fixture(scope="module")
def quantized(model: Model, x: np.ndarray) -> Model:
    """Activations are int8 and NCHW in the source, uint8 and NHWC in kernels: nothing lies as the source has it."""
    return octavo.quantize(model, octavo.profile(model, [x], keep_samples=0), recipe=octavo.Recipe(activation_dtype="int8"))


@pytest.fixture(scope="module")
def final(quantized: Model) -> tvm.IRModule:
    with host_target(), tvm.transform.PassContext(opt_level=3):
        return octavo.relax_pipeline(ids=quantized.tensors)(quantized.bound())


@pytest.fixture(scope="module")
def reference(model: Model, x: np.ndarray) -> dict[str, list[np.ndarray]]:
    """The float tensors, recorded on the float model."""
    record = Record()
    octavo.compile(octavo.observe(model, INTEGERS, record))(x)
    return record.tensors


def variables(module: tvm.IRModule) -> list[relax.Var]:
    """Every variable of "main" that holds a tensor."""
    main = module["main"]
    bound = [binding.var for block in main.body.blocks for binding in block.bindings]
    return [var for var in (*main.params, *bound) if isinstance(var.ty, relax.TensorType)]


def run(module: tvm.IRModule, x: np.ndarray, pipeline: Any = None) -> np.ndarray:
    """Build for the virtual machine and run."""
    with host_target():
        executable = relax.build(module, target=unoptimized(host_target()), relax_pipeline=pipeline)
    results: Any = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
    return results.numpy()


def is_same(a: tvm.IRModule, b: tvm.IRModule) -> bool:
    """Whether modules are equal, the names of their variables included."""
    return structural_equal(a, b) and a["main"].script() == b["main"].script()


# ------------------------------------------------------------------------------------------------------------- modules


def test_every_tensor_of_the_final_integer_module(final: tvm.IRModule, x: np.ndarray) -> None:
    seen: list[ObservedValue] = []
    tensors = variables(final)
    observed = octavo.observe(final, tensors, seen.append)
    np.testing.assert_array_equal(run(observed, x), run(final, x))
    assert [each.variable for each in seen] == [var.name for var in tensors]
    assert {str(each.raw.dtype) for each in seen} == {"float32", "uint8"}
    assert all(each.real is not None for each in seen)
    assert is_same(octavo.unobserve(observed), final)
    assert not is_same(observed, final)


def test_integers_stand_for_the_tensor_of_the_source(
    final: tvm.IRModule, x: np.ndarray, reference: dict[str, list[np.ndarray]]
) -> None:
    compare = Compare(reference)
    run(octavo.observe(final, INTEGERS, compare), x)
    assert set(compare.tensors) == set(INTEGERS)
    assert all(each.sqnr_db > 35 for [each] in compare.tensors.values())


def test_a_quantized_model(quantized: Model, x: np.ndarray, reference: dict[str, list[np.ndarray]]) -> None:
    compare = Compare(reference)
    observed = octavo.observe(quantized, [quantized.tensors["r1"].source_name, "c3", "x"], lambda s: compare(renamed(s)))
    expected = octavo.compile(quantized)(x)
    for name, value in octavo.compile(observed)(x).items():
        np.testing.assert_array_equal(value, expected[name])
    assert all(each.sqnr_db > 35 for [each] in compare.tensors.values())
    assert set(compare.tensors) == {"r1", "c3", "x"}
    assert is_same(octavo.unobserve(observed).module, quantized.module)
    assert octavo.explain(observed).summary == octavo.explain(quantized).summary


def renamed(observed: ObservedValue) -> ObservedValue:
    """Call what was asked for by its name in the source by its id."""
    name = observed.tensor.removeprefix("net/").removesuffix(":0")
    return ObservedValue(tensor=name, variable=observed.variable, raw=observed.raw, real=observed.real, params=observed.params)


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_float_module_before_and_after_fusion(model: Model, x: np.ndarray, *, is_fused: bool) -> None:
    """Parameters, results and what nobody reads are tensors as any other; the lineage knows them under new names."""
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    fusing = [relax.transform.FuseOps(), relax.transform.FuseTIR()]
    lineage = octavo.Lineage(model, target=host_target())
    with host_target(), tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        module = tvm.transform.Sequential([*passes, *(fusing if is_fused else [])])(model.bound())
    alive = [tensor for tensor in ("x", "r1", "r2", "r3", "p") if lineage.variable(tensor) is not None]
    assert alive == ["x", "r1", "r2", "r3", "p"]
    record = Record()
    observed = octavo.observe(module, alive, record, lineage=lineage)
    np.testing.assert_array_equal(run(observed, x, "default"), run(module, x, "default"))
    np.testing.assert_array_equal(record.tensors["x"][0], x)
    np.testing.assert_array_equal(record.tensors["r2"][0] >= 0, True)
    np.testing.assert_allclose(record.tensors["p"][0].sum(), 1, rtol=1e-5)
    assert is_same(octavo.unobserve(observed), module)


def test_observers_come_off_one_by_one(model: Model, x: np.ndarray) -> None:
    first, second = Record(), Record()
    one = octavo.observe(model, "r1", first)
    both = octavo.observe(octavo.observe(one, "r1", second), "c3", second)
    octavo.compile(both)(x)
    assert (list(first.tensors), sorted(second.tensors)) == (["r1"], ["c3", "r1"])
    np.testing.assert_array_equal(first.tensors["r1"][0], second.tensors["r1"][0])
    assert is_same(octavo.unobserve(octavo.unobserve(both, "c3"), ["r1"]).module, model.module)
    assert octavo.unobserve(model).module.same_as(model.module)


def test_an_observer_that_fails_and_one_that_writes(final: tvm.IRModule, x: np.ndarray) -> None:
    def spoil(observed: ObservedValue) -> None:
        observed.raw[...] = 0

    def fail(_value: ObservedValue) -> None:
        raise ValueError("of mine")

    np.testing.assert_array_equal(run(octavo.observe(final, INTEGERS, spoil), x), run(final, x))
    with pytest.raises(ValueError, match="of mine"):
        run(octavo.observe(final, "r1", fail), x)


# -------------------------------------------------------------------------------------------------------------- errors


def test_what_cannot_be_observed(final: tvm.IRModule, model: Model, quantized: Model) -> None:
    def error(subject: Any, *tensors: Any, what: Any = nothing, **options: Any) -> str:
        with pytest.raises(ModelError) as caught:
            octavo.observe(subject, tensors, what, **options)
        return str(caught.value)

    assert error(final, "s").startswith("no variable of main holds s: it is computed inside octavo_")
    assert ", which gives r3; observe that" in error(final, "s")
    assert ", which gives r1; observe that" in error(final, "w1")
    assert "no kernel says that it computes it; some it has: x, r1" in error(final, "nowhere")
    assert "w1 is a constant" in error(model, "w1")
    assert "must be a callable" in error(final, "r1", what="statistics")
    assert "no function other" in error(final, "r1", entry="other")
    assert "give one of this very module" in error(final, variables(model.module)[-1])
    assert "name it once" in error(final, "r1", "r1")
    assert "shape_heap is no tensor" in error(final, "shape_heap")
    assert "octavo.load returns" in error("m.onnx", "r1")
    lineage = octavo.Lineage(quantized)
    assert "ended with another module" in error(final, "r1", lineage=lineage)
    assert "follows no tensor nowhere" in error(quantized.module, "nowhere", lineage=lineage)


def test_a_fused_tensor_is_said_to_be_within(model: Model) -> None:
    lineage = octavo.Lineage(model, target=host_target())
    with host_target(), tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
        module = tvm.transform.Sequential(passes)(model.bound())
    for options in ({}, {"lineage": lineage}):
        with pytest.raises(ModelError, match=r"no variable of main holds c1: it is .*inside fused_conv2d"):
            octavo.observe(module, "c1", nothing, **options)


def test_a_name_of_two_variables() -> None:
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    builder = relax.BlockBuilder()
    first, second = (relax.Var("a", x.ty) for _ in range(2))
    bindings = [relax.VarBinding(first, builder.normalize(relax.op.exp(x)))]
    bindings.append(relax.VarBinding(second, builder.normalize(relax.op.tanh(first))))
    body = builder.normalize(relax.SeqExpr([relax.BindingBlock(bindings)], second))
    module = tvm.IRModule({tvm.ir.GlobalVar("main"): relax.Function([x], body, ret_ty=x.ty)})
    with pytest.raises(ModelError, match="2 variables of main are called a"):
        octavo.observe(module, "a", nothing)
    record = Record()
    value = np.array([1, 2], np.float32)
    with_attr = module["main"].with_attr("global_symbol", "main")
    module.update_func(module.get_global_var("main"), with_attr)
    observed = octavo.observe(module, [first], record)
    assert structural_equal(octavo.unobserve(observed), module)
    run(observed, value, "default")
    np.testing.assert_allclose(record.tensors["a"][0], np.exp(value), rtol=1e-6)


def test_an_observer_of_another_process() -> None:
    see: Callable[..., Any] = tvm.get_global_func(PROBE)
    with pytest.raises(ExecutableError, match="another process"):
        see(tvm.runtime.tensor(np.zeros(1, np.float32)), "r1@0.0")


# ----------------------------------------------------------------------------------------------------------- observers


def observed_value(values: list[float], params: Any = None, tensor: str = "t") -> ObservedValue:
    """One value of a few numbers, quantized if there are parameters."""
    real = np.array(values, np.float32)
    raw = real if params is None else octavo.numerics.quantize(real, params)
    shown = real if params is None else octavo.numerics.dequantize(raw, params)
    return ObservedValue(tensor=tensor, variable="v", raw=raw, real=shown, params=params)


PARAMS = octavo.numerics.QuantParams.per_tensor("int8", 0.5, 1)


def test_statistics() -> None:
    statistics = Statistics()
    statistics(observed_value([1, -2, np.inf]))
    statistics(observed_value([4, np.nan]))
    seen = statistics["t"]
    assert (seen.runs, seen.count, seen.non_finite, seen.minimum, seen.maximum) == (2, 5, 2, -2, 4)
    assert seen.histogram.total == 3
    statistics(observed_value([-100, -64.5, 0, 63, 90, 62.5], PARAMS, "q"))
    assert (statistics["q"].at_qmin, statistics["q"].at_qmax) == (2, 2)
    statistics(observed_value([], tensor="none"))
    assert (statistics["none"].count, statistics["none"].minimum) == (0, np.inf)


def test_print() -> None:
    file = io.StringIO()
    observer = Print(file)
    observer(observed_value([0, 1.5], PARAMS, "q"))
    observer(observed_value([0, 1], tensor="f"))
    observer(observed_value([], tensor="none"))
    assert file.getvalue().splitlines() == [
        "q: int8[2] in [1; 4], that is [0; 1.5], mean 0.75",
        "f: float32[2] in [0; 1], mean 0.5",
        "none: float32[0] in []",
    ]


def test_dump(tmp_path: Path) -> None:
    observer = Dump(tmp_path)
    observer(observed_value([0, 1.5], PARAMS, "a/b"))
    observer(observed_value([2]))
    with np.load(tmp_path / "00000_a_b.npz") as file:
        assert {key: file[key].tolist() for key in file} == {"raw": [1, 4], "real": [0, 1.5], "scale": 0.5, "zero_point": 1}
    with np.load(tmp_path / "00001_t.npz") as file:
        assert set(file) == {"raw", "real"}
    with pytest.raises(DataError, match="is no folder"):
        Dump(tmp_path / "missing")


def test_compare() -> None:
    compare = Compare({"t": [np.array([1.0, 2.0]), np.array([1.0, 2.0])], "q": np.array([0.0])})
    compare(observed_value([1, 2]))
    compare(observed_value([1, 2.5]))
    compare(observed_value([0], PARAMS, "q"))
    compare(observed_value([0], PARAMS, "q"))
    assert [(each.run, each.max_abs_error) for each in compare.tensors["t"]] == [(0, 0), (1, 0.5)]
    assert compare.tensors["t"][0].sqnr_db == np.inf
    with pytest.raises(DataError, match="run 2 needs one more"):
        compare(observed_value([1, 2]))
    with pytest.raises(DataError, match="has no tensor z; it has t, q"):
        compare(observed_value([1], tensor="z"))
    with pytest.raises(DataError, match=r"q: the reference has shape \[1\], the module gives \[2\]"):
        compare(observed_value([1, 2], tensor="q"))
