"""What a description says of tensors: every parameter that quantize chooses keeps to it, or the op is float and says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from handmade_profile import ranged
from nets import model_of, residual_net
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.numerics import QuantParams, dequantize
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.plan.plan import QuantizationPlan, QuantizedModel
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.recipe import Recipe
from octavo.target import ELEMENTWISE, OpSupport, TargetDescription
from octavo.target.limits import Limit
from octavo.target.tensor_support import TensorSupport
from octavo.target.vocabulary import OPS
from random_nets import random_net

FUSIONS = ("bias", "nn.relu", "clip")
WEIGHTED = ("nn.conv2d", "matmul")


def npu(fields: dict[str, Any] | None = None, /, **by_op: dict[str, Any]) -> TargetDescription:
    """Describe hardware of a few ops; `fields` are of all, those of `by_op` of one (dots as underscores)."""
    names = ("nn.conv2d", "matmul", "add", "concat", "nn.max_pool2d", ELEMENTWISE)
    entries = [
        OpSupport(
            op=name,
            **{
                "weights": ("int8",) if name in WEIGHTED else ("uint8", "int8", "int16") if name in ("add", "concat") else (),
                "fusions": FUSIONS if name in WEIGHTED else (),
                "same_params": name == "nn.max_pool2d",
                **(fields or {}),
                **by_op.get(name.replace(".", "_"), {}),
            },
        )
        for name in names
    ]
    return TargetDescription(name="npu", ops=tuple(entries))


def net() -> Model:
    """a = conv(x) + bias, s = sigmoid(a), k = a + constant, y = conv(s)."""
    rng = np.random.default_rng(5)

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, v: relax.Var, b: relax.Var, k: relax.Var) -> relax.Expr:
        a = writer.emit("a", relax.op.add(writer.emit("_a", relax.op.nn.conv2d(x, w)), b))
        s = writer.emit("s", relax.op.sigmoid(a))
        sum_ = writer.emit("t", relax.op.add(k, a), is_output=True)
        return relax.Tuple([writer.emit("y", relax.op.nn.conv2d(s, v), is_output=True), sum_])

    params = {name: rng.standard_normal((4, 4, 1, 1)).astype(np.float32) for name in ("w", "v")}
    params |= {"b": rng.standard_normal((1, 4, 1, 1)).astype(np.float32), "k": np.float32([[[[3.0]], [[-7]], [[1]], [[0]]]])}
    return model_of({"x": ((1, 4, 3, 3), "float32")}, params, body, ("y", "t"))


RANGES = {"x": (-3.0, 5.0), "a": (-4.0, 9.0), "s": (0.0, 1.0), "t": (-10.0, 11.0), "y": (-5.0, 2.0)}


def plan_for(target: TargetDescription, recipe: Recipe | None = None) -> QuantizationPlan:
    model = net()
    return quantize_graph(model, ranged(model, RANGES), target=target, recipe=recipe).plan


def reason(plan: QuantizationPlan, tensor: str) -> str:
    return next(op.reason for op in plan.float_ops if op.tensor == tensor)


def is_power_of_two(params: QuantParams) -> bool:
    return bool((np.frexp(params.scale)[0] == 0.5).all())


def every_scale(plan: QuantizationPlan) -> list[QuantParams]:
    return [*plan.activations.values(), *plan.weights.values(), *plan.biases.values()]


def test_scales_are_the_smallest_powers_of_two_that_cover_the_range() -> None:
    plain, plan = plan_for(npu()), plan_for(npu({"scales": "power_of_two"}))
    assert all(map(is_power_of_two, every_scale(plan)))
    assert set(plan.activations) == set(plain.activations)
    assert plan.float_ops == plain.float_ops == ()
    for name, params in plain.activations.items():
        assert params.scale <= plan.activations[name].scale < 2 * params.scale
        low, high = RANGES[name]
        ends = dequantize(np.array([0, 255], np.uint8), plan.activations[name])
        assert ends[0] <= low + plan.activations[name].scale / 2
        assert ends[1] >= high - plan.activations[name].scale / 2
    for name, weight in plain.weights.items():
        assert (weight.scale <= plan.weights[name].scale).all()
        assert (plan.weights[name].scale < 2 * weight.scale).all()


def test_one_reader_that_asks_for_a_power_of_two_is_enough() -> None:
    plan = plan_for(npu(add={"scales": "power_of_two"}))
    exact = {str(name) for name, params in plan.activations.items() if is_power_of_two(params)}
    assert exact == {"a", "t"}, "the addition reads the one and makes the other"
    assert is_power_of_two(plan.weights[TensorId("k")])
    role = plan_for(npu(nn_conv2d={"tensors": {"output": TensorSupport(scales="power_of_two")}}))
    assert {str(name) for name, params in role.activations.items() if is_power_of_two(params)} == {"a", "y"}
    bias = plan_for(npu(nn_conv2d={"tensors": {"bias": TensorSupport(scales="power_of_two")}}))
    assert is_power_of_two(bias.biases[TensorId("b")])


def test_what_is_quantized_from_float_is_what_the_target_quantizes() -> None:
    boundary = OpSupport(op="quantize", activations=("int16",), scales="power_of_two")
    plan = plan_for(TargetDescription(name="npu", ops=(*npu().ops, boundary)))
    assert {str(name) for name, params in plan.activations.items() if is_power_of_two(params)} == {"x"}
    assert plan.activations[TensorId("x")].dtype == "uint8", "a dtype is the kernels' choice"


def test_symmetric_activations_have_zero_point_0_and_no_uint8() -> None:
    plan = plan_for(npu({"activation_schemes": ("symmetric",)}))
    assert {(params.dtype, int(params.zero_point)) for params in plan.activations.values()} == {("int8", 0)}
    assert float(plan.activations[TensorId("x")].scale) == pytest.approx(5 / 127)
    assert int(plan.weights[TensorId("k")].zero_point) == 0
    mixed = plan_for(npu({"activations": ("int8",)}, elementwise={"activation_schemes": ("symmetric",)}))
    assert {str(name) for name, params in mixed.activations.items() if params.zero_point == 0} == {"a", "s"}
    unsigned = plan_for(npu({"activation_schemes": ("symmetric",), "activations": ("uint8",)}))
    assert unsigned.layers == ()
    made = "quantize makes uint8, int8 and symmetric int16, one scale per tensor"
    assert reason(unsigned, "_a") == f"nn.conv2d a needs uint8, symmetric for x; {made}"


def test_weights_use_the_range_and_the_granularity_that_the_target_has() -> None:
    narrow, full = plan_for(npu()), plan_for(npu(nn_conv2d={"weight_range": "full"}))
    assert narrow.weights[TensorId("w")].qmin == -127
    assert full.weights[TensorId("w")].qmin == -128
    assert min(int(values.min()) for name, values in full.weight_values.items() if name in ("w", "v")) == -128
    assert (full.weights[TensorId("w")].scale <= narrow.weights[TensorId("w")].scale).all()
    fine = plan_for(npu(nn_conv2d={"weight_granularity": ("per_axis",)}), Recipe(weight_granularity="per_tensor"))
    assert fine.weights[TensorId("w")].scale.shape == (4,)
    coarse = plan_for(npu(nn_conv2d={"tensors": {"bias": TensorSupport(granularity=("per_tensor",))}}))
    assert coarse.weights[TensorId("w")].scale.shape == coarse.biases[TensorId("b")].scale.shape == ()


@pytest.mark.parametrize(
    ("tensor", "because"),
    [
        (TensorSupport(dtypes=("int4",)), "npu runs it with int4 weights; the recipe asks for int8"),
        (TensorSupport(dtypes=("uint8",)), "npu runs it with uint8 weights; the recipe asks for int8"),
        (TensorSupport(schemes=("asymmetric",)), "npu runs it with asymmetric weights only"),
        (TensorSupport(zero_point=3), "w cannot be all that its ops need: the recipe symmetric, nn.conv2d a zero point 3"),
    ],
)
def test_weights_that_quantize_does_not_make_are_reasons(tensor: TensorSupport, because: str) -> None:
    assert because in reason(plan_for(npu(nn_conv2d={"tensors": {"weight": tensor}})), "_a")


@pytest.mark.parametrize(
    ("tensor", "because"),
    [
        (TensorSupport(dtypes=("int16",)), "bias b is int32, expected int16"),
        (TensorSupport(scale=0.5), "bias b has scale 0.00032715368, expected 0.5"),
        (TensorSupport(zero_point=1), "bias b has zero point 0, expected 1"),
    ],
)
def test_biases_that_quantize_does_not_make_are_reasons(tensor: TensorSupport, because: str) -> None:
    plan = plan_for(npu(nn_conv2d={"tensors": {"bias": tensor}}))
    assert reason(plan, "_a") == f"{because}, says target npu of nn.conv2d"


def test_a_fixed_output_is_what_the_hardware_says() -> None:
    fixed = TensorSupport(scale=1 / 256, zero_point=-128, dtypes=("int8",))
    plan = plan_for(npu({"activations": ("int8", "uint8")}, elementwise={"tensors": {"output": fixed}}))
    assert plan.activations[TensorId("s")] == QuantParams.per_tensor("int8", 1 / 256, -128)
    only_zero = plan_for(npu(nn_conv2d={"tensors": {"input": TensorSupport(zero_point=100)}}))
    x = only_zero.activations[TensorId("x")]
    assert (int(x.zero_point), float(x.scale)) == (100, pytest.approx(5 / 155))


def test_two_ops_that_ask_for_opposite_things_are_named() -> None:
    output, read = TensorSupport(scale=1 / 256), TensorSupport(scale=1 / 128)
    plan = plan_for(npu(elementwise={"tensors": {"output": output}}, nn_conv2d={"tensors": {"input": read}}))
    assert reason(plan, "y") == "s cannot be all that its ops need: elementwise s scale 0.00390625, nn.conv2d y scale 0.0078125"
    schemes = plan_for(npu(add={"activation_schemes": ("symmetric",)}, nn_conv2d={"activation_schemes": ("asymmetric",)}))
    assert reason(schemes, "t") == "a cannot be all that its ops need: nn.conv2d a asymmetric, add t symmetric"
    dtypes = plan_for(npu(add={"activations": ("int8",)}, nn_conv2d={"activations": ("uint8",)}))
    assert reason(dtypes, "t") == "a cannot be all that its ops need: nn.conv2d a uint8, add t int8"
    odd = plan_for(npu(elementwise={"tensors": {"output": TensorSupport(scale=0.3)}}, nn_conv2d={"scales": "power_of_two"}))
    assert reason(odd, "y") == (
        "s cannot be all that its ops need: elementwise s scale 0.3, nn.conv2d y a scale that is a power of two"
    )


def test_a_group_of_one_scale_is_what_all_its_members_ask_for() -> None:
    rng = np.random.default_rng(1)

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, v: relax.Var) -> relax.Expr:
        a, b = (writer.emit(name, relax.op.nn.conv2d(x, weight)) for name, weight in (("a", w), ("b", v)))
        s = writer.emit("s", relax.op.sigmoid(b))
        c = writer.emit("c", relax.op.concat([a, s], axis=1))
        return writer.emit("p", relax.op.nn.max_pool2d(c, (1, 1)), is_output=True)

    params = {name: rng.standard_normal((4, 4, 1, 1)).astype(np.float32) for name in ("w", "v")}
    model = model_of({"x": ((1, 4, 3, 3), "float32")}, params, body, ("p",))
    profile = ranged(model, {"a": (-3.0, 1.0), "s": (0.0, 1.0), "c": (-3.0, 1.0)})
    pool = {"nn_max_pool2d": {"scales": "power_of_two", "activation_schemes": ("symmetric",)}}
    plan = quantize_graph(model, profile, target=npu(concat={"same_params": True}, **pool)).plan
    shared = {plan.activations[TensorId(name)] for name in "ascp"}
    assert shared == {QuantParams.per_tensor("int8", 1 / 32, 0)}
    fixed = {"elementwise": {"tensors": {"output": TensorSupport(scale=1 / 256)}}}
    pinned = {"nn_max_pool2d": {"tensors": {"output": TensorSupport(scale=1 / 32)}}}
    plan = quantize_graph(model, profile, target=npu(concat={"same_params": True}, **fixed, **pinned)).plan
    assert reason(plan, "p") == (
        "a, s, c ... (of one scale and zero point) cannot be all that its ops need: "
        "elementwise s scale 0.00390625, nn.max_pool2d p scale 0.03125"
    )


def test_an_op_of_one_scale_that_makes_new_values_covers_them() -> None:
    plan = plan_for(npu(nn_conv2d={"same_params": True}))
    x, a = (plan.activations[TensorId(name)] for name in "xa")
    assert x == a
    assert float(x.scale) == pytest.approx((4 + 9) / 255)


def simulated(model: Model, target: Any, recipe: Recipe) -> tuple[QuantizedModel, float]:
    """Return a model quantized for a target, and the least SQNR of its outputs against the float ones, as compiled."""
    samples = np.random.default_rng(2).standard_normal((8, *model.tensors[model.input_ids[0]].shape)).astype(np.float32)
    quantized = octavo.quantize(model, octavo.profile(model, list(samples)), target=target, recipe=recipe)
    executables = [octavo.compile(model), octavo.compile(quantized, target=target)]
    real, got = ([run(sample) for sample in samples] for run in executables)
    names = real[0].keys()
    return quantized, min(
        sqnr_db(np.stack([each[name] for each in real]), np.stack([each[name] for each in got])) for name in names
    )


def test_int16_activations_run_in_integers() -> None:
    quantized, decibels = simulated(residual_net(), "cpu", Recipe(activation_dtype="int16", float_ops=()))
    plan = quantized.plan
    assert plan.float_ops == ()
    assert {(params.dtype, int(params.zero_point)) for params in plan.activations.values()} == {("int16", 0)}
    assert {params.dtype for params in plan.weights.values()} == {"int8"}
    assert decibels > simulated(residual_net(), "cpu", Recipe(float_ops=()))[1] + 3, "int8 weights are left"


def test_an_op_has_the_width_of_what_it_shares_tensors_with() -> None:
    first = {"nn_conv2d": {"activations": ("int8", "int16")}}
    quantized, _ = simulated(net(), npu({"activations": ("int16",)}, **first), Recipe())
    assert {params.dtype for params in quantized.plan.activations.values()} == {"int16"}, "sigmoid takes no other"
    assert quantized.plan.float_ops == ()
    mixed = plan_for(npu({"activations": ("int16",)}, add={"activations": ("int8",)}))
    assert reason(mixed, "t") == "a cannot be all that its ops need: nn.conv2d a int16, add t int8"
    role = {"tensors": {"output": TensorSupport(dtypes=("int8",))}}
    within = plan_for(npu({"activations": ("int16",)}, elementwise=role, add={"activations": ("int16",)}))
    assert reason(within, "s") == (
        "its kernel would compute at two widths: s needs 8 bits for elementwise s, but a needs 16 bits for nn.conv2d a"
    )


def test_a_dtype_that_no_kernel_of_this_machine_has_stays_float() -> None:
    rng = np.random.default_rng(3)

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, gamma: relax.Var) -> relax.Expr:
        a = writer.emit("a", relax.op.matmul(x, w))
        n = writer.emit("n", relax.op.nn.layer_norm(a, gamma, gamma, axes=[-1]))
        return writer.emit("y", relax.op.matmul(n, w), is_output=True)

    params = {"w": rng.standard_normal((8, 8)).astype(np.float32), "gamma": np.ones(8, np.float32)}
    model = model_of({"x": ((4, 8), "float32")}, params, body, ("y",))
    wide = {"activations": ("int16",)}
    ops = (OpSupport(op="matmul", weights=("int8",), **wide), OpSupport(op="nn.layer_norm", **wide))
    quantized, decibels = simulated(model, TargetDescription(name="npu", ops=ops), Recipe())
    assert [layer.op for layer in quantized.plan.layers] == ["matmul", "matmul"]
    assert decibels > 35


@pytest.mark.parametrize(
    ("limits", "because"),
    [
        ({"kernel": Limit(minimum=2)}, "its kernel is 1, expected at least 2, says target npu of nn.conv2d"),
        ({"input_channels": Limit(multiple_of=8)}, "its input_channels is 4, expected"),
        ({"output_channels": Limit(one_of=(5,))}, "its output_channels is 4, expected"),
        ({"stride": Limit(one_of=(2,))}, "its stride is 1, expected"),
        ({"padding": Limit(minimum=1)}, "its padding is 0, expected"),
        ({"dilation": Limit(minimum=2)}, "its dilation is 1, expected"),
        ({"groups": Limit(minimum=2)}, "its groups is 1, expected"),
        ({"rank": Limit(maximum=3)}, "its rank is 4, expected at most 3"),
        ({"batch": Limit(minimum=2)}, "its batch is 1, expected"),
        ({"elements": Limit(maximum=35)}, "its elements is 36, expected at most 35"),
        ({"inputs": Limit(minimum=2)}, "its inputs is 1, expected"),
    ],
)
def test_what_is_beyond_a_limit_stays_float(limits: dict[str, Limit], because: str) -> None:
    assert because in reason(plan_for(npu(nn_conv2d={"limits": limits})), "_a")


def test_what_the_description_never_takes_stays_float() -> None:
    model = residual_net()
    description = npu()
    never = TargetDescription(name="npu", ops=description.ops, never=("add", "nn.relu"))
    plan = quantize_graph(model, ranged(model), target=never).plan
    assert reason(plan, "s") == "the description of npu keeps add float (never)"
    assert [layer.fused for layer in plan.layers][:2] == [("bias",), ("bias", "clip")]
    assert quantize_graph(model, ranged(model), target=description).plan.layers[0].fused == ("bias", "nn.relu")


def test_sums_that_may_leave_the_accumulator_are_taken_where_it_says_what_becomes_of_them() -> None:
    narrow = {"accumulator_bits": 16}
    assert "the int16 accumulator of output channel" in reason(plan_for(npu(nn_conv2d=narrow)), "_a")
    for overflow in ("wraps", "saturates"):
        plan = plan_for(npu(nn_conv2d={**narrow, "overflow": overflow}))
        assert plan.float_ops == ()
        assert [layer.op for layer in plan.layers].count("nn.conv2d") == 2


_DTYPES = (("int8",), ("uint8", "int8"), ("int8", "uint8"), ("int16", "int8"), ("int16",), ("uint8",))
_SCHEMES = (("symmetric",), ("asymmetric",), ("symmetric", "asymmetric"), ("symmetric", "asymmetric"))


def drawn(seed: int) -> TargetDescription:
    """Return a description of most ops, whose fields are drawn."""
    rng = np.random.default_rng(seed)

    def one_of(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    def tensor() -> TensorSupport:
        scale = one_of(None, None, 0.25, 0.3)
        scales = None if scale == 0.3 else one_of(None, "power_of_two")
        zero_point = one_of(None, None, 0, -3)
        return TensorSupport(scale=scale, scales=scales, zero_point=zero_point, dtypes=one_of(None, ("int8",), ("uint8", "int8")))

    base = {"activations": one_of(*_DTYPES), "scales": one_of("any", "power_of_two"), "activation_schemes": one_of(*_SCHEMES)}
    entries: list[OpSupport] = []
    for op in OPS:
        fields = dict(base)
        if rng.random() < 0.2:
            fields |= {"activations": one_of(*_DTYPES), "activation_schemes": one_of(*_SCHEMES)}
        roles = {role: tensor() for role in ("input", "output") if rng.random() < 0.1}
        if fields["scales"] == "power_of_two":
            roles = {role: each for role, each in roles.items() if each.scale != 0.3}
        if rng.random() < 0.1:
            roles["weight"] = TensorSupport(scales="power_of_two", scale=one_of(None, 0.125))
        fields |= {"tensors": roles, "same_params": rng.random() < 0.2}
        fields |= {"weights": one_of(("int8",), ("uint8", "int8", "int16")), "fusions": one_of((), FUSIONS)}
        fields |= {"weight_range": one_of("narrow", "full"), "weight_granularity": one_of(("per_tensor",), ("per_axis",))}
        entries.append(OpSupport(op=op, **fields))
    return TargetDescription(name="drawn", ops=tuple(entries), never=one_of((), ("add",), ("nn.conv2d", "clip")))


def breaches(params: QuantParams, asked: TensorSupport) -> list[str]:
    """Return which fields of what is asked of a tensor its parameters do not keep to."""
    kept = {
        "dtypes": asked.dtypes is None or params.dtype in asked.dtypes,
        "schemes": asked.schemes != ("symmetric",) or params.is_symmetric,
        "scales": asked.scales != "power_of_two" or is_power_of_two(params),
        "scale": asked.scale is None or bool((params.scale == np.float32(asked.scale)).all()),
        "zero_point": asked.zero_point is None or bool((params.zero_point == asked.zero_point).all()),
    }
    return [name for name, is_kept in kept.items() if not is_kept]


@pytest.mark.parametrize("seed", range(40))
def test_every_parameter_keeps_to_what_its_maker_and_its_readers_ask(seed: int) -> None:
    model, target = random_net(seed, length=16), drawn(seed)
    plan = quantize_graph(model, ranged(model), target=target, recipe=Recipe(float_ops=())).plan
    assert all(op.reason for op in plan.float_ops)
    for layer in plan.layers:
        support = target.support(layer.op)
        assert support is not None
        assert not set(layer.fused) & set(target.never)
        for name in layer.inputs:
            assert breaches(plan.activations[name], support.tensor("input")) == [], (layer.op, name)
        assert breaches(plan.activations[layer.output], support.tensor("output")) == [], layer.op
        for name in layer.constants:
            assert breaches(plan.weights[name], support.tensor("input", is_constant=True)) == [], (layer.op, name)
            assert support.activation_schemes != ("symmetric",) or plan.weights[name].is_symmetric
        widths = {plan.activations[name].dtype == "int16" for name in (*layer.inputs, layer.output)}
        assert len(widths) == 1
        if support.same_params:
            shared = [plan.activations[name] for name in (*layer.inputs, layer.output)]
            assert len({*shared, *(plan.weights[name] for name in layer.constants)}) == 1
        if layer.weight is not None:
            weight = plan.weights[layer.weight]
            assert breaches(weight, support.tensor("weight")) == []
            assert weight.qmin == -127 or support.weight_range == "full"
            assert weight.scale.ndim == (support.weight_granularity == ("per_axis",))
        if layer.bias is not None:
            assert support.scales != "power_of_two" or is_power_of_two(plan.biases[layer.bias])


def test_the_drawn_descriptions_quantize_something() -> None:
    counts = []
    for seed in range(0, 40, 4):
        model = random_net(seed, length=16)
        counts.append(len(quantize_graph(model, ranged(model), target=drawn(seed), recipe=Recipe(float_ops=())).plan.layers))
    assert sum(counts) > 20, counts
