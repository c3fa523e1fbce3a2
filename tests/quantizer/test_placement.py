"""Placement: which ops become integer, where Q and DQ go, and the reason of every op that stays float."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from handmade_profile import ranged
from integer_results import INTEGER_RESULTS
from nets import model_of, residual_net
from octavo.errors import ProfileError, QuantizationError
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, op_name
from octavo.ir.identity import TensorId
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.profiling import Profile
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.ranges import range_of
from octavo.quantizer.recipe import Recipe
from octavo.target import CPU, ELEMENTWISE_PAIR, OpSupport, TargetDescription

FUSED = ("bias", "nn.relu", "clip")
NPU = TargetDescription(
    name="npu",
    ops=(
        OpSupport(op="nn.conv2d", weights=("int8",), fusions=FUSED),
        OpSupport(op="matmul", weights=("int8",), fusions=FUSED),
        OpSupport(op="add", fusions=("nn.relu",)),
        OpSupport(op="mean"),
        OpSupport(op="nn.max_pool2d", same_params=True),
        OpSupport(op="reshape", same_params=True),
        OpSupport(op="permute_dims", same_params=True),
        OpSupport(op="concat"),
        OpSupport(op="nn.relu"),
    ),
)
"""A target of our own: what these tests expect doesn't change with what the CPU learns."""


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def ops(model: Model) -> list[str]:
    return [op_name(binding.value) for binding in DataflowView(model.module["main"]).bindings]


def reasons(model: QuantizedModel) -> dict[str, str]:
    return {str(item.tensor): item.reason for item in model.plan.float_ops}


def layers(model: QuantizedModel) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(item.op, str(item.output), item.fused) for item in model.plan.layers]


def test_a_residual_network_is_integer_end_to_end() -> None:
    model = residual_net()
    quantized = quantize_graph(model, ranged(model), target=NPU)
    assert layers(quantized) == [
        ("nn.conv2d", "r1", ("bias", "nn.relu")),
        ("nn.conv2d", "r2", ("bias", "clip")),
        ("nn.conv2d", "c3", ("bias",)),
        ("add", "r3", ("nn.relu",)),
        ("mean", "m", ()),
        ("reshape", "f", ()),
        ("matmul", "y", ("bias",)),
    ]
    assert reasons(quantized) == {"p": "npu has no integer nn.softmax"}
    assert ops(quantized).count("quantize") == 8, "the input and the seven layers, each once"
    plan = quantized.plan
    assert plan is not None
    assert plan.activations["f"] == plan.activations["m"], "reshape keeps its input's parameters"
    assert {str(name): value.dtype for name, value in plan.weight_values.items()} == {
        **{f"w{index}": np.int8 for index in range(1, 5)},
        **{f"b{index}": np.int32 for index in range(1, 5)},
    }


def test_inputs_and_outputs_stay_float32_and_the_parameters_are_integer() -> None:
    model = residual_net()
    main = quantize_graph(model, ranged(model), target=NPU).module["main"]
    types = {param.name: str(param.ty.dtype) for param in main.params}
    assert types == {"x": "float32"} | {f"w{i}_q": "int8" for i in range(1, 5)} | {f"b{i}_q": "int32" for i in range(1, 5)}
    assert str(main.ret_ty.dtype) == "float32"


def test_an_extreme_of_two_tensors_has_a_range_that_holds_both(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, x: relax.Var, small: relax.Var, large: relax.Var) -> relax.Expr:
        a, b = (writer.emit(f"_{weight.name}", relax.op.nn.conv2d(x, weight)) for weight in (small, large))
        a, b = writer.emit("a", relax.op.nn.relu(a)), writer.emit("b", relax.op.nn.relu(b))
        return writer.emit("y", relax.op.maximum(a, b), is_output=True)

    params = {"small": 0.1 * weights(rng, 5, 3, 1, 1), "large": 10 * weights(rng, 5, 3, 1, 1)}
    model = model_of({"x": ((1, 3, 4, 4), "float32")}, params, body, ("y",))
    samples = rng.standard_normal((4, 3, 4, 4)).astype(np.float32)
    profile = octavo.profile(model, samples)
    quantized = quantize_graph(model, profile)
    assert [layer.op for layer in quantized.plan.layers][-1] == ELEMENTWISE_PAIR
    real, simulated = (octavo.compile(each)(samples[:1])["net/y:0"] for each in (model, quantized))
    assert sqnr_db(real, simulated) > 30
    assert reasons(
        quantize_graph(model, profile, target=replace(CPU, ops=tuple(op for op in CPU.ops if op.op != ELEMENTWISE_PAIR)))
    ) == {"y": "cpu has no integer maximum of operands that differ in scale and zero point"}


