"""Random networks of ONNX's own node cases, so of all its ops, between convolutions and products: does each go all the way?

    python benchmarks/case_networks.py 0 1000
    python benchmarks/case_networks.py 0 1000 --default  quantized by default, not by plain min-max

A node of the installed `onnx` package's cases reads what earlier ones made, brought to the shape, type and range that the case
feeds it; what decides shapes stays a constant. In float the values must be ONNX Runtime's; quantized, the exported file is what
ran (`exported`). One value in fifty may differ: ops with steps (Round, ArgMax, comparisons) may fall otherwise. Kernels are not
optimized: the same bytes. One line a network that is refused or at fault; refusals alone are none.
"""

from __future__ import annotations

import argparse
import functools
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import octavo
import onnx_suite
from exported import CALIBRATION, FAULTS, FRESH, Feed, compared, quantized_by
from octavo.compiler.codegen import tir_passes
from octavo.quantizer.qdq import is_quantized
from random_networks import normal_feeds
from reference_sessions import reference_session

FIRST_OPSET, LAST_OPSET = 13, 24
"""Of the networks: what ONNX Runtime knows best."""
STEPS = 4
LARGEST_CASE, LARGEST_VALUE = 4096, 1e4
"""Values of a case's tensor, and of a network's results."""
MOST_STEPS_APART, NEAR = 0.02, 1e-5
"""Share of float values that may be another step, and how far the others may be off their largest."""
FLOATS = ("float16", "float32", "float64", "bfloat16")
WITHOUT = frozenset({"Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"})
"""Ops whose values nobody can compare."""


@functools.cache
def node_cases() -> tuple[Any, ...]:
    """Return the cases of one node of ONNX's own domain whose tensors are numbers, or yes and no, and few."""
    found: list[Any] = []
    for case in onnx_suite.cases():
        graph = case.model.graph
        if len(graph.node) != 1 or graph.node[0].domain or graph.node[0].op_type in WITHOUT or case.model.functions:
            continue
        [(inputs, outputs), *_] = case.data_sets
        if all(_is_plain(value) for value in (*inputs, *outputs)) and any(np.asarray(value).size for value in outputs):
            found.append(case)
    return tuple(found)


def _is_plain(value: Any) -> bool:
    if not isinstance(value, np.ndarray | np.generic):
        return False
    value = np.asarray(value)
    return value.dtype.kind in "fiub" and value.size <= LARGEST_CASE and onnx.helper.np_dtype_to_tensor_dtype(value.dtype) <= 16


def _version(case: Any) -> int:
    return next(each.version for each in case.model.opset_import if not each.domain)


def _is_of(case: Any, opset: int) -> bool:
    """Whether the case's op is the same one in that version of the operator set."""
    op = case.model.graph.node[0].op_type
    try:
        return onnx.defs.get_schema(op, opset).since_version == onnx.defs.get_schema(op, _version(case)).since_version
    except onnx.defs.SchemaError:
        return False


class _Network:
    """A network under construction: float32 tensors of known shapes, the last of which is read next."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.integers(FIRST_OPSET, LAST_OPSET + 1))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.names: list[str] = []

    def node(self, op: str, inputs: Sequence[str], shape: Sequence[int], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}_{op}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.shapes[name] = tuple(shape)
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def shaped(self, source: str, shape: Sequence[int]) -> str:
        """Return a tensor's values in another shape, as many of them as it needs, again and again where they are few."""
        have, need = int(np.prod(self.shapes[source])), int(np.prod(shape))
        name = self.node("Reshape", [source, self.constant(np.array([-1]))], (have,))
        if have < need:
            times = -(-need // have)
            name, have = self.node("Tile", [name, self.constant(np.array([times]))], (have * times,)), have * times
        if have > need:
            name = self.node("Slice", [name, *(self.constant(np.array([at])) for at in (0, need, 0))], (need,))
        return self.node("Reshape", [name, self.constant(np.array(shape, np.int64))], shape)

    def like(self, source: str, value: np.ndarray) -> str:
        """Return a tensor's values as a case has its own: of their shape, range and type."""
        name = self.shaped(source, value.shape)
        if value.dtype.kind == "b":
            return self.node("Greater", [name, self.constant(np.float32(0))], value.shape)
        known = value.astype(np.float64)
        known = known[np.isfinite(known)]
        low, high = (np.float32(bound) for bound in ((known.min(), known.max()) if known.size else (0, 1)))
        name = self.node("Clip", [name, self.constant(low), self.constant(high)], value.shape)
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        return name if kind == TensorProto.FLOAT else self.node("Cast", [name], value.shape, to=kind)

    def case(self, case: Any) -> None:
        """Add a case's node and what brings its results to float32."""
        node = onnx.NodeProto()
        node.CopyFrom(case.model.graph.node[0])
        [(inputs, outputs), *_] = case.data_sets
        values = dict(zip((each.name for each in case.model.graph.input), map(np.asarray, inputs), strict=True))
        for place, name in enumerate(node.input):
            if name:
                value = values[name]
                is_fed = value.dtype.kind in "fb" if value.ndim and value.size else False
                is_read = is_fed and (place == 0 or self.rng.random() < 0.5)
                is_read |= place == 0 and value.ndim > 1 and value.size > 0 and value.dtype.kind in "iu"
                node.input[place] = self.like(self.pick(), value) if is_read else self.constant(value)
        names = {each.name: f"t{len(self.nodes)}_{node.op_type}_{each.name}" for each in case.model.graph.output}
        node.output[:] = [names.get(name, name and f"unread{len(self.nodes)}") for name in node.output]
        self.nodes.append(node)
        for each, value in zip(case.model.graph.output, map(np.asarray, outputs), strict=True):
            name = names[each.name]
            self.shapes[name] = value.shape
            if value.dtype != np.float32:
                name = self.node("Cast", [name], value.shape, to=TensorProto.FLOAT)
            if value.size and value.size <= LARGEST_CASE:
                self.names.append(name)

    def pick(self) -> str:
        """Return one of the last tensors."""
        return self.names[-1 - min(int(self.rng.geometric(0.6)) - 1, len(self.names) - 1)]

    def layer(self) -> None:
        """Add a convolution or a product of the last tensor."""
        source = self.names[-1]
        if self.rng.random() < 0.5:
            name = self.shaped(source, (1, 4, 6, 6))
            weight = self.constant((self.rng.standard_normal((4, 4, 3, 3)) / 4).astype(np.float32))
            name = self.node("Conv", [name, weight], (1, 4, 6, 6), pads=[1] * 4)
        else:
            name = self.shaped(source, (6, 8))
            weight = self.constant((self.rng.standard_normal((8, 12)) / 2).astype(np.float32))
            name = self.node("MatMul", [name, weight], (6, 12))
        self.names.append(name)

    def model(self) -> onnx.ModelProto:
        """Return what was made; what nobody reads is its results."""
        read = {name for node in self.nodes for name in node.input}
        results = [name for name in self.names if name not in read]
        graph = helper.make_graph(
            self.nodes,
            "cases",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shapes["x"])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in results],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)


