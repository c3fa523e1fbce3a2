"""Models of one op of ONNX Runtime's own, or of ONNX's newest: pairs of its inputs and attributes, and open sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
SIZES = {"B": 2, "S": 3, "P": 4, "L": 5, "C": 9}
"""Of a batch, new rows, a past, other rows, and a buffer."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node: inputs fed by name, as their dimensions or as a pair of these and values; constants; attributes."""

    op: str
    inputs: Mapping[str, Any]
    constants: Mapping[str, Any] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ("y",)
    declared: Mapping[str, str] = field(default_factory=dict)
    order: Sequence[str] = ()
    opset: int = 21
    domain: str = "com.microsoft"
    sizes: Mapping[str, int] = field(default_factory=dict)
    least: float = 2e-6
    is_open: bool = True

    def size(self, dim: str) -> int:
        return int(eval(dim, {}, {**SIZES, **self.sizes}))

    def feeds(self, rng: np.random.Generator) -> dict[str, Array]:
        made: dict[str, Array] = {}
        for name, value in self.inputs.items():
            dims, array = value if isinstance(value, tuple) else (value, None)
            shape = [self.size(dim) for dim in dims.split()]
            made[name] = rng.normal(size=shape).astype(np.float32) if array is None else drawn(array, rng)
        return made

    def model(self, feeds: Mapping[str, Array], rng: np.random.Generator) -> onnx.ModelProto:
        def info(name: str, dims: str) -> onnx.ValueInfoProto:
            kept = [
                dim if self.is_open and not dim.isdigit() and dim not in self.sizes else self.size(dim) for dim in dims.split()
            ]
            elem_type = helper.np_dtype_to_tensor_dtype(feeds[name].dtype) if name in feeds else TensorProto.FLOAT
            return helper.make_tensor_value_info(name, elem_type, kept)

        texts = {name: value[0] if isinstance(value, tuple) else value for name, value in self.inputs.items()}
        order = list(self.order) or [*self.inputs, *self.constants]
        node = helper.make_node(self.op, order, list(self.outputs), "node", domain=self.domain, **self.attrs)
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
            [numpy_helper.from_array(drawn(value, rng), name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


Drawn = Callable[[np.random.Generator], Array]
"""An array that a test draws."""


def real(*shape: int) -> Drawn:
    return lambda rng: rng.normal(size=shape).astype(np.float32)


def bytes_of(dtype: str, *shape: int) -> Drawn:
    info = np.iinfo(dtype)
    return lambda rng: rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def small(*shape: int) -> Drawn:
    return lambda rng: rng.uniform(0.01, 0.02, shape).astype(np.float32)


def drawn(value: Any, rng: np.random.Generator) -> Array:
    return value(rng) if callable(value) else value


def counts(*values: int) -> Array:
    return np.array(values, np.int32)


def pairs(*factors: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Choose among all combinations so that any two values of two factors meet; the last of each says whether sizes are open."""
    every = list(itertools.product(*factors, (False, True)))
    meetings = [set(itertools.combinations(enumerate(map(str, each)), 2)) for each in every]
    left = set[Any]().union(*meetings)
    while left:
        best = max(range(len(every)), key=lambda place: len(meetings[place] & left))
        left -= meetings[best]
        yield every[best]


NORM = {"g": real(8), "b": real(8), "c": real(8)}
ANGLES = np.outer(np.arange(16), 10000.0 ** -(np.arange(8) / 8))
CACHES = {"cos": np.cos(ANGLES).astype(np.float32), "sin": np.sin(ANGLES).astype(np.float32)}


def norms() -> dict[str, Case]:
    made: dict[str, Case] = {}
    skips = {"x": "B S 8", "k": "B S 8"}
    for beta, bias, total, is_open in pairs((False, True), (False, True), (False, True)):
        outputs = ("y", "", "", "sum") if total else ("y",)
        both = {"g": NORM["g"], "b": NORM["b"], "c": NORM["c"]}
        order = ["x", "k", "g", "b" if beta else "", "c" if bias else ""]
        kept = {name: value for name, value in both.items() if name in order}
        made[f"skip {beta=} {bias=} {total=} {is_open=}"] = Case(
            is_open=is_open,
            op="SkipLayerNormalization",
            inputs=skips,
            constants=kept,
            order=order,
            outputs=outputs,
            attrs={"epsilon": 1e-3},
        )
        if not beta:
            order = ["x", "k", "g", *(["c"] if bias else [])]
            kept = {name: value for name, value in both.items() if name in order}
            made[f"skip simplified {bias=} {total=} {is_open=}"] = Case(
                is_open=is_open, op="SkipSimplifiedLayerNormalization", inputs=skips, constants=kept, order=order, outputs=outputs
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
    for segments, mask, places, is_open in pairs((False, True), (False, True), (False, True)):
        inputs: dict[str, Any] = {"i": ids}
        inputs |= {"s": parts} if segments else {}
        inputs |= {"m": parts} if mask else {}
        inputs |= {"p": ids} if places else {}
        order = ["i", "s" if segments else "", "we", "pe", "se" if segments else "", "g", "b", "m" if mask else ""]
        kept = {name: value for name, value in {**tables, **NORM}.items() if name in order}
        made[f"embeddings {segments=} {mask=} {places=} {is_open=}"] = Case(
            is_open=is_open,
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
    for a, b, moves, is_open in pairs((0, 1), (0, 1), (0, 1)):
        summed = "4" if a else "S"
        left, right = ("L 4 S", f"L 8 {summed}" if b else f"L {summed} 8")
        attrs = {"transA": a, "transB": b, "transBatchA": moves, "transBatchB": moves, "alpha": 0.5}
        inputs = {"x": left, "k": right}
        if moves:  # [rows, batch, features] is [batch, rows, features] then, before the last two axes are swapped
            inputs = {"x": "4 L S", "k": f"8 L {summed}" if b else f"{summed} L 8"}
        made[f"product {a=} {b=} {moves=} {is_open=}"] = Case(is_open=is_open, op="FusedMatMul", inputs=inputs, attrs=attrs)
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


def integers() -> dict[str, Case]:
    made: dict[str, Case] = {}
    for kind, wide, point, bias, is_open in pairs(("int8", "uint8"), (False, True), (False, True), (False, True)):
        shape = (6,) if wide else (1,)
        weights = {
            "w": bytes_of(kind, 8, 6),
            "ws": small(*shape),
            "wz": bytes_of(kind, *shape),
            "b": real(6),
        }
        order = ["w", "ws", "wz" if point else "", "b" if bias else ""]
        kept = {name: value for name, value in weights.items() if name in order}
        made[f"dynamic {kind} {wide=} {point=} {bias=} {is_open=}"] = Case(
            is_open=is_open, op="DynamicQuantizeMatMul", inputs={"x": "B S 8"}, constants=kept, order=["x", *order]
        )
        a = ("B S 8", bytes_of("uint8", 2, 3, 8))
        parameters = {"as": np.float32(0.03), "az": np.uint8(99)} if point else {"as": np.float32(0.03)}
        order = ["x", "w", "as", "ws", "az" if point else "", "wz" if point else "", "b" if bias else ""]
        made[f"integers {kind} {wide=} {point=} {bias=} {is_open=}"] = Case(
            is_open=is_open, op="MatMulIntegerToFloat", inputs={"x": a}, constants={**kept, **parameters}, order=order
        )
    for mask, causal, past, is_open in pairs((False, True), (0, 1), (False, True)):
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
        made[f"attention of integers {mask=} {causal=} {past=} {is_open=}"] = Case(
            is_open=is_open,
            op="QAttention",
            inputs=inputs,
            constants=kept,
            order=order,
            attrs={"num_heads": 2, "unidirectional": causal},
            outputs=("y", "present") if past else ("y",),
        )
    return made


def attention() -> dict[str, Case]:
    made: dict[str, Case] = {}
    masks: dict[str, tuple[str, Any] | None] = {
        "none": None,
        "keys": ("B {}", np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)),
        "rows": ("B S {}", np.array([[[1] * 7, [1] * 5 + [0] * 2, [0, 1, 1, 0, 0, 1, 1]]] * 2, np.int32)),
        "ends": ("B", counts(3, 2)),
    }
    weights = {"w": real(8, 24), "b": real(24)}
    for mask, causal, past, bias, is_open in pairs(masks, (0, 1), (False, True), (False, True)):
        keys, count = ("P+S", 7) if past else ("S", 3)
        inputs: dict[str, Any] = {"x": "B S 8"}
        if (given := masks[mask]) is not None:
            inputs["m"] = (given[0].format(keys), given[1] if mask == "ends" else given[1][..., :count])
        inputs |= {"p": "2 B 2 P 4"} if past else {}
        inputs |= {"e": f"B 2 S {keys}"} if bias and not past else {}  # ONNX Runtime takes one of them
        order = ["x", "w", "b", "m" if "m" in inputs else "", "p" if past else "", "e" if "e" in inputs else ""]
        attrs = {"num_heads": 2, "unidirectional": causal, **({"scale": 0.3, "mask_filter_value": -50.0} if bias else {})}
        made[f"attention {mask=} {causal=} {past=} {bias=} {is_open=}"] = Case(
            is_open=is_open,
            op="Attention",
            inputs=inputs,
            constants=weights,
            order=order,
            attrs=attrs,
            outputs=("y", "present") if past else ("y",),
        )
    made["attention with padding on both sides"] = Case(
        op="Attention",
        inputs={"x": "B S 8", "m": ("4", counts(3, 2, 1, 0))},
        constants=weights,
        order=["x", "w", "b", "m"],
        attrs={"num_heads": 2},
        sizes={"B": 2},
    )
    made["attention of sizes"] = Case(
        op="Attention",
        inputs={"x": "B S 8"},
        constants={"w": real(8, 28), "b": real(28)},
        attrs={"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]},
    )
    for mask, causal, past, bias, is_open in pairs(masks, (0, 1), (False, True), (False, True)):
        keys, count = ("P+S", 7) if past else ("S", 3)
        inputs = {"q": "B S 8", "k": "B S 8", "v": "B S 8" if past else "B S 12"}
        if (given := masks[mask]) is not None:
            inputs["m"] = (given[0].format(keys), given[1] if mask == "ends" else given[1][..., :count])
        inputs |= {"e": f"{1 if past else 'B'} 2 S {keys}"} if bias else {}
        inputs |= {"pk": "B 2 P 4", "pv": "B 2 P 4"} if past else {}
        order = [
            "q",
            "k",
            "v",
            "b" if bias else "",
            "m" if "m" in inputs else "",
            "e" if bias else "",
            *(["pk", "pv"] if past else []),
        ]
        made[f"heads {mask=} {causal=} {past=} {bias=} {is_open=}"] = Case(
            is_open=is_open,
            op="MultiHeadAttention",
            inputs=inputs,
            constants={"b": real(24 if past else 28)} if bias else {},
            order=order,
            attrs={"num_heads": 2, "unidirectional": causal, **({"scale": 0.3} if bias else {})},
            outputs=("y", "pk2", "pv2") if past else ("y",),
        )
    for bias in (False, True):
        made[f"heads of others {bias=}"] = Case(
            op="MultiHeadAttention",
            inputs={"q": "B S 8", "k": "B 2 L 4", "v": "B 2 L 4"},
            constants={"b": real(24)} if bias else {},
            attrs={"num_heads": 2},
        )
    made["heads with scores"] = Case(
        op="MultiHeadAttention",
        inputs={"q": "B S 8", "k": "B L 8", "v": "B L 8"},
        attrs={"num_heads": 2},
        outputs=("y", "k2", "v2", "scores"),
    )
    return made


def rotary() -> dict[str, Case]:
    made: dict[str, Case] = {}
    places = {"each": ("B S", np.array([[0, 1, 2], [5, 6, 7]])), "first": ("1", np.array([3]))}
    for form, place, interleaved, part, is_open in pairs(("B S 16", "B 2 S 8"), places, (0, 1), (False, True)):
        caches = {name: np.ascontiguousarray(cache[:, : 2 if part else 4]) for name, cache in CACHES.items()}
        attrs = {"interleaved": interleaved, **({"num_heads": 2, "rotary_embedding_dim": 4} if part else {})}
        made[f"rotary {form} {place=} {interleaved=} {part=} {is_open=}"] = Case(
            is_open=is_open, op="RotaryEmbedding", inputs={"x": form, "p": places[place]}, constants=caches, attrs=attrs
        )
    return made


FORMS = {"prompt": (3, 0), "step": (1, 4), "rows": (3, 4)}
"""New rows, and those before."""


def grouped_case(kind: str, form: str, *, packed: bool = False, counts_by_sample: Sequence[int] = (), **given: Any) -> Case:
    """Return a case of four heads for two of keys; what lies in the past behind the valid rows is 0, as in presents."""
    rows, past = FORMS[form]
    valid = counts_by_sample or (rows + past,)
    length = "C" if kind == "buffer" else "P"
    inputs: dict[str, Any] = {"q": "B S 128"} if packed else {"q": "B S 64", "k": "B S 32", "v": "B S 32"}
    if kind == "buffer" or past:

        def zeroed(rng: np.random.Generator) -> Array:
            made = rng.normal(size=(len(valid), 2, SIZES[length], 16)).astype(np.float32)
            for sample, count in zip(made, valid, strict=True):
                sample[:, count - rows :] = 0
            return made

        inputs |= dict.fromkeys(("pk", "pv"), (f"B 2 {length} 16", zeroed))
    inputs |= {"n": ("B 1", counts(*valid).reshape(-1, 1) - 1), "t": ("1", counts(rows + past)), **given.pop("more", {})}
    constants = {**CACHES, **given.pop("constants", {})}
    places = ("q", "k", "v", "pk", "pv", "n", "t", "cos", "sin", "places", "bias", "sink", "", "", "qn", "kn")
    order = [name if name in {**inputs, **constants} else "" for name in places]
    while not order[-1]:
        order.pop()
    now = "C" if kind == "buffer" else "P+S" if past else "S"
    return Case(
        op="GroupQueryAttention",
        inputs=inputs,
        constants=constants,
        order=order,
        attrs={"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, **given.pop("attrs", {})},
        declared=dict.fromkeys(("pk2", "pv2"), f"B 2 {now} 16"),
        sizes={"B": len(valid), **({"S": 1} if rows == 1 else {})},
        **{"outputs": ("y", "pk2", "pv2"), **given},
    )


def grouped() -> dict[str, Case]:
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "window": {"local_window_size": 2},
        "soft cap": {"softcap": 2.0},
        "smooth": {"smooth_softmax": 1},
        "interleaved": {"rotary_interleaved": 1},
        "scale": {"scale": 0.2},
        "no rotary": {"do_rotary": 0},
    }
    made: dict[str, Case] = {}
    for kind, form, option, packed, is_open in pairs(("grows", "buffer"), FORMS, options, (False, True)):
        made[f"grouped {kind} {form} {option} {packed=} {is_open=}"] = grouped_case(
            kind, form, packed=packed, attrs=options[option], is_open=is_open
        )
    bias = {"more": {"bias": "B 1 S P+S"}}
    made["grouped with a bias and a soft cap"] = grouped_case("grows", "rows", attrs={"softcap": 2.0}, **bias)
    made["grouped with positions"] = grouped_case("grows", "rows", more={"places": ("B S", np.array([[9, 1, 4]]))})
    made["grouped with sinks"] = grouped_case("grows", "rows", constants={"sink": real(4)})
    outputs = ("y", "pk2", "pv2", "weights")
    made["grouped with weights"] = grouped_case("grows", "prompt", attrs={"qk_output": 2}, outputs=outputs)
    for kind in ("grows", "buffer"):
        made[f"grouped {kind} samples of other lengths"] = grouped_case(kind, "step", counts_by_sample=(5, 3))
    return made


def standard() -> dict[str, Case]:
    """Ops of ONNX from opset 23 on, which `Case` holds as well."""
    made: dict[str, Case] = {}
    halves = {name: np.ascontiguousarray(cache[:, :4]) for name, cache in CACHES.items()}
    places = ("B S", np.array([[0, 1, 2], [5, 6, 7]]))
    heads = {"q": "B 4 S 8", "k": "B 2 S 8", "v": "B 2 S 8"}
    for is_open in (False, True):
        made[f"standard rotary {is_open=}"] = Case(
            op="RotaryEmbedding",
            inputs={"x": "B S 32", "p": places},
            constants=halves,
            order=["x", "cos", "sin", "p"],
            attrs={"num_heads": 4},
            domain="",
            opset=23,
            is_open=is_open,
        )
        made[f"standard attention {is_open=}"] = Case(
            op="Attention",
            inputs={**heads, "pk": "B 2 P 8", "pv": "B 2 P 8"},
            order=["q", "k", "v", "", "pk", "pv"],
            attrs={"is_causal": 1, "softcap": 2.0},
            outputs=("y", "k2", "v2"),
            domain="",
            opset=24,
            is_open=is_open,
        )
        for mode, first in (("linear", 4), ("circular", 8)):
            inputs = {"p": "B 2 C 4", "u": "B 2 S 4", "w": ("B", np.array([1, first]))}
            made[f"scatter {mode} {is_open=}"] = Case(
                op="TensorScatter", inputs=inputs, attrs={"mode": mode}, domain="", opset=24, is_open=is_open
            )
    inputs = {"x": "B 4 S 8", "c": "B S 2", "s": "B S 2"}
    attrs = {"interleaved": 1, "rotary_embedding_dim": 4}
    made["standard rotary of rows"] = Case(op="RotaryEmbedding", inputs=inputs, attrs=attrs, domain="", opset=23)
    inputs = {"q": "B 4 S 8", "k": "B 2 L 8", "v": "B 2 L 8", "n": ("B", np.array([3, 5]))}
    order = ["q", "k", "v", "", "", "", "n"]
    made["standard attention of valid keys"] = Case(op="Attention", inputs=inputs, order=order, domain="", opset=24)
    made["standard norm"] = Case(op="RMSNormalization", inputs={"x": "B S 8"}, constants={"g": real(8)}, domain="", opset=23)
    one = {"p": "B C 4", "u": "B S 4"}
    made["scatter of one row"] = Case(op="TensorScatter", inputs=one, attrs={"axis": 1}, domain="", opset=24, sizes={"S": 1})
    return made


CASES = {**norms(), **fused(), **integers(), **attention(), **rotary(), **grouped(), **standard()}
