"""Post-training quantization of a float ImageNet model, measured end to end: profile, quantize, compile, run.

    python benchmarks/post_training.py                       both shared float classifiers, 100 + 200 images
    python benchmarks/post_training.py --calibration 20 --evaluation 40 --model mobilenet_v2

Prints, for each model: top-1 of the float model and of the int8 executable, agreement of the two and with ONNX Runtime running
the exported QDQ file, SQNR of the logits, latency of our float and int8 builds (alternating, medians), and whether the bytes of
the profile are the same for one stream, seven merged parts and a shuffled order.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import datasets
import octavo
from octavo.evaluation.bench.timing import time_alternating
from octavo.numerics.statistics.metrics import sqnr_db
from reference_sessions import reference_session


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    file: str
    preprocess: Callable[[np.ndarray], np.ndarray]
    first_class: int


NETWORKS = {
    "mobilenet_v2": Network(file="mobilenet_v2_1.0_224_fp32.onnx", preprocess=datasets.plus_minus_one, first_class=1),
    "squeezenet": Network(file="squeezenet1.1_224_fp32.onnx", preprocess=datasets.imagenet_normalized, first_class=0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    model: str
    calibrated_on: int
    evaluated_on: int
    top1_float: float
    top1_int8: float
    agreement: float
    agreement_with_onnxruntime: float
    sqnr_db: float
    explained: str
    float_ms: float
    int8_ms: float
    profile_seconds: float
    same_profile_bytes: bool


def measure(
    name: str,
    *,
    calibration: int | None,
    evaluation: int | None,
    method: str = "min_max",
    order_check: int | None = None,
    exported: int | None = None,
    seconds: float = 2.0,
) -> Result:
    """Run the whole path on one network. `order_check` is how many images the profile's byte identity is checked on, `exported`
    how many ONNX Runtime gives to the exported file; `seconds` of calls are timed."""
    network = NETWORKS[name]
    path = datasets.shared_folder() / "models" / "onnx" / network.file
    calibrating, _ = datasets.images(network.preprocess, calibration=True, limit=calibration)
    evaluating, classes = datasets.images(network.preprocess, calibration=False, limit=evaluation)
    model = octavo.load(path)
    start = time.perf_counter()
    profile = octavo.profile(model, calibrating)
    profile_seconds = time.perf_counter() - start
    quantized = octavo.quantize(model, profile, recipe=octavo.Recipe(range_estimator=method))
    executable, float_executable = octavo.compile(quantized), octavo.compile(model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "int8.onnx"
        octavo.export_onnx(quantized, file)
        float_logits = _onnxruntime(path, evaluating)
        exported_logits = _onnxruntime(file, evaluating[:exported])
    logits = np.concatenate([next(iter(executable(x).values())).reshape(1, -1) for x in evaluating])
    answers = logits.argmax(axis=1)
    times = time_alternating(
        {"int8": executable.bind(evaluating[0]).run, "float": float_executable.bind(evaluating[0]).run}, seconds=seconds, rounds=5
    )
    return Result(
        model=name,
        calibrated_on=len(calibrating),
        evaluated_on=len(evaluating),
        top1_float=_top1(float_logits, classes + network.first_class),
        top1_int8=_top1(logits, classes + network.first_class),
        agreement=float(np.mean(answers == float_logits.argmax(axis=1))),
        agreement_with_onnxruntime=float(np.mean(answers[:exported] == exported_logits.argmax(axis=1))),
        sqnr_db=float(sqnr_db(float_logits, logits)),
        explained=octavo.explain(executable).summary,
        float_ms=times["float"].median_ms,
        int8_ms=times["int8"].median_ms,
        profile_seconds=profile_seconds,
        same_profile_bytes=_is_order_free(model, calibrating[:order_check]),
    )


def _is_order_free(model: octavo.Model, batches: list[np.ndarray]) -> bool:
    """Profile the samples as one stream, as seven parts merged, and shuffled; compare the files byte by byte."""
    shuffled = [batches[index] for index in np.random.default_rng(0).permutation(len(batches))]
    parts = [octavo.profile(model, batches[start::7]) for start in range(min(7, len(batches)))]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    with tempfile.TemporaryDirectory() as folder:
        contents: set[bytes] = set()
        for index, profile in enumerate((octavo.profile(model, batches), merged, octavo.profile(model, shuffled))):
            file = Path(folder) / f"{index}.json"
            profile.save(file)
            contents.add(file.read_bytes())
    return len(contents) == 1


def _onnxruntime(path: Path, batches: list[np.ndarray]) -> np.ndarray:
    session = reference_session(path)
    name = session.get_inputs()[0].name
    return np.concatenate([np.asarray(session.run(None, {name: x})[0]).reshape(1, -1) for x in batches])


def _top1(logits: np.ndarray, classes: np.ndarray) -> float:
    return float(np.mean(logits.argmax(axis=1) == classes))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*NETWORKS, "all"], default="all")
    parser.add_argument("--calibration", type=int, help="images to calibrate on (default: all 100)")
    parser.add_argument("--evaluation", type=int, help="images to evaluate on (default: all 200)")
    parser.add_argument("--method", default="min_max", choices=["min_max", "percentile"])
    parser.add_argument("--order-check", type=int, help="images for the byte identity of profiles (default: as --calibration)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    results: list[dict[str, Any]] = []
    for name in NETWORKS if options.model == "all" else [options.model]:
        result = measure(
            name,
            calibration=options.calibration,
            evaluation=options.evaluation,
            method=options.method,
            order_check=options.order_check,
        )
        results.append(asdict(result))
        if not options.json:
            print("\n".join(f"{key:28} {value}" for key, value in asdict(result).items()), end="\n\n")
    if options.json:
        json.dump(results, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
