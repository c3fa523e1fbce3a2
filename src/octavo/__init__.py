"""Octavo: the int8 quantization flow for Apache TVM.

model   = octavo.load("model.onnx")
profile = octavo.profile(model, batches)
qmodel  = octavo.quantize(model, profile)
exe     = octavo.compile(qmodel)
outputs = exe(x)

Names are imported where they are first used, and TVM with them: `import octavo` takes no time. Where TVM is there already, so
that a module with Octavo's ops may be read next, all is imported at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Errors
    from .errors import OctavoError

    # What a quantized model is worth against the float one, or any two that run
    from .evaluation import evaluate

    # Which tensor is which, after any pass
    from .graph.lineage import Lineage

    # A model from arrays, without a file or a framework
    from .importer import ModelBuilder
    from .layer_error import layer_errors

    # Observers on any tensor, at any stage
    from .observe import observe, unobserve

    # The path, stage by stage, and its values
    from .pipeline import (
        Executable,
        Explanation,
        ImageFolder,
        Model,
        Profile,
        QuantizationPlan,
        Recipe,
        TargetDescription,
        compile,
        explain,
        export_onnx,
        load,
        load_executable,
        partition,
        profile,
        quantize,
    )

    # How the kernels of a model run best on this machine
    from .report import tune
    from .root_cause import fix, root_causes

    # Which activations to keep float for an accuracy that is asked for
    from .search import search
    from .tvm_pipeline import relax_pipeline
    from .verify import verify_lineage

__version__ = "0.1.0"

__all__ = [
    "Executable",
    "Explanation",
    "ImageFolder",
    "Lineage",
    "Model",
    "ModelBuilder",
    "OctavoError",
    "Profile",
    "QuantizationPlan",
    "Recipe",
    "TargetDescription",
    "__version__",
    "compile",
    "evaluate",
    "explain",
    "export_onnx",
    "fix",
    "layer_errors",
    "load",
    "load_executable",
    "observe",
    "partition",
    "profile",
    "quantize",
    "relax_pipeline",
    "root_causes",
    "search",
    "tune",
    "unobserve",
    "verify_lineage",
]

_HOMES = {
    "Executable": "pipeline",
    "Explanation": "pipeline",
    "ImageFolder": "pipeline",
    "Lineage": "graph.lineage",
    "Model": "pipeline",
    "ModelBuilder": "importer",
    "OctavoError": "errors",
    "Profile": "pipeline",
    "QuantizationPlan": "pipeline",
    "Recipe": "pipeline",
    "TargetDescription": "pipeline",
    "compile": "pipeline",
    "evaluate": "evaluation",
    "explain": "pipeline",
    "export_onnx": "pipeline",
    "fix": "root_cause",
    "layer_errors": "layer_error",
    "load": "pipeline",
    "load_executable": "pipeline",
    "observe": "observe",
    "partition": "pipeline",
    "profile": "pipeline",
    "quantize": "pipeline",
    "relax_pipeline": "tvm_pipeline",
    "root_causes": "root_cause",
    "search": "search",
    "tune": "report",
    "unobserve": "observe",
    "verify_lineage": "verify",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    """Import a public name, or a subpackage, where it is first used."""
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)


class _Package(ModuleType):
    """The package, in which a stage's function keeps its name when a package of the same name is imported: `octavo.profile`."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, but for a subpackage that is called like a public name."""
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
if "tvm" in sys.modules:
    for _name in _HOMES:
        __getattr__(_name)
