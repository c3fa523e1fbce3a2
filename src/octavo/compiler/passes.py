"""Every pass from a bound module to one that is built, in order, with the reason for its place: what `octavo passes` prints.

Runs nothing. `partition/pipeline.py` runs those of partition, and `lower` and `linked` in it call the rest. `DumpIR`, given to
``tvm.transform.PassContext(instruments=[...])``, writes the IR after each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from ..ir.graph.dump_ir import DumpIR
from ..ir.graph.passes import summary_of
from .backends.cpu.link import float_passes, link
from .backends.cpu.lowering import lower_composites
from .codegen.generate import vm_passes
from .partition.pipeline import PASSES

__all__ = ["DumpIR", "ListedPass", "listed_passes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPass:
    """A line of the list.

    Parameters
    ----------
    stage
        Package that it belongs to.
    name
        What instruments see behind "octavo.".
    summary
        What it does.
    reason
        Why it stands where it does.
    runs
        Names of the passes of TVM that it runs, in order.
    """

    stage: str
    name: str
    summary: str
    reason: str
    runs: tuple[str, ...] = ()


def listed_passes() -> tuple[ListedPass, ...]:
    """Return all passes in order."""
    return (
        *(ListedPass(stage="partition", name=each.name, summary=each.summary, reason=each.reason) for each in PASSES),
        ListedPass(
            stage="backends",
            name="lower",
            summary=summary_of(lower_composites),
            reason="after partition, for it reads composites alone, and the first that knows a machine",
        ),
        ListedPass(
            stage="backends",
            name="link",
            summary=summary_of(link),
            reason="after lower: TVM's passes can't read the plain loops of kernels, so these enter once they have run",
            runs=_names(float_passes()),
        ),
        ListedPass(
            stage="codegen",
            name="vm_passes",
            summary=summary_of(vm_passes),
            reason="last, for relax_pipeline and where TVM's virtual machine is needed: it plans the memory of all calls",
            runs=_names(vm_passes()),
        ),
    )


def _names(passes: Any) -> tuple[str, ...]:
    members: Sequence[tvm.transform.Pass] = passes.passes
    return tuple(str(each.info.name) for each in members)
