"""The name of a kernel's work, under which its schedule is kept: shapes and kinds, no constants. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

from ......ir.composites.outputs import FloatOutput, SumOutput
from .bfloat16_spec import Bfloat16Conv2dSpec
from .float_spec import FloatConv2dSpec
from .spec import Conv2dSpec


def schedule_key(spec: Conv2dSpec | FloatConv2dSpec, *, asymmetric: bool = False) -> str:
    """Return what decides how long a kernel takes, as text.

    Parameters
    ----------
    asymmetric
        Whether weights have a zero point.
    """
    x = (spec.batch, spec.in_height, spec.in_width, spec.in_channels)
    facts = [f"x={_by(x)}", f"w={_by((*spec.kernel, spec.out_channels))}"]
    defaults = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
    facts += [f"{name}={_by(getattr(spec, name))}" for name, usual in defaults.items() if getattr(spec, name) != usual]
    facts += [f"groups={spec.groups}"] if spec.groups > 1 else []
    if isinstance(spec, FloatConv2dSpec):
        kind = "bfloat16" if isinstance(spec, Bfloat16Conv2dSpec) else "float32"
        return " ".join([kind, *facts, *(["adds"] if spec.adds else [])])
    if spec.dtype == "int16":
        return " ".join(["int16", *facts])
    facts += [f"stack={spec.stack}"] if spec.stack > 1 else []
    facts += ["gathered"] if spec.index_dtype is not None else []
    facts += ["zero_point"] if any(spec.padding) and spec.input_zero_point else []
    facts += ["asymmetric"] if asymmetric else []
    facts += ["dynamic"] if spec.pixels_per_scale != 0 else []
    result = "float32" if isinstance(spec.output, FloatOutput) else "int32" if isinstance(spec.output, SumOutput) else "uint8"
    return " ".join(["int8", *facts, f"y={result}"])


def _by(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes))
