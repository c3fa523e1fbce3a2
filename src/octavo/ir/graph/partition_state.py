"""What partition found out of a whole function, kept as an attribute of "main" so that lowering needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm

from .dataflow import attrs_of

PARTITION_ATTR = "octavo.partition"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionState:
    """Facts about the variables of a partitioned "main", by name.

    Parameters
    ----------
    tensors
        Variable -> TensorId of the source tensor that it holds under another name.
    pixels_of
        Variable that holds some of a tensor's pixels, or its rounded values -> that tensor.
    cuts
        Variables that a carried stride introduced: no ops of the source.
    halves
        Variables of a downcast module that are kept in 16 bits.
    rejections
        Variable of an op that stays float -> why.
    declined
        Variable of an op -> why back ends that choose earlier do not take it; none where only the host chooses.
    """

    tensors: Mapping[str, str] = field(default_factory=dict[str, str])
    pixels_of: Mapping[str, str] = field(default_factory=dict[str, str])
    cuts: frozenset[str] = frozenset()
    halves: frozenset[str] = frozenset()
    rejections: Mapping[str, str] = field(default_factory=dict[str, str])
    declined: Mapping[str, str] = field(default_factory=dict[str, str])

    def tensor_of(self, name: str) -> str:
        """Return the source tensor that a variable stands for, its own name where there is none."""
        return self.pixels_of.get(name) or self.tensors.get(name, name)

    def attached_to(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return the module with this state on "main"."""
        state = {
            "tensors": dict(self.tensors),
            "pixels_of": dict(self.pixels_of),
            "cuts": sorted(self.cuts),
            "halves": sorted(self.halves),
            "rejections": dict(self.rejections),
            **({"declined": dict(self.declined)} if self.declined else {}),
        }
        main: Any = module["main"]
        result = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
        result.update_func(result.get_global_var("main"), main.with_attr(PARTITION_ATTR, state))
        return result


def is_partitioned(module: tvm.IRModule) -> bool:
    """Return whether "main" calls composites: `partition` made the module."""
    names = {var.name_hint for var in module.get_global_vars()}
    return "main" in names and PARTITION_ATTR in attrs_of(module["main"])


def read_state(module: tvm.IRModule) -> PartitionState:
    """Return the state that partition left on "main"."""
    state: Any = attrs_of(module["main"])[PARTITION_ATTR]
    maps = [key for key in ("tensors", "pixels_of", "rejections", "declined") if key != "declined" or key in state]
    texts = {key: {str(a): str(b) for a, b in state[key].items()} for key in maps}
    return PartitionState(
        **texts, cuts=frozenset(str(name) for name in state["cuts"]), halves=frozenset(str(name) for name in state["halves"])
    )
