"""A .tflite file of several subgraphs, of variables, or of weights of fewer than 8 bits becomes one plain subgraph.

    WHILE, IF, CALL_ONCE, STABLEHLO_COMPOSITE   the ops of the subgraphs that they call
    VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE  an input, and an output NAME_next: the caller gives the state, and takes the next
    variable tensors of LSTM, RNN, SVDF         the same, and the layer as its steps (recurrent.py)
    weights of 2 and 4 bits                     int8; in blocks with a scale each: float32
    constants behind the FlatBuffer             constants within, as far as 2 GB of them fit

A variable that nothing writes is a constant. Both branches of an IF are computed and SELECT_V2 chooses. A WHILE is written out as
often as it runs, where that follows from numbers in the file or from what is fed, else it stays as an op of what its condition
reads. A file of several signatures is that of one of them, of the first subgraph where none is asked for; what nothing calls is
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ModelError, UnsupportedOpError
from ..frontend import RejectedOpError
from .flat_graph import OP_NAMES, FlatGraph, TooManyOpsError
from .flatbuffer import Table, lies_outside, op_number, read_tables, write_tables
from .known_values import computed
from .narrow_weights import NARROW, widen
from .recurrent import LAYERS, States, expand_layer

_MAX_STEPS = 1000
_CALLS = {
    "CALL_ONCE": ("BuiltinOptions", "InitSubgraphIndex"),
    "STABLEHLO_COMPOSITE": ("BuiltinOptions2", "DecompositionSubgraphIndex"),
}
_VARIABLES = frozenset({"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"})
_REPLACED = LAYERS | _VARIABLES | {*_CALLS, "IF", "WHILE"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainFile:
    """The bytes of a file of one plain subgraph, and what the variables that are its inputs are first, by their names."""

    data: bytes | mmap
    starts: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict[str, npt.NDArray[Any]])


def flattened(
    model: Any,
    data: bytes | mmap,
    origin: str,
    signature: str | None = None,
    values: Mapping[str, npt.NDArray[Any]] | None = None,
) -> PlainFile:
    """Return a file of one plain subgraph: the bytes given where it is one. Inputs that have `values` are constants.

    Raises
    ------
    ModelError
        If it has no such signature.
    UnsupportedOpError
        If what a variable does is known at run time only.
    """
    main = 0 if signature is None else _subgraph_of(model, signature, origin)
    graph = model.Subgraphs(main)
    names = {OP_NAMES.get(op_number(model.OperatorCodes(index)), "") for index in range(model.OperatorCodesLength())}
    tensors = [graph.Tensors(index) for index in range(graph.TensorsLength())]
    is_narrow = any(tensor.Type() in NARROW for tensor in tensors)
    is_outside = any(lies_outside(model.Buffers(index)) for index in range(model.BuffersLength()))
    if model.SubgraphsLength() == 1 and not names & _REPLACED and not is_narrow and not is_outside and not values:
        return PlainFile(data=data)
    tables = read_tables(data)
    widen(tables, model)
    writer = _Writer(tables, main, origin)
    for name, value in (values or {}).items():
        writer.fix(name, value)
    try:
        writer.write_main()
    except TooManyOpsError as error:
        raise UnsupportedOpError(f"{origin}: its loops and layers, written out, are {error}, which is not supported") from None
    return PlainFile(data=write_tables(tables), starts=writer.starts)


def _subgraph_of(model: Any, signature: str, origin: str) -> int:
    """Return the place of the subgraph that a signature names."""
    found = [model.SignatureDefs(index) for index in range(model.SignatureDefsLength())]
    names = {(each.SignatureKey() or b"").decode(): int(each.SubgraphIndex()) for each in found}
    if signature not in names:
        has = f"has the signatures {', '.join(map(repr, names))}" if names else "has no signatures: leave the name out"
        raise ModelError(f"{origin}: {has}; {signature!r} is none of them" if names else f"{origin}: {has}")
    if names[signature] >= model.SubgraphsLength():
        raise ModelError(f"{origin}: corrupt .tflite file (signature {signature!r} names subgraph {names[signature]})")
    return names[signature]


class _Writer(States):
    """Writes one subgraph, `main`, with all that it calls."""

    def __init__(self, model: Table, main: int, origin: str) -> None:
        self._model, self._place, self._origin = model, main, origin
        self._graphs: list[Table] = model["Subgraphs"]
        self._flat = FlatGraph(model, main)
        self._main = Table(kind="SubGraph", fields=dict(self._graphs[main].fields))
        self._now: dict[str, int] = {}
        self._states: dict[str, int] = {}
        self._handles: dict[int, str] = {}
        self.starts: dict[str, npt.NDArray[Any]] = {}
        """What variables that are written later, too, are first."""
        self._assigned = self._assigned_names()
        self._once = False
        """Whether what is written is run once, before all else."""

    def fix(self, name: str, value: npt.NDArray[Any]) -> None:
        """Make an input a constant."""
        index = next(index for index in self._flat.inputs if self._flat.name(index) == name)
        self._flat.inputs.remove(index)
        self._flat.tensors[index]["Buffer"] = self._flat.buffer(value)

    def write_main(self) -> None:
        """Write the main graph, then what it says of itself."""
        indices = {index: index for index in range(len(self._flat.tensors))}
        found = self._ops(self._main, indices)
        outputs = [self._named(found[int(index)], int(index)) for index in self._main["Outputs"]]
        for name, value in self._states.items():
            outputs.append(self._next(name, value))
        outputs = [self._own(index) for index in outputs]
        order = self._flat.finish(outputs)
        self._model["Subgraphs"] = [self._flat.graph]
        self._model["SignatureDefs"] = None if self._states else self._signatures(order)

    def _named(self, index: int, output: int) -> int:
        """Return what an output is, of the output's name: what is known is a constant, what a subgraph computes is renamed."""
        value = self._flat.value(index)
        if value is not None and index != output:
            self._flat.values[output] = value
            return output
        if index >= len(self._main["Tensors"]):
            self._flat.tensors[index]["Name"] = self._flat.tensors[output]["Name"]
        return index

    def _signatures(self, order: Mapping[int, int]) -> list[Table] | None:
        kept = [each for each in self._model["SignatureDefs"] or [] if each.number("SubgraphIndex") == self._place]
        places = [entry for each in kept for name in ("Inputs", "Outputs") for entry in each[name] or []]
        if any(entry.number("TensorIndex") not in order for entry in places):
            return None
        for entry in places:
            entry["TensorIndex"] = order[entry.number("TensorIndex")]
        for each in kept:
            each["SubgraphIndex"] = None
        return kept or None

    def _own(self, index: int) -> int:
        """Return a tensor that is known, as a constant."""
        value = self._flat.values.get(index)
        if value is None or not self._flat.dtype(index):
            return index
        self._flat.tensors[index]["Buffer"] = self._flat.buffer(value)
        return index

    # ------------------------------------------------------------------------------------------------------------- ops

    def _ops(self, graph: Table, found: dict[int, int]) -> dict[int, int]:
        """Write a graph's ops; `found` leads from its tensors to those that are written, and grows by what ops make."""
        for op in graph["Operators"] or []:
            name = self._flat.op_name(op)
            moved = op.copied()
            moved["Inputs"] = np.asarray([found[int(index)] if index >= 0 else -1 for index in _numbers(op, "Inputs")], np.int32)
            moved["Outputs"] = np.asarray([found[int(index)] for index in _numbers(op, "Outputs")], np.int32)
            if op["Intermediates"] is not None:
                moved["Intermediates"] = np.asarray([found[int(index)] for index in op["Intermediates"]], np.int32)
            results = self._op(name, moved)
            for index, result in zip(_numbers(op, "Outputs"), results, strict=True):
                found[int(index)] = result
        return found

    def _op(self, name: str, op: Table) -> list[int]:
        """Write one op whose operands are written, and return what its results became."""
        inputs, outputs = [int(index) for index in op["Inputs"]], [int(index) for index in op["Outputs"]]
        if name in _VARIABLES:
            return self._variable(name, op, inputs, outputs)
        if name in _CALLS:
            field, key = _CALLS[name]
            return self._call(name, self._graphs[_place_of(op, field, key)], inputs, outputs)
        if name == "IF":
            return self._branch(op, inputs, outputs)
        if name == "WHILE":
            return self._loop(op, inputs, outputs)
        if name in LAYERS:
            try:
                expand_layer(name, self._flat, op, self)
            except RejectedOpError as error:
                raise self._refusal(name, outputs, f"{error}, which is not supported") from None
            return outputs
        known = [self._flat.value(index) for index in inputs]
        values = computed(name, op, known, [self._flat.shape(index) for index in outputs])
        if values is not None:
            self._flat.values.update(zip(outputs, values, strict=True))
            return outputs
        for index in inputs:
            if index in self._flat.values:
                self._own(index)
        self._flat.add_op(op)
        return outputs

    def _call(self, name: str, graph: Table, inputs: list[int], outputs: list[int]) -> list[int]:
        self._once = self._once or name == "CALL_ONCE"
        results = self._inlined(graph, inputs, outputs)
        self._once = self._once and name != "CALL_ONCE"
        return results

    def _inlined(self, graph: Table, inputs: list[int], outputs: list[int] | None = None) -> list[int]:
        """Write a graph's ops; what they make has the names of `outputs`, the tensors of the op that calls it."""
        found: dict[int, int] = dict(zip((int(index) for index in _numbers(graph, "Inputs")), inputs, strict=True))
        made = {int(index) for op in graph["Operators"] or [] for index in _numbers(op, "Outputs")}
        results = [int(index) for index in _numbers(graph, "Outputs")]
        for index, output in zip(results, outputs if outputs is not None else results, strict=True):
            if outputs is not None and index in made and index not in found:
                found[index] = output
        for index, tensor in enumerate(graph["Tensors"] or []):
            if index not in found:
                found[index] = self._flat.add_tensor(tensor.copied())
        found = self._ops(graph, found)
        return [found[index] for index in results]

    def _branch(self, op: Table, inputs: list[int], outputs: list[int]) -> list[int]:
        chosen, *operands = inputs
        keys = ("ThenSubgraphIndex", "ElseSubgraphIndex")
        sides = [self._graphs[_place_of(op, "BuiltinOptions", key)] for key in keys]
        known = self._flat.value(chosen)
        if known is not None:
            return self._inlined(sides[0 if known.all() else 1], operands, outputs)
        before = dict(self._now)
        results = [self._inlined(side, operands) for side in sides]
        if self._now != before:
            raise self._refusal("IF", outputs, "it writes a variable in one of its branches, which is not supported")
        for output, *pair in zip(outputs, *results, strict=True):
            for index in pair:
                self._own(index)
            self._flat.op("SELECT_V2", [chosen, *pair], [output], "SelectV2Options")
        return outputs

    def _loop(self, op: Table, inputs: list[int], outputs: list[int]) -> list[int]:
        keys = ("CondSubgraphIndex", "BodySubgraphIndex")
        condition, body = (self._graphs[_place_of(op, "BuiltinOptions", key)] for key in keys)
        carried, start, before = inputs, len(self._flat.ops), (dict(self._now), dict(self._states))
        for _ in range(_MAX_STEPS):
            count = len(self._flat.ops)
            [goes_on] = self._inlined(condition, carried)
            known = self._flat.value(goes_on)
            if known is None:
                del self._flat.ops[start:]
                self._now, self._states = before
                self._flat.op("WHILE", [self._own(inputs[place]) for place in _deciding(condition, body)], outputs)
                return outputs
            del self._flat.ops[count:]
            if not known.all():
                return carried
            carried = self._inlined(body, carried)
        raise self._refusal("WHILE", outputs, f"it runs more than {_MAX_STEPS} times, which is not supported")

    # ------------------------------------------------------------------------------------------------------- variables

    def _assigned_names(self) -> set[str]:
        """Return the variables that are written elsewhere than in graphs that run once."""
        ops = [(place, op) for place, graph in enumerate(self._graphs) for op in graph["Operators"] or []]
        once = {_place_of(op, *_CALLS["CALL_ONCE"]) for _, op in ops if self._flat.op_name(op) == "CALL_ONCE"}
        handles = {
            (place, int(op["Outputs"][0])): _variable_name(op) for place, op in ops if self._flat.op_name(op) == "VAR_HANDLE"
        }
        return {
            handles.get((place, int(op["Inputs"][0])), "")
            for place, op in ops
            if place not in once and self._flat.op_name(op) == "ASSIGN_VARIABLE"
        }

    def _variable(self, name: str, op: Table, inputs: list[int], outputs: list[int]) -> list[int]:
        if name == "VAR_HANDLE":
            self._handles[outputs[0]] = _variable_name(op)
            return outputs
        variable = self._handles.get(inputs[0])
        if variable is None:
            raise self._refusal(name, outputs, "its variable is computed, which is not supported")
        if name == "READ_VARIABLE":
            return [self._current(variable, outputs[0])]
        if self._once and variable in self._assigned:
            value = self._flat.value(inputs[1])
            if value is None:
                raise self._refusal(
                    name, inputs[1:], f"the first value of variable {variable!r} is computed, which is not supported"
                )
            self.starts[variable] = value
            return outputs
        self._now[variable] = inputs[1]
        if not self._once:
            self._states[variable] = inputs[1]
        return outputs

    def _current(self, variable: str, like: int) -> int:
        """Return what a variable is: an input before anything is written to it."""
        if variable not in self._now:
            self._flat.tensors[like]["Name"] = variable.encode()
            self._flat.tensors[like]["IsVariable"] = None
            self._flat.inputs.append(like)
            self._now[variable] = like
            self._states.setdefault(variable, like)
        return self._now[variable]

    def read(self, index: int) -> int:
        """Return what a variable tensor is."""
        return self._current(self._flat.name(index) or f"state_{index}", index)

    def write(self, index: int, value: int) -> None:
        """Let a variable tensor be another one."""
        name = self._flat.name(index) or f"state_{index}"
        self._now[name] = self._states[name] = value

    def _next(self, name: str, value: int) -> int:
        """Return the output that says what a variable is next."""
        tensor = self._flat.tensors[value].copied()
        tensor["Name"], tensor["IsVariable"], tensor["Buffer"] = f"{name}_next".encode(), None, None
        output = self._flat.add_tensor(tensor)
        wanted = self._flat.shape(value)
        shape = self._flat.constant(f"{name}_shape", np.asarray([-1, *wanted[1:]] if wanted else wanted, np.int32))
        self._flat.op("RESHAPE", [self._own(value), shape], [output], "ReshapeOptions")
        return output

    def _refusal(self, name: str, outputs: list[int], why: str) -> UnsupportedOpError:
        output = self._flat.name(outputs[0]) if outputs else ""
        return UnsupportedOpError(f"{self._origin}: op {name} (output tensor {output!r}): {why}")


