"""What became of each op of a model, as data: integer or float, its kernel, why it stays float. Lowers nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from tvm.relax import Tuple, Var

from ..errors import printable
from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ..ir.graph.macs import float_macs
from ..ir.graph.places import COUNTED
from ..ir.graph.recurrence import NAME as RECURRENCE
from ..ir.identity import TensorId
from ..runtime.description import OutputSpec
from ..runtime.shapes import typical, without_sizes
from .backends.cpu.kernels import KNOWN_ISAS
from .backends.op_records import OpRecord
from .partition.attach_state import FLOAT_MODEL

INT8_MACS, FLOAT_MACS = 128, 32
"""A cycle of a core with 512-bit vectors and VNNI: two vector units, four int8 products to a 32-bit lane."""
_BYTES = 16
"""A cycle of an elementwise op, which reading and writing memory bound."""
FLOAT_BYTES = 4
_EDGES = ("quantize", "dequantize")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainedOp(OpRecord):
    """An OpRecord with the source's own name of the tensor ("" for a tensor the source doesn't have)."""

    source_name: str

    @property
    def runs_in(self) -> str:
        """Return "integer", "float", or the 16-bit dtype of the result."""
        return "integer" if self.integer else self.dtype or "float"

    @property
    def taker(self) -> str:
        """Return who takes it: a back end's name, "cpu" for the host's kernels, "tvm" for what TVM compiles."""
        return self.backend or ("cpu" if self.isa in ("", *KNOWN_ISAS) else self.isa)

    def cycles(self, *, is_integer: bool) -> float:
        """Return the modelled cycles of one inference, of its products and its result: only ratios mean much."""
        macs = self.macs / (INT8_MACS if is_integer else FLOAT_MACS)
        return macs + memory_cycles(typical(prod(self.shape)) * (1 if is_integer else FLOAT_BYTES))


def memory_cycles(size: int) -> float:
    """Return the modelled cycles that it takes to write and read so many bytes."""
    return size / _BYTES


def model_cycles(view: DataflowView) -> float:
    """Return the modelled cycles of a float model in integers: of its products, and of the results of all of its ops."""
    return sum(
        float_macs(binding.value) / INT8_MACS
        + memory_cycles(read_anew(binding.value) + typical(prod(static_shape(binding.var) or (0,))))
        for binding in view.bindings
    )


def read_anew(value: Any) -> int:
    """Return how many weights a call reads one time for each product: a recurrence, whose steps wait for one another."""
    return float_macs(value) if op_name(value) == RECURRENCE else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainedPort:
    """What a model takes or gives: its name in the source, which data files and results go by, shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """Return e.g. "image: float32 [1,3,224,224]"."""
        return printable(f"{self.name}: {self.dtype} {self.dims}")

    @property
    def dims(self) -> str:
        """The shape as text: "[1,3,224,224]"."""
        return f"[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What became of each op of a model, in graph order, and what the model takes and gives.

    Parameters
    ----------
    journal
        Of a model that was quantized here, a line for each step that was tried, and what all came to.
    """

    ops: tuple[ExplainedOp, ...]
    inputs: tuple[ExplainedPort, ...] = ()
    outputs: tuple[ExplainedPort, ...] = ()
    journal: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the ops as lines, and the summary: `octavo explain` prints them as a table."""
        rows = [(op.op, op.source_name or op.tensor, op.runs_in, op.kernel, self.reason_of(op)) for op in self.ops]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
        lines = [
            "  ".join([*(cell.ljust(size) for cell, size in zip(row, widths, strict=False)), row[4]]).rstrip() for row in rows
        ]
        return printable(
            "\n".join((*self.interface, *lines, *self.journal, self.summary, *([self.advice] if self.advice else [])))
        )

    @property
    def interface(self) -> tuple[str, ...]:
        """A line for each input and output: "takes image: float32 [1,3,224,224]"."""
        return (*(f"takes {each}" for each in self.inputs), *(f"gives {each}" for each in self.outputs))

    def reason_of(self, op: ExplainedOp) -> str:
        """Return what is to be said of an op, why it is float above all; "" where `advice` says that of all: the model is."""
        return "" if op.reason == FLOAT_MODEL and self.advice else op.reason

    @property
    def counted(self) -> tuple[ExplainedOp, ...]:
        """The ops that count in the summary: all but the edges (quantize, dequantize) and pure data movement."""
        return tuple(op for op in self.ops if op.op not in (*_EDGES, "move"))

    @property
    def summary(self) -> str:
        """One line: "62/64 ops integer, 99.8% of MACs; the float ones take 9% of the time (modelled)".

        Of a downcast model also how many results are kept in 16 bits.
        """
        integer = sum(op.integer for op in self.counted)
        macs = sum(op.macs for op in self.counted)
        share = 100.0 * sum(op.macs for op in self.counted if op.integer) / macs if macs else 0.0
        text = f"{integer}/{len(self.counted)} ops integer, {share:.1f}% of MACs"
        if 0 < integer < len(self.counted):
            text += f"; the float ones take {100 * self.float_share:.0f}% of the time (modelled)"
        for dtype in dict.fromkeys(op.dtype for op in self.counted if op.dtype):
            kept = [op for op in self.counted if op.dtype == dtype]
            share = 100.0 * sum(op.macs for op in kept) / macs if macs else 0.0
            text += f"; results of {len(kept)}/{len(self.counted)} ops {dtype}, {share:.1f}% of MACs"
        return text

    @property
    def cycles(self) -> float:
        """The modelled cycles of one inference: only ratios mean much; 1 without any op."""
        return sum(op.cycles(is_integer=op.integer) for op in self.ops) or 1.0

    @property
    def float_share(self) -> float:
        """What the ops that stay float take of the modelled time, in [0; 1]."""
        return sum(op.cycles(is_integer=False) for op in self.ops if not op.integer) / self.cycles

    @property
    def advice(self) -> str:
        """What to do about a float model, "" for a quantized one."""
        if not any(op.reason == FLOAT_MODEL for op in self.ops):
            return ""
        return (
            "the model is float: octavo.quantize(model, octavo.profile(model, samples)) makes it integer; on the command line: "
            "octavo profile MODEL --data samples.npz -o profile.json, then octavo explain MODEL --profile profile.json"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"summary": self.summary, "advice": self.advice, **without_sizes(asdict(self))}


