"""Explain: say of each op of a model whether it is integer, which kernel runs, and why where it is float."""

from __future__ import annotations

from ..ir.graph import Model
from ..ir.graph.inputs import input_specs
from ..ir.graph.model import checked_model
from ..runtime.executable import Executable
from ..target.precision import Precision
from .device_models import lowered_for
from .explanation import ExplainedOp, Explanation, explained_ops, output_specs, ports
from .lower import lower
from .target_choice import TargetLike, resolve_target


def explain_model(subject: Model | Executable, *, target: TargetLike = None, precision: Precision | None = None) -> Explanation:
    """Explain a model as it is, lowered and not built, or what an executable is made of; see `octavo.explain`."""
    if isinstance(subject, Executable):
        ops = tuple(ExplainedOp(**entry) for entry in subject.description.ops)
        return Explanation(ops=ops, inputs=ports(subject.inputs), outputs=ports(subject.outputs))
    model, chosen = checked_model(subject), resolve_target(target)
    if chosen.device is not None:
        records = lowered_for(chosen.device, model).records
    else:
        module, backends = model.bound(), chosen.backends
        records = lower(module, chosen.host, chosen.isas, 1, model.tensors, precision, backends=backends).records
    return Explanation(ops=explained_ops(records, model), inputs=ports(input_specs(model)), outputs=ports(output_specs(model)))
