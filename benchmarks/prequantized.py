"""Random networks (shared/probes/fuzz) that ONNX Runtime's quantizer quantized, by random options: are they what it runs?

    python benchmarks/prequantized.py 0 500
    python benchmarks/prequantized.py 0 500 --fast     kernels that LLVM does not optimize: the same bytes, compiled sooner

One line a network that differs. Of a QDQ file two sessions of ONNX Runtime are the reference. Unoptimized it computes float ops
between Q and DQ, one by one; by default it makes QLinear ops of them, whose ties fall otherwise (AveragePool, Add, Mul), and
these are what runs. A tensor is right that either of them computes from the same integers (`by_tensor`), but for ties of float
sums: one step, at one value in a hundred, or as `TIES` says. A network fails of which a tensor is not, that is refused, or
that ends in another exception.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime import quantization

import octavo
from by_tensor import Apart, Feed, apart
from octavo.compiler.codegen import tir_passes
from random_networks import normal_feeds, random_network
from reference_sessions import reference_session

CALIBRATION, FRESH = 8, 4
FAULTS = ("differ", "refused", "raw")
MOST_TIES = 0.01
"""Share of values that float sums may put on the other side of a tie."""
TIES = {
    "AveragePool": 0.1,  # with ceil_mode: means of four are ties one in four times, exact ones here, float sums' there
}
"""The same share of ops whose values are often ties."""
OF_ONE = ("QLinearSoftmax",)
"""Which is 0 in ONNX Runtime along an axis of one element, where its one sum of 32 bits overflows: a softmax of one is 1."""


class _Reader(quantization.CalibrationDataReader):
    def __init__(self, feeds: list[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Any:
        return next(self._feeds, None)


def random_file(seed: int, ops: int = 12) -> tuple[onnx.ModelProto, list[Feed]] | None:
    """Return a quantized random network and samples; None of a seed that makes none, or that ONNX Runtime does not quantize."""
    network = random_network(seed, ops)
    if network is None or not network[1]:
        return None
    made, shapes = network
    rng = np.random.default_rng(seed)
    feeds = normal_feeds(shapes, rng, CALIBRATION + FRESH)
    forms, kinds = quantization.QuantFormat, quantization.QuantType
    activations = kinds.QInt8 if rng.integers(2) else kinds.QUInt8
    unsigned = activations == kinds.QUInt8 and rng.random() < 1 / 3
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(made, source)
        try:
            quantization.quantize_static(
                source,
                target,
                _Reader(feeds[:CALIBRATION]),
                quant_format=forms.QOperator if rng.random() < 1 / 3 else forms.QDQ,
                per_channel=bool(rng.integers(2)),
                activation_type=activations,
                weight_type=kinds.QUInt8 if unsigned else kinds.QInt8,
                extra_options={"ActivationSymmetric": rng.random() < 1 / 4, "WeightSymmetric": rng.random() < 3 / 4},
            )
            values = reference_session(target, optimized=False, threads=1).run(None, feeds[-1])
        except Exception:  # its quantizer's and its own, which share no class
            return None
        return (onnx.load(target), feeds[CALIBRATION:]) if all(np.isfinite(value).all() for value in values) else None


def faults(proto: onnx.ModelProto, feeds: list[Feed], *, with_results: bool = True) -> list[Apart]:
    """Return the tensors that no session of ONNX Runtime has.

    `with_results`: also of the file as it is, whose results must not depend on what else is an output.
    """
    ours: list[dict[str, Any]] = []
    if with_results:
        executable = octavo.compile(octavo.load(proto))
        ours = [executable(feed) for feed in feeds]
    sessions = apart(proto, feeds, ours, optimized=(False, True))
    found = [each for each in next(sessions) if _counts(each)]
    if not found:
        return []
    fused = {each.tensor: each for each in next(sessions) if _counts(each)}
    return [fused[each.tensor] for each in found if each.tensor in fused]


def _counts(each: Apart) -> bool:
    if each.op in OF_ONE and each.count == each.size:
        return False
    return each.steps > 1.0 or each.count > max(2.0, TIES.get(each.op, MOST_TIES) * each.size)


def _outcome(seed: int) -> tuple[str, str]:
    made = random_file(seed)
    if made is None:
        return "not quantized", ""
    try:
        found = faults(*made)
    except octavo.OctavoError as error:
        return "refused", str(error)
    except Exception as error:  # a fault of ours, whatever it is; the networks behind it are looked at all the same
        return "raw", f"{type(error).__name__}: {error}"
    said = (f"{each.tensor} of {each.op} {each.steps:.3g} steps, {each.count} of {each.size} values" for each in found)
    return ("differ", "; ".join(said)) if found else ("the same", "")


def main() -> None:
    """Look at all, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if options.fast:
        tir_passes.KERNEL_LEVEL = 0
    seen: Counter[str] = Counter()
    for seed in range(options.first, options.end):
        kind, said = _outcome(seed)
        seen[kind] += 1
        if said:
            print(f"{seed}: {kind}: {said}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in seen.items()))
    sys.exit(any(seen[kind] for kind in FAULTS))


if __name__ == "__main__":
    main()
