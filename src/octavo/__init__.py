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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Machine code, what is said of it, and how kernels run best on this machine
    from .compiler.explanation import Explanation
    from .compiler.load_executable import load_executable
    from .compiler.partition.pipeline import partition
    from .compiler.tune import tune
    from .compiler.tvm_pipeline import relax_pipeline

    # Errors
    from .errors import OctavoError

    # What a quantized model is worth against the float one, or any two that run
    from .evaluation import evaluate
    from .evaluation.layer_errors import layer_errors

    # Which tensor is which, after any pass
    from .evaluation.verify import verify_lineage

    # The way back to the source's format
    from .export.onnx import export_onnx

    # A model from a file, from a program, or from arrays
    from .frontends import ModelBuilder, load
    from .ir.graph import Model
    from .ir.graph.lineage import Lineage

    # Its ranges on samples
    from .profiling.images import ImageFolder
    from .profiling.model_profile import Profile

    # Observers on any tensor, at any stage
    from .profiling.observe import observe, unobserve
    from .profiling.profile import profile

    # What is integer, with which parameters, and which activations to keep float for an accuracy that is asked for
    from .quantizer.causes import fix, root_causes
    from .quantizer.compile import compile, explain
    from .quantizer.plan import QuantizationPlan
    from .quantizer.quantize import quantize
    from .quantizer.recipe import Recipe
    from .quantizer.search import search
    from .runtime.executable import Executable
    from .target import TargetDescription

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
    "Executable": "runtime.executable",
    "Explanation": "compiler.explanation",
    "ImageFolder": "profiling.images",
    "Lineage": "ir.graph.lineage",
    "Model": "ir.graph",
    "ModelBuilder": "frontends",
    "OctavoError": "errors",
    "Profile": "profiling.model_profile",
    "QuantizationPlan": "quantizer.plan",
    "Recipe": "quantizer.recipe",
    "TargetDescription": "target",
    "compile": "quantizer.compile",
    "evaluate": "evaluation",
    "explain": "quantizer.compile",
    "export_onnx": "export.onnx",
    "fix": "quantizer.causes",
    "layer_errors": "evaluation.layer_errors",
    "load": "frontends",
    "load_executable": "compiler.load_executable",
    "observe": "profiling.observe",
    "partition": "compiler.partition.pipeline",
    "profile": "profiling.profile",
    "quantize": "quantizer.quantize",
    "relax_pipeline": "compiler.tvm_pipeline",
    "root_causes": "quantizer.causes",
    "search": "quantizer.search",
    "tune": "compiler.tune",
    "unobserve": "profiling.observe",
    "verify_lineage": "evaluation.verify",
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


if "tvm" in sys.modules:
    for _name in _HOMES:
        __getattr__(_name)
