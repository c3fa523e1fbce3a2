"""Which source tensor a variable of a QDQ graph holds: quantize and dequantize make new variables of the same tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tvm.relax import Var

from ..composites.base import CompositeOp
from ..graph.dataflow import DataflowView, call_to
from ..graph.probes import read_probe
from ..graph.rules import Region


def tensors_of_variables(view: DataflowView, ids: Collection[str], sources: Mapping[str, str] | None = None) -> dict[str, str]:
    """Map variables that aren't TensorIds themselves to the TensorId whose value they hold, as integers or as floats.

    Before::

        t = R.nn.relu(...); t_q = R.quantize(t, ...); t_dq = R.dequantize(t_q, ...)      # ids = {"t"}

    gives {"t_q": "t", "t_dq": "t"}. `sources` are variables that hold some of another one's pixels, by name.
    """
    tensors = {part: full for part, full in (sources or {}).items() if full in ids}
    for binding in view.bindings:
        name = binding.var.name
        call = call_to(binding.value, "quantize", "dequantize")
        probe = read_probe(binding.value)
        read = probe[0] if probe is not None else call.args[0] if call is not None else None
        if not isinstance(read, Var) or name in tensors:
            continue
        source = read.name
        if name in ids:
            if source not in ids and call_to(call, "dequantize") is not None:
                tensors.setdefault(source, name)  # integers that sink_dequantize.py made
        elif source in ids:
            tensors[name] = source
        elif source in tensors:
            tensors[name] = tensors[source]
    return tensors


def with_tensor_ids(info: Mapping[str, Any], tensors: Mapping[str, str]) -> dict[str, Any]:
    """Return a composite's quantize_info with the ids of its tensors resolved."""

    def resolved(entry: Any) -> Any:
        # Besides tensors, a quantize_info says of the op how it computes.
        return {**entry, "id": tensors.get(entry["id"], entry["id"])} if isinstance(entry, dict) else entry

    return {role: resolved(entry) for role, entry in info.items()}


def fused_tensors(
    view: DataflowView, region: Region[CompositeOp], ids: Collection[str], sources: Mapping[str, str] | None = None
) -> list[str]:
    """Return the TensorIds that a composite computes on the way to its result, in order: what it makes, not what it reads.

    `sources` as `tensors_of_variables` takes it: some of a tensor's pixels count as the tensor.
    """
    members = [var for var in region.members if call_to(view.definition(var), "dequantize") is None]
    made = [var.name for var in sorted(members, key=view.place_of)]
    return [name for name in ((sources or {}).get(name, name) for name in made) if name in ids]
