"""Observed tensors: they stay what they are, and a kernel adds their values to statistics that outlive the call."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .....ir.composites.float_ops import ObserveOp
from ..emission import Emission, Value
from ..kernels.observer.observe import ObserveSpec, observe


def emit_observe(op: ObserveOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch an observer; the result is the tensor itself, as the source has it."""
    x = emission.lying(inputs[op.tensor], is_nhwc=False)
    axis, states = op.observation.channel_axis, [inputs[op.observation.ranges], inputs[op.observation.counts]]
    if axis is None:
        spec = ObserveSpec(outer=math.prod(x.shape), channels=1, inner=1)
    else:
        spec = ObserveSpec(outer=math.prod(x.shape[:axis]), channels=x.shape[axis], inner=math.prod(x.shape[axis + 1 :]))
    emission.steps.append((observe(spec, emission.isa), tuple(each.buffer for each in (x, *states))))
    return x
