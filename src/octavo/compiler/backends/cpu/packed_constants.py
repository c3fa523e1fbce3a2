"""The constants that a composite's kernels are called with, packed as they read them, without any code. Reads no QDQ graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm.ir import GenericConst
from tvm.relax import Var

from ....ir.composites.attributes import Composite
from ....ir.graph.dataflow import BodyWriter, call_to, dtype_of
from ....ir.untyped import relax
from .backend import CpuBackend
from .context import KernelContext, KernelTable, shape_of
from .kernels.language.vectors import without_bodies
from .storage import RELABELLED, TO_NHWC, StorageLayout


def packed_constants(
    composite: Composite, inputs: Sequence[Var], output: Var, isa: str
) -> list[tuple[Mapping[str, Any], list[tvm.runtime.Tensor]]]:
    """Return the attributes and the constants of each kernel call of a composite, in their order, for one thread.

    They are those of kernels for a core of which nothing is known beyond its ISA: no code depends on their values.

    Parameters
    ----------
    inputs, output
        The variables that the composite is called with, and the one that its call binds.
    isa
        Of the kernels.
    """
    builder, table = relax.BlockBuilder(), KernelTable()
    context = KernelContext(BodyWriter(builder), table, isa, 1)
    if getattr(composite.op, "layout", None) == "NCHW":
        for var in inputs:
            _put_nhwc(context, var)
    with without_bodies():
        context.write(CpuBackend(), composite, list(inputs), output)
    found: list[tuple[Mapping[str, Any], list[tvm.runtime.Tensor]]] = []
    for binding in context.writer.bindings:
        call = call_to(binding.value, "call_dps_packed")
        if call is not None:
            attrs = table.placed[str(call.args[0].global_symbol)].func.attrs
            found.append((attrs, [arg.value for arg in call.args[1].fields if isinstance(arg, GenericConst)]))
    return found


def _put_nhwc(context: KernelContext, var: Var) -> None:
    """Say that a variable lies as kernels read it: to permute it would take a kernel, whose constants nobody wants."""
    shape = shape_of(var)
    if len(shape) == 4:
        lying = relax.Var(var.name, relax.TensorType([shape[axis] for axis in TO_NHWC], dtype_of(var)))
        context.storage.put(var, StorageLayout(is_nhwc=True, is_relabelled=dtype_of(var) in RELABELLED), lying)
