"""The float model call by call, its tensors seen by name. It decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir import GenericConst
from tvm.relax import Var

from ...compiler.backends.cpu.kernels.language.vectors import without_bodies
from ...compiler.backends.cpu.link import link
from ...compiler.backends.cpu.lowering import lower_composites
from ...compiler.backends.cpu.storage import TO_NHWC
from ...compiler.codegen.kernel_calls import KernelCall, KernelCalls
from ...compiler.partition.pipeline import partition_module
from ...compiler.target_choice import ResolvedTarget
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView
from ...ir.graph.results import with_results


class FloatProgram:
    """The calls of a float model whose tensors are seen by name.

    Parameters
    ----------
    model
        Float, simplified.
    names
        The tensors that are to be variables of their own: nothing is fused across them.
    runs
        Whether its calls are run, not only looked at for their constants.

    Raises
    ------
    NotImplementedError
        TVM's virtual machine alone can run the model.
    """

    def __init__(self, model: Model, names: Sequence[str], target: ResolvedTarget, *, runs: bool = True) -> None:
        module = with_results(model.bound(), names)
        with nullcontext() if runs else without_bodies():
            lowered = lower_composites(partition_module(module, target.host), target.host, target.isas, 1, stored_from=0)
            linked = link(lowered, target.llvm)
        program, view = KernelCalls(linked, target.llvm if runs else None), DataflowView(linked["main"])
        self.calls: list[KernelCall] = program.calls
        self.params: tuple[Var, ...] = program.params
        known = {hash(var): var for var in (*program.params, *(call.var for call in program.calls))}
        self.variables: dict[str, Var] = {
            name: known[hash(view.root_of(result))] for name, result in zip(names, program.results, strict=True)
        }
        self.orders: dict[str, tuple[int, ...]] = {
            name: TO_NHWC for name, is_nhwc in zip(names, lowered.stored, strict=True) if is_nhwc
        }
        """By the names of tensors the order in which the axes of the source lie, where it is another."""
        self._constants = [[each.value for each in call.operands if isinstance(each, GenericConst)] for call in program.calls]
        for call in program.calls:  # to take a tensor out of its constant each time takes as long as a small kernel
            call.operands[:] = [each.value if isinstance(each, GenericConst) else each for each in call.operands]

    def constants(self) -> list[list[Any]]:
        """Return the constants of each call, as tensors."""
        return self._constants


def calls_behind(
    program: FloatProgram, makers: Mapping[Var, int], wanted: Sequence[Var], until: Collection[Var]
) -> list[tuple[int, KernelCall]]:
    """Return the calls that variables need, in order, back to those of `until`."""
    found: set[int] = set()
    ahead = [var for var in wanted if var in makers]
    while ahead:
        number = makers[ahead.pop()]
        if number not in found:
            found.add(number)
            reads = (each for each in program.calls[number].operands if isinstance(each, Var))
            ahead.extend(var for var in reads if var in makers and var not in until)
    return [(number, program.calls[number]) for number in sorted(found)]


def unread_after(calls: Sequence[tuple[int, KernelCall]], kept: Collection[Var]) -> dict[int, list[Var]]:
    """Return the variables that nothing reads behind a call, by its number."""
    last = {var: number for number, call in calls for var in (*call.operands, call.var) if isinstance(var, Var)}
    found, left = {number: list[Var]() for number, _ in calls}, set(kept)  # to look through a list compares variables
    for var, number in last.items():
        if var not in left:
            found[number].append(var)
    return found


def as_array(value: Any) -> npt.NDArray[Any]:
    """Return a view of a tensor's memory."""
    return np.from_dlpack(value)
