"""Which axis of a tensor counts channels, where nothing but the graph says so."""

from __future__ import annotations

from .dataflow import DataflowView, call_to


def channel_axis(view: DataflowView, rank: int) -> int | None:
    """Return the axis of channels in a tensor: that of the graph's convolutions in one of four dimensions, else the last.

    None where a tensor has a batch at most.
    """
    if rank < 2:
        return None
    calls = (call_to(binding.value, "nn.conv2d") for binding in view.bindings)
    layout = next((str(call.attrs.data_layout) for call in calls if call is not None), "NCHW")
    return layout.index("C") if rank == 4 else rank - 1
