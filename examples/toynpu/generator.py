"""The toy NPU's code generator: what one vendor writes. Each composite becomes a call of a kernel of kernels.c, as C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo import TargetDescription
from octavo.compiler.backends import Code, CodeGenerator, CSource, toolkit
from octavo.ir.composites.attributes import Composite
from octavo.ir.composites.elementwise import LookupOp, PairwiseOp
from octavo.ir.composites.movement import ConcatOp, MoveOp
from octavo.ir.composites.reduction import Pool2dOp, ReduceOp
from octavo.ir.composites.weighted import Conv2dOp, MatmulOp

FOLDER = Path(__file__).parent
KERNELS = (FOLDER / "kernels.c").read_text(encoding="utf-8")
DTYPES = {"int8": "int8_t", "int32": "int32_t"}


class ToyNpu(CodeGenerator):
    """int8, symmetric; scales that are powers of two; results shifted half up; 64 KiB of scratch memory."""

    description = TargetDescription.load(FOLDER / "toynpu.json")

    def generate(self, composite: Composite) -> Code:
        """Return the C function of one composite."""
        op = composite.op
        if isinstance(op, Conv2dOp):
            return self.conv2d(composite, op)
        if isinstance(op, MatmulOp):
            return self.dense(composite, op)
        if isinstance(op, PairwiseOp) and op.kind == "add":
            return self.add(composite, op)
        if isinstance(op, Pool2dOp):
            return self.pool(composite, op)
        if isinstance(op, ReduceOp) and op.kind == "mean":
            return self.mean(composite, op)
        if isinstance(op, ConcatOp):
            return self.concat(composite, op)
        if isinstance(op, LookupOp):
            return self.lookup(composite, op)
        if isinstance(op, MoveOp) and op.axes is None:
            return self.change(composite, op)
        raise NotImplementedError(f"the NPU has no {composite.kind}")

    def conv2d(self, composite: Composite, op: Conv2dOp) -> Code:
        """Return a convolution: the pixels below a window are gathered in the scratchpad."""
        rows, columns, _, _ = op.weight.values.shape
        window = self.window(op.x.shape, op.y.shape, op.layout, (rows, columns), op.strides, op.dilation, op.padding, op.groups)
        scratch = rows * columns * toolkit.channels_last(op.x.shape, op.layout)[3]
        call = f"conv2d(x, weight, bias, shift, scratch, y, {window}, {self.clamp(composite)});"
        return self.code(composite, ["x"], self.weights(composite), call, scratch=scratch, layout="NHWC")

    def dense(self, composite: Composite, op: MatmulOp) -> Code:
        """Return a product with a matrix."""
        inputs, outputs = op.weight.values.shape
        rows = math.prod(op.x.shape) // inputs
        call = f"dense(x, weight, bias, shift, y, {rows}, {inputs}, {outputs}, {self.clamp(composite)});"
        return self.code(composite, ["x"], self.weights(composite), call)

    def add(self, composite: Composite, op: PairwiseOp) -> Code:
        """Return a sum: both operands in units of the finer one, then one shift. A constant operand may repeat."""
        a, b, y = (toolkit.scale_exponent(composite, role) for role in ("input0", "input1", "output"))
        unit, sides = min(a, b), {"a": op.a, "b": op.b}
        sizes = {name: math.prod(side.tensor.shape) if side.values is None else side.values.size for name, side in sides.items()}
        constants = {name: np.asarray(side.values, np.int8) for name, side in sides.items() if side.values is not None}
        shifts = f"{a - unit}, {b - unit}, {y - unit}"
        call = f"add(a, b, y, {math.prod(op.y.shape)}, {sizes['a']}, {sizes['b']}, {shifts}, {self.clamp(composite)});"
        alike = not constants and op.a.tensor.shape == op.b.tensor.shape
        inputs = [name for name in sides if name not in constants]
        return self.code(composite, inputs, constants, call, layout="any" if alike else "source")

    def pool(self, composite: Composite, op: Pool2dOp) -> Code:
        """Return an average or a maximum over windows."""
        window = self.window(op.x.shape, op.y.shape, op.layout, op.kernel, op.strides, op.dilation, op.padding, 1)
        shift = toolkit.scale_exponent(composite, "output") - toolkit.scale_exponent(composite, "input")
        if op.kind == "max":
            call = f"maximum(x, y, {window}, {self.clamp(composite)});"
        else:
            call = f"average(x, y, {window}, {int(op.count_include_pad)}, {shift}, {self.clamp(composite)});"
        return self.code(composite, ["x"], {}, call, layout="NHWC")

    def mean(self, composite: Composite, op: ReduceOp) -> Code:
        """Return a mean over any axes."""
        shape = op.x.shape
        gone = {axis % len(shape) for axis in op.axes}
        axes = [[axis for axis in range(len(shape)) if (axis in gone) == reduced] for reduced in (False, True)]

        def array(values: Sequence[int]) -> str:
            return f"(const int[]){{{', '.join(map(str, values or (1,)))}}}"  # C has no empty array

        listed = []
        for some in axes:
            sizes, strides = [shape[axis] for axis in some], [math.prod(shape[axis + 1 :]) for axis in some]
            listed.append(f"{math.prod(sizes)}, {len(some)}, {array(sizes)}, {array(strides)}")
        shift = toolkit.scale_exponent(composite, "output") - toolkit.scale_exponent(composite, "input")
        return self.code(composite, ["x"], {}, f"mean(x, y, {listed[0]}, {listed[1]}, {shift}, {self.clamp(composite)});")

    def concat(self, composite: Composite, op: ConcatOp) -> Code:
        """Return rows laid side by side; inputs and output have the same parameters."""
        axis = op.axis % len(op.y.shape)
        rows, whole = math.prod(op.y.shape[:axis]), math.prod(op.y.shape[axis:])
        constants = {f"c{place}": np.asarray(values, np.int8) for place, values in op.constants.items()}
        names = [f"c{place}" if place in op.constants else f"x{place}" for place in range(len(op.inputs))]
        calls, start = [], 0
        for name, tensor in zip(names, op.inputs, strict=True):
            part = math.prod(tensor.shape[axis:])
            calls.append(f"place({name}, y + {start}, {rows}, {part}, {whole});")
            start += part
        return self.code(composite, [name for name in names if name not in constants], constants, " ".join(calls))

    def lookup(self, composite: Composite, op: LookupOp) -> Code:
        """Return a function of single elements by its table."""
        table = {"table": np.asarray(toolkit.table_of(composite), np.int8)}
        return self.code(composite, ["x"], table, f"lookup(x, table, y, {math.prod(op.y.shape)});", layout="any")

    def change(self, composite: Composite, op: MoveOp) -> Code:
        """Return a reshape, a clamp or a change of scale."""
        shift = toolkit.scale_exponent(composite, "output") - toolkit.scale_exponent(composite, "input")
        call = f"change(x, y, {math.prod(op.y.shape)}, {shift}, {self.clamp(composite)});"
        return self.code(composite, ["x"], {}, call, layout="any" if op.x.shape == op.y.shape else "source")

    def weights(self, composite: Composite) -> dict[str, Any]:
        """Return weight, bias and shifts by their names in C; a missing bias is zeros."""
        packed = toolkit.constants(composite, self.description)
        weight = toolkit.weight_of(composite)
        bias = packed.get(weight.bias_name, np.zeros(weight.values.shape[-1], np.int32))
        return {"weight": packed[weight.name], "bias": bias, "shift": toolkit.right_shifts(composite)}

    def window(
        self,
        x: Sequence[int],
        y: Sequence[int],
        layout: str,
        kernel: tuple[int, int],
        strides: tuple[int, int],
        dilation: tuple[int, int],
        padding: tuple[int, int, int, int],
        groups: int,
    ) -> str:
        """Return the C value of a Window."""
        sizes = (*toolkit.channels_last(tuple(x), layout), *toolkit.channels_last(tuple(y), layout)[1:])
        return f"(Window){{{', '.join(map(str, (*sizes, *kernel, *strides, *dilation, *padding[:2], groups)))}}}"

    def clamp(self, composite: Composite) -> str:
        """Return the bounds of the result."""
        info = composite.quantize_info["output"]
        return f"{info['qmin']}, {info['qmax']}"

    def code(
        self,
        composite: Composite,
        inputs: list[str],
        constants: dict[str, Any],
        call: str,
        *,
        scratch: int = 0,
        layout: Any = "source",
    ) -> Code:
        """Return the function that calls a kernel; the scratchpad is asked for where it is used."""
        arguments = [f"const int8_t *{name}" for name in inputs]
        arguments += [f"const {DTYPES[str(values.dtype)]} *{name}" for name, values in constants.items()]
        arguments += [*(["uint8_t *scratch"] if scratch else []), "int8_t *y"]
        text = f"{KERNELS}\nvoid {composite.name}({', '.join(arguments)}) {{\n  {call}\n}}\n"
        source = CSource(text=text, symbol=composite.name)
        return Code(source=source, constants=tuple(constants.values()), workspace=scratch, layout=layout)
