"""The modules that measuring errors by layer takes: the quantized model as it runs, and its parts on the float model's values.

Each takes the model's inputs and returns a tuple of tensors. Compares nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm.relax import Expr, Var

from ...compiler.module_runner import ModuleRunner
from ...compiler.target_choice import TargetLike, check_runs_here, resolve_target
from ...errors import QuantizationError
from ...ir.graph import Model
from ...ir.graph.dataflow import BodyWriter, DataflowView, call_to, dtype_of, replace_operands, static_shape, write_function
from ...ir.graph.lineage import lineage_paused
from ...ir.identity import TensorId
from ...ir.qdq.values import numpy_constant, params_of
from ...ir.untyped import relax
from ...numerics import QuantParams
from ...numerics.arrays import Array
from ...quantizer.plan.plan import QuantizedModel
from .blocks import Blocks, FoldedNorm, find_blocks, float_function, steps_between
from .source_names import with_source_names

Exacts = dict[TensorId, Expr]


class BuiltModules:
    """Runs any model in QDQ form, a file's too, by whom it is for: its tensors, its blocks and the layers within them.

    Raises
    ------
    QuantizationError
        Parameters of a tensor are no constants.
    """

    def __init__(self, model: Model, quantized: Model, target: TargetLike) -> None:
        self.view = floats = float_function(model, quantized)
        # What `quantize` returned has the model's names already.
        is_file = not isinstance(quantized, QuantizedModel)
        view = DataflowView((with_source_names(model, quantized) if is_file else quantized.bound())["main"])
        self.blocks = find_blocks(model, floats, quantized, view)
        self.params = _params(view, self.blocks.quantized)
        if self.blocks.quantized:
            self._run_quantized = build_runner(quantized_outputs(view, self.blocks), target)
            self._run_inner = build_runner(inner_outputs(floats, view, self.blocks)) if self.blocks.inner else None
            self._run_isolated = build_runner(isolated_blocks(floats, view, self.blocks))

    def run(self, arrays: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Return what `quantized_outputs` and `inner_outputs` give for a sample, and what `isolated_blocks` does."""
        values = self._run_quantized(arrays)
        values += self._run_inner([*arrays, *values]) if self._run_inner is not None else []
        return values, self._run_isolated(arrays)


def build_runner(module: tvm.IRModule, target: TargetLike = None) -> ModuleRunner:
    """Build a module for a target that this machine runs."""
    chosen = resolve_target(target)
    check_runs_here(chosen)
    # What the copies have in common is computed once, what no result needs not at all.
    tidy = tvm.transform.Sequential([relax.transform.EliminateCommonSubexpr(), relax.transform.DeadCodeElimination()])
    with lineage_paused():
        return ModuleRunner(tidy(module), chosen)


def quantized_outputs(view: DataflowView, blocks: Blocks) -> tvm.IRModule:
    """Return the quantized model with every quantized tensor, dequantized, as its results, in the order of `blocks.quantized`."""

    def body(writer: BodyWriter) -> Expr:
        copy = _Copy(writer, "")
        integers: dict[str, Expr] = {}
        for binding in view.bindings:
            new, call = copy.binding(binding), call_to(binding.value, "quantize")
            if call is not None and isinstance(call.args[0], Var):
                integers.setdefault(call.args[0].name, new)
        return relax.Tuple(
            [
                writer.emit(f"quantized_{tensor}", dequantized(view, tensor, integers[tensor]), is_output=True)
                for tensor in blocks.quantized
            ]
        )

    return _module(view.function.params, body)


def inner_outputs(floats: DataflowView, view: DataflowView, blocks: Blocks) -> tvm.IRModule:
    """Return the inner tensors of the blocks, computed in float from what `quantized_outputs` returned.

    Parameters are the model's inputs, then the results of `quantized_outputs`; results are in the order of `blocks.inner`.
    """
    quantized = {
        tensor: relax.Var(f"quantized_{tensor}", relax.TensorType(list(_shape(view, tensor)), "float32"))
        for tensor in blocks.quantized
    }

    def body(writer: BodyWriter) -> Expr:
        steps = _Steps(writer, "q_", view, blocks, _write_float_model(writer, floats, view))
        steps.run(dict(quantized), {})
        return relax.Tuple([steps.output(f"inner_{tensor}", tensor) for tensor in blocks.inner])

    return _module([*view.function.params, *quantized.values()], body)


