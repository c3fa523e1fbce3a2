"""Products with weights in a dataflow graph, what is added to them, and which axis counts channels. It knows no quantization."""

from __future__ import annotations

from tvm.relax import Var

from .dataflow import DataflowView, call_to


def with_bias(view: DataflowView, product: Var) -> Var:
    """Return the variable of a product's result with what is added to it, before any clamp; of the product, where nothing is."""
    user = view.only_user(product)
    return product if user is None or call_to(view.definition(user), "add") is None else user


def channel_axis(view: DataflowView, rank: int) -> int | None:
    """Return the axis of channels in a tensor: that of the graph's convolutions in one of four dimensions, else the last.

    None where a tensor has a batch at most.
    """
    if rank < 2:
        return None
    calls = (call_to(binding.value, "nn.conv2d") for binding in view.bindings)
    layout = next((str(call.attrs.data_layout) for call in calls if call is not None), "NCHW")
    return layout.index("C") if rank == 4 else rank - 1
