"""Writes a float graph that computes the same with tensors divided by factors, channel by channel. It chooses no factor.

Before::

    c = R.nn.conv2d(x, w); t = R.add(c, b); y = R.clip(t, 0, 6); z = R.nn.conv2d(y, v)

After, where t and y are divided by s, one number for each channel, with new values for w, b and v::

    c = R.nn.conv2d(x, w / s); t = R.add(c, b / s); y = R.clip(t, 0, max(6 / s)); z = R.nn.conv2d(y, v * s)

What a function of such a tensor gives (SiLU, hard-swish) is multiplied by 1 / s where nothing else can be divided.

A bound of a clip becomes one for each channel, which integer kernels don't have. Where integers saturate at or below the least of
these, the others are never reached: the graph that is quantized has one bound for all (`exact=False`), that which stands for the
float model all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var, VarBinding

from ...errors import QuantizationError
from ...ir.graph import Model
from ...ir.graph.dataflow import BodyWriter, DataflowView, call_to, replace_operands
from ...ir.identity import TensorId
from ...ir.untyped import relax
from ..names import Names
from ..placement import function_results
from ..simplify.simplify import with_main
from ..weights.constants import Constant, Constants
from ..weights.convolution import WEIGHTED, weighted
from .channel_groups import NORMS, find_groups, output_factors, weight_groups

Factors = Mapping[TensorId, npt.NDArray[np.float32]]
"""What each tensor is divided by, by its variable: of the tensor's rank, 1 along axes that it doesn't depend on."""


def check_factors(model: Model, factors: Factors) -> None:
    """Raise QuantizationError unless dividing the tensors of a model by these factors leaves what it computes as it is."""
    found = find_groups(model)
    given = {str(name): value for name, value in factors.items()}
    by_group = np.full(1 + max((int(groups.max()) for groups in found.of.values()), default=0), np.nan)
    by_group[0] = 1.0
    for var, groups in found.of.items():
        own = given.pop(var.name, np.ones(groups.shape, np.float32))
        before = by_group.copy()
        if own.shape == groups.shape:
            by_group[groups] = own
        if own.shape != groups.shape or not (np.isnan(before) | (before == by_group)).all() or (by_group[groups] != own).any():
            raise QuantizationError(
                f"the plan: equalization: the factors of {var.name} must have the shape {list(groups.shape)} and be those of the "
                "tensors that it is made of and that are made of it; take out the entries of all of these, or of none"
            )
    if given:
        raise QuantizationError(f"the plan: equalization: {next(iter(given))} cannot be divided by factors; take the entry out")


def scaled(model: Model, factors: Factors, *, exact: bool) -> Model:
    """Return the model with its tensors divided by factors that `find_groups` allows.

    Parameters
    ----------
    exact
        Whether each channel keeps its own bound of a clip; False gives all the greatest.
    """
    view = DataflowView(model.module["main"])
    writer = _Scaling(view, Constants(view, model.params), factors, dict(model.params))
    names = Names({str(name) for name in model.tensors} | {binding.var.name for binding in view.bindings})
    names.take(*(param.name for param in view.function.params))
    bounds: dict[Var, Var] = {}
    for binding in view.bindings:
        factor = factors.get(TensorId(binding.var.name))
        if exact and factor is not None and factor.size > 1 and call_to(binding.value, "clip") is not None:
            kind = relax.TensorType(list(factor.shape), "float32")
            bounds[binding.var] = relax.Var(names.fresh(f"{binding.var.name}_bound"), kind)
    inverses = {
        var: relax.Var(names.fresh(f"{var.name}_inverse"), relax.TensorType(list(factors[TensorId(var.name)].shape), "float32"))
        for var in function_results(view, writer.constants)
        if TensorId(var.name) in factors
    }
    mapping: dict[Var, Expr] = {}

    def mapped(expr: Expr) -> Expr:
        return replace_operands(expr, lambda var: mapping.get(var, var))

    def emit(out: BodyWriter, binding: VarBinding) -> Var:
        var, value = binding.var, mapped(binding.value)
        is_output, factor = view.is_returned(var), factors.get(TensorId(var.name))
        if factor is not None and var in inverses:
            writer.params[TensorId(inverses[var].name)] = np.float32(1) / factor
            made = out.emit(names.fresh(f"{var.name}_function"), value)
            return out.emit(var.name, relax.op.multiply(made, inverses[var]), is_output=is_output)
        clip: Any = None if factor is None else call_to(value, "clip")
        if clip is None or factor is None:
            return out.emit(var.name, value, is_output=is_output)
        bound = np.float32(float(clip.args[2].value)) / factor
        if var not in bounds:
            return out.emit(var.name, relax.op.clip(clip.args[0], 0.0, float(bound.max())), is_output=is_output)
        writer.params[TensorId(bounds[var].name)] = bound
        positive = out.emit(names.fresh(f"{var.name}_relu"), relax.op.nn.relu(clip.args[0]))
        return out.emit(var.name, relax.op.minimum(positive, bounds[var]), is_output=is_output)

    def body(out: BodyWriter) -> Expr:
        for binding in view.bindings:
            mapping[binding.var] = emit(out, binding)
        return mapped(view.result)

    for binding in view.bindings:
        if binding.var not in inverses:
            writer.constants_of(binding)
    return with_main(model, body, [*view.function.params, *bounds.values(), *inverses.values()], writer.params)


class _Scaling:
    """New values of the constants.

    Parameters
    ----------
    params
        The model's; those that change are exchanged.
    """

    def __init__(
        self, view: DataflowView, constants: Constants, factors: Factors, params: dict[TensorId, npt.NDArray[Any]]
    ) -> None:
        self._view = view
        self.constants = constants
        self._factors = factors
        self.params = params

    def constants_of(self, binding: VarBinding) -> None:
        """Scale what one op reads of the model's constants."""
        value: Any = binding.value
        made = self._of(binding.var)
        if call_to(value, *WEIGHTED) is not None:
            self._weights(value, made)
        elif made is None:
            return
        elif call_to(value, *NORMS) is not None:
            for arg in value.args[1:3]:
                self._divide(self.constants.find(arg), made.reshape(-1))
        elif call_to(value, "add", "subtract") is not None:
            for arg in value.args:
                self._divide(self.constants.find(arg), made)

    def _weights(self, call: Any, made: npt.NDArray[np.float32] | None) -> None:
        read = self._of(call.args[0])
        op = None if made is None and read is None else weighted(self.constants, call)
        if op is None or isinstance(op, str):
            return
        factor = np.ones((1,) * len(op.weight.shape))
        if made is not None:
            factor = factor / output_factors(op, made.astype(np.float64))
        if read is not None:
            flat = read.astype(np.float64).reshape(-1)
            factor = factor * flat[weight_groups(op, np.arange(flat.size).reshape(read.shape))]
        self._set(op.weight, self.constants.value(op.weight) * factor)

    def _divide(self, constant: Constant | None, factors: npt.NDArray[np.float32]) -> None:
        if constant is not None:
            values = self.constants.value(constant).astype(np.float64)
            rank = max(values.ndim, factors.ndim)
            shape = (1,) * (rank - values.ndim) + values.shape
            self._set(constant, (values.reshape(shape) / factors).reshape(values.shape))

    def _set(self, constant: Constant, values: npt.NDArray[Any]) -> None:
        new = np.empty(constant.positions.size, np.float32)
        new[constant.positions.reshape(-1)] = values.reshape(-1)
        self.params[constant.name] = new.reshape(self.params[constant.name].shape)

    def _of(self, expr: Any) -> npt.NDArray[np.float32] | None:
        if not isinstance(expr, Var):
            return None
        found = self._factors.get(TensorId(expr.name))
        return self._factors.get(TensorId(self._view.root_of(expr).name)) if found is None else found
