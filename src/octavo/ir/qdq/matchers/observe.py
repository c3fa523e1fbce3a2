"""The rule of observed tensors: the observer reads the tensor as it lies in memory, in whichever layout kernels keep it.

An observed convolution or matmul is claimed by the rule of its own (float_conv2d.py); this one takes what remains.
"""

from __future__ import annotations

from tvm.relax import Var

from ...composites.base import CompositeOp
from ...composites.float_ops import Observation, ObserveOp
from ...graph.dataflow import DataflowView, static_shape
from ...graph.observe import OBSERVE, ObserveCall, read_observe
from ...graph.rules import Region, Rejection


def match_observe(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim one observing call."""
    call = read_observe(view.definition(core))
    assert call is not None, "the rule names no other op"
    assert static_shape(core) is not None, "only tensors of static shape are observed"
    op = ObserveOp(op=OBSERVE, tensor=call.tensor.name, observation=observation_of(call))
    return Region(core=core, output=core, members=(core,), inputs=(call.tensor, call.ranges, call.counts), op=op)


def observation_of(call: ObserveCall) -> Observation:
    """Return the observation of a call."""
    return Observation(ranges=call.ranges.name, counts=call.counts.name, channel_axis=call.channel_axis)
