"""Compile: a model, as it is, becomes machine code. What options quantize first is done by `quantizer/compile.py`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from ..errors import CompileError, TargetError, check_type
from ..ir.graph import Model
from ..ir.graph.growing_states import with_growing_states
from ..ir.graph.inputs import check_fixed, input_specs
from ..ir.graph.lineage import lineage_paused
from ..ir.graph.model import checked_model
from ..runtime.cpu_features import features_of, names_of
from ..runtime.description import Description, OutputSpec, StatePlace
from ..runtime.executable import Executable
from ..runtime.mapped import forget_pages
from ..runtime.shapes import LARGEST, limits
from ..target.precision import Precision
from .backends.cpu.kernels.language.vectors import without_bodies
from .backends.cpu.lowering import Lowered
from .backends.tuning import Tuning, schedules_of
from .codegen.generate import CompiledCode, constant_bytes, generate
from .constant_block import constant_block
from .device_models import compiled_for
from .explanation import ExplainedOp, explained_ops, output_specs
from .partition.pipeline import linked, lower
from .target_choice import ResolvedTarget, TargetLike, check_compiles_here, resolve_target

_MAX_WORKSPACE = 2**40
"""Of a call's workspace: no machine that a model is compiled for gives more."""

MAX_THREADS = 256
"""Of one call."""


def compile_model(
    model: Model,
    *,
    target: TargetLike | ResolvedTarget = None,
    threads: int | None = None,
    precision: Precision | None = None,
    tuning: str | Path | Tuning | None = None,
) -> Executable:
    """Compile a model as it is.

    Parameters
    ----------
    target, threads, tuning
        As `octavo.compile` takes them.
    precision
        What a float model is downcast to.

    Raises
    ------
    TargetError, TuningError, CompileError
        As `octavo.compile` raises them.
    """
    chosen = resolve_target(target)
    check_compiles_here(chosen)
    count = resolve_threads(threads)
    schedules = schedules_of(tuning, chosen.isa, chosen.processor)
    if chosen.device is not None:
        check_fixed(checked_model(model), "code for a GPU is for a model")
        return compiled_for(chosen.device, checked_model(model), chosen, schedules)
    module, backends = with_growing_states(checked_model(model).bound(runs=False)), chosen.backends
    with constant_block(model.constant_bytes):
        lowered = lower(module, chosen.host, chosen.isas, count, model.tensors, precision, schedules, backends)
        return build_executable(lowered, model, chosen, count, outputs=output_specs(model))


def build_executable(
    lowered: Lowered,
    model: Model,
    target: ResolvedTarget,
    threads: int,
    outputs: tuple[OutputSpec, ...],
) -> Executable:
    """Generate the code of a lowered model, and say what it is."""
    module = linked(lowered, target.llvm)
    forget_pages()  # weights are packed now
    code = generate(module, target.llvm, threads=threads)
    if isinstance(code.workspace, int) and code.workspace > _MAX_WORKSPACE:
        raise CompileError(
            f"a call would need {code.workspace / 2**40:.0f} TiB for what it computes on its way; make its tensors smaller"
        )
    description = Description(
        inputs=input_specs(model),
        outputs=outputs,
        fingerprint=model.fingerprint,
        target=str(target.llvm),
        isa=target.isas[0],
        features=names_of(features_of(target.llvm)),
        threads=threads,
        weight_bytes=constant_bytes(module),
        workspace=code.workspace,
        shared_units=0 if code.control is None else code.control.units,
        any_batch=model.any_batch and all(output.shape for output in outputs),
        batch_range=model.batch_range,
        batch_obstacle=model.batch_obstacle,
        limits=(*lowered.limits, *limits(*((count, LARGEST) for count in lowered.counts))),
        extents=lowered.extents,
        states=tuple(StatePlace(**asdict(state), capacity=state.capacity, in_place=state.in_place) for state in lowered.states),
        ops=tuple(asdict(op) for op in explained_ops(lowered.records, model)),
        fixed=code.fixed if isinstance(code, CompiledCode) else (),
    )
    return Executable(code, description)


def explained_without_code(model: Model, target: TargetLike | ResolvedTarget = None) -> tuple[tuple[ExplainedOp, ...], int]:
    """Return what becomes of a model's ops on a CPU, and the bytes of its kernels' constants: no code is generated."""
    chosen = resolve_target(target)
    with lineage_paused(), without_bodies(), constant_block(model.constant_bytes):
        module = with_growing_states(checked_model(model).bound(runs=False))
        lowered = lower(module, chosen.host, chosen.isas, 1, model.tensors)
        return explained_ops(lowered.records, model), constant_bytes(linked(lowered, chosen.llvm))


def resolve_threads(threads: int | None) -> int:
    """Return the number of chunks: 1 for None. TargetError if it is below 1 or beyond any machine's use."""
    if threads is None:
        return 1
    check_type(threads, int | np.integer, TargetError, "a whole number of threads")
    if not 1 <= threads <= MAX_THREADS:
        raise TargetError(f"threads must be 1 to {MAX_THREADS}, got {threads}")
    return int(threads)