def branching_net(rng: np.random.Generator) -> Model:
    """A conv whose raw result is read by relu and by a graph output, sigmoid of it, max pool of it, concat of both."""

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.conv2d(x, w), is_output=True)
        r = writer.emit("r", relax.op.nn.relu(c))
        g = writer.emit("g", relax.op.sigmoid(r))
        m = writer.emit("m", relax.op.nn.max_pool2d(r, (1, 1)))
        k = writer.emit("k", relax.op.concat([m, r], axis=1), is_output=True)
        n = writer.emit("n", relax.op.concat([m, g], axis=1), is_output=True)
        return relax.Tuple([c, k, n])

    return model_of({"x": ((1, 3, 4, 4), "float32")}, {"w": weights(rng, 5, 3, 1, 1)}, body, ("c", "k", "n"))


def test_a_tensor_read_by_others_ends_the_fusion_and_is_quantized_once(rng: np.random.Generator) -> None:
    model = branching_net(rng)
    quantized = quantize_graph(model, ranged(model), target=NPU)
    assert layers(quantized) == [
        ("nn.conv2d", "c", ()),
        ("nn.relu", "r", ()),
        ("nn.max_pool2d", "m", ()),
        ("concat", "k", ()),
    ]
    assert reasons(quantized) == {
        "g": "npu has no integer sigmoid",
        "n": "its input g is float, and quantizing it for this op alone would cost more than it saves",
    }
    assert [str(var.name) for var in quantized.module["main"].body.body.fields] == ["c_dq", "k_dq", "n"]


def test_float_consumers_read_what_float_ops_made_and_dequantized_what_integer_ops_made(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.conv2d(x, w))
        return writer.emit("y", relax.op.multiply(c, x), is_output=True)

    model = model_of({"x": ((1, 3, 4, 4), "float32")}, {"w": weights(rng, 3, 3, 1, 1)}, body, ("y",))
    bindings = DataflowView(quantize_graph(model, ranged(model), target=NPU).module["main"]).bindings
    reads = {binding.var.name: [arg.name for arg in binding.value.args if isinstance(arg, relax.Var)] for binding in bindings}
    assert reads["c"] == ["x_dq", "w"]
    assert reads["y"] == ["c_dq", "x"]