def ports(specs: Sequence[Any]) -> tuple[ExplainedPort, ...]:
    """Return InputSpecs or OutputSpecs as an explanation has them."""
    return tuple(ExplainedPort(name=each.source_name, shape=each.shape, dtype=each.dtype) for each in specs)


def shown_names(model: Model) -> dict[str, str]:
    """Return the names that explanations show in place of the source's: those of what tensors were before they were integers."""
    return dict(model.shown_names) or names_before_quantizing(model)


def names_before_quantizing(model: Model) -> dict[str, str]:
    """Return for integers that a file in QDQ form has as tensors of their own the name of what is quantized to them."""
    found: dict[str, str] = {}
    view = DataflowView(model.module["main"])
    for binding in view.bindings:
        call = call_to(binding.value, "quantize")
        real = None if call is None else model.tensors.get(TensorId(getattr(call.args[0], "name", "")))
        integers = model.tensors.get(TensorId(binding.var.name))
        if real is not None and integers is not None:
            names = [real.source_name, *(_source_name(model, user) for user in view.users(binding.var))]
            # Exporters make the names of what they add from the tensor's own.
            shortest = min((name for name in names if name), key=len, default="")
            is_stem = all(name.startswith(shortest) for name in names if name)
            found[str(integers.id)] = shortest if is_stem else names[0]
    return found


def _source_name(model: Model, var: Var) -> str:
    entry = model.tensors.get(TensorId(var.name))
    return "" if entry is None else entry.source_name


def explained_ops(records: tuple[OpRecord, ...], model: Model) -> tuple[ExplainedOp, ...]:
    """Return what lowering a model found, with the source's names and the reasons that quantizing had."""
    named = {str(entry.id): entry.source_name for entry in model.tensors.values()} | shown_names(model)
    # Where quantizing left an op float, that is the reason; lowering only sees that nothing was quantized there.
    reasons = {str(tensor): reason for tensor, reason in model.float_reasons.items()}
    notes = {str(tensor): note for tensor, note in model.notes.items()}
    found: list[ExplainedOp] = []
    for record in records:
        chosen = None if record.integer else reasons.get(record.core, reasons.get(record.tensor))
        if record.integer and record.op not in _EDGES:
            record = replace(record, reason=notes.get(record.tensor, record.reason))
        if chosen is not None:  # what a back end finds of an op that was left float is only that it is
            record = replace(record, reason=chosen, declined="")
        found.append(ExplainedOp(**asdict(record), source_name=named.get(record.tensor, "")))
    return tuple(found)


def output_specs(model: Model) -> tuple[OutputSpec, ...]:
    """Return what "main" of a model gives, in order."""
    body = model.module["main"].body.body
    values = list(body.fields) if isinstance(body, Tuple) else [body]
    specs: list[OutputSpec] = []
    names = model.output_names or tuple(model.tensors[tensor_id].source_name for tensor_id in model.output_ids)
    counted = {binding.var for binding in DataflowView(model.module["main"]).bindings if op_name(binding.value) in COUNTED}
    for value, tensor_id, name in zip(values, model.output_ids, names, strict=True):
        shape = static_shape(value)
        assert shape is not None, "shapes are static once inputs are"
        facts: Any = {"shape": shape, "dtype": dtype_of(value), "counted": value in counted}
        specs.append(OutputSpec(id=str(tensor_id), source_name=name, **facts))
    return tuple(specs)