def case_network(seed: int, steps: int = STEPS) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
    """Return a random network, and the shape of its input."""
    network = _Network(seed)
    network.shapes["x"] = (1, 4, 6, 6)
    network.names.append("x")
    ops = sorted({case.model.graph.node[0].op_type for case in node_cases()})
    network.layer()
    for _ in range(steps):
        op = ops[network.rng.integers(len(ops))]  # an op first: some have hundreds of cases
        known = [case for case in node_cases() if case.model.graph.node[0].op_type == op and _is_of(case, network.opset)]
        if known:
            network.case(known[network.rng.integers(len(known))])
            if network.rng.random() < 0.5:
                network.layer()
    return network.model(), {"x": network.shapes["x"]}


def _values(made: onnx.ModelProto, feeds: Sequence[Feed]) -> list[list[np.ndarray]] | None:
    """Return ONNX Runtime's values; None where it refuses, or they are hardly numbers."""
    try:
        session = reference_session(made.SerializeToString(), optimized=False, threads=1)
        values = [session.run(None, feed) for feed in feeds]
    except Exception:  # its own, which share no class
        return None
    flat = [value for run in values for value in run]
    return values if all(np.isfinite(value).all() and np.abs(value).max(initial=0) <= LARGEST_VALUE for value in flat) else None


def outcome(seed: int, *, steps: int = STEPS, plain: bool = True, most_apart: float = MOST_STEPS_APART) -> tuple[str, str]:
    """Return what became of a network, and one line; `most_apart` is the share of values that may be another step."""
    made, shapes = case_network(seed, steps)
    feeds = normal_feeds(shapes, np.random.default_rng(seed), CALIBRATION + FRESH)
    wanted = _values(made, feeds[CALIBRATION:])
    if wanted is None:
        return "not looked at", ""
    try:
        model = octavo.load(made)
        executable = octavo.compile(model)
        given = [list(executable(feed).values()) for feed in feeds[CALIBRATION:]]
        if wrong := _difference(given, wanted, [each.name for each in made.graph.output], most_apart):
            return "differ", f"in float: {wrong}"
        if is_quantized(model):  # a case quantizes
            return "quantized already", ""
        found = compared(quantized_by(model, octavo.profile(model, feeds[:CALIBRATION]), plain=plain), feeds[CALIBRATION:])
    except octavo.OctavoError as error:
        return "refused", str(error)
    except Exception as error:  # a fault of ours, whatever it is; the networks behind it are looked at all the same
        return "raw", f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
    if found.is_same:
        return "the same", ""
    are_steps = not found.reload_db and max(found.runtime_shares.values()) <= most_apart
    return ("ties" if found.of_ties or are_steps else "differ"), found.said


def _difference(given: list[list[np.ndarray]], wanted: list[list[np.ndarray]], names: Sequence[str], most_apart: float) -> str:
    for place, name in enumerate(names):
        ours, theirs = (np.stack([run[place] for run in runs]).astype(np.float64) for runs in (given, wanted))
        if ours.shape != theirs.shape:
            return f"{name} has shape {ours.shape}, not {theirs.shape}"
        is_off = ~(np.abs(ours - theirs) <= NEAR * max(1e-3, float(np.abs(theirs).max(initial=0))))
        if is_off.sum() > most_apart * is_off.size:
            return f"{is_off.sum()} of {is_off.size} values of {name}"
    return ""


def main() -> None:
    """Look at all, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--default", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tir_passes.KERNEL_LEVEL = 0
    seen: Counter[str] = Counter()
    for seed in range(options.first, options.end):
        kind, said = outcome(seed, plain=not options.default)
        seen[kind] += 1
        if kind in FAULTS:
            print(f"{seed}: {kind}: {said}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in seen.items()))
    sys.exit(any(seen[kind] for kind in FAULTS if kind != "refused"))


if __name__ == "__main__":
    main()
