"""Small QDQ graphs for tests, and ways to run them: as TVM's float simulation, and lowered to kernels."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.compiler.backends.cpu.link import link
from octavo.compiler.backends.cpu.lowering import Lowered
from octavo.compiler.partition import pipeline
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, attrs_of, call_to, replace_operands, write_function
from octavo.ir.qdq.rounding import source_op, with_rounding
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU, TargetDescription
from tvm_alone import tvm_alone

Params = tuple[float, int]


class Qdq:
    """Writes quantized tensors by name: `<name>` float, `<name>_q` integers, `<name>_dq` float again."""

    def __init__(self, writer: BodyWriter, dtype: str) -> None:
        self.writer = writer
        self.dtype = dtype

    def quantize(self, name: str, value: Any, params: Params, *, is_output: bool = False) -> Any:
        scale, zero_point = params
        call = relax.op.quantize(value, relax.const(np.float32(scale)), relax.const(np.int32(zero_point)), out_dtype=self.dtype)
        return self.writer.emit(f"{name}_q", call, is_output=is_output)

    def dequantize(self, name: str, value: Any, params: Params) -> Any:
        scale, zero_point = params
        call = relax.op.dequantize(value, relax.const(np.float32(scale)), relax.const(np.int32(zero_point)))
        return self.writer.emit(f"{name}_dq", call)

    def weight(self, name: str, values: np.ndarray, scale: Any, zero_point: Any = 0, axis: int = 0) -> Any:
        scale = np.asarray(scale, np.float32)
        zeros = np.broadcast_to(np.asarray(zero_point, np.int32), scale.shape).copy()
        call = relax.op.dequantize(relax.const(values), relax.const(scale), relax.const(zeros), axis=axis)
        return self.writer.emit(name, call)


def graph(inputs: dict[str, tuple[tuple[int, ...], str]], body: Callable[[BodyWriter, dict[str, Any]], Any]) -> tvm.IRModule:
    """A module whose main takes `inputs` and returns what `body` emits as output."""
    params = {name: relax.Var(name, relax.TensorType(shape, dtype)) for name, (shape, dtype) in inputs.items()}
    builder = relax.BlockBuilder()
    write_function(builder, "main", list(params.values()), lambda writer: body(writer, params), {"num_input": len(params)})
    module = builder.get()
    relax.analysis.well_formed(module)
    return module


def round_as(module: tvm.IRModule, rounding: str, op: str = "quantize", results_of: tuple[str, ...] = ()) -> tvm.IRModule:
    """The module with each `op`, quantize or dequantize, saying this rounding; only behind `results_of`, if it names ops."""
    main = module["main"]
    view = DataflowView(main)
    new: dict[Any, Any] = {}

    def body(writer: BodyWriter) -> Any:
        for binding in view.bindings:
            value = replace_operands(binding.value, lambda var: new.get(var, var))
            call: Any = call_to(binding.value, op)
            if call is not None and (not results_of or source_op(call.args[0], view.definition) in results_of):
                value = with_rounding(value, rounding)
            is_output = not isinstance(binding.var, relax.DataflowVar)
            new[binding.var] = writer.emit(binding.var.name, value, is_output=is_output)
        return replace_operands(main.body.body, lambda var: new.get(var, var))

    builder = relax.BlockBuilder()
    write_function(builder, "main", list(main.params), body, attrs_of(main))
    return builder.get()


def side_by_side(modules: Sequence[tvm.IRModule]) -> tvm.IRModule:
    """One module of several that have one output each: it takes the inputs of all, and gives the outputs of all in a tuple."""
    mains = [module["main"] for module in modules]
    params = [[relax.Var(f"{param.name}_of_{i}", param.ty) for param in main.params] for i, main in enumerate(mains)]

    def copied(writer: BodyWriter, number: int) -> Any:
        view = DataflowView(mains[number])
        new: dict[Any, Any] = dict(zip(mains[number].params, params[number], strict=True))
        for binding in view.bindings:
            value = replace_operands(binding.value, lambda var: new.get(var, var))
            is_output = not isinstance(binding.var, relax.DataflowVar)
            new[binding.var] = writer.emit(f"{binding.var.name}_of_{number}", value, is_output=is_output)
        return new[view.result]

    def body(writer: BodyWriter) -> Any:
        return relax.Tuple([copied(writer, number) for number in range(len(mains))])

    builder = relax.BlockBuilder()
    every = [param for of_one in params for param in of_one]
    write_function(builder, "main", every, body, {"num_input": len(every)})
    return builder.get()


def run_float(module: tvm.IRModule, *inputs: np.ndarray) -> Any:
    """Compile with TVM's own pipeline: the float simulation of the QDQ graph."""
    return _single(tvm_alone(module)(*inputs))


_lowered: deque[tuple[list[Any], Lowered]] = deque(maxlen=2)
"""What the last modules were lowered to, each behind what it was made of."""


def lower(module: tvm.IRModule, target: TargetDescription, isas: tuple[str, ...], threads: int, *others: Any) -> Lowered:
    """As the pipeline's, but once where a test looks at what a module is lowered to, and runs it."""
    given = [module, target, *isas, threads, *others, pipeline.PASSES]
    for known, lowered in _lowered:
        if len(known) == len(given) and all(a is b for a, b in zip(known, given, strict=True)):
            return lowered
    _lowered.append((given, pipeline.lower(module, target, isas, threads, *others)))
    return _lowered[-1][1]


def run_lowered(module: tvm.IRModule, *inputs: np.ndarray, isa: str | None = None, threads: int = 1) -> Any:
    """Lower to kernels, build and run."""
    from octavo.compiler.codegen.generate import generate
    from octavo.runtime.runner import runner_of

    target = host_target()
    lowered = lower(module, CPU, (isa,) if isa else isas_of(target), threads)
    run = runner_of(generate(link(lowered, target), target))
    return _single([value.numpy() for value in run([tvm.runtime.tensor(value) for value in inputs])])


def _single(results: list[np.ndarray]) -> Any:
    return results[0] if len(results) == 1 else results
