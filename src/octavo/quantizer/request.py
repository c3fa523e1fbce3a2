"""What is asked of single tensors: by ops of the target, a recipe, overrides, a callback or a plan. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy.typing as npt

from ..errors import QuantizationError, brief
from ..ir.identity import TensorId
from ..numerics import INTEGER_RANGE, PerAxis, QuantParams
from ..target.tensor_support import TensorSupport
from .ranges import QuantScheme, TensorRange


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What one tensor must be; two that differ in who asks alone are equal.

    Parameters
    ----------
    who
        Who asks, as reasons name it: "the recipe", "nn.conv2d y".
    tensor
        What it may be, what is None being open, or what it must be exactly.
    narrow
        Whether the least integer of the dtype must not be used.
    """

    who: str = field(compare=False)
    tensor: TensorSupport | QuantParams
    narrow: bool = False

    @property
    def params(self) -> QuantParams | None:
        """The very parameters, where they are asked for."""
        return self.tensor if isinstance(self.tensor, QuantParams) else None

    @property
    def support(self) -> TensorSupport:
        """What it may be; of parameters that are asked for, their dtype."""
        return TensorSupport(dtypes=(self.tensor.dtype,)) if isinstance(self.tensor, QuantParams) else self.tensor

    @property
    def width(self) -> int | None:
        """The bits that it must have as an activation; None where that is open."""
        widths = set(map(width_of, self.support.dtypes or ()))
        return widths.pop() if len(widths) == 1 else None

    def of_activation(self, name: str) -> Request:
        """Return what is asked of an activation; QuantizationError for a range of integers that its dtype does not have."""
        params = self.params
        if params is None:
            return self
        low, high = INTEGER_RANGE[params.dtype]
        if (params.qmin, params.qmax) != (low, high):
            raise QuantizationError(
                f"{self.who}: {name}: qmin {params.qmin}, qmax {params.qmax}: activations use the whole range [{low}; {high}] of "
                f"{params.dtype}"
            )
        if isinstance(params.granularity, PerAxis):
            return replace(self, tensor=replace(self.support, granularity=("per_axis",)))
        return replace(self, tensor=replace(self.support, scale=float(params.scale), zero_point=int(params.zero_point)))

    def only(self, *fields: str) -> Request:
        """Return what is asked of some fields."""
        return replace(self, tensor=TensorSupport(**{name: getattr(self.support, name) for name in fields}))

    def describe(self, fields: Iterable[str]) -> str:
        """Say what is asked of some fields."""
        tensor = self.support
        words = {
            "scale": None if tensor.scale is None else f"scale {tensor.scale:.9g}",
            "zero_point": None if tensor.zero_point is None else f"zero point {tensor.zero_point}",
            "scales": "a scale that is a power of two" if tensor.scales == "power_of_two" else None,
        }
        for name in ("dtypes", "schemes", "granularity"):
            words[name] = " or ".join(getattr(tensor, name) or ()) or None
        return ", ".join(word for name in fields if (word := words[name]) is not None)


Requests = Mapping[str, Request]
"""By the name of the tensor in the module."""


def width_of(dtype: str) -> int:
    """Return how many bits a dtype of activations has."""
    return QuantScheme(dtype=dtype).num_bits


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorChoice:
    """One tensor that `quantize` gives parameters to.

    Parameters
    ----------
    id
        TensorId, or the variable of a step within a larger op.
    name
        In the source; "" for such a step.
    op
        What makes it: the source's op ("Conv"), "" for inputs and weights.
    kind
        "input" of the graph, "activation" or "weight".
    shape
        Of the tensor, a weight's as the module holds it.
    params
        What it gets unless the callback returns others.
    values
        float32, of a weight, as they are quantized; None for activations.
    """

    id: TensorId
    name: str
    op: str
    kind: Literal["input", "activation", "weight"]
    shape: tuple[int, ...]
    params: QuantParams
    values: npt.NDArray[Any] | None
    read_statistics: Callable[[], TensorRange | None]

    @property
    def statistics(self) -> TensorRange | None:
        """The profile's entry: range, range by channel, histogram. None for values it does not know: of a folded weight."""
        return self.read_statistics()


ParamsOf = Callable[[TensorChoice], QuantParams | TensorSupport | None]
"""Returns a tensor's parameters, or what they must be, or None to keep those that it would get."""


def ask(params: ParamsOf, choices: Mapping[TensorId, TensorChoice]) -> dict[str, Request]:
    """Return what a callback wants of each tensor that it wants something of; QuantizationError if it returns anything else."""
    requests: dict[str, Request] = {}
    for name, choice in choices.items():
        answer: Any = params(choice)
        if answer is None:
            continue
        if not isinstance(answer, QuantParams | TensorSupport):
            raise QuantizationError(f"params: {name}: expected QuantParams, a TensorSupport or None, got {brief(answer)}")
        requests[str(name)] = Request(who="params", tensor=answer)
    return requests
