"""What a model whose variables bear the source's names makes of the values that another module has, one step at a time.

The proof of links where values changed: a deep network of integers or of few bits is noisy, and so is its comparison with the
float model. Step by step there is no noise: each tensor is computed from the very values that the other module has for what it is
made of, and must then be there within a quantization step, or within the rounding of one op.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm.relax import Expr, Function, Var

from ..ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    call_to,
    dtype_of,
    operand_vars,
    replace_operands,
    static_shape,
    write_function,
)
from ..ir.graph.evaluate import build_unoptimized
from ..ir.identity import TensorId
from ..ir.identity.relation import agree
from ..ir.qdq.values import params_of
from ..ir.untyped import relax
from ..numerics import PerAxis, QuantParams, dequantize, quantize
from ..numerics.arrays import Array

Values = Mapping[TensorId, Array]


_ONE_STEP = 1.5  # between one and two, which float32 cannot confuse
_FLOAT_TOLERANCE = 1e-3
_ERROR_SHARE = 0.25
"""Of the signal's power: what no other tensor comes near to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Between two values of a tensor: in quantization steps, None for one that is not quantized; whether rounding explains it."""

    steps: float | None
    is_none: bool


class TensorwiseModel:
    """A model whose tensors are computed from given values of the tensors that they are made of.

    Before, for a tensor t that is given::

        t = R.nn.relu(c); t_q = R.quantize(t, ...); t_dq = R.dequantize(t_q, ...); u = R.nn.conv2d(t_dq, ...)

    After, with a parameter `given_t` and a result `integers_t`::

        t = R.nn.relu(c); integers_t = R.quantize(t, ...); u = R.nn.conv2d(given_t, ...)

    Parameters
    ----------
    function
        The model's, constants bound: variables bear the source's names.
    wanted
        Ids to compute. Those that the function quantizes are `quantized` and given; others are `plain`: floats as they are.
    tolerances
        Where there are any the plain ids are given, too, and may be off by these shares of their largest magnitude.
    """

    def __init__(
        self,
        function: Function,
        wanted: Collection[TensorId],
        target: tvm.target.Target,
        *,
        tolerances: Mapping[TensorId, float] | None = None,
    ) -> None:
        self._view = DataflowView(function)
        self.quantized: dict[TensorId, QuantParams] = {}
        for binding in self._view.bindings:
            call = call_to(binding.value, "quantize")
            if call is not None and isinstance(call.args[0], Var) and call.args[0].name in wanted:
                params = params_of(call, dtype_of(binding.var))
                if params is not None and static_shape(call.args[0]) is not None:
                    self.quantized.setdefault(TensorId(call.args[0].name), params)
        names = {binding.var.name for binding in self._view.bindings if isinstance(binding.var.ty, relax.TensorType)}
        self.plain = tuple(tensor for tensor in wanted if tensor in names and tensor not in self.quantized)
        self.given = self.quantized.keys() if tolerances is None else {**self.quantized, **dict.fromkeys(self.plain)}.keys()
        self._tolerances = tolerances or {}
        self.made_of: dict[TensorId, set[TensorId]] = {}
        """For each id the given ones that lead to it, through others, too."""
        self.behind_unseen: set[TensorId] = set()
        """Ids that are computed from quantized tensors that are not given: within a vendor's region, where roundings add up."""
        self._shapes = {name: static_shape(var) for name, var in self._view.variables.items()}
        self._machine = build_unoptimized(self._module(), target)

    def run(self, arrays: Sequence[Array], given: Values) -> dict[TensorId, Array]:
        """Return the tensors: the real numbers of quantized ones; `given` is what their readers read.

        Parameters
        ----------
        arrays
            The model's inputs.
        given
            float32 values of all ids that are `given`, `shaped`.
        """
        values = [*arrays, *(np.asarray(given[tensor], np.float32) for tensor in self.given)]
        results = self._machine["main"](*(tvm.runtime.tensor(np.asarray(value, order="C")) for value in values))
        found = dict(zip((*self.quantized, *self.plain), (result.numpy() for result in results), strict=True))
        return {
            tensor: dequantize(value, self.quantized[tensor]) if tensor in self.quantized else value
            for tensor, value in found.items()
        }

    def shaped(self, tensor: TensorId, value: Array) -> Array:
        """Return a value in the shape that the function's variable has."""
        shape = self._shapes.get(tensor)
        return value if shape is None else value.reshape(shape)

    def rounded(self, tensor: TensorId, value: Array) -> Array:
        """Return a value as readers of a tensor see it: of a quantized one on the grid of its scale and within its range."""
        if tensor not in self.quantized:
            return value
        return dequantize(quantize(value, self.quantized[tensor]), self.quantized[tensor])

    def off(self, tensor: TensorId, computed: Array, now: Array) -> Difference:
        """Compare what was computed of a tensor with what another module has for it."""
        if tensor in self.quantized:
            steps = self._steps_off(tensor, computed, self.rounded(tensor, now))
            is_none = steps <= _ONE_STEP or (tensor in self.behind_unseen and is_like(computed, self.rounded(tensor, now)))
            return Difference(steps=steps, is_none=is_none)
        return Difference(steps=None, is_none=agree(computed, now, self._tolerances.get(tensor, _FLOAT_TOLERANCE)))

    def _steps_off(self, tensor: TensorId, a: Array, b: Array) -> float:
        params = self.quantized[tensor]
        scale = np.asarray(params.scale, np.float64)
        if isinstance(params.granularity, PerAxis):
            shape = [1] * a.ndim
            shape[params.granularity.axis] = -1
            scale = scale.reshape(shape)
        return float(np.max(np.abs(a.astype(np.float64) - b) / scale, initial=0.0))

    def _module(self) -> tvm.IRModule:
        view = self._view
        shapes = {var.name: var for var in (*view.function.params, *(binding.var for binding in view.bindings))}
        given = {
            tensor: relax.Var(f"given_{tensor}", relax.TensorType(list(static_shape(shapes[tensor]) or ()), "float32"))
            for tensor in self.given
        }

        def body(writer: BodyWriter) -> Expr:
            new: dict[Var, Expr] = {}
            quantized_vars: dict[Var, TensorId] = {}
            leads: dict[Var, set[TensorId]] = {}
            unseen: set[Var] = set()
            outputs: dict[TensorId, Expr] = {}
            for binding in view.bindings:
                var, value = binding.var, replace_operands(binding.value, lambda old: new.get(old, old))
                call = call_to(binding.value, "quantize", "dequantize")
                source: Any = call.args[0] if call is not None else None
                leads[var] = set[TensorId]().union(*(leads.get(operand, ()) for operand in operand_vars(binding.value)))
                if isinstance(source, Var) and source in quantized_vars:
                    new[var], leads[var] = given[quantized_vars[source]], leads[source]
                    continue
                quantizes = call_to(binding.value, "quantize") is not None and isinstance(source, Var)
                tensor = TensorId(source.name if quantizes else var.name)
                is_output = (tensor in self.quantized if quantizes else tensor in self.plain) and tensor not in outputs
                new[var] = writer.emit(f"integers_{tensor}" if quantizes else var.name, value, is_output=is_output)
                is_behind = not unseen.isdisjoint(operand_vars(binding.value))
                if is_output:
                    outputs[tensor] = new[var]
                    self.made_of[tensor] = leads[var]
                    self.behind_unseen |= {tensor} if is_behind else set()
                is_given = tensor in given and (quantizes or is_output)
                if (quantizes or is_behind) and not is_given:
                    unseen.add(var)
                if is_output and not quantizes and tensor in given:
                    new[var], leads[var] = given[tensor], leads[var] | {tensor}
                if quantizes and tensor in self.quantized:
                    quantized_vars[var] = tensor
                    leads[var] = leads[var] | {tensor}
            return relax.Tuple([outputs[tensor] for tensor in (*self.quantized, *self.plain)])

        builder = relax.BlockBuilder()
        write_function(builder, "main", [*view.function.params, *given.values()], body)
        return relax.transform.DeadCodeElimination(["main"])(builder.get())


