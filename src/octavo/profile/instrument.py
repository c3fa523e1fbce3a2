"""Instrumenting a model: every float tensor of the source gets an observer inside the graph. Nothing is built or run here."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax import Expr, Var

from ..errors import ModelError
from ..graph import Model
from ..graph.dataflow import (
    BodyWriter,
    DataflowView,
    attrs_of,
    dtype_of,
    operand_vars,
    replace_operands,
    static_shape,
    write_function,
)
from ..identity import TensorId
from .observer import observer, statistics_size

MAX_CHANNELS = 4096
"""Axes longer than this (a flattened feature map) are no channels worth keeping apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One observed tensor: which, its channel axis (None: none known), its channels (1 without an axis), its elements per run."""

    tensor: TensorId
    channel_axis: int | None
    channels: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Instrumented:
    """A model with observers in it.

    Parameters
    ----------
    module
        Constants are bound: "main" takes the graph's inputs and returns a flat tuple, the graph's outputs, then one statistics
        vector (int32, see observer.py) for each observation.
    observations
        In the order of the vectors.
    output_count
        How many of the values returned are the graph's own outputs.
    """

    module: tvm.IRModule
    observations: tuple[Observation, ...]
    output_count: int


def instrument(model: Model) -> Instrumented:
    """Return the model with an observer on every float tensor of its source, inputs and activations.

    Before::

        y: R.Tensor((1, 8, 4, 4)) = R.nn.relu(x)
        return y

    After::

        y: R.Tensor((1, 8, 4, 4)) = R.nn.relu(x)
        y_statistics = R.call_tir(cls.observe, (y,), out_ty=R.Tensor((2067,), "int32"))
        return (y, ..., y_statistics)

    Raises
    ------
    ModelError
        If a float tensor has a symbolic shape.
    """
    view = DataflowView(model.bound()["main"])
    observers = _Observers(model, channels_last=_is_channels_last(view))
    outputs = _fields(view.result)
    returned = {var for output in outputs for var in operand_vars(output)}

    def body(writer: BodyWriter) -> Expr:
        for param in view.function.params:
            observers.observe(writer, param)
        mapping: dict[Var, Expr] = {}
        for binding in view.bindings:
            value = replace_operands(binding.value, lambda var: mapping.get(var, var))
            var = writer.emit(binding.var.name, value, is_output=binding.var in returned)
            mapping[binding.var] = var
            observers.observe(writer, var)
        results = [replace_operands(output, lambda var: mapping.get(var, var)) for output in outputs]
        return relax.Tuple([*results, *observers.vectors])

    scratch = relax.BlockBuilder()
    write_function(scratch, "main", list(view.function.params), body, attrs_of(view.function))
    module = observers.builder.get()
    module.update_func(module.get_global_var("main"), scratch.get()["main"])
    return Instrumented(module=module, observations=tuple(observers.observations), output_count=len(outputs))


class _Observers:
    """Adds observers to a function while it is written; tensors of one shape share a PrimFunc."""

    def __init__(self, model: Model, *, channels_last: bool) -> None:
        self.builder = relax.BlockBuilder(model.bound())
        self.observations: list[Observation] = []
        self.vectors: list[Var] = []
        self._tensors = model.tensors
        self._channels_last = channels_last
        self._functions: dict[tuple[tuple[int, ...], int | None], tvm.ir.GlobalVar] = {}

    def observe(self, writer: BodyWriter, var: Var) -> None:
        """Emit an observer of `var` if it holds a float tensor of the source, nothing otherwise."""
        entry = self._tensors.get(TensorId(var.name))
        if entry is None or entry.kind == "constant" or not dtype_of(var).startswith("float"):
            return
        shape = static_shape(var)
        if shape is None:
            raise ModelError(
                f"{entry.source_name} has a symbolic shape and cannot be profiled; give the model a fixed input shape"
            )
        size = math.prod(shape)
        if not size:
            return
        axis = self._channel_axis(shape)
        if (shape, axis) not in self._functions:
            self._functions[shape, axis] = self.builder.add_func(observer(shape, axis), "observe")
        value: Expr = var if dtype_of(var) == "float32" else writer.emit(f"{var.name}_float32", relax.op.astype(var, "float32"))
        channels = 1 if axis is None else shape[axis]
        vector_type = relax.TensorType([tvm.tirx.IntImm("int64", statistics_size(channels))], "int32")
        call = relax.call_tir(self._functions[shape, axis], relax.Tuple([value]), out_ty=vector_type)
        self.vectors.append(writer.emit(f"{var.name}_statistics", call, is_output=True))
        self.observations.append(Observation(tensor=entry.id, channel_axis=axis, channels=channels, size=size))

    def _channel_axis(self, shape: tuple[int, ...]) -> int | None:
        if len(shape) < 2:
            return None
        axis = len(shape) - 1 if self._channels_last or len(shape) == 2 else 1
        return axis if shape[axis] <= MAX_CHANNELS else None


def _fields(result: Expr) -> list[Expr]:
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]


def _is_channels_last(view: DataflowView) -> bool:
    """Return whether the graph's convolutions and poolings, most of them, keep channels last; False where it has none."""
    votes = Counter[bool]()
    for binding in view.bindings:
        attrs = getattr(binding.value, "attrs", None)
        layout = getattr(attrs, "data_layout", None) or getattr(attrs, "layout", None)
        if layout is not None:
            votes[str(layout).endswith("C")] += 1
    return votes[True] > votes[False]