def isolated_blocks(floats: DataflowView, view: DataflowView, blocks: Blocks) -> tvm.IRModule:
    """Return a module that computes each block, and each op within, from the float model's values.

    Before, in the quantized model::

        c = R.nn.conv2d(x_dq, w_dq); t = R.nn.relu(c); t_q = R.quantize(t, ...); t_dq = R.dequantize(t_q, ...)

    After, where f_x, f_c, f_t are the float model's tensors::

        f_c = R.nn.conv2d(f_x, w); f_t = R.nn.relu(f_c)                                      # the float model
        q_c = R.nn.conv2d(f_x, w_dq); q_t = R.nn.relu(q_c); local_t = R.quantize(q_t, ...)   # the block: what it adds
        o_c = R.nn.conv2d(f_x, w_dq); o_t = R.nn.relu(f_c); own_t = R.quantize(o_t, ...)     # each op by itself
        through_c_t = R.nn.relu(o_c)                                                         # and what it does to the result

    Results: the float tensors, quantized then inner; the blocks', quantized then inner; then for each block with inner tensors
    in the order of `blocks.members` its result by its own op alone, and through each member alone.
    """

    def body(writer: BodyWriter) -> Expr:
        real = _write_float_model(writer, floats, view)
        variables = {TensorId(var.name): var for var in real.new}
        by_name: Exacts = {tensor: real.new[var] for tensor, var in variables.items()}
        for tensor, factors in blocks.divisors.items():
            value = relax.op.divide(by_name[tensor], relax.const(factors, "float32"))
            by_name[tensor] = writer.emit(f"divided_{tensor}", value)
        everything = (*blocks.quantized, *blocks.inner)
        outputs: list[Expr] = [writer.emit(f"real_{tensor}", by_name[tensor], is_output=True) for tensor in everything]
        starts: Exacts = {tensor: by_name[tensor] for tensor in blocks.quantized}
        block = _Steps(writer, "q_", view, blocks, real)
        block.run(starts, starts)
        outputs += [block.output(f"local_{tensor}", tensor) for tensor in everything]
        own = _Steps(writer, "o_", view, blocks, real)
        own.run(starts, {tensor: by_name[tensor] for tensor in everything})
        for tensor, members in blocks.members.items():
            outputs.append(own.output(f"own_{tensor}", tensor))
            for member in members:
                steps = steps_between(floats, member, tensor, blocks.quantized)
                name = f"through_{member}_{tensor}"
                value = own.values[member]
                if member in blocks.divisors:
                    value = own.emit(f"real_{name}", relax.op.multiply(value, relax.const(blocks.divisors[member], "float32")))
                value = _through(writer, real, steps, variables[member], value, f"_{name}")
                if tensor in blocks.divisors:
                    value = relax.op.divide(value, relax.const(blocks.divisors[tensor], "float32"))
                outputs.append(writer.emit(name, value, is_output=True))
        return relax.Tuple(outputs)

    return _module(view.function.params, body)


def _shape(view: DataflowView, tensor: TensorId) -> tuple[int, ...]:
    variables = (*view.function.params, *(binding.var for binding in view.bindings))
    shape = next(static_shape(var) for var in variables if var.name == tensor)
    assert shape is not None, f"{tensor}: quantized tensors are of known shape"
    return shape


def _write_float_model(writer: BodyWriter, floats: DataflowView, view: DataflowView) -> _Copy:
    """Write the float model over the quantized one's parameters."""
    real = _Copy(writer, "f_", dict(zip(floats.function.params, view.function.params, strict=True)))
    for binding in floats.bindings:
        real.binding(binding)
    return real


