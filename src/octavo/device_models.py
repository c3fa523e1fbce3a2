"""A model on a device with memory of its own: partitioned, lowered and compiled by the device's back end alone."""

from __future__ import annotations

from dataclasses import asdict
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import tvm

from .backends.protocol import DeviceBackend, DeviceCode, DeviceLowered
from .backends.tunable import Schedules
from .build import Description, Executable
from .errors import ExecutableError
from .explanation import explained_ops, output_specs
from .graph import Model
from .graph.inputs import input_specs
from .partition.pipeline import partition_module
from .target_choice import ResolvedTarget


@runtime_checkable
class EmulatedCode(Protocol):
    """Code that an emulator can run."""

    def emulation(self) -> DeviceCode:
        """Return the same code, to run in the emulator."""
        ...


def partitioned_for(device: DeviceBackend, model: Model) -> tvm.IRModule:
    """Partition a model for a device, which computes what stays float, too."""
    return partition_module(model.bound(), device.description, model.tensors, float_kernels=False)


def lowered_for(device: DeviceBackend, model: Model, schedules: Schedules = MappingProxyType({})) -> DeviceLowered:
    """Partition a model for a device, and lower it; kernels take the schedules that were measured for their keys."""
    return device.lower(partitioned_for(device, model), schedules)


def compiled_for(
    device: DeviceBackend, model: Model, target: ResolvedTarget, schedules: Schedules = MappingProxyType({})
) -> Executable:
    """Compile a model for a device of a target; CompileError for what it does not compute."""
    lowered = lowered_for(device, model, schedules)
    code, outputs = device.code(lowered), output_specs(model)
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


def emulated(executable: Executable) -> Executable:
    """Return an executable for a device, to be called on this machine's CPU: for its results alone.

    Raises
    ------
    ExecutableError
        It runs on the host, or there is no emulator of its device.
    """
    code = executable.code
    if isinstance(code, EmulatedCode):
        return Executable(code.emulation(), executable.description)
    raise ExecutableError(f"there is no emulator of what the executable runs on ({executable.description.device or 'the host'})")
