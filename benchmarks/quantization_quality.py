"""What quantization costs in quality: Octavo, plain min-max, and others' quantizers, on real networks.

    python benchmarks/quantization_quality.py                                         every network, every quantizer installed
    python benchmarks/quantization_quality.py --networks resnet8,dscnn --quantizers octavo,nncf --limit 50 --json table.json

    python benchmarks/quantization_quality.py --networks gpt2_static.onnx,bert_static.onnx    files of transformers

Each calibrates on the same samples (100; 20 scenes) and is evaluated on others. One row for each network and quantizer:

metric      top-1, or for the detector average precision at 50% overlap, in percent; of the language model the divergence of the
            next token's probabilities from the float model's (KL, nats); none where the samples have no labels
agreement   how often it decides as the float model does, in percent. A detector: the best class of the anchors that either
            finds an object at. Voice activity: whether the probability is above a half.
dB          SQNR of the outputs. A softmax in the end is taken off all models after quantization: it hides what is wrong below
            the first class, and some quantizers round what it gives to 8 bits.
profile     seconds, and peak resident MB of the process, of `octavo.profile`. Others calibrate within quantization.
quantize    the same of quantization, and as a multiple of the profile's.

Octavo's default tries steps and keeps those that gain; "octavo_min_max" is Octavo without any, "octavo_best" its preset
"best", "octavo_best_wide" that with five activations of 16 bits, and "octavo_w4a8" has weights of 4 bits but for the three tenths
that cost most. "octavo_blocks" and "onnxruntime_blocks" (MatMulNBits, by HQQ) have weights of 4 bits in blocks of 32 inputs, and
float activations: of transformers. Of ONNX Runtime quantize_static
(after its own preprocessing) in QDQ form, uint8 activations, int8 weights per channel. Of NNCF the presets on OpenVINO models;
"accurate" is the mixed preset with bias correction layer by layer; "nncf_min_max" the same with ranges of all samples, where the
presets take the mean of each sample's. Each is evaluated exactly, as its own model says: ONNX Runtime
runs unoptimized, OpenVINO without low precision transformations. Both then compute in float32 what lies between a quantize and a
dequantize, whose integers float32 holds: no sum saturates at 16 bits as on CPUs without VNNI.

Every quantizer runs in a process of its own. One that raises, or takes longer than --timeout, has "fails" in its row, and the
reason goes to stderr. ONNX Runtime's dynamic quantization has int8 weights per channel, too, and runs exactly.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime import quantization as ort_quantization
from tvm import relax

import octavo
from octavo.compiler.text_table import markdown_table
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, call_to, replace_operands, with_main
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.profiling.kept_samples import KEEP_SAMPLES
from octavo.quantizer.quantize_graph import quantize_graph
from quality_networks import NETWORKS, Feed, Run, agreement, network_of
from reference_sessions import reference_compiled, reference_session


@dataclass(slots=True)
class Cost:
    """Seconds, and megabytes that the process held at most."""

    seconds: float = 0.0
    megabytes: float = 0.0


@contextmanager
def measured() -> Iterator[Cost]:
    """Measure what runs within."""
    cost, status = Cost(), Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again at what is resident now
    start = time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - start
    peak = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
    cost.megabytes = int(peak.split()[1]) / 1000


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantized model without its softmax, and what it took; others than Octavo don't profile."""

    run: Run
    quantize: Cost
    profile: Cost | None = None


Quantizer = Callable[["Evaluation"], Quantized]

# ------------------------------------------------------------------------------------------------------------------ Octavo


def _octavo(recipe: octavo.Recipe | None = None) -> Quantizer:
    def quantize(evaluation: Evaluation) -> Quantized:
        model, profile, profiling = evaluation.profiled
        with measured() as quantizing:
            quantized = octavo.quantize(model, profile, recipe=recipe)
        return Quantized(octavo_run(quantized), quantizing, profiling)

    return quantize


def _plain(evaluation: Evaluation) -> Quantized:
    model, profile, profiling = evaluation.profiled
    with measured() as quantizing:
        quantized = quantize_graph(model, profile)
    return Quantized(octavo_run(quantized), quantizing, profiling)