def _deciding(condition: Table, body: Table) -> list[int]:
    """Return the places of what a loop carries by which its condition goes, whatever step it is."""
    found, grown = set[int](), _read_for(condition, [0])
    while grown != found:
        found = grown
        grown = found | _read_for(body, sorted(found))
    return sorted(found)


def _read_for(graph: Table, results: list[int]) -> set[int]:
    """Return the places of a graph's inputs that some of its results are computed of."""
    outputs = _numbers(graph, "Outputs")
    wanted = {int(outputs[place]) for place in results}
    for op in reversed(graph["Operators"] or []):
        if wanted.intersection(int(index) for index in _numbers(op, "Outputs")):
            wanted.update(int(index) for index in _numbers(op, "Inputs"))
    return {place for place, index in enumerate(_numbers(graph, "Inputs")) if int(index) in wanted}


def _numbers(table: Table, name: str) -> npt.NDArray[Any]:
    value = table[name]
    return np.zeros(0, np.int32) if value is None else value


def _place_of(op: Table, field: str, key: str) -> int:
    """Return the place of the subgraph that an op calls."""
    options = op[field]
    return 0 if options is None else options.number(key)


def _variable_name(op: Table) -> str:
    options = op["BuiltinOptions"]
    return (options["SharedName"] or b"").decode() if options is not None else ""
