"""Models quantized on the spot by others' quantizers: each must load, be integer, and choose the classes of its own runtime.

    python benchmarks/onnx_quantizers.py                                 both classifiers and the detector, every variant
    python benchmarks/onnx_quantizers.py --model squeezenet --only qdq_u8s8,nncf --calibration 10 --evaluation 40

Quantizers: ONNX Runtime's quantize_static (QDQ and QOperator form) and quantize_dynamic, and NNCF where installed. The runtime
is ONNX Runtime for all, in three sessions: as it comes; with int8 allowed, for left alone it computes QDQ groups of int8
activations in float on x86; and unoptimized, which is every float op as it is written. For each variant:

ours        convolutions and matmuls that Octavo computes in integers, of all
theirs      the same of the session as it comes, and with int8 allowed, as counted in the graphs that they optimized
agreement   how often Octavo chooses their class: default session, int8 allowed. A detector has no one class: it is how often
            the anchors that either finds an object at have the same best class.
sessions    how often the default session agrees with int8 allowed, and with the unoptimized one
exact       where a part of the layers is float to all of them: how often Octavo, and the session that counts, choose the class
            of the file's exact evaluation (`exact_qdq`). The session rounds float biases to int32, and its float sums in its own
            order; at ties either makes a whole step.
dB          the same two against the exact evaluation in numbers: SQNR of the outputs
openvino    there, too, and where OpenVINO is installed, whose makers NNCF is by: how often Octavo, and the session that counts,
            choose OpenVINO's class
differ      share of outputs that are not equal to the default session's, and to those with int8 allowed
largest     largest difference from the session that counts, as a share of its outputs' range
accepted    every convolution and matmul integer, and 99% agreement with the session that counts: the one that computes more in
            integers. "exact" where it is the session that departs from the file: Octavo agrees with the file's exact evaluation
            in 99%. "noise" where Octavo agrees with the session no less than ONNX Runtime's own sessions do among themselves, or
            than the exact evaluation does with it.

Classifiers are evaluated on the ImageNet crops that are not for calibration, the detector on photographs of scenes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.version_converter
from onnxruntime import quantization as ort_quantization

import datasets
import octavo
from exact_qdq import ExactEvaluation
from octavo.numerics.statistics.metrics import sqnr_db
from reference_sessions import reference_openvino, reference_session

HEAVY_OPS = ("conv2d", "matmul", "nn.conv2d")
THEIR_INTEGER_OPS = ("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "ConvInteger")
THEIR_FLOAT_OPS = ("Conv", "FusedConv", "NhwcFusedConv", "MatMul", "FusedMatMul", "Gemm", "FusedGemm")
FIRST_PER_AXIS_OPSET = 13
"""ONNX Runtime's quantizer writes per-axis QDQ into older models, too, which then are invalid."""
OBJECTNESS = 0.3
"""From where on an anchor of a detector counts as an object found."""
U8, S8 = ort_quantization.QuantType.QUInt8, ort_quantization.QuantType.QInt8
QDQ, QOPERATOR = ort_quantization.QuantFormat.QDQ, ort_quantization.QuantFormat.QOperator


