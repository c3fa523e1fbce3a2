"""ONNX Runtime's own ops: each with pairs of its inputs and attributes, of fixed and of open sizes, against ONNX Runtime."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from reference_sessions import reference_session

Array = npt.NDArray[Any]
SIZES = {"B": 2, "S": 3, "P": 4, "L": 5, "C": 9}
"""Of a batch, new rows, a past, other rows, and a buffer."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node: inputs fed by name, as their dimensions or as a pair of these and values; constants; attributes."""

    op: str
    inputs: Mapping[str, Any]
    constants: Mapping[str, Array] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ("y",)
    declared: Mapping[str, str] = field(default_factory=dict)
    order: Sequence[str] = ()
    opset: int = 21
    domain: str = "com.microsoft"
    sizes: Mapping[str, int] = field(default_factory=dict)
    least: float = 2e-6

    def size(self, dim: str) -> int:
        return int(eval(dim, {}, {**SIZES, **self.sizes}))

    def feeds(self, rng: np.random.Generator) -> dict[str, Array]:
        made: dict[str, Array] = {}
        for name, value in self.inputs.items():
            dims, array = value if isinstance(value, tuple) else (value, None)
            shape = [self.size(dim) for dim in dims.split()]
            made[name] = rng.normal(size=shape).astype(np.float32) if array is None else array
        return made

    def model(self, feeds: Mapping[str, Array], *, is_open: bool) -> onnx.ModelProto:
        def info(name: str, dims: str) -> onnx.ValueInfoProto:
            kept = [dim if is_open and not dim.isdigit() and dim not in self.sizes else self.size(dim) for dim in dims.split()]
            elem_type = helper.np_dtype_to_tensor_dtype(feeds[name].dtype) if name in feeds else TensorProto.FLOAT
            return helper.make_tensor_value_info(name, elem_type, kept)

        texts = {name: value[0] if isinstance(value, tuple) else value for name, value in self.inputs.items()}
        order = list(self.order) or [*self.inputs, *self.constants]
        node = helper.make_node(self.op, order, list(self.outputs), domain=self.domain, **self.attrs)
        kept = [name for name in self.outputs if name]
        outputs = [
            info(name, self.declared[name])
            if name in self.declared
            else helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)
            for name in kept
        ]
        for value in outputs:
            if not value.type.tensor_type.elem_type:
                value.type.tensor_type.elem_type = TensorProto.INT32 if value.name == "count" else TensorProto.FLOAT
        graph = helper.make_graph(
            [node],
            "net",
            [info(name, dims) for name, dims in texts.items()],
            outputs,
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


RNG = np.random.default_rng(3)


def real(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def counts(*values: int) -> Array:
    return np.array(values, np.int32)


NORM = {"g": real(8), "b": real(8), "c": real(8)}
FOUR = "B 4 {} 8"
ANGLES = np.outer(np.arange(16), 10000.0 ** -(np.arange(4) / 4))
CACHES = {"cos": np.cos(ANGLES).astype(np.float32), "sin": np.sin(ANGLES).astype(np.float32)}


def norms() -> dict[str, Case]:
    made: dict[str, Case] = {}
    skips = {"x": "B S 8", "k": "B S 8"}
    for beta, bias, total in itertools.product((False, True), repeat=3):
        outputs = ("y", "", "", "sum") if total else ("y",)
        both = {"g": NORM["g"], "b": NORM["b"], "c": NORM["c"]}
        order = ["x", "k", "g", "b" if beta else "", "c" if bias else ""]
        kept = {name: value for name, value in both.items() if name in order}
        made[f"skip {beta=} {bias=} {total=}"] = Case(
            op="SkipLayerNormalization", inputs=skips, constants=kept, order=order, outputs=outputs, attrs={"epsilon": 1e-3}
        )
        if not beta:
            order = ["x", "k", "g", *(["c"] if bias else [])]
            kept = {name: value for name, value in both.items() if name in order}
            made[f"skip simplified {bias=} {total=}"] = Case(
                op="SkipSimplifiedLayerNormalization", inputs=skips, constants=kept, order=order, outputs=outputs
            )
    made["skip of one row"] = Case(op="SkipLayerNormalization", inputs={"x": "B S 8", "k": "1 S 8"}, constants={"g": NORM["g"]})
    for axis in (-1, 2, 1):
        gamma = real(8) if axis != 1 else real(3, 8)
        made[f"simplified {axis=}"] = Case(
            op="SimplifiedLayerNormalization",
            inputs={"x": "B S 8"},
            constants={"g": gamma},
            attrs={"axis": axis, "epsilon": 1e-4},
            domain="",
            sizes={"S": 3} if axis == 1 else {},
        )
    for opset in (11, 13):
        made[f"simplified {opset=}"] = Case(
            op="SimplifiedLayerNormalization", inputs={"x": "B S 8"}, constants={"g": NORM["g"]}, domain="", opset=opset
        )
        made[f"layer norm {opset=}"] = Case(
            op="LayerNormalization",
            inputs={"x": "B S 8"},
            constants={"g": NORM["g"], "b": NORM["b"]},
            domain="",
            opset=opset,
            attrs={"epsilon": 1e-3, "axis": 2},
        )
    ids = ("B S", np.array([[1, 4, 2], [5, 5, 0]], np.int32))
    parts = ("B S", np.array([[1, 0, 1], [1, 1, 0]], np.int32))
    tables = {"we": real(6, 8), "pe": real(9, 8), "se": real(2, 8)}
    for segments, mask, places in itertools.product((False, True), repeat=3):
        inputs: dict[str, Any] = {"i": ids}
        inputs |= {"s": parts} if segments else {}
        inputs |= {"m": parts} if mask else {}
        inputs |= {"p": ids} if places else {}
        order = ["i", "s" if segments else "", "we", "pe", "se" if segments else "", "g", "b", "m" if mask else ""]
        kept = {name: value for name, value in {**tables, **NORM}.items() if name in order}
        made[f"embeddings {segments=} {mask=} {places=}"] = Case(
            op="EmbedLayerNormalization",
            inputs=inputs,
            constants=kept,
            order=[*order, *(["p"] if places else [])],
            outputs=("y", "count", "sum"),
        )
    return made


def fused() -> dict[str, Case]:
    made: dict[str, Case] = {}
    for opset in (12, 20):
        for op in ("BiasGelu", "FastGelu"):
            made[f"{op} {opset=}"] = Case(op=op, inputs={"x": "B S 8"}, constants={"b": NORM["b"]}, opset=opset)
        for op in ("Gelu", "FastGelu", "QuickGelu"):
            made[f"{op} alone {opset=}"] = Case(op=op, inputs={"x": "B S 8"}, opset=opset)
    for alpha in (1.0, 2.5):
        made[f"QuickGelu {alpha=}"] = Case(op="QuickGelu", inputs={"x": "B S 8"}, attrs={"alpha": alpha})
    for a, b, moves in itertools.product((0, 1), repeat=3):
        summed = "4" if a else "S"
        left, right = ("L 4 S", f"L 8 {summed}" if b else f"L {summed} 8")
        attrs = {"transA": a, "transB": b, "transBatchA": moves, "transBatchB": moves, "alpha": 0.5}
        inputs = {"x": left, "k": right}
        if moves:  # [rows, batch, features] is [batch, rows, features] then, before the last two axes are swapped
            inputs = {"x": "4 L S", "k": f"8 L {summed}" if b else f"{summed} L 8"}
        made[f"product {a=} {b=} {moves=}"] = Case(op="FusedMatMul", inputs=inputs, attrs=attrs)
    for name, given in (
        ("Relu", {}),
        ("LeakyRelu", {"activation_alpha": 0.3}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
        ("Tanh", {}),
    ):
        attrs = {"activation": name, "alpha": 0.5, "beta": 2.0, "transB": 1, **given}
        made[f"gemm {name}"] = Case(op="FusedGemm", inputs={"x": "S 8"}, constants={"w": real(4, 8), "b": real(4)}, attrs=attrs)
    for name, given in (
        ("Relu", []),
        ("Clip", [0.1, 0.7]),
        ("LeakyRelu", [0.3]),
        ("HardSigmoid", [0.3, 0.4]),
        ("Sigmoid", []),
        ("Tanh", []),
    ):
        attrs = {"activation": name, "pads": [1, 1, 1, 1], **({"activation_params": given} if given else {})}
        kernel = {"w": real(4, 3, 3, 3), "b": real(4)}
        made[f"conv {name}"] = Case(op="FusedConv", inputs={"x": "B 3 6 6"}, constants=kernel, attrs=attrs)
    made["conv with a sum"] = Case(
        op="FusedConv",
        inputs={"x": "B 3 6 6", "z": "B 4 6 6"},
        constants=kernel,
        order=["x", "w", "b", "z"],
        attrs={"pads": [1] * 4, "activation": "Relu"},
    )
    return made


def bytes_of(dtype: str, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def integers() -> dict[str, Case]:
    made: dict[str, Case] = {}
    for kind, wide, point, bias in itertools.product(("int8", "uint8"), (False, True), (False, True), (False, True)):
        shape = (6,) if wide else (1,)
        weights = {
            "w": bytes_of(kind, 8, 6),
            "ws": RNG.uniform(0.01, 0.02, shape).astype(np.float32),
            "wz": bytes_of(kind, *shape),
            "b": real(6),
        }
        order = ["w", "ws", "wz" if point else "", "b" if bias else ""]
        kept = {name: value for name, value in weights.items() if name in order}
        made[f"dynamic {kind} {wide=} {point=} {bias=}"] = Case(
            op="DynamicQuantizeMatMul", inputs={"x": "B S 8"}, constants=kept, order=["x", *order]
        )
        a = ("B S 8", bytes_of("uint8", 2, 3, 8))
        parameters = {"as": np.float32(0.03), "az": np.uint8(99)} if point else {"as": np.float32(0.03)}
        order = ["x", "w", "as", "ws", "az" if point else "", "wz" if point else "", "b" if bias else ""]
        made[f"integers {kind} {wide=} {point=} {bias=}"] = Case(
            op="MatMulIntegerToFloat", inputs={"x": a}, constants={**kept, **parameters}, order=order
        )
    for mask, causal, past in itertools.product((False, True), (0, 1), (False, True)):
        inputs: dict[str, Any] = {"x": ("B S 8", bytes_of("uint8", 2, 3, 8))}
        keys = "P+S" if past else "S"
        inputs |= {"m": (f"B {keys}", np.array([[1] * 6 + [0], [1] * 7], np.int32)[:, -7 if past else -3 :])} if mask else {}
        inputs |= {"p": "2 B 2 P 4"} if past else {}
        kept = {
            "w": bytes_of("int8", 8, 24),
            "b": real(24),
            "as": np.float32(0.02),
            "ws": np.float32(0.01),
            "az": np.uint8(120),
            "wz": np.int8(3),
        }
        order = ["x", "w", "b", "as", "ws", "m" if mask else "", "az", "wz", *(["p"] if past else [])]
        made[f"attention of integers {mask=} {causal=} {past=}"] = Case(
            op="QAttention",
            inputs=inputs,
            constants=kept,
            order=order,
            attrs={"num_heads": 2, "unidirectional": causal},
            outputs=("y", "present") if past else ("y",),
        )
    return made


CASES = {**norms(), **fused(), **integers()}


def check(case: Case, path: Path, rng: np.random.Generator, *, is_open: bool) -> None:
    feeds = case.feeds(rng)
    onnx.save(case.model(feeds, is_open=is_open), path)
    wanted = reference_session(path).run(None, feeds)
    found = octavo.compile(octavo.load(path))(feeds)
    for want, name in zip(wanted, [name for name in case.outputs if name], strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(found[name], want, rtol=0, atol=case.least * scale, err_msg=name)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_onnx_runtime_does(name: str, is_open: bool, rng: np.random.Generator, tmp_path: Path) -> None:
    check(CASES[name], tmp_path / "m.onnx", rng, is_open=is_open)
