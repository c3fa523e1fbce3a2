"""The path from a module to kernels as a pipeline of TVM's own: for `tvm.compile`. It adds nothing of its own."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import numpy as np
import tvm

from .build import vm_passes
from .errors import TargetError, check_type
from .pipeline import linked, lower
from .target_choice import TargetLike, resolve_target


def relax_pipeline(*, target: TargetLike = None, threads: int = 1, ids: Collection[str] = ()) -> tvm.transform.Pass:
    """Return a pipeline for ``tvm.compile(module, target, relax_pipeline=octavo.relax_pipeline())``.

    The module is in QDQ form with its constants bound; what has no integer kernel compiles as TVM would. `target` is what
    `compile` takes, with the target of ``tvm.compile`` in place of this machine. `ids` are the TensorIds (`model.tensors`) by
    which kernels name tensors in their quantize_info.
    """

    def run(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        chosen = resolve_target(target, tvm.target.Target.current(allow_none=True))
        _warn_of_unbound_parameters(module)
        lowered = lower(module, chosen.host, chosen.isas, threads, ids, backends=chosen.backends)
        return vm_passes()(linked(lowered, chosen.llvm))

    resolve_target(target)  # errors are raised here, not within TVM's passes
    check_type(threads, int | np.integer, TargetError, "a whole number of threads")
    made: Any = tvm.transform.module_pass(run, opt_level=0, name="octavo.relax_pipeline")
    return made


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