class _Reader(ort_quantization.CalibrationDataReader):
    """Feeds batches to ONNX Runtime's quantizer, once."""

    def __init__(self, name: str, batches: list[np.ndarray]) -> None:
        self._feeds: Iterator[dict[str, np.ndarray]] = iter([{name: batch} for batch in batches])

    def get_next(self) -> dict[str, np.ndarray]:
        return next(self._feeds, {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A float model and what it takes."""

    file: str
    preprocess: datasets.Preprocess
    size: int = 224
    evaluation: Literal["crops", "scenes"] = "crops"

    def images(self, *, calibration: bool, limit: int | None, mirrored: bool = False) -> list[np.ndarray]:
        """Return its input of each image, and of its mirror image where asked."""
        if self.evaluation == "scenes" and not calibration:
            images = datasets.scenes(self.preprocess, size=self.size, limit=limit)
        else:
            images, _ = datasets.images(self.preprocess, calibration=calibration, size=self.size, limit=limit)
        return images + ([np.ascontiguousarray(x[..., ::-1]) for x in images] if mirrored else [])


NETWORKS = {
    "mobilenet_v2": Network(file="mobilenet_v2_1.0_224_fp32.onnx", preprocess=datasets.plus_minus_one),
    "squeezenet": Network(file="squeezenet1.1_224_fp32.onnx", preprocess=datasets.imagenet_normalized),
    "yolox_nano": Network(file="yolox_nano_416_fp32.onnx", preprocess=datasets.blue_first, size=416, evaluation="scenes"),
}
Quantizer = Callable[[Path, Path, str, list[np.ndarray]], None]


def _static(
    activation: Any, weight: Any, *, per_channel: bool = False, form: Any = QDQ, reduce_range: bool = False, **options: Any
) -> Quantizer:
    def quantize(source: Path, target: Path, name: str, batches: list[np.ndarray]) -> None:
        ort_quantization.quantize_static(
            source,
            target,
            _Reader(name, batches),
            quant_format=form,
            per_channel=per_channel,
            reduce_range=reduce_range,
            activation_type=activation,
            weight_type=weight,
            extra_options=options,
        )

    return quantize


def _dynamic(source: Path, target: Path, _name: str, _batches: list[np.ndarray]) -> None:
    ort_quantization.quantize_dynamic(source, target, weight_type=U8)


def _nncf(preset: str, *, per_channel: bool = True) -> Quantizer:
    def quantize(source: Path, target: Path, name: str, batches: list[np.ndarray]) -> None:
        import nncf
        from nncf.quantization.advanced_parameters import QuantizationParameters

        logging.getLogger("nncf").setLevel(logging.ERROR)
        weights = QuantizationParameters(per_channel=per_channel)
        parameters = nncf.AdvancedQuantizationParameters(weights_quantization_params=weights)
        quantized = nncf.quantize(
            onnx.load(source),
            nncf.Dataset([{name: batch} for batch in batches]),
            preset=getattr(nncf.QuantizationPreset, preset),
            subset_size=len(batches),
            advanced_parameters=parameters,
        )
        onnx.save(quantized, target)

    return quantize


VARIANTS: dict[str, Quantizer] = {
    "qdq_u8s8": _static(U8, S8),
    "qdq_u8s8_per_channel": _static(U8, S8, per_channel=True),
    "qdq_s8s8": _static(S8, S8),
    "qdq_s8s8_per_channel": _static(S8, S8, per_channel=True),
    "qdq_u8u8": _static(U8, U8),
    "qdq_u8u8_per_channel": _static(U8, U8, per_channel=True),
    "qdq_reduce_range": _static(U8, S8, per_channel=True, reduce_range=True),
    "qdq_symmetric": _static(S8, S8, per_channel=True, ActivationSymmetric=True),
    "qdq_quantized_at_run_time": _static(S8, S8, per_channel=True, AddQDQPairToWeight=True),
    "qdq_dedicated_pairs": _static(U8, S8, per_channel=True, DedicatedQDQPair=True),
    "qoperator_u8s8": _static(U8, S8, form=QOPERATOR),
    "qoperator_u8s8_per_channel": _static(U8, S8, per_channel=True, form=QOPERATOR),
    "qoperator_s8s8": _static(S8, S8, form=QOPERATOR),
    "qoperator_u8u8": _static(U8, U8, form=QOPERATOR),
    "nncf": _nncf("MIXED"),
    "nncf_symmetric": _nncf("PERFORMANCE"),
    "nncf_per_tensor": _nncf("MIXED", per_channel=False),
    "dynamic": _dynamic,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """What one session of ONNX Runtime gives: outputs of all images, and how many of its convolutions and matmuls are integer."""

    outputs: np.ndarray
    heavy_integer: int
    heavy: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One row; pairs are of the session as it comes and the one with int8 allowed."""

    model: str
    variant: str
    loads: str
    heavy_integer: int = 0
    heavy: int = 0
    theirs_integer: tuple[int, int] = (0, 0)
    agreements: tuple[float, float] = (0.0, 0.0)
    sessions_agree: tuple[float, float] = (0.0, 0.0)
    exact: tuple[float, float] | None = None
    exact_sqnr_db: tuple[float, float] | None = None
    openvino: tuple[float, float] | None = None
    values_differ: tuple[float, float] = (0.0, 0.0)
    largest: float = 0.0
    explained: str = ""
    float_ops: tuple[str, ...] = ()

    @property
    def counts(self) -> int:
        """Which session the agreement is asked of: the one that computes more in integers."""
        return int(self.theirs_integer[1] > self.theirs_integer[0])

    @property
    def agreement(self) -> float:
        """With the session that counts."""
        return self.agreements[self.counts]

    @property
    def limit(self) -> float:
        """How often the session that counts agrees with others that compute the same file."""
        return min(*self.sessions_agree, 1.0 if self.exact is None else self.exact[1])

    @property
    def accepted(self) -> str:
        """Say "yes", "exact", "noise" or "no"."""
        if self.loads != "yes" or self.heavy_integer < self.heavy:
            return "no"
        if self.agreement >= 0.99:
            return "yes"
        if self.exact is not None and self.exact[0] >= 0.99:
            return "exact"
        return "noise" if self.agreement >= self.limit else "no"


def quantized_file(network: str, variant: str, folder: Path, calibration: int | None) -> Path:
    """Quantize one network by one variant; return the file's path in `folder`."""
    model = onnx.load(datasets.shared_folder() / "models" / "onnx" / NETWORKS[network].file)
    if model.opset_import[0].version < FIRST_PER_AXIS_OPSET:
        model = onnx.version_converter.convert_version(model, FIRST_PER_AXIS_OPSET)
    source, target = folder / f"{network}.onnx", folder / f"{network}_{variant}.onnx"
    onnx.save(model, source)
    batches = NETWORKS[network].images(calibration=True, limit=calibration)
    with _quiet():
        VARIANTS[variant](source, target, model.graph.input[0].name, batches)
    return target


def measure(network: str, variant: str, *, calibration: int | None, evaluation: int | None, mirrored: bool = False) -> Result:
    """Quantize, load, compile, and compare with the runtime."""
    images = NETWORKS[network].images(calibration=False, limit=evaluation, mirrored=mirrored)
    with tempfile.TemporaryDirectory() as folder:
        path = quantized_file(network, variant, Path(folder), calibration)
        try:
            executable = octavo.compile(octavo.load(path))
        except octavo.OctavoError as error:
            return Result(model=network, variant=variant, loads=str(error).replace(str(path), "file"))
        sessions = [onnx_runtime(path, images, **options) for options in ({}, {"int8_allowed": True}, {"optimized": False})]
        is_float = max(session.heavy_integer for session in sessions) < sessions[0].heavy
        others = [run(path, images) if is_float else None for run in (exact, openvino)]
    ours = np.concatenate([next(iter(executable(x).values())) for x in images])
    explanation = octavo.explain(executable)
    heavy = [op for op in explanation.counted if op.op in HEAVY_OPS]
    theirs = [session.outputs for session in sessions]
    result = Result(
        model=network,
        variant=variant,
        loads="yes",
        heavy_integer=sum(op.integer for op in heavy),
        heavy=len(heavy),
        theirs_integer=(sessions[0].heavy_integer, sessions[1].heavy_integer),
        agreements=(agreement(ours, theirs[0]), agreement(ours, theirs[1])),
        sessions_agree=(agreement(theirs[0], theirs[1]), agreement(theirs[0], theirs[2])),
        values_differ=(float(np.mean(ours != theirs[0])), float(np.mean(ours != theirs[1]))),
        explained=explanation.summary,
        float_ops=tuple(f"{op.op} {op.tensor}: {op.reason}" for op in explanation.counted if not op.integer),
    )
    asked = theirs[result.counts]
    pairs = [None if other is None else (agreement(ours, other), agreement(asked, other)) for other in others]
    result = replace(result, largest=float(np.abs(ours - asked).max() / np.ptp(asked)), exact=pairs[0], openvino=pairs[1])
    return result if others[0] is None else replace(result, exact_sqnr_db=(sqnr_db(others[0], ours), sqnr_db(others[0], asked)))


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """Return how often two outputs name the same class: [images, classes], or a detector's [images, anchors, 5 + classes]."""
    if a.ndim != 3:
        a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
        return float(np.mean(a.argmax(axis=1) == b.argmax(axis=1)))
    found = np.maximum(a[..., 4], b[..., 4]) > OBJECTNESS
    return float(np.mean((a[..., 5:].argmax(axis=-1) == b[..., 5:].argmax(axis=-1))[found]))


def onnx_runtime(path: Path, images: list[np.ndarray], *, int8_allowed: bool = False, optimized: bool = True) -> Session:
    """Run a file on ONNX Runtime, and count what its optimizer made of the convolutions and matmuls."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "optimized.onnx"
        session = reference_session(path, optimized=optimized, int8_allowed=int8_allowed, optimized_model_filepath=written)
        ops = [node.op_type for node in onnx.load(written).graph.node]
    name = session.get_inputs()[0].name
    integer, real = (sum(op in names for op in ops) for names in (THEIR_INTEGER_OPS, THEIR_FLOAT_OPS))
    outputs = np.concatenate([np.asarray(session.run(None, {name: x})[0]) for x in images])
    return Session(outputs=outputs, heavy_integer=integer, heavy=integer + real)


def exact(path: Path, images: list[np.ndarray]) -> np.ndarray:
    """Evaluate a file in float64."""
    evaluate = ExactEvaluation(path)
    return np.concatenate([evaluate(x) for x in images])


def openvino(path: Path, images: list[np.ndarray]) -> np.ndarray | None:
    """Run a file on OpenVINO, its quantized layers in float32; None where it is not installed."""
    if importlib.util.find_spec("openvino") is None:
        return None
    run = reference_openvino(path)
    return np.concatenate([run(x) for x in images])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The quantizers print progress and log advice."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


COLUMNS = (
    *("model", "variant", "loads", "ours", "theirs", "agreement", "sessions", "exact", "dB", "openvino"),
    *("differ", "largest", "accepted", "explain"),
)


def _pair(values: tuple[float, float] | None, *, digits: int = 4) -> str:
    return "-" if values is None else ", ".join(f"{value:.{digits}f}" for value in values)


def line(result: Result) -> str:
    """One row of the table."""
    default, allowed = result.theirs_integer
    cells = (
        *(result.model, result.variant, result.loads, f"{result.heavy_integer}/{result.heavy}", f"{default}, {allowed}"),
        *(_pair(shares) for shares in (result.agreements, result.sessions_agree, result.exact)),
        *(_pair(result.exact_sqnr_db, digits=1), _pair(result.openvino)),
        ", ".join(f"{value:.5f}" for value in result.values_differ),
        *(f"{result.largest:.5f}", result.accepted, result.explained),
    )
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*NETWORKS, "all"], default="all")
    parser.add_argument("--only", help="comma-separated variants, by their names' beginnings")
    parser.add_argument("--calibration", type=int, help="images to calibrate on (default: all 100)")
    parser.add_argument("--evaluation", type=int, help="images to evaluate on (default: all 200; 32 scenes)")
    parser.add_argument("--mirrored", action="store_true", help="evaluate on each image's mirror image, too")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="list the float ops with their reasons")
    options = parser.parse_args(arguments)
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    results: list[Result] = []
    if not options.json:
        print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for network in NETWORKS if options.model == "all" else [options.model]:
        for variant in (name for name in VARIANTS if name.startswith(wanted)):
            limits = {"calibration": options.calibration, "evaluation": options.evaluation}
            result = measure(network, variant, **limits, mirrored=options.mirrored)
            results.append(result)
            if not options.json:
                print(line(result), flush=True)
                for op in result.float_ops if options.verbose else ():
                    print(f"    {op}")
    if options.json:
        json.dump([asdict(result) for result in results], sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