def is_like(expected: Array, now: Array) -> bool:
    """Return whether values changed by quantization can be those of a tensor; of a constant tensor the mean must tell."""
    signal = expected.astype(np.float64)
    noise = now.astype(np.float64) - signal
    spread = signal - signal.mean()
    if np.allclose(spread, 0):
        return bool(np.mean(np.abs(noise)) <= _ERROR_SHARE * np.abs(signal.mean()))
    return bool(np.sum((noise - noise.mean()) ** 2) <= _ERROR_SHARE * np.sum(spread**2))


def differences(model: TensorwiseModel, arrays: Sequence[Array], now: Values) -> dict[TensorId, Difference]:
    """Return how far the values that another module has are from what the model makes of just these values.

    Where a value is another's, whatever is computed from it differs, too. So of the tensors that differ only those that nothing
    else leads to are found wrong; these are then taken as computed, and the rest is looked at anew.

    Parameters
    ----------
    arrays
        The model's inputs.
    now
        The other module's values of the model's tensors, in the source's layout.
    """
    given = {tensor: model.rounded(tensor, now[tensor]) for tensor in model.given}
    wrong: dict[TensorId, Difference] = {}
    while True:
        computed = model.run(arrays, given)
        found = {tensor: model.off(tensor, value, now[tensor]) for tensor, value in computed.items() if tensor not in wrong}
        differ = {tensor for tensor, difference in found.items() if not difference.is_none}
        first = {tensor for tensor in differ if model.made_of[tensor].isdisjoint(differ)}
        if not first:
            return {**found, **wrong}
        wrong |= {tensor: found[tensor] for tensor in first}
        given |= {tensor: computed[tensor] for tensor in first if tensor in given}
