"""Pre-quantized models against the framework that made them: the same top-1, the same numbers.

    python benchmarks/accuracy.py                     every quantized model of the shared folder, all labelled data
    python benchmarks/accuracy.py --limit 20          on a reduced set
    python benchmarks/accuracy.py --only dscnn,resnet8

For each model: top-1 of Octavo and of the peer (where labels exist), how often both choose the same class, the share of output
values that differ, by more than one quantization step for integer outputs, and what `explain` says.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import datasets
import octavo

Runner = Callable[[np.ndarray], np.ndarray]
HEAVY_OPS = ("conv2d", "matmul", "nn.conv2d", "nn.conv2d_transpose")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A model file, its data (None: random inputs of the model's own dtype) and the first class of its labels."""

    file: str
    data: Callable[[int | None], datasets.Samples] | None = None
    first_class: int = 0


def _images(preprocess: datasets.Preprocess, size: int = 224) -> Callable[[int | None], datasets.Samples]:
    return lambda limit: datasets.images(preprocess, calibration=False, size=size, limit=limit)


CASES = (
    Case(file="tflite/mobilenet_v2_1.0_224_uint8.tflite", data=_images(datasets.pixels), first_class=1),
    Case(file="tflite/mobilenet_v1_0.25_128_uint8.tflite", data=_images(datasets.pixels, 128), first_class=1),
    Case(file="tflite/resnet8_cifar10_int8.tflite", data=lambda limit: datasets.cifar10(datasets.pixels_minus_128, limit)),
    Case(file="tflite/dscnn_kws_int8.tflite", data=lambda limit: datasets.keywords(datasets.pixels, limit)),
    Case(file="tflite/mobilenet_v1_vww96_int8.tflite"),
    Case(file="tflite/autoencoder_ad01_int8.tflite"),
    Case(file="onnx/mobilenet_v2_1.0_224_qoperator.onnx", data=_images(datasets.imagenet_normalized)),
    Case(
        file="onnx/dscnn_kws_qoperator.onnx",
        data=lambda limit: datasets.keywords(lambda x: datasets.keyword_as_float(x).transpose(2, 0, 1), limit),
    ),
    Case(file="bench/mobilenet_v1_int8.tflite"),
    Case(file="bench/mobilenet_v2_int8.tflite"),
    Case(file="bench/resnet50_int8.tflite"),
    Case(file="bench/inception_v3_int8.tflite"),
)
RANDOM_SAMPLES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    model: str
    samples: int
    top1: float | None
    peer_top1: float | None
    agreement: float
    different_values: float
    beyond_one_step: float
    max_difference: float
    explained: str
    heavy_float_ops: tuple[str, ...]


def measure(case: Case, *, limit: int | None, executable: octavo.Executable | None = None) -> Result:
    """Run one model in Octavo and in its peer on the same samples; it is compiled here where nobody did."""
    path = datasets.shared_folder() / "models" / case.file
    executable = octavo.compile(octavo.load(path)) if executable is None else executable
    if case.data is None:
        samples, labels = random_inputs(executable, RANDOM_SAMPLES if limit is None else min(limit, RANDOM_SAMPLES)), None
    else:
        samples, labels = case.data(limit)
        labels = labels + case.first_class
    peer = peer_of(path)
    ours = np.stack([next(iter(executable(x).values())).reshape(-1) for x in samples])
    theirs = np.stack([peer(x).reshape(-1) for x in samples])
    difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    explanation = octavo.explain(executable)
    return Result(
        model=case.file,
        samples=len(samples),
        top1=None if labels is None else float(np.mean(ours.argmax(axis=1) == labels)),
        peer_top1=None if labels is None else float(np.mean(theirs.argmax(axis=1) == labels)),
        agreement=float(np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1))),
        different_values=float(np.mean(difference > 0)),
        beyond_one_step=float(np.mean(difference > 1)) if ours.dtype.kind in "iu" else float("nan"),
        max_difference=float(difference.max()),
        explained=explanation.summary,
        heavy_float_ops=tuple(op.tensor for op in explanation.ops if op.op in HEAVY_OPS and not op.integer),
    )


def random_inputs(executable: octavo.Executable, count: int) -> list[np.ndarray]:
    (spec,) = executable.inputs
    rng = np.random.default_rng(0)
    if spec.dtype == "float32":
        return [rng.normal(size=spec.shape).astype(np.float32) for _ in range(count)]
    limits = np.iinfo(spec.dtype)
    return [rng.integers(limits.min, limits.max + 1, spec.shape).astype(spec.dtype) for _ in range(count)]


def peer_of(path: Path) -> Runner:
    """LiteRT for .tflite, ONNX Runtime for .onnx, one thread each."""
    if path.suffix == ".tflite":
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(str(path), num_threads=1)
        interpreter.allocate_tensors()
        (given,), (wanted,) = interpreter.get_input_details(), interpreter.get_output_details()

        def litert(x: np.ndarray) -> np.ndarray:
            interpreter.set_tensor(given["index"], x)
            interpreter.invoke()
            return interpreter.get_tensor(wanted["index"])

        return litert
    from reference_sessions import reference_session

    session = reference_session(path)
    name = session.get_inputs()[0].name
    return lambda x: np.asarray(session.run(None, {name: x})[0])


def table(results: list[Result]) -> str:
    """Markdown."""
    lines = [
        "| model | samples | top-1 | peer's | agreement | values that differ | beyond 1 step | largest | explain |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        top1 = ["" if value is None else f"{value:.3f}" for value in (result.top1, result.peer_top1)]
        lines.append(
            f"| {result.model} | {result.samples} | {top1[0]} | {top1[1]} | {result.agreement:.4f} | "
            f"{result.different_values:.5f} | {result.beyond_one_step:.5f} | {result.max_difference:.4g} | {result.explained} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="samples of each model (default: all)")
    parser.add_argument("--only", help="comma-separated parts of file names")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else [""]
    results = [measure(case, limit=options.limit) for case in CASES if any(part in case.file for part in wanted)]
    if options.json:
        values: list[dict[str, Any]] = [asdict(result) for result in results]
        json.dump(values, sys.stdout, indent=1)
    else:
        print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
