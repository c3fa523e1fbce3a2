"""What is exported is what ran: the ONNX file of a quantized model, loaded and compiled, and in ONNX Runtime unoptimized.

    python benchmarks/exported.py                         the shared float ONNX models
    python benchmarks/exported.py m.onnx n.onnx           others, on random samples
    python benchmarks/exported.py --random 0 500          random networks (shared/probes/fuzz)
    python benchmarks/exported.py --plain ...             plain min-max in place of the default
    python benchmarks/exported.py --fast ...              kernels that LLVM does not optimize: the same bytes, compiled sooner

One line a network that is not the same: the loaded file must give the model's very bytes, ONNX Runtime's values must be within
one step of an output's scale (of 1/255 of its largest where it has none). Where they are not, each tensor is computed from our
integers before it (`by_tensor`): if all are within one step, a float sum beside a tie has become more on its way ("ties").
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import datasets
import octavo
from by_tensor import apart
from octavo.compiler.codegen import tir_passes
from octavo.export.onnx.onnx_export import onnx_model
from octavo.ir.graph.inputs import input_specs
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.plan import QuantizedModel
from octavo.quantizer.quantize_graph import quantize_graph
from random_networks import normal_feeds, random_network
from reference_sessions import reference_session

Feed = dict[str, np.ndarray]
MOST_STEPS = 1.0
CALIBRATION, FRESH = 16, 4
FAULTS = ("differ", "refused", "raw")
LARGEST = 1e6
"""Of outputs that are looked at: beyond it, random networks are hardly numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """How far the file of one quantized model is from it, loaded again and in ONNX Runtime.

    Parameters
    ----------
    reload_db, runtime_db
        By an output that differs, the signal to noise ratio.
    runtime_steps, runtime_shares
        By an output that is off by more than a step, by how many, and how many of its values are.
    of_ties
        Whether each tensor is within a step of what ONNX Runtime computes from the same integers.
    """

    reload_db: dict[str, float]
    runtime_db: dict[str, float]
    runtime_steps: dict[str, float]
    runtime_shares: dict[str, float]
    of_ties: bool = False

    @property
    def is_same(self) -> bool:
        """Whether what is exported is what ran."""
        return not self.reload_db and not self.runtime_steps

    @property
    def said(self) -> str:
        """One line."""
        if self.is_same:
            return "the same"
        again = [f"{name} {db:.1f} dB loaded again" for name, db in self.reload_db.items()]
        theirs = [
            f"{name} {n:.3g} steps, {self.runtime_db[name]:.1f} dB in ONNX Runtime" for name, n in self.runtime_steps.items()
        ]
        return "; ".join(again + theirs)


def compared(quantized: QuantizedModel, feeds: list[Feed]) -> Found:
    """Run a model, what is loaded from its file, and the file in ONNX Runtime."""
    proto = onnx_model(quantized)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exported.onnx"
        onnx.save(proto, path)
        ours, again = ([executable(feed) for feed in feeds] for executable in map(octavo.compile, (quantized, octavo.load(path))))
        session = reference_session(path, optimized=False, threads=1)
        theirs = [session.run(None, feed) for feed in feeds]
    steps = [quantized.plan.activations.get(output) for output in quantized.output_ids]
    found = Found(reload_db={}, runtime_db={}, runtime_steps={}, runtime_shares={})
    for place, name in enumerate(ours[0]):
        mine, loaded = (np.concatenate([np.ravel(list(run.values())[place]) for run in runs]) for runs in (ours, again))
        other = np.concatenate([np.ravel(run[place]) for run in theirs])
        if mine.tobytes() != loaded.tobytes():
            found.reload_db[name] = sqnr_db(mine, loaded)
        params = steps[place]
        step = float(np.max(params.scale)) if params is not None else max(float(np.abs(mine).max(initial=0)), 1e-6) / 255
        off = np.abs(mine.astype(np.float64) - other) / step
        is_off = off > MOST_STEPS * 1.001
        if off.any():
            found.runtime_db[name] = sqnr_db(other, mine)
        if is_off.any():
            found.runtime_steps[name], found.runtime_shares[name] = float(off.max()), float(is_off.mean())
    if not found.runtime_steps or found.reload_db:
        return found
    return replace(found, of_ties=all(each.steps <= MOST_STEPS for each in next(apart(proto, feeds, ours))))