def test_data_movement_before_an_integer_op_moves_integers(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        t = writer.emit("t", relax.op.permute_dims(x, (0, 3, 1, 2)))
        return writer.emit("y", relax.op.nn.conv2d(t, w), is_output=True)

    model = model_of({"x": ((1, 4, 4, 3), "float32")}, {"w": weights(rng, 5, 3, 1, 1)}, body, ("y",))
    assert layers(quantize_graph(model, ranged(model), target=NPU)) == [("permute_dims", "t", ()), ("nn.conv2d", "y", ())]


@pytest.mark.parametrize(
    ("name", "tensor"), [("nn.conv2d", "r1"), ("c3", "c3"), ("_c1_conv", "r1"), ("net/r3:0", "r3"), ("mean", "m")]
)
def test_what_the_recipe_excludes_stays_float(name: str, tensor: str) -> None:
    model = residual_net()
    quantized = quantize_graph(model, ranged(model), target=NPU, recipe=Recipe(exclude=(name,)))
    assert tensor not in [output for _, output, _ in layers(quantized)]
    is_enclosed = tensor in quantized.plan.enclosed  # what it reads and what reads it is quantized
    assert is_enclosed or f"the recipe excludes {name}" in " ".join(reasons(quantized).values())


def test_excluding_what_the_model_does_not_have_is_an_error() -> None:
    model = residual_net()
    with pytest.raises(QuantizationError, match=r"exclude names 'net/r33:0', but the model has no such .* did you mean net/r3:0"):
        quantize_graph(model, ranged(model), target=NPU, recipe=Recipe(exclude=("net/r33:0",)))
    with pytest.raises(QuantizationError, match="exclude names 'GRU'"):
        quantize_graph(model, ranged(model), target=NPU, recipe=Recipe(exclude=("mean", "GRU")))


def test_softmax_stays_float_unless_the_recipe_says_otherwise() -> None:
    model = residual_net()
    target = replace(NPU, ops=(*NPU.ops, OpSupport(op="nn.softmax")))
    assert reasons(quantize_graph(model, ranged(model), target=target)) == {"p": "the recipe keeps nn.softmax float"}
    assert reasons(quantize_graph(model, ranged(model), target=target, recipe=Recipe(float_ops=()))) == {}


def test_an_op_of_the_source_can_be_excluded_by_its_own_name() -> None:
    model = residual_net()
    assert layers(quantize_graph(model, ranged(model), target=NPU, recipe=Recipe(exclude=("Op",)))) == []


def _target(**changes: Any) -> TargetDescription:
    return TargetDescription(name="npu", ops=(replace(NPU.ops[0], **changes),))


def test_the_target_description_decides() -> None:
    model = residual_net()
    quantized = quantize_graph(model, ranged(model), target=_target())
    assert {op for op, _, _ in layers(quantized)} == {"nn.conv2d"}
    assert reasons(quantized)["_d"] == "npu has no integer matmul"
    assert (
        reasons(quantized)["y"] == "it follows _d, which stays float: npu has no integer matmul"
        or "npu" in reasons(quantized)["y"]
    )


def test_activations_take_the_dtype_that_the_target_lists_first() -> None:
    model = residual_net()
    for dtypes in (("int8",), ("int8", "uint8"), ("int16", "uint8"), ("uint8", "int8")):
        plan = quantize_graph(model, ranged(model), target=_target(activations=dtypes)).plan
        assert {params.dtype for params in plan.activations.values()} == {dtypes[0]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fusions": ("bias",)}, [("r1", False), ("c3", True)]),
        ({"activations": ("int8",)}, "npu runs it on int8; the recipe asks for uint8"),
        ({"weights": ("int4",)}, "npu runs it with int4 weights; the recipe asks for int8"),
        ({"weight_schemes": ("asymmetric",)}, "npu runs it with asymmetric weights only"),
    ],
)
def test_what_the_target_does_not_allow(changes: dict[str, Any], expected: Any) -> None:
    model = residual_net()
    quantized = quantize_graph(model, ranged(model), target=_target(**changes), recipe=Recipe(activation_dtype="uint8"))
    if isinstance(expected, str):
        assert reasons(quantized)["_c1_conv"] == expected
    else:
        made = [output for _, output, _ in layers(quantized)]
        assert [(name, name in made) for name, _ in expected] == expected


def test_a_target_without_per_axis_weights_gets_one_scale() -> None:
    model = residual_net()
    plan = quantize_graph(model, ranged(model), target=_target(weight_granularity=("per_tensor",))).plan
    assert plan is not None
    assert {params.scale.shape for params in (*plan.weights.values(), *plan.biases.values())} == {()}


def test_ops_without_a_range_stay_float() -> None:
    model = residual_net()
    quantized = quantize_graph(model, ranged(model, without=["x", "y"]), target=NPU)
    found = reasons(quantized)
    assert found["_c1_conv"] == "the profile holds no range of x"
    assert found["_d"] == "the profile holds no range of y"
    assert found["c1"] == "it follows _c1_conv, which stays float: the profile holds no range of x"


