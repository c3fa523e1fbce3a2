"""Loading what a user names - a model, an executable, a file, a file in another runtime - as what an evaluation runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..compiler.load_executable import load_executable
from ..compiler.target_choice import TargetLike
from ..errors import ModelError, check_path
from ..export.tflite import is_of_tflite
from ..export.tflite import quantize as quantize_for_tflite
from ..frontends.load import ShapeOptions, SizeOptions, load
from ..ir.graph import Model
from ..quantizer.plan import QuantizationPlan
from ..quantizer.quantize import quantize
from ..runtime.executable import Executable
from ..runtime.file import is_executable
from .inference_model import InferenceModel, of_executable, of_model
from .peers import PEERS

Subject = Model | Executable | InferenceModel | str | Path | Any


def load_inference_model(
    subject: Subject,
    *,
    target: TargetLike = None,
    threads: int | None = None,
    shapes: ShapeOptions | None = None,
    sizes: SizeOptions | None = None,
    label: str = "",
    float_model: Model | None = None,
) -> InferenceModel:
    """Return what runs `subject`: a Model, an Executable, the path of either, or "onnxruntime:m.onnx", "litert:m.tflite".

    What Octavo loads takes `shapes` and `sizes` as `octavo.load` does. A plan of `float_model`, or its path, is that
    model quantized.
    """
    if isinstance(subject, InferenceModel):
        return subject
    if isinstance(subject, Executable):
        return of_executable(subject, label or "executable")
    if isinstance(subject, Model):
        return of_model(subject, label or "model", target=target, threads=threads)
    if isinstance(subject, QuantizationPlan):
        return _planned(subject, float_model, label or "plan", target, threads)
    path = check_path(subject, ModelError, "a Model, an Executable, or the path of a model file")
    runtime, colon, rest = str(path).partition(":")
    if colon and runtime in PEERS:
        if not Path(rest).is_file():
            raise ModelError(f"{rest}: no such file")
        return PEERS[runtime](Path(rest), threads or 1)
    if path.suffix == ".json":
        return _planned(path, float_model, path.name, target, threads)
    if path.suffix == ".so" or is_executable(path):
        return of_executable(load_executable(path), path.name)
    return of_model(load(path, shapes=shapes, sizes=sizes), path.name, target=target, threads=threads)


def _planned(
    plan: QuantizationPlan | Path, float_model: Model | None, label: str, target: TargetLike, threads: int | None
) -> InferenceModel:
    if float_model is None:
        raise ModelError(f"{label}: a plan is compared with the float model that it is of: give that model file first")
    known = plan if isinstance(plan, QuantizationPlan) else QuantizationPlan.load(plan)
    if target is None and is_of_tflite(known):
        quantized = quantize_for_tflite(float_model, plan=known)
    else:
        quantized = quantize(float_model, plan=known, target="cpu" if target is None else target)
    return of_model(quantized, label, target=target, threads=threads)
