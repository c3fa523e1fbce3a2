"""The float model call by call, its tensors seen by name. It decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.ir import GenericConst
from tvm.relax import Var

from ...compiler.backends.cpu.kernels.language.vectors import without_bodies
from ...compiler.backends.cpu.link import link
from ...compiler.backends.cpu.lowering import lower_composites
from ...compiler.codegen.kernel_calls import KernelCall, KernelCalls
from ...compiler.partition.pipeline import partition_module
from ...compiler.target_choice import ResolvedTarget
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, dtype_of, operand_vars, static_shape
from ...ir.graph.results import with_results
from ...ir.identity import TensorId


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
            lowered = lower_composites(partition_module(module, target.host), target.host, target.isas, 1)
            linked = link(lowered, target.llvm)
        program = KernelCalls(linked, target.llvm if runs else None)
        self.calls: list[KernelCall] = program.calls
        self.params: tuple[Var, ...] = program.params
        variables = {call.var.name: call.var for call in program.calls} | {param.name: param for param in program.params}
        holders = {str(tensor): str(getattr(var, "name", var)) for tensor, var in lowered.announced.holders.items()}
        moved = _laid_out_for_return(lowered.module, names, holders)
        makers = {call.var: call for call in program.calls}
        self.variables: dict[str, Var] = {}
        for name, result in zip(names, program.results, strict=True):
            # TVM's passes rename what no kernel of ours writes: then it is the result itself, or what is laid out for that.
            renamed = makers[result].operands[0] if name in moved and (not runs or _only_moves(makers[result])) else result
            self.variables[name] = variables.get(holders.get(name, name), renamed)
        self._constants = [[each.value for each in call.operands if isinstance(each, GenericConst)] for call in program.calls]
        for call in program.calls:  # to take a tensor out of its constant each time takes as long as a small kernel
            call.operands[:] = [each.value if isinstance(each, GenericConst) else each for each in call.operands]
        orders = lowered.announced.permutations
        self.orders: dict[str, tuple[int, ...]] = {
            name: orders[name] for name, var in self.variables.items() if name in orders and var not in program.results
        }
        """By the names of tensors the order in which the axes of the source lie, where it is another."""

    def constants(self) -> list[list[Any]]:
        """Return the constants of each call, as tensors."""
        return self._constants


def _laid_out_for_return(module: tvm.IRModule, names: Sequence[str], holders: Mapping[str, str]) -> set[str]:
    """Return the tensors that a lowered module returns as one call makes them of their holders: in the source's layout."""
    view = DataflowView(module["main"])
    found: set[str] = set()
    for name, result in zip(names, operand_vars(view.result), strict=True):
        made = view.binding_of(result)
        read = [] if made is None else operand_vars(view.definition(made))
        if name in holders and made is not None and made.name != holders[name] and [var.name for var in read] == [holders[name]]:
            found.add(name)
    return found


def _only_moves(call: KernelCall) -> bool:
    """Return whether a call gives what it reads in another order: one that computes besides makes the tensor itself."""
    shape = static_shape(call.operands[0])
    if shape is None or len(call.operands) != 1 or dtype_of(call.operands[0]) != "float32":
        return False
    values = np.arange(prod(shape), dtype=np.float32).reshape(shape) - prod(shape) / 2 + 0.25  # of both signs, no two alike
    found = as_array(call.run([tvm.runtime.tensor(values.astype(np.float32))]))
    return np.array_equal(np.sort(found.reshape(-1)), values.reshape(-1))


def with_values(model: Model, values: Mapping[TensorId, npt.NDArray[Any]]) -> Model:
    """Return a float model with other values of its constants; those of which it has none of that shape are left."""
    params = dict(model.params)
    for name, value in values.items():
        if name in params and params[name].shape == value.shape:
            params[name] = value.astype(params[name].dtype)
    return replace(model, params=params)


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