def test_steps_within_an_op_say_of_which_and_what_they_cost(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.conv2d(x, w))
        squares = writer.emit("_squares", relax.op.multiply(c, c))
        return writer.emit("y", relax.op.sum(squares, axis=[1]), is_output=True)

    model = model_of({"x": ((1, 3, 4, 4), "float32")}, {"w": weights(rng, 8, 3, 1, 1)}, body, ("y",))
    reason = reasons(quantize_graph(model, ranged(model)))["y"]
    assert reason.startswith("it is a step within Op net/y:0, of which a profile knows only")
    assert "float, 576 bytes a call" in reason


@pytest.mark.parametrize("case", ["weight", "both", "int"])
def test_forms_without_an_integer_kernel_say_why(rng: np.random.Generator, case: str) -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, i: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.conv2d(x, w))
        values = {
            "weight": lambda: relax.op.nn.conv2d(c, c),
            "both": lambda: relax.op.add(c, relax.const(np.ones((1, 3, 4, 4), np.float32))),
            "int": lambda: relax.op.add(i, i),
        }
        return writer.emit("y", values[case](), is_output=True)

    inputs = {"x": ((1, 3, 4, 4), "float32"), "i": ((2,), "int32")}

    def ordered(writer: BodyWriter, **variables: relax.Var) -> relax.Expr:
        return body(writer, variables["x"], variables["w"], variables["i"])

    batch = {"weight": (3, 3, 4, 4)}.get(case, (1, 3, 4, 4))
    inputs["x"] = (batch, "float32")
    model = model_of(inputs, {"w": weights(rng, 3, 3, 1, 1)}, ordered, ("y",))
    expected = {
        "weight": "its weight c is not a constant of the model",
        "both": "one of its operands is a constant",
        "int": "its result is int32, expected float32",
    }
    assert reasons(quantize_graph(model, ranged(model), target=NPU))["y"] == expected[case]


def test_operands_may_broadcast(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.conv2d(x, w))
        m = writer.emit("m", relax.op.mean(c, axis=[2, 3], keepdims=True))
        return writer.emit("y", relax.op.add(m, c), is_output=True)

    model = model_of({"x": ((1, 3, 4, 4), "float32")}, {"w": weights(rng, 3, 3, 1, 1)}, body, ("y",))
    assert [output for _, output, _ in layers(quantize_graph(model, ranged(model), target=NPU))] == ["c", "m", "y"]


def attention(rng: np.random.Generator) -> Model:
    """softmax(x @ k^T / 8) @ x, whose k is a dense layer's; and angles, a product of constants, that the result is added to."""

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, rates: relax.Var) -> relax.Expr:
        k = writer.emit("k", relax.op.matmul(x, w))
        turned = writer.emit("_turned", relax.op.permute_dims(k, [0, 2, 1]))
        products = writer.emit("products", relax.op.matmul(x, turned))
        scores = writer.emit("scores", relax.op.divide(products, relax.const(8.0, "float32")))
        shares = writer.emit("shares", relax.op.nn.softmax(scores))
        mixed = writer.emit("mixed", relax.op.matmul(shares, x))
        powers = writer.emit("powers", relax.op.exp(rates))
        angles = writer.emit("angles", relax.op.matmul(powers, powers))
        return writer.emit("y", relax.op.add(mixed, angles), is_output=True)

    return model_of({"x": ((1, 4, 4), "float32")}, {"w": weights(rng, 4, 4), "rates": weights(rng, 4, 4)}, body, ("y",))


PRODUCTS = replace(
    NPU,
    ops=(
        *NPU.ops,
        OpSupport(op="batch_matmul", float_output=True),
        OpSupport(op="elementwise"),
        OpSupport(op="nn.softmax"),
    ),
)


