"""What the passes of one partition are given, and what they find out besides the module. Rewrites nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...ir.composites.attributes import HOST
from ...ir.composites.base import CompositeOp
from ...ir.graph.rules import Partition, Region, Rejection
from ...target import TargetDescription
from ...target.precision import Precision


@dataclass(kw_only=True, slots=True, eq=False)
class PartitionContext:
    """The parameters of a partition, and facts about the variables of its "main", by name.

    Parameters
    ----------
    target
        What the composites are for: the host's kernels.
    vendors
        What other back ends take, in the order in which they choose, before the host; their composites bear the targets' names.
    simulated
        The names of those vendors whose ops are computed by the host's kernels.
    ids
        TensorIds of the source model, by which composites name tensors.
    precision
        What a float module is downcast to; None leaves it as it is.
    sources
        Variable that holds some of a tensor's pixels, or its rounded values -> the variable before that held all of it.
    cuts
        Those of them that were cut from the whole, which no op of the source does.
    half_names
        Variables of a downcast module that are 16 bits wide.
    tensors
        Variable that is no TensorId itself -> TensorId of the tensor that it holds, once composites are outlined.
    regions
        What became a composite, by the name of its function.
    rejections
        Variable of an op with a rule that no composite of integers holds -> why.
    declined
        Variable of such an op, of integers or not -> why vendors that choose before who has it do not take it, by their names.
    source_tensors
        Variable of the module that the first pass was given -> TensorId of the tensor that it holds under another name.
    is_float
        Whether nothing in that module was quantized.
    float_kernels
        Whether the host has kernels of Octavo's for float ops, too.
    """

    target: TargetDescription
    vendors: Sequence[TargetDescription] = ()
    simulated: Collection[str] = ()
    ids: Collection[str] = ()
    precision: Precision | None = None
    sources: dict[str, str] = field(default_factory=dict[str, str])
    cuts: set[str] = field(default_factory=set[str])
    half_names: set[str] = field(default_factory=set[str])
    tensors: dict[str, str] = field(default_factory=dict[str, str])
    regions: dict[str, Region[CompositeOp]] = field(default_factory=dict[str, Region[CompositeOp]])
    rejections: dict[str, Rejection] = field(default_factory=dict[str, Rejection])
    declined: dict[str, dict[str, Rejection]] = field(default_factory=dict[str, dict[str, Rejection]])
    source_tensors: Mapping[str, str] = field(default_factory=dict[str, str])
    is_float: bool = False
    float_kernels: bool = True

    @property
    def takers(self) -> tuple[tuple[TargetDescription, str], ...]:
        """The targets in the order in which they choose, with the prefix of their composites."""
        return (*((vendor, vendor.name) for vendor in self.vendors), (self.target, HOST))

    def on_host(self, backend: str) -> bool:
        """Return whether the host's kernels compute the composites of this prefix."""
        return backend == HOST or backend in self.simulated

    def take_integer(self, found: Partition, backend: str) -> None:
        """Add composites of integers, and why other ops are none: what a vendor leaves is the host's to take or to reject."""
        self.regions |= found.regions
        for name, rejection in found.rejections.items():
            if backend == HOST:
                self.rejections[name] = rejection
            else:
                self.declined.setdefault(name, {}).setdefault(backend, rejection)
        for region in found.regions.values():
            self.rejections.pop(region.core.name, None)
            self.declined.get(region.core.name, {}).pop(backend, None)
