"""Compares what each composite of a compiled QDQ graph gives with the oracles in NumPy, for the integers that it read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax

import octavo
from octavo.compiler.partition.pipeline import integer_regions
from octavo.evaluation.conformance.oracles import expected
from octavo.ir.composites.attributes import read_composites
from octavo.ir.composites.movement import QuantizeOp
from octavo.ir.composites.weighted import Conv2dTransposeOp
from octavo.ir.graph.dataflow import DataflowView, attrs_of, replace_operands, write_function
from octavo.numerics import Window, conv2d_transpose_accumulate, quantize, requantize
from octavo.target import TargetDescription

INTEGERS = ("int8", "uint8", "int16", "uint16")


@dataclass
class Comparison:
    """What was compared: composites by kind, those that no oracle is known of, why others stayed float, and what differs."""

    compared: Counter[str] = field(default_factory=Counter)
    without_oracle: Counter[str] = field(default_factory=Counter)
    rejections: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)


def with_integers(module: tvm.IRModule, names: set[str]) -> tvm.IRModule:
    """The module whose results are the variables of these names."""
    main = module["main"]
    view, new = DataflowView(main), {}

    def body(writer: Any) -> Any:
        kept = []
        for binding in view.bindings:
            value = replace_operands(binding.value, lambda var: new.get(var, var))
            is_output = binding.var.name in names
            new[binding.var] = writer.emit(binding.var.name, value, is_output=is_output)
            kept += [new[binding.var]] if is_output else []
        return relax.Tuple(kept)

    builder = relax.BlockBuilder()
    write_function(builder, "main", list(main.params), body, attrs_of(main))
    return builder.get()


def compare(module: tvm.IRModule, target: TargetDescription, inputs: dict[str, np.ndarray]) -> Comparison:
    """Compile for a description; hold each composite's executed result against its oracle."""
    found = integer_regions(module, target)
    composites = {name: each for name, each in read_composites(found.module).items() if each.quantize_info}
    outlined = DataflowView(found.module["main"])
    values = {
        binding.var.name: binding.value.op.name_hint
        for binding in outlined.bindings
        if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.GlobalVar)
    }
    variables = {binding.var.name: binding.var for binding in DataflowView(module["main"]).bindings}
    wanted = {name for name in values if name in variables and str(getattr(variables[name].ty, "dtype", "")) in INTEGERS}
    wanted |= {
        name for each in composites.values() for name in each.inputs if name in variables and variables[name].ty.dtype in INTEGERS
    }
    result = Comparison(rejections={name: each.reason for name, each in found.rejections.items()})
    if not wanted.intersection(values):
        return result
    probed = with_integers(module, wanted)
    order = [binding.var.name for binding in DataflowView(probed["main"]).bindings if binding.var.name in wanted]
    given = octavo.compile(octavo.load(probed), target=target)(inputs)
    executed = {**dict(zip(order, given.values(), strict=True)), **inputs}
    for name, function in values.items():
        composite = composites.get(function)
        if composite is None or name not in executed or not set(composite.inputs) <= set(executed):
            continue
        want = evaluated(composite.op, {each: executed[each] for each in composite.inputs})
        if want is None:
            result.without_oracle[composite.op_name] += 1
            continue
        result.compared[composite.op_name] += 1
        wrong = want != executed[name]
        if wrong.any():
            got = f"{wrong.sum()} of {wrong.size} differ, {executed[name][wrong][0]} for {want[wrong][0]}"
            result.differences.append(f"{composite.op_name} {name}: {got}: {composite.quantize_info}")
    return result


def evaluated(op: Any, inputs: dict[str, np.ndarray]) -> np.ndarray | None:
    """What the oracles say that a composite gives, None where there is none."""
    if isinstance(op, QuantizeOp):
        return quantize(inputs[op.source], op.y.tensor.params, op.rounding)
    if not isinstance(op, Conv2dTransposeOp):
        found = expected(op, inputs)
        return None if found is None else found.values
    to_nhwc, to_nchw = ((0, 2, 3, 1), (0, 3, 1, 2)) if op.layout == "NCHW" else ((0, 1, 2, 3), (0, 1, 2, 3))
    x, y = inputs[op.x.name].transpose(to_nhwc), op.y
    size = np.transpose(np.empty(y.shape, bool), to_nhwc).shape
    window = Window(strides=op.strides, padding=op.padding, dilation=op.dilation)
    given = {"x_zero_point": int(op.x.params.zero_point), "w_zero_point": op.weight.zero_point, "bias": op.weight.bias}
    least = [(x.shape[1 + i] - 1) * op.strides[i] + (op.weight.values.shape[i] - 1) * op.dilation[i] + 1 for i in range(2)]
    more = tuple(size[1 + i] - least[i] + op.padding[i] + op.padding[2 + i] for i in range(2))
    acc = conv2d_transpose_accumulate(x, op.weight.values, **given, window=window, output_padding=more, groups=op.groups)
    held = acc if op.narrow is None else op.narrow.hold(acc)
    params = y.tensor.params
    return requantize(held, op.weight.multiplier, int(params.zero_point), y.qmin, y.qmax, params.dtype).transpose(to_nchw)
