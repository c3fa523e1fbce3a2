"""One ONNX op as a case: nodes, constants and fed values; several cases as one model, and what ONNX Runtime computes for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx.helper import make_node, make_opsetid, make_tensor, make_tensor_value_info
from onnx.reference import ReferenceEvaluator

from reference_sessions import reference_session

MICROSOFT = "com.microsoft"
UNFUSED = frozenset({"Softmax"})
"""Float ops between Q and DQ, compared with what they give alone: what ONNX Runtime fuses them to rounds otherwise."""
OPSET, OPSET_OF_NARROW_TYPES = 18, 21
_ELEMENT_TYPES = {
    "int4": onnx.TensorProto.INT4,
    "uint4": onnx.TensorProto.UINT4,
    **{
        name: onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))
        for name in ("float32", "int8", "uint8", "int16", "uint16", "int32", "int64", "bool")
    },
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One op. `kind` says what its tensors are; `outputs` are names with element types; names are the case's own."""

    op: str
    label: str
    kind: str
    nodes: tuple[onnx.NodeProto, ...]
    constants: dict[str, onnx.TensorProto]
    feeds: dict[str, np.ndarray]
    outputs: dict[str, str]

    @property
    def fed(self) -> tuple[np.ndarray, ...]:
        """The fed values in the order of the inputs."""
        return tuple(self.feeds.values())