def test_products_of_two_activations_are_integer_and_their_scores_float_where_softmax_is(rng: np.random.Generator) -> None:
    model = attention(rng)
    quantized = quantize_graph(model, ranged(model), target=PRODUCTS)
    assert [output for _, output, _ in layers(quantized)] == ["k", "_turned", "products", "mixed"]
    assert set(quantized.plan.activations) == {"x", "k", "_turned", "shares"}, "scores keep their float precision"
    found = reasons(quantized)
    assert found["scores"] == "no integer op needs its result, and what it reads is float"
    assert found["shares"] == "the recipe keeps nn.softmax float"
    assert "angles" in quantized.params, "what constants alone make is a constant"
    assert "angles" not in found


def test_attention_is_integer_throughout_where_the_recipe_takes_softmax(rng: np.random.Generator) -> None:
    model = attention(rng)
    quantized = quantize_graph(model, ranged(model), target=PRODUCTS, recipe=Recipe(float_ops=()))
    assert [output for _, output, _ in layers(quantized)] == ["k", "_turned", "products", "scores", "shares", "mixed"]
    assert "products" in quantized.plan.activations


def test_products_stay_float_where_the_recipe_or_the_target_says_so(rng: np.random.Generator) -> None:
    model = attention(rng)
    kept = quantize_graph(model, ranged(model), target=PRODUCTS, recipe=Recipe(float_ops=("nn.softmax", "batch_matmul")))
    assert reasons(kept)["products"] == reasons(kept)["mixed"] == "the recipe keeps batch_matmul float"
    assert reasons(quantize_graph(model, ranged(model), target=NPU))["products"] == "npu has no integer batch_matmul"


def test_an_op_without_weights_does_not_quantize_for_itself() -> None:
    def body(writer: BodyWriter, x: relax.Var) -> relax.Expr:
        return writer.emit("y", relax.op.nn.relu(x), is_output=True)

    model = model_of({"x": ((1, 3), "float32")}, {}, body, ("y",))
    quantized = quantize_graph(model, ranged(model), target=NPU)
    assert ops(quantized) == ["nn.relu"]
    assert "its input x is float" in reasons(quantized)["y"]


def test_a_profile_of_another_model_and_a_quantized_model_are_refused() -> None:
    model = residual_net()
    profile = ranged(model)
    other = Profile(fingerprint="sha256:" + "1" * 64, samples=1, tensors=profile.tensors)
    with pytest.raises(ProfileError, match=f"{other.fingerprint}.*{model.fingerprint}"):
        quantize_graph(model, other)
    quantized = quantize_graph(model, profile, target=NPU)
    assert quantized.fingerprint not in (
        model.fingerprint,
        quantize_graph(model, profile, target=NPU, recipe=Recipe(exclude=("mean",))).fingerprint,
    )
    assert quantized.fingerprint == quantize_graph(model, profile, target=NPU).fingerprint
    with pytest.raises(QuantizationError, match="quantized already"):
        quantize_graph(quantized, profile)
    with pytest.raises(QuantizationError, match="quantized already"):
        quantize_graph(replace(quantized, plan=None), profile)


def concat_net(*, with_pool: bool = False) -> Model:
    """Two convolutions of one input, the second's results a hundred times the first's, joined and read by a third."""

    def body(writer: BodyWriter, x: relax.Var, small: relax.Var, large: relax.Var, last: relax.Var) -> relax.Expr:
        a = writer.emit("a", relax.op.nn.conv2d(x, small))
        b = writer.emit("b", relax.op.nn.conv2d(x, large))
        pooled = writer.emit("pooled", relax.op.nn.max_pool2d(a, (1, 1))) if with_pool else a
        joined = writer.emit("joined", relax.op.concat([pooled, b], axis=1))
        return writer.emit("y", relax.op.nn.conv2d(joined, last), is_output=True)

    rng = np.random.default_rng(3)
    small, large, last = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3, 1, 1), (4, 3, 1, 1), (2, 8, 1, 1)))
    params = {"small": 0.01 * small, "large": large, "last": last}
    return model_of({"x": ((1, 3, 6, 6), "float32")}, params, body, ("y",))


def sharing(description: TargetDescription) -> TargetDescription:
    """Return a target whose concat, like its max pooling, has one scale and zero point for all that it reads and makes."""
    return replace(description, ops=tuple(replace(op, same_params=True) if op.op == "concat" else op for op in description.ops))


