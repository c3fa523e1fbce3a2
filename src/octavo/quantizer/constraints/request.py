"""What somebody other than the target asks of single tensors: a recipe, a callback, a plan. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...errors import QuantizationError
from ...numerics import INTEGER_RANGE, PerAxis, PerBlock, PerTensor, QuantParams
from ...target.tensor_support import TensorSupport
from .demand import LARGEST_SCALE, Demand, width_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What one tensor must be.

    Parameters
    ----------
    who
        Who asks, as reasons name it: "the recipe".
    tensor
        What it may be, or what it must be exactly.
    """

    who: str
    tensor: TensorSupport | QuantParams

    @property
    def params(self) -> QuantParams | None:
        """The very parameters, where they are asked for."""
        return self.tensor if isinstance(self.tensor, QuantParams) else None

    @property
    def width(self) -> int | None:
        """The bits that it must have as an activation; None where that is open."""
        dtypes = (self.tensor.dtype,) if isinstance(self.tensor, QuantParams) else self.tensor.dtypes
        widths = {width_of(dtype) for dtype in dtypes or ()}
        return widths.pop() if len(widths) == 1 else None

    def of_activation(self, name: str) -> Demand:
        """Return the demand on an activation; QuantizationError for a range of integers that its dtype does not have."""
        params = self.params
        if isinstance(self.tensor, TensorSupport):
            return Demand.of(self.who, self.tensor)
        assert params is not None, "a tensor is asked for in one of two ways"
        if (params.qmin, params.qmax) != INTEGER_RANGE[params.dtype]:
            low, high = INTEGER_RANGE[params.dtype]
            raise QuantizationError(
                f"{self.who}: {name}: qmin {params.qmin}, qmax {params.qmax}: activations use the whole range [{low}; {high}] of "
                f"{params.dtype}"
            )
        if isinstance(params.granularity, PerAxis):
            return Demand(who=self.who, dtypes=(params.dtype,), granularity=("per_axis",))
        return Demand(who=self.who, dtypes=(params.dtype,), scale=float(params.scale), zero_point=int(params.zero_point))

    def of_weight(self) -> Demand:
        """Return the demand on a weight; of parameters that are given whole, `unlike_weight` looks at the rest."""
        params = self.params
        return Demand(who=self.who, dtypes=(params.dtype,)) if params is not None else Demand.of(self.who, self._support)

    @property
    def _support(self) -> TensorSupport:
        assert isinstance(self.tensor, TensorSupport), "a tensor is asked for in one of two ways"
        return self.tensor


Requests = Mapping[str, Request]
"""By the name of the tensor in the module."""


def unlike_blocks(request: Request, shape: tuple[int, ...], axis: int) -> str | None:
    """Return why the parameters that are asked for are none of blocks along an axis of a weight, of 4 bits, or None."""
    params = request.params
    assert params is not None, "checked by the caller"
    granularity = params.granularity
    if not isinstance(granularity, PerBlock) or granularity.axis != axis:
        return f"{request.who} gives it {granularity}, expected blocks along axis {axis}"
    expected = tuple(size // granularity.size if at == axis else size for at, size in enumerate(shape))
    if params.scale.shape != expected:
        return f"{request.who} gives it scales {params.scale.shape}, expected {expected}"
    low, high = INTEGER_RANGE["int4"]
    if params.dtype != "int8" or params.qmin < low or params.qmax > high:
        given = f"[{params.qmin}; {params.qmax}] of {params.dtype}"
        return f"{request.who} gives it integers in {given}, expected [{low}; {high}] of int8"
    if (params.zero_point < low).any() or (params.zero_point > high).any():
        return f"{request.who} gives it a zero point beyond [{low}; {high}]"
    return None


def unlike_weight(
    request: Request, weight: TensorSupport, *, axis: int | None, channels: int, narrow: bool, who: str
) -> str | None:
    """Return why the parameters that are asked for are none that an op takes for its weight, or None.

    Parameters
    ----------
    weight
        What the op allows, of its bias, too.
    axis
        Axis of the output channels, None where there is none to speak of.
    narrow
        Whether the least integer must not be used.
    who
        The op, as reasons name it.
    """
    params = request.params
    if params is None:
        return None
    given = params.granularity.axis if isinstance(params.granularity, PerAxis) else None
    kind = {PerTensor: "per_tensor", PerAxis: "per_axis", PerBlock: "per_block"}[type(params.granularity)]
    scales = np.asarray(params.scale, np.float64)
    allowed = weight.granularity or ()
    problem = None
    if kind not in allowed:
        problem = f"{request.who} gives it {kind} scales, {who} needs {' or '.join(allowed)}"
    elif given is not None and (given != axis or scales.size != channels):
        expected = "no axis" if axis is None else f"{channels} scales along axis {axis}"
        problem = f"{request.who} gives it {scales.size} scales along axis {given}, {who} needs {expected}"
    elif not params.is_symmetric:
        problem = f"{request.who} gives it a zero point other than 0; quantize makes symmetric weights"
    elif narrow and params.qmin == INTEGER_RANGE[params.dtype][0]:
        problem = f"{request.who} gives it integers from {params.qmin}, {who} needs a narrow range, from {params.qmin + 1}"
    elif weight.scales == "power_of_two" and (np.frexp(scales)[0] != 0.5).any():
        odd = float(scales.reshape(-1)[np.frexp(scales.reshape(-1))[0] != 0.5][0])
        problem = f"{request.who} gives it the scale {odd:.9g}, {who} needs a scale that is a power of two"
    elif weight.scale is not None and (params.scale != np.float32(weight.scale)).any():
        problem = f"{request.who} gives it the scale {float(scales.reshape(-1)[0]):.9g}, {who} needs {weight.scale:.9g}"
    elif not ((scales >= 1 / LARGEST_SCALE) & (scales <= LARGEST_SCALE)).all():
        problem = f"{request.who} gives it a scale beyond [{1 / LARGEST_SCALE:.3g}; {LARGEST_SCALE:.3g}]"
    return problem
