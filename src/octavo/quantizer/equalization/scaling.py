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

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var, VarBinding

from ...errors import QuantizationError
from ...ir.graph import Model
from ...ir.graph.constants import Constant, Constants
from ...ir.graph.dataflow import BodyWriter, DataflowView, call_to, replace_operands
from ...ir.graph.model import rewritten
from ...ir.graph.weighted import WEIGHTED, weighted
from ...ir.identity import TensorId
from ...ir.identity.naming import NameSupply
from ...ir.qdq.functions import function_results
from ...ir.untyped import relax
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
    for group, other in found.opposites.items():
        if not np.isclose(by_group[group] * by_group[other], 1.0, rtol=1e-6):
            names = [var.name for var, groups in found.of.items() if (groups == group).any() or (groups == other).any()]
            raise QuantizationError(
                f"the plan: equalization: the factors of {names[0]} and {names[-1]}, which a product multiplies, must be each "
                "other's inverse; take out the entries of both"
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
    names = NameSupply([*model.tensors, *view.names])
    writer = _Scaling(view, Constants(view, model.params), factors, dict(model.params), names)
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
        own = writer.own.get(var)
        value = value if own is None else replace_operands(value, lambda each: own.get(each, each))
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
    own = [param for each in writer.own.values() for param in each.values()]
    return rewritten(model, body, [*view.function.params, *bounds.values(), *inverses.values(), *own], writer.params)


class _Scaling:
    """New values of the constants.

    Parameters
    ----------
    params
        The model's; those that change are exchanged.
    own
        By the ops that read them in place of constants that others read, too: new parameters.
    """

    def __init__(
        self,
        view: DataflowView,
        constants: Constants,
        factors: Factors,
        params: dict[TensorId, npt.NDArray[Any]],
        names: NameSupply,
    ) -> None:
        self._view = view
        self.constants = constants
        self._factors = factors
        self.params = params
        self.own: dict[Var, dict[Var, Var]] = {}
        self._names = names

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
                self._divide(binding.var, arg, made.reshape(-1))
        elif call_to(value, "add", "subtract") is not None or self._is_made_by(value):
            for arg in value.args:
                self._divide(binding.var, arg, made)

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

    def _is_made_by(self, value: Any) -> bool:
        """Return whether a product is divided by factors that neither operand has been divided by before."""
        return call_to(value, "multiply") is not None and all(self._of(arg) is None for arg in value.args)

    def _divide(self, reader: Var, arg: Any, factors: npt.NDArray[np.float32]) -> None:
        """Divide the constant that an op reads, if it is one: a copy where others read it, too."""
        constant = self.constants.find(arg)
        if constant is None:
            return
        if not constant.moves and len(self._view.users(constant.root)) > 1:
            root = constant.root
            new = relax.Var(self._names.fresh(root.name), relax.TensorType(list(constant.shape), "float32"))
            self.own.setdefault(reader, {})[root] = new
            self.params[TensorId(new.name)] = self.params[constant.name]
            values = self.constants.value(constant)
            constant = replace(constant, root=new)
        else:
            values = self.constants.value(constant)
        rank = max(values.ndim, factors.ndim)
        shape = (1,) * (rank - values.ndim) + values.shape
        self._set(constant, (values.astype(np.float64).reshape(shape) / factors).reshape(values.shape))

    def _set(self, constant: Constant, values: npt.NDArray[Any]) -> None:
        new = np.empty(constant.positions.size, np.float32)
        new[constant.positions.reshape(-1)] = values.reshape(-1)
        self.params[constant.name] = new.reshape(self.params[constant.name].shape)

    def _of(self, expr: Any) -> npt.NDArray[np.float32] | None:
        if not isinstance(expr, Var):
            return None
        found = self._factors.get(TensorId(expr.name))
        return self._factors.get(TensorId(self._view.root_of(expr).name)) if found is None else found
