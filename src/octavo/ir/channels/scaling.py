"""Writes a float graph that computes the same with tensors divided by factors, channel by channel. It chooses no factor.

Before::

    c = R.nn.conv2d(x, w); t = R.add(c, b); y = R.clip(t, 0, 6); z = R.nn.conv2d(y, v)

After, where t and y are divided by s, one number for each channel, with new values for w, b and v::

    c = R.nn.conv2d(x, w / s); t = R.add(c, b / s); y = R.clip(t, 0, max(6 / s)); z = R.nn.conv2d(y, v * s)

A vector that several ops read, such as a bias of zeros, becomes one for each. What a function of such a tensor gives (SiLU,
hard-swish) is multiplied by 1 / s where nothing else can be divided.

A bound of a clip becomes one for each channel, which integer kernels don't have. Where integers saturate at or below the least of
these, the others are never reached: the graph that is quantized has one bound for all (`exact=False`), that which stands for the
float model all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var, VarBinding

from ..graph import Model
from ..graph.constants import Constants
from ..graph.dataflow import BodyWriter, DataflowView, call_to
from ..graph.new_constants import NewConstants
from ..graph.weighted import WEIGHTED, weighted
from ..identity import TensorId
from ..qdq.functions import function_results
from ..untyped import relax
from .channel_groups import aligned, output_factors, weight_groups
from .group_finder import NORMS

Factors = Mapping[TensorId, npt.NDArray[np.float32]]
"""What each tensor is divided by, by its variable: of the tensor's rank, 1 along axes that it doesn't depend on."""


def gains_of_functions(model: Model, factors: Factors) -> dict[str, npt.NDArray[np.float32]]:
    """Return by their names what results of functions that are divided by factors are multiplied by where they are made."""
    view = DataflowView(model.module["main"])
    functions = function_results(view, Constants(view, model.params))
    return {var.name: np.float32(1) / factors[TensorId(var.name)] for var in functions if TensorId(var.name) in factors}


def scaled(
    model: Model,
    factors: Factors,
    *,
    exact: bool,
    left: Collection[str] = (),
    kept_as: Callable[[TensorId, npt.NDArray[Any]], npt.NDArray[Any]] | None = None,
) -> Model:
    """Return the model with its tensors divided by factors that `find_groups` allows.

    Parameters
    ----------
    exact
        Whether each channel keeps its own bound of a clip; False gives all the greatest.
    left
        Names of results of functions (see `gains_of_functions`) and clips that who runs the model multiplies.
    kept_as
        What stands for a new value of a constant; see `NewConstants`.
    """
    if not factors:
        return model
    new = NewConstants(model, kept_as)
    view = new.view
    bounds: dict[Var, Var] = {}
    gains = gains_of_functions(model, factors)
    inverses: dict[str, Var] = {name: new.param(f"{name}_inverse", gain) for name, gain in gains.items() if name not in left}
    for binding in view.bindings:
        factor, clip = factors.get(TensorId(binding.var.name)), call_to(binding.value, "clip")
        if binding.var.name in left:
            continue
        if exact and factor is not None and factor.size > 1 and clip is not None:
            bounds[binding.var] = new.param(f"{binding.var.name}_bound", _bounds(clip, factor))
        if binding.var.name not in gains:
            _change_constants(new, factors, binding)

    def emit(out: BodyWriter, var: Var, value: Expr) -> Var:
        is_output, factor = view.is_returned(var), factors.get(TensorId(var.name))
        if var.name in inverses:
            made = out.emit(new.names.fresh(f"{var.name}_function"), value)
            return out.emit(var.name, relax.op.multiply(made, inverses[var.name]), is_output=is_output)
        clip: Any = None if factor is None else call_to(value, "clip")
        if clip is None or factor is None or var.name in left:
            return out.emit(var.name, value, is_output=is_output)
        if var not in bounds:
            return out.emit(var.name, relax.op.clip(clip.args[0], 0.0, float(_bounds(clip, factor).max())), is_output=is_output)
        positive = out.emit(new.names.fresh(f"{var.name}_relu"), relax.op.nn.relu(clip.args[0]))
        return out.emit(var.name, relax.op.minimum(positive, bounds[var]), is_output=is_output)

    return new.model_of(emit, [*bounds.values(), *inverses.values()])


def _bounds(clip: Any, factor: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.float32(float(clip.args[2].value)) / factor


def _change_constants(new: NewConstants, factors: Factors, binding: VarBinding) -> None:
    """Scale what one op reads of the model's constants."""

    def of(expr: Any) -> npt.NDArray[np.float32] | None:
        if not isinstance(expr, Var):
            return None
        found = factors.get(TensorId(expr.name))
        return factors.get(TensorId(new.view.root_of(expr).name)) if found is None else found

    value: Any = binding.value
    made = of(binding.var)
    if call_to(value, *WEIGHTED) is not None:
        _scale_weights(new, value, made, of(value.args[0]))
    elif made is None:
        return
    elif call_to(value, *NORMS) is not None:
        for arg in value.args[1:3]:
            new.change(binding.var, arg, lambda values: values / made.reshape(-1))
    elif call_to(value, "add", "subtract") is not None or (
        # A product that neither operand has been divided for before.
        call_to(value, "multiply") is not None and all(of(arg) is None for arg in value.args)
    ):
        for arg in value.args:
            new.change(binding.var, arg, lambda values: aligned(values, made.ndim) / made)


def _scale_weights(
    new: NewConstants, call: Any, made: npt.NDArray[np.float32] | None, read: npt.NDArray[np.float32] | None
) -> None:
    op = None if made is None and read is None else weighted(new.constants, call)
    if op is None or isinstance(op, str):
        return
    factor = np.ones((1,) * len(op.weight.shape))
    if made is not None:
        factor = factor / output_factors(op, made.astype(np.float64))
    if read is not None:
        flat = read.astype(np.float64).reshape(-1)
        factor = factor * flat[weight_groups(op, np.arange(flat.size).reshape(read.shape))]
    before = new.constants.value(op.weight)
    # Products in float64, a piece at a time: as an array they would take twice the weight.
    new.set(op.weight, np.multiply(before, factor, out=np.empty(before.shape, np.float32), casting="same_kind"))
