"""Lineage over the shared float models: every TensorId classified, every claim checked by values, and what following costs.

    python benchmarks/lineage.py                          every float model: TVM's default pipeline, the list of passes with and
                                                          without mixed precision, Octavo's own pipeline from float to kernels
    python benchmarks/lineage.py --model resnet8          models whose file name holds "resnet8"
    python benchmarks/lineage.py --only own               one of default, list, mixed, own
    python benchmarks/lineage.py --cost inception_v3      the instrument's share of TVM's default pipeline on one model

A network with batch norm, concat, split and shared weights comes first. Models are profiled on 24 samples, followed with the help
of another (real where there is data) and checked on yet another. "lowest SQNR" is that of integers against the float model,
"steps off" their largest difference to what the quantized model makes of the final module's own values; "asked" is CPU time.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

import datasets
import octavo
from octavo.errors import QuantizationError
from octavo.ir.graph.inputs import input_specs
from octavo.runtime.llvm_host import host_target

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from lineage_nets import branched_net, python_pass

transform: Any = relax.transform


def pass_list(*, with_mixed_precision: bool) -> list[tvm.transform.Pass]:
    """TVM's passes that change what variables hold, or are called."""
    passes = [
        transform.FoldBatchnormToConv2D(),
        transform.DecomposeOpsForInference("main"),
        transform.FoldConstant(),
        transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
        transform.EliminateCommonSubexpr(),
        transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(),
        clip_as_minimum(),
        transform.ToMixedPrecision(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FuseOps(),
        transform.FuseTIR(),
    ]
    left_out = () if with_mixed_precision else ("ClipAsMinimum", "ToMixedPrecision")
    return [each for each in passes if each.info.name not in left_out]


CALIBRATION = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """What a model is profiled, probed and verified on, arrays by input name; no sample is used for two of these."""

    calibration: list[dict[str, np.ndarray]]
    probe: dict[str, np.ndarray]
    verify: dict[str, np.ndarray]


def _pictures(preprocess: datasets.Preprocess, size: int = 224) -> list[np.ndarray]:
    """Return calibration pictures, then two that are for evaluation."""
    calibration, _ = datasets.images(preprocess, calibration=True, size=size, limit=CALIBRATION)
    evaluation, _ = datasets.images(preprocess, calibration=False, size=size, limit=2)
    return [*calibration, *evaluation]


DATA: dict[str, Callable[[], list[np.ndarray]]] = {
    "mobilenet_v2": lambda: _pictures(datasets.plus_minus_one),
    "squeezenet": lambda: _pictures(datasets.imagenet_normalized),
    "yolox": lambda: _pictures(datasets.blue_first, size=416),
    "vww96": lambda: _pictures(lambda picture: picture.astype(np.float32) / 255, size=96),
    "resnet8": lambda: datasets.cifar10(lambda picture: picture.astype(np.float32), limit=CALIBRATION + 2)[0],
    "dscnn": lambda: datasets.keywords(datasets.keyword_as_float, limit=CALIBRATION + 2)[0],
}
"""Samples as the model whose name holds the key takes them, the last two to probe and to verify. Others get random values."""


def samples_for(name: str, model: octavo.Model) -> Samples:
    """Return a model's samples."""
    found = next((make() for key, make in DATA.items() if key in name), None)
    if found is not None:
        batches = [{input_specs(model)[0].source_name: sample} for sample in found]
    else:
        rng = np.random.default_rng(11)
        batches = [
            {spec.source_name: rng.standard_normal(spec.shape).astype(spec.dtype) for spec in input_specs(model)}
            for _ in range(CALIBRATION + 2)
        ]
    return Samples(calibration=batches[:-2], probe=batches[-2], verify=batches[-1])


def clip_as_minimum() -> tvm.transform.Pass:
    """Write clip as minimum and maximum: TVM's ToMixedPrecision cannot read a call with numbers among its arguments."""

    @relax.expr_functor.mutator
    class Rewrite(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = super().visit_call_(call)
            if getattr(call.op, "name", "") != "relax.clip":
                return call
            low, high = (relax.const(float(bound.value), str(call.args[0].ty.dtype)) for bound in call.args[1:])
            return relax.op.minimum(self.builder_.emit(relax.op.maximum(call.args[0], low)), high)

    def change(module: tvm.IRModule) -> tvm.IRModule:
        rewrite = Rewrite(module)
        for var, function in list(module.functions.items()):
            if isinstance(function, relax.Function):
                rewrite.builder_.update_func(var, rewrite.visit_expr(function))
        return rewrite.builder_.get()

    return python_pass("ClipAsMinimum", change)


def pipelines(model: octavo.Model, samples: Samples) -> dict[str, Callable[[], tvm.IRModule]]:
    """Return what is followed, each from the float model to its last module."""
    bound = model.bound()

    def own() -> tvm.IRModule:
        try:
            quantized = octavo.quantize(model, octavo.profile(model, samples.calibration))
        except QuantizationError:  # a file of floats with integers in it is lowered as it is
            quantized = model
        return octavo.relax_pipeline(ids=quantized.tensors)(quantized.bound())

    return {
        "default": lambda: relax.pipeline.get_default_pipeline(host_target())(bound),
        "list": lambda: tvm.transform.Sequential(pass_list(with_mixed_precision=False))(bound),
        "mixed": lambda: tvm.transform.Sequential(pass_list(with_mixed_precision=True))(bound),
        "own": own,
    }


def follow(model: octavo.Model, name: str, run: Callable[[], tvm.IRModule], samples: Samples) -> bool:
    """Run passes under a Lineage, check every claim, print one row; return whether all is right."""
    target = host_target()
    sources = {model.tensors[tensor].source_name: str(tensor) for tensor in model.input_ids}
    probe = {sources[source]: value for source, value in samples.probe.items()}
    lineage = octavo.Lineage(model, target=target, probe=probe)
    with target, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        try:
            module = run()
        except Exception as error:
            print(f"| {name} | FAILED in a pass: {str(error).strip().splitlines()[-1][:100]} |", flush=True)
            return False
    start = time.process_time()
    states = lineage.states
    seconds = time.process_time() - start
    checks = octavo.verify_lineage(model, module, samples.verify, lineage=lineage)
    wrong = [check for check in checks if not check.is_right]
    unchecked = [check.id for check in checks if check.state.is_alive and not check.is_compared]
    kinds = collections.Counter(state.kind for state in states.values())
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    compared = sum(check.is_compared for check in checks)
    integers = [check.sqnr_db for check in checks if check.is_integer]
    lowest = f"{min(integers):.1f} dB" if integers else ""
    steps = [check.steps_off for check in checks if check.steps_off is not None]
    off = f"{max(steps):.0f}" if steps else ""
    print(
        f"| {name} | {len(model.tensors)} | {len(states)} | {told} | {compared} | {len(integers)} | {lowest} | {off} "
        f"| {len(wrong)} | {seconds:.1f} s |",
        flush=True,
    )
    for check in wrong:
        error = f"{check.sqnr_db:.1f} dB, {check.max_abs_error:.3g} and {check.steps_off} steps off"
        print(f"    wrong: {check.id}: {error}: {check.state}")
    for tensor in unchecked:
        print(f"    claimed and not computed: {tensor}: {states[tensor]}")
    return not wrong and not unchecked and set(states) == set(model.tensors)


def cost(model: octavo.Model, rounds: int) -> float:
    """Return the instrument's share of the default pipeline's CPU time: alternating runs, medians."""
    target = host_target()
    module = model.bound()
    pipeline = relax.pipeline.get_default_pipeline(target)

    def seconds(instruments: list[Any]) -> float:
        start = time.process_time()
        with target, tvm.transform.PassContext(opt_level=3, instruments=instruments):
            pipeline(module)
        return time.process_time() - start

    plain: list[float] = []
    followed: list[float] = []
    for _ in range(rounds):
        plain.append(seconds([]))
        lineage = octavo.Lineage(model, target=target)
        followed.append(seconds([lineage]))
    start = time.process_time()
    states = lineage.states
    asked = time.process_time() - start
    share = statistics.median(followed) / statistics.median(plain) - 1
    print(f"pipeline {statistics.median(plain):.2f} s, with the instrument {statistics.median(followed):.2f} s: {share:+.1%}")
    print(f"asking afterwards for the states of {len(states)} tensors after {len(lineage.steps)} steps: {asked:.2f} s")
    return share


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="only models whose file name holds this")
    parser.add_argument("--cost", default="", help="measure the instrument on the model whose file name holds this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="one of default, list, mixed, own")
    args = parser.parse_args()
    folder: Path = datasets.shared_folder() / "models"
    if args.cost:
        [path, *_] = sorted(path for path in folder.rglob(f"*{args.cost}*") if path.is_file())
        return 0 if cost(octavo.load(path), args.rounds) < 0.2 else 1
    print("| model, passes | ids | classified | states | compared | as integers | lowest SQNR | steps off | wrong | asked |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    sources: dict[str, Callable[[], octavo.Model]] = {"branched": branched_net}
    for path in sorted(folder.rglob("*fp32*"), key=lambda path: path.stat().st_size):
        sources[path.stem] = partial(octavo.load, path)
    is_right = True
    for name, source in sources.items():
        if args.model in name:
            model = source()
            samples = samples_for(name, model)
            for pipeline, run in pipelines(model, samples).items():
                if args.only in ("", pipeline):
                    is_right &= follow(model, f"{name}, {pipeline}", run, samples)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