def octavo_run(model: octavo.Model) -> Run:
    """Run a quantized model, without its softmax."""
    executable = octavo.compile(_relax_without_softmax(model))
    return lambda feed: list(executable(octavo_input(feed)).values())


def octavo_input(feed: Feed) -> Feed | np.ndarray:
    """Return the array of a single input: a TFLite file calls it otherwise than its ONNX form."""
    return next(iter(feed.values())) if len(feed) == 1 else feed


def _relax_without_softmax(model: octavo.Model) -> octavo.Model:
    view = DataflowView(model.module["main"])
    softmax = call_to(view.definition(view.result), "nn.softmax") if isinstance(view.result, relax.Var) else None
    if softmax is None:
        return model
    last, new_last = view.binding_of(view.result), view.binding_of(softmax.args[0])

    def body(writer: BodyWriter) -> relax.Expr:
        new: dict[relax.Var, relax.Expr] = {}
        for binding in view.bindings:
            if not any(binding.var.same_as(var) for var in (last, view.result)):
                value = replace_operands(binding.value, lambda var: new.get(var, var))
                is_output = any(binding.var.same_as(var) for var in (new_last, softmax.args[0]))
                new[binding.var] = writer.emit(binding.var.name, value, is_output=is_output)
        return new[softmax.args[0]]

    return replace(model, module=with_main(model.module, body))


# ------------------------------------------------------------------------------------------------------------ ONNX Runtime