def test_tensors_that_share_parameters_have_the_hull_of_their_ranges_but_for_what_is_moved() -> None:
    model = concat_net(with_pool=True)
    ranges = {"x": (0.0, 5.0), "a": (0.0, 1.0), "pooled": (-50.0, 50.0), "b": (-3.0, 0.0), "joined": (-1.0, 2.0)}
    activations = quantize_graph(model, ranged(model, ranges), target=sharing(CPU)).plan.activations
    assert {key: range_of(activations[TensorId(key)])[1] for key in ranges} == pytest.approx(
        {"x": 5.0, "a": 2.0, "pooled": 2.0, "b": 2.0, "joined": 2.0}, abs=0.02
    )


@pytest.mark.parametrize("with_pool", [False, True])
@pytest.mark.parametrize("recipe", [Recipe(), Recipe(range_estimator="percentile:99.9")])
def test_a_concat_that_shares_parameters_has_the_range_of_all_its_inputs(with_pool: bool, recipe: Recipe) -> None:
    model = concat_net(with_pool=with_pool)
    samples = np.random.default_rng(4).standard_normal((16, 3, 6, 6)).astype(np.float32)
    profile = octavo.profile(model, samples)
    quantized = quantize_graph(model, profile, target=sharing(CPU), recipe=recipe)
    assert [layer.op for layer in quantized.plan.layers].count("concat") == 1
    plain = quantize_graph(model, profile, recipe=recipe)
    shared = [key for key in ("a", "pooled", "b", "joined") if key in quantized.plan.activations]
    assert len({quantized.plan.activations[TensorId(key)] for key in shared}) == 1
    widest = max(float(plain.plan.activations[TensorId(key)].scale) for key in shared)
    assert widest <= float(quantized.plan.activations[TensorId("joined")].scale) <= 1.01 * widest
    assert quantized.plan.activations[TensorId("x")] == plain.plan.activations[TensorId("x")]
    executables = [octavo.compile(each) for each in (model, quantized)]
    real, simulated = (np.concatenate([run(x[None])["net/y:0"] for x in samples]) for run in executables)
    assert sqnr_db(real, simulated) > (30 if recipe == Recipe() else 25)


def test_constants_share_the_range_of_what_they_are_joined_with(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, k: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.conv2d(x, w))
        joined = writer.emit("joined", relax.op.concat([c, k], axis=1))
        return writer.emit("y", relax.op.nn.max_pool2d(joined, (1, 1)), is_output=True)

    params = {"w": weights(rng, 4, 3, 1, 1), "k": np.linspace(-9, 3, 8, dtype=np.float32).reshape(1, 2, 2, 2)}
    model = model_of({"x": ((1, 3, 2, 2), "float32")}, params, body, ("y",))
    plan = quantize_graph(model, ranged(model), target=sharing(INTEGER_RESULTS)).plan
    shared = {plan.activations[TensorId(key)] for key in ("c", "joined", "y")} | {plan.weights[TensorId("k")]}
    assert len(shared) == 1
    [params_of_all] = shared
    assert float(params_of_all.scale) == pytest.approx(12 / 255)


@pytest.mark.parametrize("ends", [True, False])
def test_a_mean_that_the_model_ends_in_stays_float(rng: np.random.Generator, ends: bool) -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, d: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.relu(writer.emit("_c", relax.op.nn.conv2d(x, w))))
        m = writer.emit("m", relax.op.mean(c, axis=[2, 3]), is_output=ends)
        return m if ends else writer.emit("y", relax.op.matmul(m, d), is_output=True)

    params = {"w": weights(rng, 8, 3, 1, 1), "d": weights(rng, 8, 5)}
    model = model_of({"x": ((1, 3, 4, 4), "float32")}, params, body, ("m" if ends else "y",))
    plan = quantize_graph(model, ranged(model)).plan
    assert set(plan.activations) == ({"x"} if ends else {"x", "c", "m"})