def write(cases: list[Case]) -> onnx.ModelProto:
    """Return a model that holds all cases side by side; inputs and outputs are in the order of the cases."""
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    inputs: list[onnx.ValueInfoProto] = []
    outputs: list[onnx.ValueInfoProto] = []
    for number, case in enumerate(cases):
        prefix = f"c{number}_"
        for node in case.nodes:
            copy = onnx.NodeProto.FromString(node.SerializeToString())
            copy.input[:] = [prefix + name if name else "" for name in node.input]
            copy.output[:] = [prefix + name for name in node.output]
            nodes.append(copy)
        for name, tensor in case.constants.items():
            copy = onnx.TensorProto.FromString(tensor.SerializeToString())
            copy.name = prefix + name
            constants.append(copy)
        for name, array in case.feeds.items():
            inputs.append(make_tensor_value_info(prefix + name, _ELEMENT_TYPES[str(array.dtype)], array.shape))
        outputs += [make_tensor_value_info(prefix + name, _ELEMENT_TYPES[kind], None) for name, kind in case.outputs.items()]
    graph = onnx.helper.make_graph(nodes, "cases", inputs, outputs, constants)
    narrow = any(tensor.data_type not in _COMMON_TYPES for tensor in constants)
    opsets = [make_opsetid("", OPSET_OF_NARROW_TYPES if narrow else OPSET), make_opsetid(MICROSOFT, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


_COMMON_TYPES = frozenset(_ELEMENT_TYPES[name] for name in ("float32", "int8", "uint8", "int32")) | {
    onnx.TensorProto.INT64,
    onnx.TensorProto.BOOL,
}


def onnx_runtime(model: onnx.ModelProto, feeds: dict[str, np.ndarray], *, optimized: bool = True) -> list[np.ndarray]:
    """Return the outputs of a model on one thread; if `optimized`, QDQ groups computed in integers, of int8 activations too."""
    if {node.op_type for node in model.graph.node} == {"MatMulInteger"}:
        # Of two activations: only int8 that is constant becomes uint8. ONNX's own evaluation multiplies in int32.
        return ReferenceEvaluator(model).run(None, feeds)
    session = reference_session(model, optimized=optimized, int8_allowed=True, threads=1)
    return [np.asarray(value) for value in session.run(None, feeds)]


def peer(_data: bytes, cases: list[Case]) -> list[list[np.ndarray]]:
    """Return the outputs of each case as ONNX Runtime computes them, each kind in a session of its own."""
    found: dict[Case, list[np.ndarray]] = {}
    # A session is exact for uint8 activations or for int8 ones.
    for kind, is_fused in dict.fromkeys((case.kind, case.op not in UNFUSED) for case in cases):
        group = [case for case in cases if (case.kind, case.op not in UNFUSED) == (kind, is_fused)]
        feeds = {f"c{number}_{name}": array for number, case in enumerate(group) for name, array in case.feeds.items()}
        results = iter(onnx_runtime(write(group), feeds, optimized=is_fused))
        found |= {case: [next(results) for _ in case.outputs] for case in group}
    return [found[case] for case in cases]


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantized:
    """An integer tensor of a case under construction: the names of its values, scale and zero point."""

    values: str
    scale: str
    zero_point: str
    real_scale: np.ndarray

    @property
    def names(self) -> list[str]:
        """As QOperator nodes list them."""
        return [self.values, self.scale, self.zero_point]


@dataclass(kw_only=True, eq=False)
class Writer:
    """Collects one case. `activation` and `weight` are the dtypes that it draws."""

    rng: np.random.Generator
    activation: str
    weight: str = "int8"
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)

    def case(self, op: str, label: str, kind: str) -> Case:
        """Return what was collected."""
        return Case(
            op=op,
            label=label,
            kind=kind,
            nodes=tuple(self.nodes),
            constants=self.constants,
            feeds=self.feeds,
            outputs=self.outputs,
        )

    def constant(self, values: Any, dtype: str = "") -> str:
        """Add a constant; `dtype` is for those that numpy lacks."""
        name = f"k{len(self.constants)}"
        array = np.asarray(values)
        if dtype in ("int4", "uint4"):
            tensor = make_tensor(name, _ELEMENT_TYPES[dtype], array.shape, array.reshape(-1).tolist())
        else:
            tensor = onnx.numpy_helper.from_array(array.astype(dtype) if dtype else array, name)
        self.constants[name] = tensor
        return name

    def feed(self, array: np.ndarray) -> str:
        """Add an input."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return name

    def quantized(self, shape: tuple[int, ...], dtype: str = "", *, scale: float = 0.0, constant: bool = False) -> Quantized:
        """Add an activation, drawn over the whole range of its dtype; `scale` 0 draws one."""
        dtype = dtype or self.activation
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        real = np.float32(scale or 2.0 ** self.rng.uniform(-7, -3) / (256 if dtype.endswith("16") else 1))
        zero_point = self.rng.integers(low, high + 1)
        values = self.rng.integers(low, high + 1, shape).astype(dtype)
        return Quantized(
            values=self.constant(values) if constant else self.feed(values),
            scale=self.constant(real),
            zero_point=self.constant(zero_point, dtype),
            real_scale=real,
        )

    def weights(self, shape: tuple[int, ...], axis: int, *, per_axis: bool) -> Quantized:
        """Add weights of 7 bits: without VNNI, ONNX Runtime's kernels saturate sums of two products of 8 bits by 8."""
        count = shape[axis] if per_axis else 1
        scale = self.rng.uniform(0.001, 0.02, count).astype(np.float32)
        if self.weight == "int8":
            values, zero_point = self.rng.integers(-63, 64, shape), np.zeros(count)
        else:
            values, zero_point = self.rng.integers(64, 192, shape), self.rng.integers(110, 146, count)
        # QOperator nodes of ONNX Runtime take one zero point for all channels only where they are equal.
        zero_point = np.full(count, zero_point[0])
        if not per_axis:
            scale, zero_point = scale[0], zero_point[0]
        return Quantized(
            values=self.constant(values, self.weight),
            scale=self.constant(scale),
            zero_point=self.constant(zero_point, self.weight),
            real_scale=scale,
        )

    def node(self, op: str, inputs: list[str], *, domain: str = "", count: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or of each where there are several."""
        names = [f"t{len(self.nodes)}_{position}" for position in range(count)]
        stated = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(make_node(op, inputs, names, domain=domain, **stated))
        return names[0] if count == 1 else names

    def real(self, x: Quantized, axis: int | None = None) -> str:
        """Dequantize."""
        return self.node("DequantizeLinear", x.names, axis=axis)

    def output(self, name: str, dtype: str = "") -> None:
        """Name a result of the case."""
        self.outputs[name] = dtype or self.activation

    def span(self, name: str) -> tuple[float, float]:
        """Return the least and the largest value of a float result, as the fed values give it."""
        probe = Case(
            op="",
            label="",
            kind="",
            nodes=tuple(self.nodes),
            constants=self.constants,
            feeds=self.feeds,
            outputs={name: "float32"},
        )
        ((values,),) = peer(write([probe]).SerializeToString(), [probe])
        return float(values.min(initial=0.0)), float(values.max(initial=0.0))

    def result_params(self, name: str, dtype: str = "") -> list[str]:
        """Draw scale and zero point that about cover a float result: some values saturate, some of the range is left."""
        dtype = dtype or self.activation
        info = np.iinfo(dtype)
        low, high = self.span(name)
        scale = max(high - low, 1e-3) / (info.max - info.min) * float(self.rng.uniform(0.8, 1.6))
        zero_point = int(np.clip(np.rint(info.min - low / scale) + self.rng.integers(-9, 10), info.min, info.max))
        return [self.constant(np.float32(scale)), self.constant(zero_point, dtype)]

    def quantize(self, name: str, params: list[str] | None = None, dtype: str = "") -> None:
        """End a float result in a QuantizeLinear, with parameters that cover it where none are given."""
        dtype = dtype or self.activation
        stated = self.result_params(name, dtype) if params is None else params
        self.output(self.node("QuantizeLinear", [name, *stated]), dtype)

    def params_for(self, build: Any, dtype: str = "") -> list[str]:
        """Draw parameters that cover the float result whose nodes `build()` writes; the nodes go again."""
        before = list(self.nodes)
        params = self.result_params(build(), dtype)
        self.nodes[:] = before
        return params
