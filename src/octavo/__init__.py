"""Octavo: the int8 quantization flow for Apache TVM.

model   = octavo.load("model.onnx")
profile = octavo.profile(model, batches)
qmodel  = octavo.quantize(model, profile)
exe     = octavo.compile(qmodel)
outputs = exe(x)
"""

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