class _Reader(ort_quantization.CalibrationDataReader):
    """Feeds samples to ONNX Runtime's quantizer, once."""

    def __init__(self, feeds: list[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feed:
        return next(self._feeds, {})


def _onnxruntime(method: str) -> Quantizer:
    def quantize(evaluation: Evaluation) -> Quantized:
        source = evaluation.source
        prepared, target = source.with_name("prepared.onnx"), source.with_name(f"{method}.onnx")
        types = {"activation_type": ort_quantization.QuantType.QUInt8, "weight_type": ort_quantization.QuantType.QInt8}
        with measured() as quantizing:
            ort_quantization.quant_pre_process(source, prepared, skip_symbolic_shape=True)
            ort_quantization.quantize_static(
                prepared,
                target,
                _Reader(evaluation.calibration),
                quant_format=ort_quantization.QuantFormat.QDQ,
                per_channel=True,
                calibrate_method=ort_quantization.CalibrationMethod[method],
                **types,
            )
        return Quantized(onnx_run(onnx.load(target)), quantizing)

    return quantize


def _dynamic(evaluation: Evaluation) -> Quantized:
    source, target = evaluation.source, evaluation.source.with_name("dynamic.onnx")
    with measured() as quantizing:
        ort_quantization.quantize_dynamic(source, target, per_channel=True, weight_type=ort_quantization.QuantType.QInt8)
    # Sums saturate on CPUs without VNNI unless a pass of its optimizer, asked to, takes care of that.
    return Quantized(onnx_run(onnx.load(target), optimized=True), quantizing)


def _matmul_nbits(evaluation: Evaluation) -> Quantized:
    from onnxruntime.quantization import matmul_nbits_quantizer

    quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(
        onnx.load(evaluation.source),
        algo_config=matmul_nbits_quantizer.HQQWeightOnlyQuantConfig(block_size=BLOCK, bits=4),
    )
    with measured() as quantizing:
        quantizer.process()
    return Quantized(onnx_run(quantizer.model.model), quantizing)


def onnx_run(model: onnx.ModelProto, *, optimized: bool = False) -> Run:
    """Run a float or QDQ model, without its softmax; as it is written, unless optimized."""
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers[model.graph.output[0].name]
    while node.op_type in ("Identity", "QuantizeLinear", "DequantizeLinear") and node.input[0] in makers:
        node = makers[node.input[0]]
    if node.op_type == "Softmax":
        model.graph.output[0].name = node.input[0]
    session = reference_session(model, optimized=optimized, threads=1)
    return lambda feed: [np.asarray(value) for value in session.run(None, feed)]


# -------------------------------------------------------------------------------------------------------------------- NNCF


def _nncf(preset: str, *, ranges: str | None = None, **options: Any) -> Quantizer:
    def quantize(evaluation: Evaluation) -> Quantized:
        import nncf
        import openvino

        logging.getLogger("nncf").setLevel(logging.ERROR)
        if ranges is not None:
            estimator = getattr(nncf.quantization.range_estimator.RangeEstimatorParametersSet, ranges)
            options["advanced_parameters"] = nncf.AdvancedQuantizationParameters(activations_range_estimator_params=estimator)
        # Not Core.read_model: that leaves biases in a form whose correction NNCF passes over.
        model = openvino.convert_model(evaluation.source)
        with measured() as quantizing:
            model = nncf.quantize(
                model,
                nncf.Dataset(evaluation.calibration),
                preset=nncf.QuantizationPreset[preset],
                model_type=nncf.ModelType.TRANSFORMER if evaluation.network.is_transformer else None,
                subset_size=len(evaluation.calibration),
                **options,
            )
        node = model.get_results()[0].input_value(0).get_node()
        while node.get_type_name() in ("FakeQuantize", "Convert", "Identity"):
            node = node.input_value(0).get_node()
        if node.get_type_name() == "Softmax":
            model = openvino.Model([node.input_value(0)], model.get_parameters())
        compiled = reference_compiled(model)
        return Quantized(lambda feed: [np.array(value) for value in compiled(feed).values()], quantizing)

    return quantize


PLAIN, DEFAULT, FEW_BITS = "octavo_min_max", "octavo", "octavo_w4a8"
BLOCK = 32
OF_TRANSFORMERS = ("octavo_blocks", "onnxruntime_blocks")
"""Those that quantize dense layers alone."""
QUANTIZERS: dict[str, Quantizer] = {
    PLAIN: _plain,
    DEFAULT: _octavo(),
    FEW_BITS: _octavo(octavo.Recipe(weight_bits=4, wide_weights=0.3)),
    "octavo_blocks": _octavo(octavo.Recipe(weight_bits=4, weight_block=BLOCK)),
    "octavo_best": _octavo(octavo.Recipe().with_preset("best")),
    "octavo_best_wide": _octavo(octavo.Recipe(wide_activations=5).with_preset("best")),
    "onnxruntime_min_max": _onnxruntime("MinMax"),
    "onnxruntime_percentile": _onnxruntime("Percentile"),
    "onnxruntime_entropy": _onnxruntime("Entropy"),
    "onnxruntime_dynamic": _dynamic,
}
if importlib.util.find_spec("onnx_ir") is not None:
    QUANTIZERS["onnxruntime_blocks"] = _matmul_nbits
if importlib.util.find_spec("nncf") is not None and importlib.util.find_spec("openvino") is not None:
    QUANTIZERS |= {
        "nncf": _nncf("PERFORMANCE"),
        "nncf_mixed": _nncf("MIXED"),
        "nncf_accurate": _nncf("MIXED", fast_bias_correction=False),
        "nncf_min_max": _nncf("MIXED", ranges="MINMAX", fast_bias_correction=False),
    }

# ----------------------------------------------------------------------------------------------------------------- results


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One row."""

    network: str
    quantizer: str
    metric: str | None
    worth: float | None = None
    agreement: float | None = None
    sqnr_db: float | None = None
    profile: Cost | None = None
    quantize: Cost | None = None
    failed: bool = False


class Evaluation:
    """A network with its float outputs, against which quantizers are measured."""

    def __init__(self, name: str, folder: Path, *, limit: int | None = None) -> None:
        self.name, self.network = name, network_of(name)
        self.source = folder / "float.onnx"
        self.limit = limit
        model = self.network.float_onnx()
        onnx.save(model, self.source)
        self.calibration = self.network.calibration(model)
        self.feeds = self.network.evaluation(model, limit)
        self.expected = self.network.outputs(onnx_run(model, optimized=True), self.feeds)

    @cached_property
    def profiled(self) -> tuple[octavo.Model, octavo.Profile, Cost]:
        """Octavo's model, its profile, and what that took. It keeps the default number of samples, whatever tests change."""
        model = octavo.load(self.network.path if self.network.path.suffix == ".tflite" else self.source)
        with measured() as cost:
            profile = octavo.profile(model, [octavo_input(feed) for feed in self.calibration], keep_samples=KEEP_SAMPLES)
        return model, profile, cost

    def float_row(self) -> Result:
        """Return what the float model is worth."""
        network = self.network
        return Result(network=self.name, quantizer="float", metric=network.metric, worth=network.worth(self.expected))

    def measure(self, quantizer: str) -> Result:
        """Quantize in this process."""
        quantized = QUANTIZERS[quantizer](self)
        outputs = self.network.outputs(quantized.run, self.feeds)
        return replace(
            self.float_row(),
            quantizer=quantizer,
            worth=self.network.worth(outputs),
            agreement=100 * agreement(self.expected, outputs),
            sqnr_db=float(sqnr_db(self.expected.astype(np.float64), outputs.astype(np.float64))),
            profile=quantized.profile,
            quantize=quantized.quantize,
        )

    def measure_in_a_process(self, quantizer: str, timeout: float) -> Result:
        """Quantize in a process of its own, which may fail."""
        row = replace(self.float_row(), quantizer=quantizer, worth=None, failed=True)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "row.json"
            limit = [] if self.limit is None else ["--limit", str(self.limit)]
            command = [sys.executable, __file__, "--networks", self.name, "--quantizers", quantizer, *limit, "--row", str(file)]
            # No machine code of an earlier run: what is compiled counts, in profiling and in quantization.
            environment = {**os.environ, "OCTAVO_CACHE": folder}
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
            except subprocess.TimeoutExpired:
                print(f"{self.name}, {quantizer}: not done after {timeout:.0f} seconds", file=sys.stderr)
                return row
            if done.returncode or not file.exists():
                reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
                print(f"{self.name}, {quantizer}: {reason}", file=sys.stderr)
                return row
            values = json.loads(file.read_text(encoding="utf-8"))
        costs = {key: None if values[key] is None else Cost(**values[key]) for key in ("profile", "quantize")}
        return Result(**{**values, **costs})


COLUMNS = ("network", "quantizer", "metric", "value", "agreement", "dB", "profile", "quantize", "time ratio", "memory ratio")


def cells(result: Result) -> tuple[str, ...]:
    """Return one row of the table."""

    def number(value: float | None, digits: int = 1) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    def cost(value: Cost | None) -> str:
        return "" if value is None else f"{value.seconds:.1f} s, {value.megabytes:.0f} MB"

    ratios = ("", "")
    if result.profile is not None and result.quantize is not None:
        seconds, megabytes = (getattr(result.quantize, key) / getattr(result.profile, key) for key in ("seconds", "megabytes"))
        ratios = f"{seconds:.2f}", f"{megabytes:.2f}"
    return (
        *(result.network, result.quantizer, result.metric or ""),
        "fails" if result.failed else number(result.worth, 4 if result.metric == "KL" else 1),
        *(number(result.agreement), number(result.sqnr_db, 2), cost(result.profile), cost(result.quantize), *ratios),
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = partial(str.split, sep=",")
    parser.add_argument("--networks", type=names, default=list(NETWORKS), help=f"comma-separated: {', '.join(NETWORKS)}")
    parser.add_argument("--quantizers", type=names, default=list(QUANTIZERS), help=f"comma-separated: {', '.join(QUANTIZERS)}")
    parser.add_argument("--limit", type=int, help="samples to evaluate on (default: all)")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds that a quantizer may take on a network (default: 600)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    parser.add_argument("--row", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for kind, known in (("networks", NETWORKS), ("quantizers", QUANTIZERS)):
        for name in getattr(options, kind):
            if name not in known and not (kind == "networks" and Path(name).is_file()):
                parser.error(f"--{kind}: {name!r} is none of {', '.join(known)}")
    results: list[Result] = []
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            evaluation = Evaluation(name, Path(folder), limit=options.limit)
            if options.row is not None:
                options.row.write_text(json.dumps(asdict(evaluation.measure(options.quantizers[0]))), encoding="utf-8")
                return 0
            rows = [evaluation.float_row()]
            kinds = [each for each in options.quantizers if evaluation.network.is_transformer or each not in OF_TRANSFORMERS]
            for quantizer in kinds:
                rows.append(evaluation.measure_in_a_process(quantizer, options.timeout))
        results += rows
        print(markdown_table(COLUMNS, [cells(row) for row in rows], numbers=tuple(range(3, len(COLUMNS)))), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
