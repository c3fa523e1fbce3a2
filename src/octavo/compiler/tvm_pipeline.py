"""The path from a module to kernels as a pipeline of TVM's own: for `tvm.compile`. It adds nothing of its own."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import numpy as np
import tvm

from ..errors import TargetError, check_type
from ..runtime.llvm_host import host_target, is_foreign
from .backends.cpu.kernels import isas_of
from .codegen.generate import vm_passes
from .partition.pipeline import linked, lower
from .target_choice import TargetLike, check_is_host, resolve_target


def relax_pipeline(*, target: TargetLike = None, threads: int = 1, ids: Collection[str] = ()) -> tvm.transform.Pass:
    """Return Octavo's path as a pipeline for `tvm.compile`: integer kernels for a module in QDQ form, TVM's for the rest.

    Parameters
    ----------
    target
        As `octavo.compile` takes it; None is the target of `tvm.compile`. That one says which CPU kernels are for: plain "llvm"
        names none and gets generic kernels, several times slower, with a warning.
    threads
        Threads that share one call.
    ids
        TensorIds (`model.tensors`) by which kernels name tensors in their quantize_info.

    Returns
    -------
    tvm.transform.Pass
        For a module whose constants are bound.

    Examples
    --------
    ::

        # With the features that this machine has, which a CPU's name alone may exceed.
        target = octavo.runtime.llvm_host.host_target()
        library = tvm.compile(model.bound(), target, relax_pipeline=octavo.relax_pipeline())
    """

    def run(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        chosen = resolve_target(target, tvm.target.Target.current(allow_none=True))
        _warn_of_unbound_parameters(module)
        if target is None:
            _warn_of_no_cpu(chosen.llvm, chosen.isas)
        lowered = lower(module, chosen.host, chosen.isas, threads, ids, backends=chosen.backends)
        return vm_passes()(linked(lowered, chosen.llvm))

    check_is_host(resolve_target(target), "pipeline for tvm.compile")  # errors are raised here, not within TVM's passes
    check_type(threads, int | np.integer, TargetError, "a whole number of threads")
    made: Any = tvm.transform.module_pass(run, opt_level=0, name="octavo.relax_pipeline")
    return made


def _warn_of_no_cpu(llvm: tvm.target.Target, isas: tuple[str, ...]) -> None:
    """Warn where the target of `tvm.compile` names no CPU, and this machine has wider kernels than it gets for that."""
    host = host_target()
    here, attributes = isas_of(host)[0], dict(host.attrs.items())
    if {"mcpu", "mattr"}.isdisjoint(llvm.attrs.keys()) and not is_foreign(llvm) and isas[0] != here:
        warnings.warn(
            f'target "llvm" names no CPU, so kernels are {isas[0]}, several times slower than {here}, which this machine has: '
            f'give tvm.compile tvm.target.Target({{"kind": "llvm", "mcpu": "{attributes["mcpu"]}"}})',
            stacklevel=2,
        )


def _warn_of_unbound_parameters(module: tvm.IRModule) -> None:
    """Warn where "main" takes weights as arguments: what kernels pack at compile time must be known then."""
    main: Any = module["main"] if "main" in {var.name_hint for var in module.get_global_vars()} else None
    if main is None or not main.attrs or "num_input" not in main.attrs:
        return
    unbound = [str(param.name) for param in main.params[int(main.attrs["num_input"]) :]]
    if unbound:
        some = ", ".join(unbound[:3]) + (", ..." if len(unbound) > 3 else "")
        warnings.warn(
            f"main takes {len(unbound)} parameters without values ({some}): no op that reads them can be integer; bind them with "
            "relax.transform.BindParams before compiling",
            stacklevel=2,
        )
