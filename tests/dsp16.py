"""A vendor's back end for int16 activations and int8 weights, requantized by float multipliers: docs/vendors.md, section 6.

It was written from the documentation alone, and reads nothing that the documentation does not name.
"""

from __future__ import annotations

import math
from typing import Any

from octavo import TargetDescription
from octavo.compiler.backends import Code, CodeGenerator, CSource, toolkit

_WEIGHTED = {
    "weights": ["int8"],
    "weight_schemes": ["symmetric"],
    "weight_granularity": ["per_axis"],
    "fusions": ["bias", "nn.relu", "clip"],
}
DESCRIPTION: dict[str, Any] = {
    "schema_version": 2,
    "name": "dsp16",
    "activation_layout": "NHWC",
    "weight_layout": "OHWI",
    "defaults": {"activations": ["int16"], "activation_schemes": ["symmetric"], "requantize": "float_multiplier"},
    "ops": [
        {"op": "nn.conv2d", **_WEIGHTED},
        {"op": "matmul", **_WEIGHTED},
        {"op": "add", "fusions": ["nn.relu", "clip"], "limits": {"inputs": 2}},
        {"op": "nn.avg_pool2d"},
        {"op": "mean", "limits": {"rank": {"maximum": 4}}},
        {"op": "nn.max_pool2d", "same_params": True},
    ],
}
HEAD = """#include <math.h>
#include <stdint.h>
static int16_t clipped(float value, int low, int high) {
  value = rintf(value);  /* half to even */
  return (int16_t)(value < low ? low : value > high ? high : value);
}
"""
CONV = """
  for (int n = 0; n < {N}; n++) for (int i = 0; i < {OH}; i++) for (int j = 0; j < {OW}; j++) for (int o = 0; o < {O}; o++) {{
    int64_t sum = bias[o];
    for (int r = 0; r < {R}; r++) for (int s = 0; s < {S}; s++) for (int c = 0; c < {CG}; c++) {{
      int h = i * {down} - {top} + r * {dilation_h}, v = j * {right} - {left} + s * {dilation_w};
      if (h < 0 || h >= {H} || v < 0 || v >= {W}) continue;
      sum += (int32_t)x[((n * {H} + h) * {W} + v) * {C} + o / ({O} / {G}) * {CG} + c] * w[((o * {R} + r) * {S} + s) * {CG} + c];
    }}
    *y++ = clipped((float)sum * m[o], {low}, {high});
  }}
"""
DENSE = """
  for (int n = 0; n < {rows}; n++) for (int o = 0; o < {O}; o++) {{
    int64_t sum = bias[o];
    for (int c = 0; c < {C}; c++) sum += (int32_t)x[n * {C} + c] * w[o * {C} + c];
    *y++ = clipped((float)sum * m[o], {low}, {high});
  }}
"""
POOL = """
  for (int n = 0; n < {N}; n++) for (int i = 0; i < {OH}; i++) for (int j = 0; j < {OW}; j++) for (int c = 0; c < {C}; c++) {{
    int64_t sum = 0, count = 0, most = INT16_MIN;
    for (int r = 0; r < {R}; r++) for (int s = 0; s < {S}; s++) {{
      int h = i * {down} - {top} + r * {dilation_h}, v = j * {right} - {left} + s * {dilation_w};
      if (h < 0 || h >= {H} || v < 0 || v >= {W}) continue;
      int16_t value = x[((n * {H} + h) * {W} + v) * {C} + c];
      sum += value, count++, most = value > most ? value : most;
    }}
    *y++ = {result};
  }}
"""
MEAN = """
  static const int size[] = {{{size}}}, K[] = {{{kept}}}, G[] = {{{gone}}};
  for (int a = 0; a < K[0]; a++) for (int b = 0; b < K[1]; b++) for (int c = 0; c < K[2]; c++) for (int d = 0; d < K[3]; d++) {{
    int64_t sum = 0;
    for (int e = 0; e < G[0]; e++) for (int f = 0; f < G[1]; f++) for (int g = 0; g < G[2]; g++) for (int h = 0; h < G[3]; h++)
      sum += x[(((a + e) * size[1] + b + f) * size[2] + c + g) * size[3] + d + h];
    *y++ = clipped((float)sum * ({m} / (float){count}), {low}, {high});
  }}
"""
ADD = """
  for (int i = 0; i < {size}; i++) y[i] = clipped(((float)a[i] * {a} + (float)b[i] * {b}) / {y}, {low}, {high});
"""
TYPES = {"int8": "int8_t", "int32": "int32_t", "float32": "float"}


