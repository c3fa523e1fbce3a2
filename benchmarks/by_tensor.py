"""Each integer tensor of an ONNX file against ONNX Runtime, computed from our own integers before it: no step adds to another.

A value that lies beside a tie of a rounding becomes another integer by the last bit of a float sum, whose order is nobody's
definition, and what is computed from it is off by more. From the same integers only a fault is off by more than a step. Of what
is quantized by scales of its own when run, the float values before that are the same: so are its integers.

It must not decide which of ONNX Runtime's sessions counts: the caller says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import octavo
from reference_sessions import reference_session

Feed = dict[str, np.ndarray]
FED = "__fed"
"""Behind the name of a tensor: what its readers read in its place."""
CHOSEN_AT_RUN_TIME = ("Cast", "DynamicQuantizeLinear")
"""Whose integers have no scale in the file: they stay what each computes, of the same float values."""
READS_ROWS = ("ReduceMin", "DynamicQuantizeLinear")
"""What a tensor's scales at run time are computed by."""
FLOAT_ERROR = 2e-5
"""Of an output's largest value: what float sums in another order may differ by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Apart:
    """How far one tensor is from what ONNX Runtime computes from our integers before it.

    Parameters
    ----------
    op
        Of the node that computes it; of a QuantizeLinear, of what is quantized.
    steps
        Of an integer tensor the largest difference; of a float one in `FLOAT_ERROR` of its largest value.
    count, size
        How many values differ, of how many.
    """

    tensor: str
    op: str
    steps: float
    count: int
    size: int


def with_taps(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, str]]:
    """Return the file with such tensors as outputs, the same read from inputs beside, and the op of each output."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(proto)
    graph = tapped.graph
    types = _fed_types(proto)
    outputs = {output.name for output in graph.output}
    graph.output.extend(
        onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in types.items() if name not in outputs
    )
    fed = onnx.ModelProto()
    fed.CopyFrom(tapped)
    for node in fed.graph.node:
        for place, name in enumerate(node.input):
            if name in types:
                node.input[place] = name + FED
    fed.graph.input.extend(onnx.helper.make_tensor_value_info(name + FED, kind, None) for name, kind in types.items())
    return tapped, fed, _ops(proto, [output.name for output in graph.output])


def _fed_types(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the type that ONNX Runtime infers of each tensor that depends on inputs and has 8 or 16 bits or is read by rows."""
    known = {each.name for each in proto.graph.initializer}
    moving = {each.name for each in proto.graph.input} - known
    every = onnx.ModelProto()
    every.CopyFrom(proto)
    outputs = {output.name for output in every.graph.output}
    for node in every.graph.node:
        if moving & set(node.input) and node.op_type not in CHOSEN_AT_RUN_TIME:
            every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name and name not in outputs)
        if moving & set(node.input):
            moving |= set(node.output)
    kinds = {
        "tensor(uint8)": onnx.TensorProto.UINT8,
        "tensor(int8)": onnx.TensorProto.INT8,
        "tensor(uint16)": onnx.TensorProto.UINT16,
        "tensor(int16)": onnx.TensorProto.INT16,
    }
    session = reference_session(every, optimized=False, threads=1)
    made = {name for node in every.graph.node if node.op_type not in CHOSEN_AT_RUN_TIME for name in node.output}
    found = {each.name: kinds[each.type] for each in session.get_outputs() if each.type in kinds and each.name in made}
    rows = {node.input[0] for node in proto.graph.node if node.op_type in READS_ROWS}
    return found | {each.name: onnx.TensorProto.FLOAT for each in session.get_outputs() if each.name in rows & made}


def _ops(proto: onnx.ModelProto, names: Sequence[str]) -> dict[str, str]:
    producers = {name: node for node in proto.graph.node for name in node.output}
    found: dict[str, str] = {}
    for name in names:
        node = producers.get(name)
        if node is not None and node.op_type == "QuantizeLinear":
            node = producers.get(node.input[0], node)
        found[name] = "none" if node is None else node.op_type
    return found


def apart(
    proto: onnx.ModelProto, feeds: Sequence[Feed], ours: Sequence[Mapping[str, Any]] = (), *, optimized: Sequence[bool] = (False,)
) -> Iterator[list[Apart]]:
    """Compare what is computed from the same integers; yield each tensor that differs from each of ONNX Runtime's sessions.

    `ours` are the results of the file as it is: octavo.OctavoError where more outputs make others of them, for then the tensors
    are not those of the file.
    """
    tapped, fed, ops = with_taps(proto)
    executable = octavo.compile(octavo.load(tapped))
    runs = [{name: np.asarray(value) for name, value in executable(feed).items()} for feed in feeds]
    for run, plain in zip(runs, ours, strict=False):
        for name, value in plain.items():
            if run[name].tobytes() != np.asarray(value).tobytes():
                raise octavo.OctavoError(f"output {name} is another one where its tensors are outputs, too")
    for session in optimized:
        yield _beside(fed, ops, feeds, runs, optimized=session)


def _beside(
    fed: onnx.ModelProto, ops: Mapping[str, str], feeds: Sequence[Feed], runs: Sequence[Feed], *, optimized: bool
) -> list[Apart]:
    session = reference_session(fed, optimized=optimized, threads=1)
    wanted = [each.name for each in session.get_inputs()]
    theirs = [
        session.run(None, {name: run[name.removesuffix(FED)] if name.endswith(FED) else feed[name] for name in wanted})
        for run, feed in zip(runs, feeds, strict=True)
    ]
    found: list[Apart] = []
    for place, name in enumerate(output.name for output in fed.graph.output):
        mine = np.concatenate([np.ravel(run[name]) for run in runs])
        other = np.concatenate([np.ravel(run[place]) for run in theirs])
        one = _apart(name, ops[name], mine, other)
        if one.count:
            found.append(one)
    return found


def _apart(name: str, op: str, mine: np.ndarray, other: np.ndarray) -> Apart:
    off = np.abs(mine.astype(np.float64) - other.astype(np.float64))
    if mine.dtype.kind == "f":
        off /= FLOAT_ERROR * max(float(np.abs(other).max(initial=0)), 1e-6)
    counted = off > (1.0 if mine.dtype.kind == "f" else 0.0)
    return Apart(tensor=name, op=op, steps=float(off.max(initial=0)), count=int(np.count_nonzero(counted)), size=int(mine.size))
