"""Every field of a description's schema changes what is quantized or partitioned, or is refused: one case for each, by its name.

A field that is added to the schema fails here until it has a case. A case is two descriptions that differ in that field alone;
what is seen of both (parameters, composites, their attributes, layouts, reasons, errors) must differ.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import tvm
from target_schema import json_schema
from tvm import relax

import octavo
from missing import MachineLacks
from nets import model_of
from octavo.compiler.backends import Backend, Code, CSource
from octavo.compiler.backends.cpu.kernels.language.isa import isas_of, multiplies_bfloat16
from octavo.compiler.backends.protocol import layout_of
from octavo.compiler.backends.toolkit import constants
from octavo.errors import TargetError
from octavo.ir.composites.attributes import read_composites
from octavo.ir.graph.partition_state import read_state
from octavo.ir.qdq.runtime_inputs import write_rows
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU, TargetDescription
from octavo.target.limits import LIMITS
from octavo.target.vocabulary import ROLES
from qdq_graph import Qdq, graph

BASE: dict[str, Any] = {
    "schema_version": 2,
    "name": "npu",
    "ops": [
        {"op": "nn.conv2d", "weights": ["int8"], "fusions": ["bias", "nn.relu"], "activations": ["int8"]},
        {"op": "matmul", "weights": ["int8"], "activations": ["int8", "int16"]},
        {"op": "add", "weights": ["int8"], "activations": ["int8"]},
        {"op": "concat", "activations": ["int8"]},
        {"op": "quantize"},
        {"op": "dequantize"},
    ],
}
CONV, MATMUL, ADD, CONCAT = (("ops", index) for index in range(4))
POINT = {"scale": 0.5, "zero_point": 3}
CASES: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "schema_version": [(("schema_version",), 3)],
    "name": [(("name",), "dsp")],
    "defaults": [(("defaults",), {"limits": {"rank": 7}})],
    "ops": [(("ops",), BASE["ops"][:3])],
    "never": [(("never",), ["add"])],
    "op_by_op": [(("op_by_op",), True)],
    "activation_layout": [(("activation_layout",), "NHWC")],
    "weight_layout": [(("weight_layout",), "OHWI")],
    "alignment": [(("alignment",), 128)],
    "scratch_bytes": [(("scratch_bytes",), 8)],
    "isas": [(("isas",), ["generic"])],
    "extensions": [(("extensions",), ["none"])],
    "op": [((*CONV, "op"), "nn.conv2d_transpose")],
    "activations": [((*CONV, "activations"), ["uint8"]), ((*MATMUL, "activations"), ["int16"])],
    "activation_schemes": [((*CONV, "activation_schemes"), ["symmetric"])],
    "weights": [((*CONV, "weights"), ["int4"])],
    "weight_schemes": [((*CONV, "weight_schemes"), ["asymmetric"])],
    "weight_granularity": [((*CONV, "weight_granularity"), ["per_tensor"])],
    "weight_blocks": [((*MATMUL, "weight_blocks"), [32])],
    "weight_range": [((*CONV, "weight_range"), "full")],
    "scales": [((*CONV, "scales"), "power_of_two")],
    "fusions": [((*CONV, "fusions"), ["bias"])],
    "same_params": [((*CONCAT, "same_params"), True)],
    "float_output": [((*MATMUL, "float_output"), True)],
    "sum_output": [((*MATMUL, "sum_output"), True)],
    "float_input": [((*ADD, "float_input"), True)],
    "per_row_input": [((*MATMUL, "per_row_input"), True)],
    "requantize": [((*CONV, "requantize"), "fixed_point")],
    "rounding": [((*ADD, "rounding"), "half_up")],
    "accumulator_bits": [((*CONV, "accumulator_bits"), 20)],
    "wide_accumulator_bits": [((*MATMUL, "wide_accumulator_bits"), 40)],
    "overflow": [((*CONV, "overflow"), "wraps"), ((*CONV, "overflow"), "saturates")],
    "tensors": [((*CONV, "tensors"), {"output": POINT})],
    "limits": [((*CONV, "limits"), {"rank": 3})],
    **{f"tensors.{role}": [((*CONV, "tensors"), {role: {"scales": "power_of_two"}})] for role in ROLES if role != "input1"},
    "tensors.input1": [((*ADD, "tensors"), {"input1": {"scales": "power_of_two"}})],
    "tensor.dtypes": [((*CONV, "tensors"), {"output": {"dtypes": ["uint8"]}})],
    "tensor.schemes": [((*CONV, "tensors"), {"output": {"schemes": ["symmetric"]}})],
    "tensor.granularity": [((*CONV, "tensors"), {"weight": {"granularity": ["per_tensor"]}})],
    "tensor.scales": [((*CONV, "tensors"), {"output": {"scales": "power_of_two"}})],
    "tensor.scale": [((*CONV, "tensors"), {"output": {"scale": 0.5}})],
    "tensor.zero_point": [((*CONV, "tensors"), {"output": {"zero_point": 3}})],
    **{f"limits.{name}": [((*CONV, "limits"), {name: {"minimum": 1000}})] for name in LIMITS},
    "limit.minimum": [((*CONV, "limits"), {"kernel": {"minimum": 4}})],
    "limit.maximum": [((*CONV, "limits"), {"kernel": {"maximum": 2}})],
    "limit.multiple_of": [((*CONV, "limits"), {"output_channels": {"multiple_of": 5}})],
    "limit.one_of": [((*CONV, "limits"), {"stride": {"one_of": [2, 3]}})],
}
"""By field what replaces a value of `BASE`; each change alone must be seen."""

REFUSED = ("schema_version", "alignment")
"""Of these fields one value is an error: files of other versions, and more than the 64 bytes at which all constants lie."""

BEFORE: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "wide_accumulator_bits": [
        (("ops",), [{"op": op, "weights": ["int8"], "activations": ["int16"]} for op in ("nn.conv2d", "matmul", "quantize")])
    ],
    "overflow": [((*CONV, "accumulator_bits"), 16)],
    "float_input": [((*CONV, "float_output"), True)],
    "per_row_input": [((*MATMUL, "float_output"), True)],
}
"""What both descriptions of a case say besides."""


def fields() -> set[str]:
    """The names of all properties in the schema, those of a tensor's and a limit's own objects told by a prefix."""
    schema = json_schema()
    definitions = schema["$defs"]
    tensors, limits = (definitions["op"]["properties"][name]["properties"] for name in ("tensors", "limits"))
    assert {*definitions} == {"defaults", "op", "tensor", "limit"}, "a definition without cases here"
    return {
        *schema["properties"],
        *definitions["op"]["properties"],
        *(f"tensors.{name}" for name in tensors),
        *(f"limits.{name}" for name in limits),
        *(f"tensor.{name}" for name in definitions["tensor"]["properties"]),
        *(f"limit.{name}" for name in definitions["limit"]["anyOf"][1]["properties"]),
    }


def test_every_field_has_a_case() -> None:
    assert set(CASES) == fields()
    assert {*json_schema()["$defs"]["defaults"]["properties"]} <= set(CASES)


class Npu(Backend):
    """Takes what a description says; generates nothing."""

    def __init__(self, description: TargetDescription) -> None:
        self.description = description

    def emit(self, *_: Any) -> None:
        raise NotImplementedError


@pytest.fixture(scope="module", name="net")
def fixture_net() -> tuple[Any, Any]:
    """conv + bias + relu, sums with a constant and with a convolution, a concatenation, a product that nothing quantizes."""
    rng = np.random.default_rng(4)
    params: dict[str, np.ndarray] = {
        "w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "b": rng.normal(size=(1, 4, 1, 1)).astype(np.float32),
        "k": np.float32(2.5) + rng.normal(size=(1, 4, 1, 1)).astype(np.float32),
        "d": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "m": rng.normal(size=(6, 5)).astype(np.float32),
    }

    def body(writer: Any, x: Any, **p: Any) -> Any:
        conv = writer.emit("c", relax.op.add(writer.emit("_c", relax.op.nn.conv2d(x, p["w"])), p["b"]))
        act = writer.emit("r", relax.op.nn.relu(conv))
        plus = writer.emit("s", relax.op.add(act, p["k"]))
        total = writer.emit("t", relax.op.add(plus, writer.emit("_d", relax.op.nn.conv2d(x, p["d"]))))
        joined = writer.emit("j", relax.op.concat([act, total], axis=1))
        return writer.emit("y", relax.op.matmul(joined, p["m"]), is_output=True)

    model = model_of({"x": ((1, 3, 8, 8), "float32")}, params, body, ("y",))
    return model, octavo.profile(model, [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(2)])


def described(name: str, *changes: tuple[tuple[Any, ...], Any]) -> dict[str, Any]:
    data = copy.deepcopy(BASE)
    for path, value in (*BEFORE.get(name, ()), *changes):
        place: Any = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    return data


def seen(data: dict[str, Any], net: tuple[Any, Any]) -> str:
    """All that quantizing and partitioning for a description shows of it, or its error."""
    try:
        description = TargetDescription.from_json(data)
    except TargetError as error:
        return f"error: {error}"
    model, profile = net
    quantized = octavo.quantize(model, profile, target=Npu(description))
    module = octavo.partition(quantized, target=Npu(description))
    state, shown = read_state(module), []
    for composite in read_composites(module).values():
        code = Code(source=CSource(text="", symbol="f"), workspace=64)
        fits = description.scratch_bytes is None or code.workspace <= description.scratch_bytes
        layout = layout_of(code, composite, description)
        packed = constants(composite, description) if composite.op_name in ("conv2d", "matmul") else {}
        shown.append((composite.kind, composite.core, composite.quantize_info, layout, fits, list(packed.values())))
    return repr((shown, dict(state.rejections), dict(state.declined), quantized.plan.float_ops, _elsewhere(description)))


def _elsewhere(description: TargetDescription) -> list[Any]:
    """What is seen of a description elsewhere: ends of products in a quantized source, and kernels of this machine."""
    bf16 = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "sapphirerapids"})
    kernels = octavo.explain(octavo.load(_ends()), target=replace(description, ops=CPU.ops, never=())).ops
    module = octavo.partition(octavo.load(_ends()), target=Npu(description))
    return [
        sorted(each.kind for each in read_composites(module).values()),
        [op.isa for op in kernels],
        multiplies_bfloat16(bf16, isas_of(bf16), description.extensions),
    ]


@lru_cache
def _ends() -> tvm.IRModule:
    """Products: one that ends in float32, one in its int32 sums, one of rows that are quantized when run, one of 4 bits."""

    def body(writer: Any, params: dict[str, Any]) -> Any:
        qdq, values = Qdq(writer, "int8"), np.arange(24, dtype=np.int8).reshape(6, 4)
        real = relax.op.matmul(qdq.dequantize("x", params["x"], (0.5, 0)), qdq.weight("w", values, 0.5))
        wide = writer.emit("wide", relax.op.astype(params["x"], "int32"))
        weight = writer.emit("wide_w", relax.op.astype(relax.const(values), "int32"))
        sums = relax.op.matmul(wide, weight, out_dtype="int32")
        rows = write_rows(params["z"], lambda value: writer.emit(f"rows{next(count)}", value))
        of_rows = relax.op.matmul(rows, qdq.weight("v", values, 0.5))
        blocks = np.resize(np.arange(-8, 8, dtype=np.int8), (32, 4))
        in_blocks = relax.op.matmul(params["u"], qdq.weight("t", blocks, 0.5))
        results = {"real": real, "sums": sums, "of_rows": of_rows, "in_blocks": in_blocks}
        return relax.Tuple([writer.emit(name, value, is_output=True) for name, value in results.items()])

    count = itertools.count()
    return graph({"x": ((3, 6), "int8"), "z": ((3, 6), "float32"), "u": ((3, 32), "float32")}, body)


@pytest.fixture(scope="module", name="base")
def fixture_base(net: tuple[Any, Any]) -> str:
    """What is seen of `BASE`."""
    return seen(BASE, net)


@pytest.mark.parametrize("name", CASES)
def test_a_change_of_the_field_is_seen(net: tuple[Any, Any], base: str, name: str) -> None:
    if name == "isas" and len(isas_of(host_target())) == 1:
        raise MachineLacks("a second ISA")
    before = seen(described(name), net) if name in BEFORE else base
    assert not before.startswith("error")
    for change in CASES[name]:
        after = seen(described(name, change), net)
        assert after != before, change
        assert after.startswith("error") == (name in REFUSED), after