def quantized_by(model: octavo.Model, profile: octavo.Profile, *, plain: bool) -> QuantizedModel:
    """Quantize by default, or by plain min-max."""
    return quantize_graph(model, profile) if plain else octavo.quantize(model, profile)


def of_random(seed: int, *, plain: bool) -> Found | None:
    """Look at a random network; None where there is none, or its values are no use."""
    network = random_network(seed)
    if network is None or not network[1]:
        return None
    made, shapes = network
    rng = np.random.default_rng(seed)
    feeds = normal_feeds(shapes, rng, CALIBRATION + FRESH)
    session = reference_session(made, optimized=False, threads=1)
    values = [value for feed in feeds[CALIBRATION:] for value in session.run(None, feed)]
    if any(not np.isfinite(value).all() or np.abs(value).max(initial=0) > LARGEST for value in values):
        return None
    model = octavo.load(made)
    return compared(quantized_by(model, octavo.profile(model, feeds[:CALIBRATION]), plain=plain), feeds[CALIBRATION:])


def of_file(path: Path, *, plain: bool) -> Found:
    """Look at a model of a file, on random samples of its inputs' shapes; open sizes are 1, or 4 behind the first axis."""
    model, rng = octavo.load(path), np.random.default_rng(0)

    def value(spec: Any) -> np.ndarray:
        shape = [size if isinstance(size, int) else (4 if axis else 1) for axis, size in enumerate(spec.shape)]
        if spec.dtype == "float32":
            return rng.standard_normal(shape).astype(np.float32)
        return rng.integers(0, 2 if "mask" in spec.source_name else 16, shape).astype(spec.dtype)

    feeds = [{spec.source_name: value(spec) for spec in input_specs(model)} for _ in range(CALIBRATION + FRESH)]
    return compared(quantized_by(model, octavo.profile(model, feeds[:CALIBRATION]), plain=plain), feeds[CALIBRATION:])


def _all(options: argparse.Namespace) -> Iterator[tuple[str, Found | Exception | None]]:
    if options.random:
        for seed in range(*options.random):
            yield str(seed), _looked_at(of_random, seed, plain=options.plain)
        return
    for path in options.models or sorted((datasets.shared_folder() / "models" / "onnx").glob("*fp32.onnx")):
        yield path.name, _looked_at(of_file, path, plain=options.plain)


def _looked_at(look: Callable[..., Found | None], at: Any, *, plain: bool) -> Found | Exception | None:
    try:
        return look(at, plain=plain)
    except Exception as error:  # a fault, whatever it is; the networks behind it are looked at all the same
        return error


def main() -> None:
    """Look at all, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--random", type=int, nargs=2, metavar=("FIRST", "END"))
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.fast:
        tir_passes.KERNEL_LEVEL = 0
    seen: Counter[str] = Counter()
    for name, found in _all(options):
        kind, said = _outcome(found)
        seen[kind] += 1
        if options.random is None or kind in (*FAULTS, "ties"):
            print(f"{name}: {said}" + (" (ties)" if kind == "ties" else ""), flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in seen.items()))
    sys.exit(any(seen[kind] for kind in FAULTS))


def _outcome(found: Found | Exception | None) -> tuple[str, str]:
    """Return the kind that is counted, and one line."""
    if isinstance(found, octavo.OctavoError):
        return "refused", f"refused: {found}"
    if isinstance(found, Exception):
        return "raw", f"{type(found).__name__}: {found}"
    if found is None:
        return "not looked at", "not looked at"
    return ("the same" if found.is_same else "ties" if found.of_ties else "differ"), found.said


if __name__ == "__main__":
    main()