def _module(params: Sequence[Var], body: Callable[[BodyWriter], Expr]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    write_function(builder, "main", params, body, {"num_input": len(params)})
    return builder.get()


class _Copy:
    """Writes the bindings of a function again under names with a prefix."""

    def __init__(self, writer: BodyWriter, prefix: str, new: dict[Var, Expr] | None = None) -> None:
        self.writer = writer
        self.prefix = prefix
        self.new: dict[Var, Expr] = dict(new or {})

    def emitted(self, value: Expr) -> Expr:
        """Return an expression over the new variables."""
        return replace_operands(value, lambda var: self.new.get(var, var))

    def binding(self, binding: Any) -> Expr:
        """Write one binding and return its new variable."""
        self.new[binding.var] = self.writer.emit(f"{self.prefix}{binding.var.name}", self.emitted(binding.value))
        return self.new[binding.var]


class _Steps:
    """The quantized model's steps, written again with given values at some of its tensors.

    Parameters
    ----------
    real
        The copy of the float model, for what only it has.
    """

    def __init__(self, writer: BodyWriter, prefix: str, view: DataflowView, blocks: Blocks, real: _Copy) -> None:
        self._view = view
        self._copy = _Copy(writer, prefix)
        self._blocks = blocks
        self._real = real
        self._known = {*blocks.quantized, *blocks.inner}
        self._norms = {norm.scaled_conv: norm for norm in blocks.norms.values()}
        self._integers: Exacts = {}
        # What the steps make of each inner tensor, and of each quantized one before it is rounded.
        self.values: Exacts = {}

    def run(self, starts: Exacts, exact: Exacts) -> None:
        """Write all steps; whoever dequantizes a tensor of `starts`, or reads one of `exact`, reads the value given for it."""
        dequantized_values: dict[Var, Expr] = {}
        for binding in self._view.bindings:
            call = call_to(binding.value, "quantize", "dequantize")
            operand = call.args[0] if call is not None else None
            if isinstance(operand, Var) and operand.name in starts and call_to(binding.value, "quantize") is not None:
                tensor = TensorId(operand.name)
                dequantized_values[binding.var] = starts[tensor]
                if tensor not in self._integers:
                    new = {**self._copy.new, operand: self.values.get(tensor, operand)}
                    value = replace_operands(binding.value, lambda var, new=new: new.get(var, var))
                    self._integers[tensor] = self._copy.writer.emit(f"{self._copy.prefix}integers_{tensor}", value)
            elif isinstance(operand, Var) and operand in dequantized_values:
                self._copy.new[binding.var] = dequantized_values[operand]
            else:
                self._step(binding, exact)

    def _step(self, binding: Any, exact: Exacts) -> None:
        var, new = binding.var, self._copy.binding(binding)
        norm = self._norms.get(var)
        if norm is not None:
            self.values[norm.gone] = self._unscaled(norm, new)
            if norm.gone in exact:
                scaled = relax.op.multiply(self._real.new[norm.source_conv], relax.const(factors_of(norm)))
                self._copy.new[var] = self.emit(f"scaled_{norm.gone}", scaled)
        elif var.name in self._known:
            tensor = TensorId(var.name)
            self.values[tensor] = new
            if tensor in exact:
                self._copy.new[var] = exact[tensor]

    def output(self, name: str, tensor: TensorId) -> Expr:
        """Bind one tensor to a result of the function: dequantized if it is quantized."""
        value = self.values[tensor] if tensor in self._blocks.inner else dequantized(self._view, tensor, self._integers[tensor])
        return self._copy.writer.emit(name, value, is_output=True)

    def _unscaled(self, norm: FoldedNorm, scaled: Expr) -> Expr:
        """Write the convolution's own output; a channel whose factor is 0 is not there any more and counts as right."""
        factors, real = factors_of(norm), self._real.new[norm.source_conv]
        is_lost = factors == 0
        divisor = relax.const(np.where(is_lost, np.float32(1), factors))
        conv = self.emit(f"unscaled_{norm.gone}", relax.op.divide(scaled, divisor))
        if is_lost.any():
            conv = self.emit(f"known_{norm.gone}", relax.op.where(relax.const(is_lost), real, conv))
        if norm.source_conv.name == norm.gone:
            return conv
        new = {**self._real.new, norm.source_conv: conv}
        return self.emit(f"unscaled_{norm.gone}_bias", replace_operands(norm.made, lambda var: new.get(var, var)))

    def emit(self, name: str, value: Expr) -> Expr:
        """Bind a value to a variable whose name has the prefix."""
        return self._copy.writer.emit(f"{self._copy.prefix}{name}", value)


def factors_of(norm: FoldedNorm) -> Array:
    """Return what the convolution before a folded normalization is scaled by: gamma / sqrt(variance + epsilon), by channel.

    Computed here: each operation on constants that a module has is compiled for itself, to be run once.
    """
    attrs, shape = norm.norm.attrs, [1] * len(norm.norm.args[0].ty.shape.values)
    shape[int(attrs.axis)] = -1
    gamma, variance = (numpy_constant(norm.norm.args[place]) for place in (1, 4))
    assert gamma is not None
    assert variance is not None, "quantize folds what is constant"
    factors = (gamma if attrs.scale else np.float32(1)) / np.sqrt(variance + np.float32(attrs.epsilon))
    shaped = factors.reshape(shape)
    return shaped if norm.divisors is None else shaped / np.asarray(norm.divisors, np.float32)


def dequantized(view: DataflowView, tensor: TensorId, integers: Expr) -> Expr:
    """Return the numbers that integers of a tensor stand for, by the parameters that quantized it."""
    for binding in view.bindings:
        call = call_to(binding.value, "quantize")
        if call is not None and isinstance(call.args[0], Var) and call.args[0].name == tensor:
            return relax.op.dequantize(integers, call.args[1], call.args[2], axis=int(call.attrs.axis))
    raise AssertionError(f"{tensor} is quantized: it was found by its quantize")


def _through(writer: BodyWriter, real: _Copy, steps: list[Any], member: Var, value: Expr, name: str) -> Expr:
    """Write the float model's steps from one tensor on with another value for it; the rest is as the float model has it."""
    new: dict[Var, Expr] = {**real.new, member: value}
    result = value
    for step in steps:
        emitted = replace_operands(step.value, lambda var: new.get(var, var))
        result = new[step.var] = writer.emit(f"{name}_{step.var.name}", emitted)
    return result


def _params(view: DataflowView, ids: Iterable[TensorId]) -> dict[TensorId, QuantParams]:
    """Return the parameters that the quantized module holds for each tensor."""
    found: dict[TensorId, QuantParams] = {}
    for binding in view.bindings:
        call = call_to(binding.value, "quantize")
        if call is not None and isinstance(call.args[0], Var):
            params = params_of(call, dtype_of(binding.var))
            if params is None:
                raise QuantizationError(f"{call.args[0].name}: scale and zero point must be constants to be compared")
            found.setdefault(TensorId(call.args[0].name), params)
    return {tensor: found[tensor] for tensor in ids}
