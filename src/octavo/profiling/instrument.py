"""Instrumenting a model: every float tensor of the source is observed inside the graph. Nothing is built or run here.

A clamp of an observed tensor (relu, clip) needs no observer: its statistics follow from those of what it clamps, exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import Expr, Var

from ..errors import ModelError
from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView, call_to, dtype_of, replace_operands, static_shape
from ..ir.graph.observe import ObserveCall, write_observe
from ..ir.graph.probes import BlockWriter, insert_after_bindings, with_body
from ..ir.identity import TensorEntry, TensorId
from ..numerics.statistics.observer_state import COUNTS_SIZE
from ..runtime.shapes import evaluated
from ..runtime.size import is_open
from ..target.op_facts import CLAMPS
from .constants import Selected, profile_constants
from .statistics import TensorStatistics

MAX_CHANNELS = 4096
"""Axes longer than this (a flattened feature map) are no channels worth keeping apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One observed tensor: which, its shape, its channel axis (None: none known), its channels (1 without an axis).

    Open dimensions of the shape are Sizes.
    """

    tensor: TensorId
    shape: tuple[int, ...]
    channel_axis: int | None

    @property
    def channels(self) -> int:
        """Channels whose ranges are kept apart."""
        return 1 if self.channel_axis is None else self.shape[self.channel_axis]

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape in a run with open dimensions of these sizes."""
        return evaluated(self.shape, sizes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clamped:
    """A tensor that is another one, observed or clamped itself, clamped to [low; high]."""

    tensor: TensorId
    source: TensorId
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Instrumented:
    """A model with observers in it.

    Parameters
    ----------
    module
        Constants are bound: "main" takes the graph's inputs, then ranges and counts of each observation, which it writes to (see
        numerics/statistics/observer_state.py). It returns the graph's outputs first.
    observations
        In the order of their parameters.
    clamped
        Tensors without an observer of their own, each behind its source.
    constants
        The statistics of constants that are to be profiled, which no run changes.
    results
        How many of its results are the graph's.
    """

    module: tvm.IRModule
    observations: tuple[Observation, ...]
    clamped: tuple[Clamped, ...]
    constants: Mapping[TensorId, TensorStatistics]
    results: int


def instrument(model: Model, selected: Selected = lambda _: True) -> Instrumented:
    """Return the model with an observer on every selected float tensor of its source, inputs and activations.

    Before::

        y: R.Tensor((1, 8, 4, 4)) = R.nn.conv2d(x, w)
        z: R.Tensor((1, 8, 4, 4)) = R.nn.relu(y)
        return z

    After::

        y: R.Tensor((1, 8, 4, 4)) = R.nn.conv2d(x, w)
        y_observed = R.call_dps_packed("octavo.observe", (y, y_ranges, y_counts, R.const(1)), out_ty=R.Tensor((1, 8, 4, 4)))
        z: R.Tensor((1, 8, 4, 4)) = R.nn.relu(y_observed)
        return z

    Raises
    ------
    ModelError
        If the shape of a float tensor depends on values, or it has more than 2^31 - 1 elements.
    """
    bound = model.bound(runs=False)
    main = bound["main"]
    view = DataflowView(main)
    plan = _Plan(model, view, selected)
    unread: list[Expr] = []

    def observe(writer: BlockWriter, var: Var) -> Expr | None:
        """Emit the observer of `var`; who reads the one reads the observed other."""
        states = plan.states.get(var)
        if states is None:
            return None
        is_single = dtype_of(var) == "float32"
        tensor = var if is_single else writer.emit(f"{var.name}_float32", relax.op.astype(var, "float32"))
        call = ObserveCall(tensor=tensor, ranges=states[0], counts=states[1], channel_axis=plan.axes[var])
        # What nobody reads is returned, so that it stays.
        is_kept = not is_single or not (view.users(var) or view.is_returned(var))
        observed = writer.emit(f"{var.name}_observed", write_observe(call), is_output=is_kept or view.is_returned(var))
        if is_kept:
            unread.append(observed)
        return observed if is_single else None

    blocks, mapping = insert_after_bindings(main, observe)
    results = [replace_operands(output, lambda var: mapping.get(var, var)) for output in _fields(view.result)]
    params = [*view.function.params, *(state for states in plan.states.values() for state in states)]
    observed_main = with_body(main, blocks, relax.Tuple([*results, *unread]), params)
    bound.update_func(bound.get_global_var("main"), observed_main)
    return Instrumented(
        module=bound,
        observations=tuple(plan.observations),
        clamped=tuple(plan.clamped),
        constants=profile_constants(model, selected),
        results=len(results),
    )


class _Plan:
    """Which variables are observed, and which follow from another.

    Parameters
    ----------
    states
        The parameters (ranges, counts) of each observed variable.
    axes
        Their channel axes.
    """

    def __init__(self, model: Model, view: DataflowView, selected: Selected) -> None:
        self.states: dict[Var, tuple[Var, Var]] = {}
        self.axes: dict[Var, int | None] = {}
        self.observations: list[Observation] = []
        self.clamped: list[Clamped] = []
        self._view = view
        self._channels_last = _is_channels_last(view)
        self._known: dict[Var, TensorId] = {}
        variables = [*view.function.params, *(binding.var for binding in view.bindings)]
        for var in variables:
            entry = model.tensors.get(TensorId(var.name))
            if entry is not None and entry.kind != "constant" and dtype_of(var).startswith("float") and selected(entry):
                self._add(var, entry)

    def _add(self, var: Var, entry: TensorEntry) -> None:
        shape = static_shape(var)
        if shape is None:
            raise ModelError(
                f"{entry.source_name} has a shape that depends on values and cannot be profiled; "
                "profile other tensors (tensors=...)"
            )
        if 0 in shape:
            return
        size = math.prod(shape)
        if not is_open(size) and size >= 2**31:
            raise ModelError(f"{entry.source_name} has {size} elements; a tensor of 2^31 and more cannot be profiled")
        clamp = self._clamp_of(var, entry)
        if clamp is not None:
            self.clamped.append(clamp)
            self._known[var] = entry.id
            return
        axis = self._channel_axis(shape)
        observation = Observation(tensor=entry.id, shape=shape, channel_axis=axis)
        number = len(self.observations)
        self.observations.append(observation)
        self.axes[var] = axis
        self.states[var] = (
            relax.Var(f"octavo_ranges_{number}", _type(2 * observation.channels, "float32")),
            relax.Var(f"octavo_counts_{number}", _type(COUNTS_SIZE, "int32")),
        )
        self._known[var] = entry.id

    def _clamp_of(self, var: Var, entry: TensorEntry) -> Clamped | None:
        """Return what `var` clamps if that is an observed float32 tensor and both bounds are numbers in order."""
        call: Any = call_to(self._view.definition(var), *CLAMPS)
        if call is None:
            return None
        bound = self._view.binding_of(call.args[0])
        source = call.args[0] if bound is None else bound
        if not isinstance(source, Var) or source not in self._known or dtype_of(var) != "float32":
            return None
        bounds = (
            [0.0, math.inf] if call_to(call, "nn.relu") is not None else [getattr(arg, "value", None) for arg in call.args[1:3]]
        )
        if None in bounds:
            return None
        with np.errstate(over="ignore"):
            low, high = (float(np.float32(bound)) for bound in bounds)
        if not low <= high:
            return None
        return Clamped(tensor=entry.id, source=self._known[source], low=low, high=high)

    def _channel_axis(self, shape: tuple[int, ...]) -> int | None:
        if len(shape) < 2:
            return None
        axis = len(shape) - 1 if self._channels_last or len(shape) == 2 else 1
        return axis if not is_open(shape[axis]) and shape[axis] <= MAX_CHANNELS else None


def _type(size: int, dtype: str) -> relax.TensorType:
    return relax.TensorType([tvm.tirx.IntImm("int64", size)], dtype)


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
