"""What another quantizer is asked, tensor by tensor: which tensor, its statistics, the parameters that it would get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt

from ..errors import QuantizationError, brief
from ..ir.graph.dataflow import static_shape
from ..ir.graph.model import Model
from ..ir.identity import TensorId
from ..numerics import QuantParams
from ..target.tensor_support import TensorSupport
from .equalized_float import EqualizedFloat
from .plan import QuantizationPlan
from .ranges import TensorRange
from .request import Request


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


def tensor_choices(source: Model, form: EqualizedFloat, plan: QuantizationPlan) -> dict[TensorId, TensorChoice]:
    """Return what a callback is asked: each activation and weight of a plan, in the order of the graph.

    Parameters
    ----------
    source
        The model as it was imported, `form` what is quantized of it.
    """

    def choice(name: TensorId) -> TensorChoice:
        var, value = form.variables[name], form.model.params.get(name)
        entry = form.model.tensors.get(name)
        known = form.sources.source(var) if value is None or value is source.params.get(name) else None
        return TensorChoice(
            id=name,
            name="" if entry is None else entry.source_name,
            op="" if entry is None else entry.op,
            kind="weight" if value is not None else "input" if name in source.input_ids else "activation",
            shape=static_shape(var) or (),
            params=plan.activations[name] if value is None else plan.weights[name],
            values=value,
            read_statistics=lambda: None if form.statistics is None or known is None else form.statistics[known],
        )

    return {name: choice(name) for name in (*plan.activations, *plan.weights)}
