"""What importers share: strict reading of JSON, names of ops, and the description on its way with what it leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import TargetError, brief, check_path
from ..description import OpSupport, TargetDescription
from ..op_facts import movers
from ..vocabulary import BATCH_MATMUL, COMPARE, ELEMENTWISE, MOVES, OPS, SELECT

UNSAID = (
    "rounding, requantize and accumulator_bits: the format has no word for them; float multipliers, half_even and 32 bits are "
    "assumed: say what the hardware does"
)
"""What neither format says, and the simulation depends on."""

WEIGHTED = ("nn.conv2d", "nn.conv2d_transpose", "matmul")
KEEPS_PARAMS = (*MOVES, *movers("view"), "nn.max_pool2d", "topk")
"""Ops whose result has the parameters of what they read wherever a format says that it is not quantized again."""

OP_NAMES: Mapping[str, tuple[str, ...]] = {
    "conv": ("nn.conv2d",),
    "depthwiseconv2d": ("nn.conv2d",),
    "convtranspose": ("nn.conv2d_transpose",),
    "gemm": ("matmul",),
    "fullyconnected": ("matmul",),
    "matmul": ("matmul", BATCH_MATMUL),
    "add": ("add",),
    "sub": ("subtract",),
    "mul": ("multiply",),
    "div": ("divide",),
    "max": ("maximum",),
    "min": ("minimum",),
    "maxpool": ("nn.max_pool2d",),
    "averagepool": ("nn.avg_pool2d",),
    "avgpool": ("nn.avg_pool2d",),
    "globalaveragepool": ("nn.adaptive_avg_pool2d",),
    "reducemean": ("mean",),
    "mean": ("mean",),
    "reducesum": ("sum",),
    "reducemax": ("max",),
    "reducemin": ("min",),
    "argmax": ("argmax",),
    "argmin": ("argmin",),
    "topk": ("topk",),
    "softmax": ("nn.softmax",),
    "logsoftmax": ("nn.log_softmax",),
    "layernormalization": ("nn.layer_norm",),
    "groupnormalization": ("nn.group_norm",),
    "concat": ("concat",),
    "concatenate": ("concat",),
    "reshape": ("reshape",),
    "flatten": ("nn.batch_flatten", "flatten"),
    "squeeze": ("squeeze",),
    "unsqueeze": ("expand_dims",),
    "expanddims": ("expand_dims",),
    "transpose": ("permute_dims",),
    "permute": ("permute_dims",),
    "slice": ("strided_slice",),
    "stridedslice": ("strided_slice",),
    "gather": ("take",),
    "tile": ("tile",),
    "pad": ("nn.pad",),
    "zeropadding2d": ("nn.pad",),
    "resize": ("image.resize2d",),
    "upsample": ("image.resize2d",),
    "relu": ("nn.relu",),
    "relu6": ("clip",),
    "clip": ("clip",),
    "hardtanh": ("clip",),
    **dict.fromkeys(("sigmoid", "tanh", "gelu", "swish", "hardswish", "hardsigmoid", "elu", "exp", "erf"), (ELEMENTWISE,)),
    **dict.fromkeys(("leakyrelu", "sqrt", "pow", "log", "abs", "neg", "softplus", "mish"), (ELEMENTWISE,)),
    "equal": (COMPARE,),
    "greater": (COMPARE,),
    "less": (COMPARE,),
    "where": (SELECT,),
}
"""Ops by the names of ONNX and of MCT's operator sets, in lower case."""


MANY = (ELEMENTWISE, COMPARE)
"""Ops of ours that stand for many of another tool's: what one of these asks for alone has no field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A description from another tool's file, and in words which of the file's fields it does not hold, and why."""

    description: TargetDescription
    unmatched: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class Draft:
    """A description on its way: ops by name, and notes of what has no counterpart."""

    ops: dict[str, OpSupport] = field(default_factory=dict[str, OpSupport])
    never: dict[str, None] = field(default_factory=dict[str, None])
    sources: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])

    def note(self, where: str, why: str) -> None:
        """Record that a field of the file has no counterpart."""
        self.notes.append(f"{where}: {why}")

    def put(self, source: str, support: OpSupport | None, name: str) -> None:
        """Take what the file's op `source` says of our op; None: the hardware has it in float only."""
        before, known = self.ops.get(name), self.sources.get(name)
        if known is not None and (before != support):
            self.note(source, f"says of {name} other than {known}, which counts")
        if known is not None:
            return
        self.sources[name] = source
        if support is None:
            self.never[name] = None
        else:
            self.ops[name] = support

    def fuse(self, where: str, first: str, others: Sequence[str]) -> None:
        """Let an op be followed by others in the same kernel; all are the file's names."""
        follows = [FOLLOWERS.get(each.lower()) for each in others]
        targets = [name for name in ops_named(first) if name in self.ops]
        if not targets or None in follows:
            self.note(where, f"{' + '.join((first, *others))} is no op with bias, nn.relu or clip behind it")
        for name in targets if None not in follows else ():
            fusions = (*self.ops[name].fusions, *(each for each in follows if each))
            self.ops[name] = replace(self.ops[name], fusions=tuple(dict.fromkeys(fusions)))

    def finished(self, name: str) -> Imported:
        """Return the description and the notes."""
        ops = tuple(self.ops[op] for op in OPS if op in self.ops)
        description = TargetDescription(name=re.sub(r"\W", "_", name), ops=ops, never=tuple(self.never))
        return Imported(description=description, unmatched=(*dict.fromkeys(self.notes), UNSAID))


FOLLOWERS = {"relu": "nn.relu", "relu6": "clip", "clip": "clip", "hardtanh": "clip", "addbias": "bias", "batchnormalization": ""}
"""What may follow in one kernel; a batch normalization is folded into the weights."""


def ops_named(name: str) -> tuple[str, ...]:
    """Return our ops for another tool's name, none where there is none."""
    return OP_NAMES.get(name.lower(), ())


def read_object(path: str | Path, kind: str) -> dict[str, Any]:
    """Return the JSON object of a file; TargetError where it is none."""
    source = check_path(path, TargetError, f"the path of {kind} (JSON)")
    try:
        data = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"{path}: cannot read {kind}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise TargetError(f"{path}: cannot read {kind}: not JSON, or truncated ({error})") from error
    return an_object(str(path), data)


def an_object(where: str, value: Any, known: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a JSON object; TargetError where it is none, or has a field that is not `known`."""
    if not isinstance(value, dict):
        raise TargetError(f"{where}: expected an object, got {brief(value)}")
    unknown = next((key for key in value if known is not None and key not in known), None)
    if unknown is not None:
        raise TargetError(f"{where}: unknown field {unknown!r}; known: {', '.join(known or ())}")
    return value


def a_list(where: str, value: Any) -> list[Any]:
    """Return a JSON list; TargetError where it is none."""
    if not isinstance(value, list):
        raise TargetError(f"{where}: expected a list, got {brief(value)}")
    return value
