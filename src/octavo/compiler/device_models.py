"""A model on a device with memory of its own: partitioned, lowered and compiled by the device's back end alone."""

from __future__ import annotations

from dataclasses import asdict
from types import MappingProxyType

import tvm

from ..errors import TargetError, brief
from ..ir.graph import Model
from ..ir.graph.inputs import input_specs
from ..runtime.description import Description, OutputSpec
from ..runtime.executable import Executable
from .backends.protocol import DeviceBackend, DeviceLowered
from .backends.tunable import Schedules
from .explanation import explained_ops, output_specs
from .partition.pipeline import partition_module
from .target_choice import ResolvedTarget, TargetLike, resolve_target


def partitioned_for(device: DeviceBackend, model: Model) -> tvm.IRModule:
    """Partition a model for a device, which computes what stays float, too."""
    return _partitioned(device, model, model.bound())


def _partitioned(device: DeviceBackend, model: Model, module: tvm.IRModule) -> tvm.IRModule:
    return partition_module(module, device.description, model.tensors, float_kernels=False)


def lowered_for(device: DeviceBackend, model: Model, schedules: Schedules = MappingProxyType({})) -> DeviceLowered:
    """Partition a model for a device, and lower it; kernels take the schedules that were measured for their keys."""
    return device.lower(partitioned_for(device, model), schedules)


def compiled_for(
    device: DeviceBackend, model: Model, target: ResolvedTarget, schedules: Schedules = MappingProxyType({})
) -> Executable:
    """Compile a model for a device of a target; CompileError for what it does not compute."""
    return _compiled(device, model, lowered_for(device, model, schedules), target, output_specs(model))


def profiling_target(target: TargetLike) -> ResolvedTarget:
    """Return where a float model is profiled; TargetError unless that is this machine, or a device that it has."""
    chosen = resolve_target(target)
    if chosen.device is not None:
        chosen.device.check_present()
    elif target not in (None, "cpu"):
        raise TargetError(f"target {brief(target)}: profiles are made on this machine ('cpu') or on a GPU ('cuda', 'cuda.sm_80')")
    return chosen


def observing_for(device: DeviceBackend, model: Model, module: tvm.IRModule, target: ResolvedTarget) -> Executable:
    """Compile what `profiling.instrument` made of a model for a device, to be attached to memory; raises as `compiled_for`."""
    lowered = device.lower(_partitioned(device, model, module), MappingProxyType({}))
    return _compiled(device, model, lowered, target, ())


def _compiled(
    device: DeviceBackend, model: Model, lowered: DeviceLowered, target: ResolvedTarget, outputs: tuple[OutputSpec, ...]
) -> Executable:
    code = device.code(lowered)
    description = Description(
        inputs=input_specs(model),
        outputs=outputs,
        fingerprint=model.fingerprint,
        target=str(target.llvm),
        isa=device.isa,
        features=(),
        threads=1,
        weight_bytes=0 if code.constants is None else code.constants.nbytes,
        workspace=None,
        shared_units=0,
        any_batch=model.any_batch and all(output.shape for output in outputs),
        batch_range=model.batch_range,
        batch_obstacle=model.batch_obstacle,
        ops=tuple(asdict(op) for op in explained_ops(lowered.records, model)),
        device=device.name,
    )
    return Executable(code, description)
