"""Models quantized on the spot by others' quantizers: each must load, be integer, and choose the classes of its own runtime.

    python benchmarks/onnx_quantizers.py                                 both float classifiers, every variant, 100 + 200 images
    python benchmarks/onnx_quantizers.py --model squeezenet --only qdq_u8s8,nncf --calibration 10 --evaluation 40

Quantizers: ONNX Runtime's quantize_static (QDQ and QOperator form) and quantize_dynamic, and NNCF where installed. The runtime
is ONNX Runtime for all, as it comes and with int8 allowed: left alone it computes QDQ groups of int8 activations in float on x86.
For each variant: how many convolutions and matmuls are integer, how often both choose the same class, the share of logits that
differ at all from those of either session, the largest difference as a share of the logits' range, and the ops that stay float.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization as ort_quantization

import datasets
import octavo
from post_training import NETWORKS

HEAVY_OPS = ("conv2d", "matmul", "nn.conv2d")
U8, S8 = ort_quantization.QuantType.QUInt8, ort_quantization.QuantType.QInt8
QDQ, QOPERATOR = ort_quantization.QuantFormat.QDQ, ort_quantization.QuantFormat.QOperator


class _Reader(ort_quantization.CalibrationDataReader):
    """Feeds batches to ONNX Runtime's quantizer, once."""

    def __init__(self, name: str, batches: list[np.ndarray]) -> None:
        self._feeds: Iterator[dict[str, np.ndarray]] = iter([{name: batch} for batch in batches])

    def get_next(self) -> dict[str, np.ndarray]:
        return next(self._feeds, {})


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
class Result:
    model: str
    variant: str
    loads: str
    heavy_integer: int = 0
    heavy: int = 0
    agreement: float = 0.0
    values_differ: float = 0.0
    values_differ_int8_allowed: float = 0.0
    largest: float = 0.0
    explained: str = ""
    float_ops: tuple[str, ...] = ()


def quantized_file(network: str, variant: str, folder: Path, calibration: int | None) -> Path:
    """Quantize one network by one variant; return the file's path in `folder`."""
    source = datasets.shared_folder() / "models" / "onnx" / NETWORKS[network].file
    batches, _ = datasets.images(NETWORKS[network].preprocess, calibration=True, limit=calibration)
    target = folder / f"{network}_{variant}.onnx"
    name = onnx.load(source, load_external_data=False).graph.input[0].name
    with _quiet():
        VARIANTS[variant](source, target, name, batches)
    return target


def measure(network: str, variant: str, *, calibration: int | None, evaluation: int | None) -> Result:
    """Quantize, load, compile, and compare with the runtime."""
    images, _ = datasets.images(NETWORKS[network].preprocess, calibration=False, limit=evaluation)
    with tempfile.TemporaryDirectory() as folder:
        path = quantized_file(network, variant, Path(folder), calibration)
        try:
            executable = octavo.compile(octavo.load(path))
        except octavo.OctavoError as error:
            return Result(model=network, variant=variant, loads=str(error).replace(str(path), "file"))
        theirs, in_integers = (onnx_runtime(path, images, int8_allowed=allowed) for allowed in (False, True))
    ours = np.concatenate([next(iter(executable(x).values())).reshape(1, -1) for x in images])
    explanation = octavo.explain(executable)
    heavy = [op for op in explanation.counted if op.op in HEAVY_OPS]
    return Result(
        model=network,
        variant=variant,
        loads="yes",
        heavy_integer=sum(op.integer for op in heavy),
        heavy=len(heavy),
        agreement=float(np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1))),
        values_differ=float(np.mean(ours != theirs)),
        values_differ_int8_allowed=float(np.mean(ours != in_integers)),
        largest=float(np.abs(ours - theirs).max() / np.ptp(theirs)),
        explained=explanation.summary,
        float_ops=tuple(f"{op.op} {op.tensor}: {op.reason}" for op in explanation.counted if not op.integer),
    )


def onnx_runtime(path: Path, images: list[np.ndarray], *, int8_allowed: bool = False) -> np.ndarray:
    """Return the logits of each image."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.qdqisint8allowed", str(int(int8_allowed)))
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate([np.asarray(session.run(None, {name: x})[0]).reshape(1, -1) for x in images])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The quantizers print progress and log advice."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def line(result: Result) -> str:
    """One row of the table."""
    numbers = (result.agreement, result.values_differ, result.values_differ_int8_allowed, result.largest)
    cells = (result.model, result.variant, result.loads, f"{result.heavy_integer}/{result.heavy}")
    return f"| {' | '.join((*cells, *(f'{number:.5f}' for number in numbers), result.explained))} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*NETWORKS, "all"], default="all")
    parser.add_argument("--only", help="comma-separated variants, by their names' beginnings")
    parser.add_argument("--calibration", type=int, help="images to calibrate on (default: all 100)")
    parser.add_argument("--evaluation", type=int, help="images to evaluate on (default: all 200)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="list the float ops with their reasons")
    options = parser.parse_args(arguments)
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    results: list[Result] = []
    if not options.json:
        print(
            "| model | variant | loads | conv and matmul integer | agreement | values differ | int8 allowed | largest | explain |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for network in NETWORKS if options.model == "all" else [options.model]:
        for variant in (name for name in VARIANTS if name.startswith(wanted)):
            result = measure(network, variant, calibration=options.calibration, evaluation=options.evaluation)
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