def decoding_net(rng: np.random.Generator) -> Model:
    """Two heads as detectors have them: corners from what a product says of both, scores behind a sigmoid, all in one output."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        near, far = (writer.emit(name, relax.op.matmul(v["x"], v[f"w_{name}"])) for name in ("near", "far"))
        corner = writer.emit("corner", relax.op.subtract(far, near))
        middle = writer.emit("middle", relax.op.add(near, far))
        boxes = writer.emit("boxes", relax.op.multiply(corner, middle))
        scores = writer.emit("scores", relax.op.sigmoid(writer.emit("logits", relax.op.matmul(v["x"], v["w_logits"]))))
        rest = writer.emit("rest", relax.op.add(scores, writer.emit("kept", relax.op.nn.relu(v["x"]))))
        return writer.emit("y", relax.op.concat([boxes, rest], axis=1), is_output=True)

    params = {f"w_{name}": weights(rng, 8, 8) for name in ("near", "far", "logits")}
    return model_of({"x": ((1, 8), "float32")}, params, body, ("y",))


@pytest.mark.parametrize("ends", [True, False])
def test_what_is_computed_of_products_for_the_outputs_alone_stays_float(rng: np.random.Generator, ends: bool) -> None:
    """Where they can end in float32: else 8 bits, of one scale for boxes and scores, would be left of all."""
    model = decoding_net(rng)
    target = CPU if ends else replace(CPU, ops=tuple(replace(op, float_output=False) for op in CPU.ops))
    quantized = quantize_graph(model, ranged(model), target=target)
    made = {output for _, output, _ in layers(quantized)}
    if ends:
        assert made == {"near", "far", "logits", "kept"}, "what reads integers alone may be integer"
        assert set(quantized.plan.activations) == {"x", "kept"}
    else:
        assert {"near", "far", "corner", "middle", "boxes", "scores", "y"} <= made


@pytest.mark.parametrize(("op", "low", "high", "is_integer"), [
    ("divide", 0.0, 4.0, False), ("divide", 0.2, 4.0, False), ("divide", 0.3, 4.0, True), ("divide", -4.0, -0.3, True),
    ("divide", -1.0, 4.0, False), ("log", 0.1, 4.0, False), ("log", 0.3, 4.0, True), ("rsqrt", 0.0, 4.0, False),
])  # fmt: skip
def test_what_grows_near_zero_stays_float_where_integers_are_coarse(
    rng: np.random.Generator, op: str, low: float, high: float, is_integer: bool
) -> None:
    """As the quotient of linear attention does, whose divisors can be 0: 16 steps of 8 bits are 1/16 of the greatest value."""

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.conv2d(x, w))
        d = writer.emit("d", relax.op.nn.conv2d(c, w))
        y = writer.emit("y", relax.op.divide(c, d) if op == "divide" else getattr(relax.op, op)(d))
        return writer.emit("z", relax.op.nn.conv2d(y, w), is_output=True)

    model = model_of({"x": ((1, 3, 4, 4), "float32")}, {"w": weights(rng, 3, 3, 1, 1)}, body, ("z",))
    quantized = quantize_graph(model, ranged(model, {"d": (low, high)}))
    assert ("y" in {output for _, output, _ in layers(quantized)}) == is_integer
    assert is_integer or "it would read d in integers, which are too coarse near 0" in reasons(quantized)["y"]


def test_a_divisor_that_is_computed_in_the_table_may_be_near_zero(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.conv2d(x, w))
        d = writer.emit("d", relax.op.add(writer.emit("a", relax.op.abs(c)), relax.const(1e-3)))
        y = writer.emit("y", relax.op.divide(c, d))
        return writer.emit("z", relax.op.nn.conv2d(y, w), is_output=True)

    model = model_of({"x": ((1, 3, 4, 4), "float32")}, {"w": weights(rng, 3, 3, 1, 1)}, body, ("z",))
    assert "y" in {output for _, output, _ in layers(quantize_graph(model, ranged(model, {"d": (0.001, 1.0)})))}
