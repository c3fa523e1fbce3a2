"""A code generator for CMSIS-NN's C interface: each composite becomes a call of `arm_..._s8` with TFLite's integers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from octavo import TargetDescription
from octavo.compiler.backends import Code, CodeGenerator, CSource, toolkit
from octavo.ir.composites.attributes import Composite
from octavo.ir.composites.elementwise import PairwiseOp
from octavo.ir.composites.movement import ConcatOp, MoveOp
from octavo.ir.composites.reduction import Pool2dOp, ReduceOp
from octavo.ir.composites.weighted import Conv2dOp, MatmulOp

FOLDER = Path(__file__).parent
KERNELS = (FOLDER / "kernels.c").read_text(encoding="utf-8")
DTYPES = {"int8": "int8_t", "int32": "int32_t"}
ADD_DIGITS = 20
"""By how many bits addends are shifted to the left, as TFLite's ADD of int8 does."""

Constants = dict[str, Any]


def dims(n: int, h: int, w: int, c: int) -> str:
    """Return the address of a cmsis_nn_dims."""
    return f"&(cmsis_nn_dims){{{n}, {h}, {w}, {c}}}"


def tile(sizes: tuple[int, int]) -> str:
    """Return a cmsis_nn_tile of (height, width)."""
    return f"{{{sizes[1]}, {sizes[0]}}}"