class Dsp16(CodeGenerator):
    """int16, symmetric; sums in 64 bits, times a float32 by channel, half to even."""

    description = TargetDescription.from_json(DESCRIPTION)

    def generate(self, composite: Any) -> Code:
        """Return the C function of one composite."""
        kind = composite.kind.removeprefix("dsp16.")
        bounds = dict(zip(("low", "high"), (composite.quantize_info["output"][end] for end in ("qmin", "qmax")), strict=True))
        return {"conv2d": self.conv2d, "matmul": self.dense, "pool2d": self.pool, "reduce": self.mean, "add": self.add}[kind](
            composite, composite.op, bounds
        )

    def code(self, composite: Any, inputs: str, constants: dict[str, Any], body: str, layout: Any = None) -> Code:
        """Return a function of these inputs and constants."""
        arguments = [f"const int16_t *{name}" for name in inputs]
        arguments += [f"const {TYPES[str(values.dtype)]} *{name}" for name, values in constants.items()]
        text = f"{HEAD}void {composite.name}({', '.join([*arguments, 'int16_t *y'])}) {{{body}}}\n"
        return Code(source=CSource(text=text, symbol=composite.name), constants=tuple(constants.values()), layout=layout)

    def weights(self, composite: Any) -> dict[str, Any]:
        weight = toolkit.weight_of(composite)
        packed = toolkit.constants(composite, self.description)
        return {"w": packed[weight.name], "bias": weight.bias, "m": toolkit.float_multiplier(composite)}

    def window(self, op: Any) -> dict[str, int]:
        x, y = (toolkit.channels_last(tensor.shape, op.layout) for tensor in (op.x, op.y))
        names = ("N", "H", "W", "C", "OH", "OW", "O", "down", "right", "top", "left", "dilation_h", "dilation_w")
        return dict(zip(names, (*x, *y[1:], *op.strides, *op.padding[:2], *op.dilation), strict=True))

    def conv2d(self, composite: Any, op: Any, bounds: dict[str, int]) -> Code:
        sizes = dict(zip(("R", "S", "CG"), op.weight.values.shape, strict=False))
        body = CONV.format(**self.window(op), **sizes, G=op.groups, **bounds)
        return self.code(composite, "x", self.weights(composite), body, "NHWC")

    def dense(self, composite: Any, op: Any, bounds: dict[str, int]) -> Code:
        columns, outputs = op.weight.values.shape
        body = DENSE.format(rows=math.prod(op.x.shape) // columns, C=columns, O=outputs, **bounds)
        return self.code(composite, "x", self.weights(composite), body)

    def pool(self, composite: Any, op: Any, bounds: dict[str, int]) -> Code:
        count = op.kernel[0] * op.kernel[1] if op.count_include_pad else "count"
        multiplier = toolkit.c_float(float(toolkit.float_multiplier(composite)))
        average = "clipped((float)sum * ({} / (float){}), {low}, {high})".format(multiplier, count, **bounds)
        body = POOL.format(**self.window(op), R=op.kernel[0], S=op.kernel[1], result="most" if op.kind == "max" else average)
        return self.code(composite, "x", {}, body, "NHWC")

    def mean(self, composite: Any, op: Any, bounds: dict[str, int]) -> Code:
        shape = (*[1] * (4 - len(op.x.shape)), *op.x.shape)
        axes = {4 - len(op.x.shape) + axis % len(op.x.shape) for axis in op.axes}
        kept, gone = ([1 if (axis in axes) == out else size for axis, size in enumerate(shape)] for out in (True, False))
        sizes = {name: ", ".join(map(str, each)) for name, each in (("size", shape), ("kept", kept), ("gone", gone))}
        multiplier = toolkit.c_float(float(toolkit.float_multiplier(composite)))
        body = MEAN.format(**sizes, count=math.prod(gone), m=multiplier, **bounds)
        return self.code(composite, "x", {}, body)

    def add(self, composite: Any, op: Any, bounds: dict[str, int]) -> Code:
        if not op.a.tensor.shape == op.b.tensor.shape:
            raise NotImplementedError("a sum of tensors of two shapes")
        roles = zip("aby", ("input0", "input1", "output"), strict=True)
        scales = {name: toolkit.c_float(composite.quantize_info[role]["scale"]) for name, role in roles}
        return self.code(composite, "ab", {}, ADD.format(size=math.prod(op.y.shape), **scales, **bounds), "any")