class CmsisNn(CodeGenerator):
    """int8, asymmetric activations, weights by channel; Q31 multipliers and shifts."""

    description = TargetDescription.load(FOLDER / "cmsisnn.json")
    kernels = KERNELS
    """What declares the interface: on a Cortex-M '#include "arm_nnfunctions.h"'."""

    def generate(self, composite: Composite) -> Code:
        """Return the C function of one composite."""
        op = composite.op
        if isinstance(op, Conv2dOp):
            is_depthwise = op.groups > 1 and op.groups == toolkit.channels_last(op.x.shape, op.layout)[3]
            return self.depthwise(composite, op) if is_depthwise else self.conv2d(composite, op)
        if isinstance(op, MatmulOp):
            return self.dense(composite, op)
        if isinstance(op, PairwiseOp) and op.kind in ("add", "mul"):
            return self.pairwise(composite, op)
        if isinstance(op, Pool2dOp):
            return self.pool(composite, op)
        if isinstance(op, ReduceOp) and op.kind == "mean":
            return self.mean(composite, op)
        if isinstance(op, ConcatOp):
            return self.concat(composite, op)
        if isinstance(op, MoveOp) and op.axes is None:
            return self.code(composite, ["x"], {}, f"memcpy(y, x, {math.prod(op.y.shape)});")
        raise NotImplementedError(f"CMSIS-NN's generator has no {composite.kind}")

    def conv2d(self, composite: Composite, op: Conv2dOp) -> Code:
        """Return a convolution, grouped or not; its buffer is as large as the library asks on any Cortex-M."""
        rows, columns, inputs, outputs = op.weight.values.shape
        x, y = (toolkit.channels_last(tensor.shape, op.layout) for tensor in (op.x, op.y))
        constants = self.weights(composite)
        call = f"""cmsis_nn_conv_params p = {{{self.offsets(composite)}, {self.window(op)}, {self.bounds(composite)}}};
  arm_convolve_wrapper_s8(&ctx, &p, &q, {dims(*x)}, x, {dims(outputs, rows, columns, inputs)}, weight, {dims(1, 1, 1, outputs)},
                          {self.bias(constants)}, {dims(*y)}, y);"""
        return self.code(composite, ["x"], constants, call, scratch=64 * -(-rows * columns * x[3] // 16), layout="NHWC")

    def depthwise(self, composite: Composite, op: Conv2dOp) -> Code:
        """Return a convolution with filters of its own for each channel, image by image."""
        rows, columns, _, outputs = op.weight.values.shape
        x, y = (toolkit.channels_last(tensor.shape, op.layout) for tensor in (op.x, op.y))
        constants = {**self.weights(composite), "weight": np.ascontiguousarray(op.weight.values)}
        params = f"{self.offsets(composite)}, {outputs // x[3]}, {self.window(op)}, {self.bounds(composite)}"
        of_x, of_y = math.prod(x[1:]), math.prod(y[1:])
        kernel, bias = dims(1, rows, columns, outputs), f"{dims(1, 1, 1, outputs)}, {self.bias(constants)}"
        call = f"""cmsis_nn_dw_conv_params p = {{{params}}};
  for (int32_t n = 0; n < {x[0]}; n++)
    arm_depthwise_conv_wrapper_s8(&ctx, &p, &q, {dims(1, *x[1:])}, x + n * {of_x}, {kernel}, weight, {bias},
                                  {dims(1, *y[1:])}, y + n * {of_y});"""
        scratch = rows * columns * max(2 * x[3], 4 * 128)
        return self.code(composite, ["x"], constants, call, scratch=scratch, layout="NHWC")

    def dense(self, composite: Composite, op: MatmulOp) -> Code:
        """Return a product with a matrix."""
        inputs, outputs = op.weight.values.shape
        rows = math.prod(op.x.shape) // inputs
        constants = self.weights(composite)
        x, y = (composite.quantize_info[role]["zero_point"] for role in ("input", "output"))
        call = f"""cmsis_nn_fc_params p = {{{-x}, 0, {y}, {self.bounds(composite)}}};
  arm_fully_connected_per_channel_s8(&ctx, &p, &q, {dims(rows, 1, 1, inputs)}, x, {dims(inputs, 1, 1, outputs)}, weight,
                                     {dims(1, 1, 1, outputs)}, {self.bias(constants)}, {dims(rows, 1, 1, outputs)}, y);"""
        return self.code(composite, ["x"], constants, call, scratch=4 * outputs)

    def pairwise(self, composite: Composite, op: PairwiseOp) -> Code:
        """Return a sum or a product; an operand smaller than the result is repeated, a constant one beforehand."""
        info, shape = composite.quantize_info, op.y.shape
        size, lines, constants, names = math.prod(shape), [], {}, []
        scratch = 0
        for name, side in (("a", op.a), ("b", op.b)):
            if side.values is not None:
                constants[name] = np.ascontiguousarray(np.broadcast_to(side.values, shape)).astype(np.int8)
                continue
            names.append(name)
            if side.tensor.shape != shape:
                places = np.arange(math.prod(side.tensor.shape), dtype=np.int32).reshape(side.tensor.shape)
                constants[f"{name}_at"] = np.ascontiguousarray(np.broadcast_to(places, shape))
                lines.append(f"int8_t *{name}_wide = (int8_t *)scratch + {scratch};")
                lines.append(f"for (int32_t i = 0; i < {size}; i++) {name}_wide[i] = {name}[{name}_at[i]];")
                scratch += size
        a, b = (f"{name}_wide" if f"{name}_at" in constants else name for name in "ab")
        (a_scale, b_scale, y_scale), (a_zero, b_zero, y_zero) = (
            [info[role][field] for role in ("input0", "input1", "output")] for field in ("scale", "zero_point")
        )
        bounds = f"{info['output']['qmin']}, {info['output']['qmax']}"
        if op.kind == "add":
            unit = 2 * max(a_scale, b_scale)
            factors = (a_scale / unit, b_scale / unit, unit / (y_scale * 2**ADD_DIGITS))
            first, second, last = ("{}, {}".format(*toolkit.multiplier_and_shift(factor)) for factor in factors)
            operands = f"{-a_zero}, {first}, {-b_zero}, {second}, {ADD_DIGITS}"
            lines.append(f"arm_elementwise_add_s8({a}, {b}, {operands}, y, {y_zero}, {last}, {bounds}, {size});")
        else:
            last = "{}, {}".format(*toolkit.multiplier_and_shift(a_scale * b_scale / y_scale))
            lines.append(f"arm_elementwise_mul_s8({a}, {b}, {-a_zero}, {-b_zero}, y, {y_zero}, {last}, {bounds}, {size});")
        alike = scratch == 0 and len(names) == 2
        return self.code(composite, names, constants, "\n  ".join(lines), scratch=scratch, layout="any" if alike else "source")

    def pool(self, composite: Composite, op: Pool2dOp) -> Code:
        """Return an average or a maximum over windows."""
        if op.dilation != (1, 1) or (op.count_include_pad and any(op.padding)):
            raise NotImplementedError("CMSIS-NN's pools have no dilation, and padding does not count")
        x, y = (toolkit.channels_last(tensor.shape, op.layout) for tensor in (op.x, op.y))
        name = "arm_max_pool_s8" if op.kind == "max" else "arm_avgpool_s8"
        call = f"""cmsis_nn_pool_params p = {{{tile(op.strides)}, {tile(op.padding[:2])}, {self.bounds(composite)}}};
  {name}(&ctx, &p, {dims(*x)}, x, {dims(1, *op.kernel, 1)}, {dims(*y)}, y);"""
        return self.code(composite, ["x"], {}, call, scratch=4 * x[3], layout="NHWC")

    def mean(self, composite: Composite, op: ReduceOp) -> Code:
        """Return a mean over any axes: TFLite divides the multiplier's mantissa by the number of elements."""
        x, y = (composite.quantize_info[role] for role in ("input", "output"))
        places = np.arange(math.prod(op.x.shape), dtype=np.int32).reshape(op.x.shape)
        axes = [axis % len(op.x.shape) for axis in op.axes]
        rows = np.moveaxis(places, axes, range(len(axes)))
        rows = rows.reshape(math.prod(rows.shape[: len(axes)]), -1)
        constants = {"starts": np.ascontiguousarray(rows[0]), "taps": np.ascontiguousarray(rows[:, 0])}
        count = len(rows)
        mantissa, exponent = toolkit.multiplier_and_shift(x["scale"] / y["scale"])
        gained = min(count.bit_length() - 1, 31 + exponent)
        multiplier = f"{(mantissa << gained) // count}, {exponent - gained}, {y['zero_point']}"
        sizes = f"{math.prod(op.y.shape)}, {count}, {-x['zero_point']}"
        call = f"mean_s8(x, starts, taps, y, {sizes}, {multiplier}, (cmsis_nn_activation){self.bounds(composite)});"
        return self.code(composite, ["x"], constants, call)

    def concat(self, composite: Composite, op: ConcatOp) -> Code:
        """Return rows laid side by side; inputs and output have the same parameters."""
        axis = op.axis % len(op.y.shape)
        rows, row = math.prod(op.y.shape[:axis]), math.prod(op.y.shape[axis:])
        constants = {f"c{place}": np.asarray(values, np.int8) for place, values in op.constants.items()}
        names = [f"c{place}" if place in op.constants else f"x{place}" for place in range(len(op.inputs))]
        lines, start = [], 0
        for name, tensor in zip(names, op.inputs, strict=True):
            part = math.prod(tensor.shape[axis:])
            lines.append(f"for (int32_t n = 0; n < {rows}; n++) memcpy(y + n * {row} + {start}, {name} + n * {part}, {part});")
            start += part
        return self.code(composite, [name for name in names if name not in constants], constants, "\n  ".join(lines))

    def weights(self, composite: Composite) -> Constants:
        """Return weight, multipliers, shifts and bias, if there is one, by their names in C."""
        packed, weight = toolkit.constants(composite, self.description), toolkit.weight_of(composite)
        multiplier, shift = toolkit.fixed_point(composite)
        found: Constants = {"weight": packed[weight.name], "multiplier": multiplier, "shift": shift}
        return found | ({"bias": packed[weight.bias_name]} if weight.bias_name else {})

    def bias(self, constants: Constants) -> str:
        """Return the argument `bias_data`."""
        return "bias" if "bias" in constants else "NULL"

    def offsets(self, composite: Composite) -> str:
        """Return input_offset, which is added, and output_offset."""
        return f"{-composite.quantize_info['input']['zero_point']}, {composite.quantize_info['output']['zero_point']}"

    def window(self, op: Conv2dOp) -> str:
        """Return stride, padding and dilation."""
        return f"{tile(op.strides)}, {tile(op.padding[:2])}, {tile(op.dilation)}"

    def bounds(self, composite: Composite) -> str:
        """Return a cmsis_nn_activation."""
        return f"{{{composite.quantize_info['output']['qmin']}, {composite.quantize_info['output']['qmax']}}}"

    def code(
        self,
        composite: Composite,
        inputs: list[str],
        constants: Constants,
        body: str,
        *,
        scratch: int = 0,
        layout: Any = "source",
    ) -> Code:
        """Return the function around a call; `ctx` is its scratch memory, `q` the multipliers and shifts of its channels."""
        arguments = [f"const int8_t *{name}" for name in inputs]
        arguments += [f"const {DTYPES[str(values.dtype)]} *{name}" for name, values in constants.items()]
        arguments += [*(["uint8_t *scratch"] if scratch else []), "int8_t *y"]
        lines = [f"cmsis_nn_context ctx = {{scratch, {scratch}}};"] if "&ctx" in body else []
        if "&q" in body:
            lines.append("cmsis_nn_per_channel_quant_params q = {(int32_t *)multiplier, (int32_t *)shift};")
        text = "\n  ".join([f"void {composite.name}({', '.join(arguments)}) {{", *lines, body])
        source = CSource(text=f"{self.kernels}\n{text}\n}}\n", symbol=composite.name)
        return Code(source=source, constants=tuple(constants.values()), workspace=scratch, layout=layout)
