"""Transformers in float32, int8 and weights of 4 bits: how fast, and how near the float model, beside other runtimes?

    python benchmarks/transformer_table.py bert.onnx --size b=1,s=16 --size b=1,s=128 [--bits 4] [--threads 1 2]
    python benchmarks/transformer_table.py --networks llama swin --folder /tmp/networks [--layers 2] [--json table.json]

Networks of `NETWORKS` are made on the spot, and measured at the sizes that stand there; LLaMA's weights have 4 bits in blocks of
32. Each model is quantized (by the preset; on random samples) and compiled once for all sizes that its file leaves open ("open"),
and for each size alone. Of ONNX Runtime there are the float model, its dynamic and its static quantization with int8 weights per
channel, summed as its kernels do by default, or its MatMulNBits at accuracy level 4; of OpenVINO the float model in float32, and
that with int8 or int4 weights, whose activations it quantizes as it runs; of PyTorch the network with int8 weights, the same way.
Rows are measured in turn in one process, medians; dB is the SQNR of all outputs beside ONNX Runtime's float model, on other
random inputs; KL is of scores of next tokens, in nats. "times" is the fastest peer's time over that of Octavo's quantized model
of one size, or over that of "step": a step of a session that knows which inputs stay the same (Whisper's decoder), its checks of
inputs and copies of results included; no peer has a means for it. "in float" is the share of time that it spends in layers that
compute in float, on one thread. A peer that can't run the model has no figure; the reason goes to stderr, as does what each step
takes. Octavo compiles for OCTAVO_TARGET, the peers use what the CPU has.

Networks, what peers make of them, and Octavo's plans stay in --folder: a second table takes a fraction of the first one's time.
Plans of an earlier Octavo are among these: --anew quantizes anew. A row's rounds take --seconds; a call that is long is timed
twice.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import tvm

import octavo
from octavo.compiler.compile import build_executable
from octavo.compiler.constant_block import constant_block
from octavo.compiler.explanation import output_specs
from octavo.compiler.partition.pipeline import lower
from octavo.compiler.target_choice import resolve_target
from octavo.compiler.text_table import markdown_table
from octavo.evaluation.bench.roofline import roofline_of
from octavo.ir.graph.fixed_sizes import at_sizes
from octavo.ir.graph.inputs import input_specs
from octavo.numerics.statistics.metrics import sqnr_db
from open_sizes import Arrays, in_turn, inputs_of
from transformer_peers import BLOCK, Peers, Run

Sizes = dict[str, int]
SAMPLES, SHORT, CLOCKED = 4, 64, 3


@dataclass(frozen=True, kw_only=True)
class Network:
    """The bits of a network's weights, its sizes, whether its first output is scores of next tokens, what runs it in PyTorch.

    `encoded` is how the names of inputs begin that are keys and values: those that no output extends are of what was encoded, the
    same at each step.
    """

    bits: int = 8
    sizes: Sequence[Sizes] = ({},)
    has_scores: bool = False
    in_torch: Callable[[int], Run] | None = None
    encoded: str | None = None


_ROWS = (16, 128, 384)
NETWORKS = {
    "bert": Network(sizes=[{"s": rows} for rows in (*_ROWS, 1024)]),
    "gpt2": Network(sizes=[{"s": rows} for rows in (*_ROWS, 1024)], has_scores=True),
    "llama": Network(
        bits=4,
        sizes=[{"s": 1, "p": 128}, {"s": 1, "p": 1024}, *({"s": rows, "p": 1} for rows in (*_ROWS, 1024))],
        has_scores=True,
    ),
    "vit": Network(),
    "swin": Network(),
    "whisper_encoder": Network(),
    "whisper_decoder": Network(
        sizes=[{"s": 1, "p": 128}, {"s": 1, "p": 384}, *({"s": rows, "p": 1} for rows in _ROWS)],
        encoded="past",
    ),
}


def _inputs(specs: Any, sizes: Sizes, seed: int) -> Arrays:
    """Return random inputs; positions go on behind the past."""
    made = inputs_of(specs, sizes, seed)
    for name, array in made.items():
        if name.startswith("position"):
            made[name] = np.broadcast_to(np.arange(array.shape[-1]) + sizes.get("p", 0), array.shape).astype(array.dtype)
    return made


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Say what a step takes; machines are busy, so CPU time, too."""
    start, spent = time.perf_counter(), time.process_time()
    yield
    print(
        f"{what}: {time.perf_counter() - start:.1f} s, of CPU time {time.process_time() - spent:.1f}", file=sys.stderr, flush=True
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says of every network."""

    folder: Path
    threads: Sequence[int]
    preset: Any
    seconds: float
    anew: bool
    clock: Callable[[], float]


class Ours:
    """A model in float and quantized: what quantizing was fitted to, executables of all sizes and of one."""

    def __init__(self, path: Path, network: Network, options: Options) -> None:
        self._float: Any = octavo.load(path)
        self.specs = input_specs(self._float)
        self.bits = network.bits
        fewer = [{name: min(size, SHORT + 8 * number) for name, size in network.sizes[0].items()} for number in range(SAMPLES)]
        self.samples = [_inputs(self.specs, sizes, number) for number, sizes in enumerate(fewer)]
        plan = options.folder / f"{path.stem}.{self.bits}.{options.preset}.plan.json"
        if options.anew or not plan.exists() or plan.stat().st_mtime < path.stat().st_mtime:
            profile = octavo.profile(self._float, self.samples)
            how = {"weight_bits": 4, "weight_block": BLOCK, "block_activations": "int8"} if self.bits == 4 else {}
            self._quantized: Any = octavo.quantize(self._float, profile, recipe=octavo.Recipe(**how), preset=options.preset)
            self._quantized.plan.save(plan)
        else:
            self._quantized = octavo.quantize(self._float, plan=plan)
        self._in_float: dict[str, float] = {}

    @property
    def name(self) -> str:
        """Of the quantized model."""
        return "octavo int8" if self.bits == 8 else f"octavo {self.bits} bits"

    def open_ones(self, threads: int) -> dict[str, Any]:
        """Return executables of all sizes; of the float model alone where the file leaves none open."""
        found = {"octavo float32": octavo.compile(self._float, threads=threads)}
        if self._float.sizes:
            found[f"{self.name}, open"] = octavo.compile(self._quantized, threads=threads)
        return found

    def fixed(self, sizes: Sizes, threads: int) -> tuple[Any, float]:
        """Return the executable of one size, and the share of time in layers that compute in float.

        Of a large model it is lowering that takes long: what is timed by layer is what becomes the executable.
        """
        model, chosen = self._at(sizes), resolve_target(None)

        def lowered(count: int) -> Any:
            return lower(model.bound(), chosen.host, chosen.isas, count, model.tensors, None, backends=chosen.backends)

        with constant_block(model.constant_bytes):  # as `compile` does
            made = lowered(threads)
            executable = build_executable(made, model, chosen, threads, outputs=output_specs(model))
        if _text(sizes) not in self._in_float:
            alone = made if threads == 1 else lowered(1)
            layers = roofline_of(alone, model, "model", rounds=CLOCKED, chosen=chosen).layers
            real = sum(each.microseconds for each in layers if not each.integer)
            self._in_float[_text(sizes)] = real / sum(each.microseconds for each in layers)
        return executable, self._in_float[_text(sizes)]

    def _at(self, sizes: Sizes) -> Any:
        model = self._quantized
        if not sizes:
            return model
        shapes = {name: array.shape for name, array in _inputs(self.specs, sizes, 0).items()}
        entries = {tensor_id: model.tensors[tensor_id] for tensor_id in model.input_ids}
        inputs = {tensor_id: replace(entry, shape=shapes[entry.source_name]) for tensor_id, entry in entries.items()}
        module = tvm.IRModule(at_sizes(dict(model.module.functions_items()), sizes))
        return replace(model, module=module, tensors={**model.tensors, **inputs}, sizes={})


def rows_of(path: Path, network: Network, options: Options) -> list[dict[str, Any]]:
    """Return a row for each size and number of threads: milliseconds, dB and KL by name."""
    with _said(f"{path.stem}, quantized"):
        ours = Ours(path, network, options)
    how: dict[str, Any] = {"bits": network.bits, "samples": ours.samples, "in_torch": network.in_torch}
    found: list[dict[str, Any]] = []
    for count in options.threads:
        with _said(f"{path.stem}, compiled for all sizes"):
            opened = ours.open_ones(count)
        with _said(f"{path.stem}, peers"):
            peers = Peers(path=path, folder=options.folder, threads=count, **how).all()
        for sizes in network.sizes:
            which = " ".join([path.stem, _text(sizes)])
            with _said(f"{which}, compiled, timed by layer"):
                executable, in_float = ours.fixed(sizes, count)
            executables = {**opened, ours.name: executable}
            with _said(f"{which}, row"):
                inputs = _inputs(ours.specs, sizes, SAMPLES)
                row = _row(ours, executables, peers, inputs, network, options)
            found.append({"model": path.stem, "sizes": _text(sizes), "threads": count, "in float": in_float, **row})
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _row(
    ours: Ours, executables: dict[str, Any], peers: dict[str, Run], inputs: Arrays, network: Network, options: Options
) -> dict[str, Any]:
    calls: dict[str, Callable[[], Any]] = {name: each.bind(inputs).run for name, each in executables.items()}
    if network.encoded is not None:
        calls[f"{ours.name}, step"] = _step(executables[f"{ours.name}, open"], inputs, network.encoded)
    values: dict[str, list[np.ndarray]] = {name: list(each(inputs).values()) for name, each in executables.items()}
    for name, run in peers.items():
        try:
            values[name] = run(inputs)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        calls[name] = partial(run, inputs)
    times = in_turn(calls, seconds=options.seconds, are_warm=True, clock=options.clock)
    reference = values.pop("onnxruntime")
    fastest = min(time for name, time in times.items() if name in peers)
    own = times.get(f"{ours.name}, step", times[ours.name])
    return {
        "ms": times,
        "dB": {name: _sqnr(reference, each) for name, each in values.items()},
        "KL": {name: _divergence(reference[0], each[0]) for name, each in values.items()} if network.has_scores else {},
        "times": fastest / own,
    }


def _step(executable: Any, inputs: Arrays, encoded: str) -> Callable[[], Any]:
    """Return one step of a session behind a past, time and again: what was encoded is there from the step before."""
    specs = executable.description
    carry = {specs.outputs[each.output].source_name: specs.inputs[each.input].source_name for each in specs.states}
    start = {name: inputs[name] for name in carry.values()}
    fixed = {name: array for name, array in inputs.items() if name.startswith(encoded) and name not in start}
    given = {name: array for name, array in inputs.items() if name not in start and name not in fixed}
    before = inputs[specs.inputs[specs.states[0].input].source_name].shape[specs.states[0].axis]
    rows = max(array.size for array in given.values())
    capacity = {each.dimension: before + rows for each in specs.states}
    session = executable.session(carry=carry, capacity=capacity, start=start, fixed=fixed)

    def step() -> None:
        session(given)
        session.reset(to=before)

    return step


def _divergence(reference: np.ndarray, values: np.ndarray) -> float:
    """Return the mean KL divergence of the shares that scores stand for."""
    real, other = (_logarithms(np.asarray(each, np.float64)) for each in (reference, values))
    return float((np.exp(real) * (real - other)).sum(-1).mean())


def _logarithms(scores: np.ndarray) -> np.ndarray:
    below = scores - scores.max(-1, keepdims=True)
    return below - np.log(np.exp(below).sum(-1, keepdims=True))


def _sqnr(reference: list[np.ndarray], values: list[np.ndarray]) -> float:
    flat = [np.concatenate([np.asarray(each, np.float64).ravel() for each in some]) for some in (reference, values)]
    return float(sqnr_db(*flat))


def table_of(rows: list[dict[str, Any]]) -> str:
    """Return the table: a column for each name, milliseconds, dB and KL."""
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))

    def cell(row: dict[str, Any], name: str) -> str:
        if name not in row["ms"]:
            return ""
        decibels, divergence = row["dB"].get(name), row["KL"].get(name)
        said = [f"{decibels:.1f}"] if decibels is not None and np.isfinite(decibels) else []
        said += [f"{divergence:.4f}"] if divergence is not None else []
        return f"{row['ms'][name]:.3f}" + (f" ({', '.join(said)})" if said else "")

    body = [
        (
            *(row["model"], row["sizes"], str(row["threads"])),
            *(cell(row, name) for name in names),
            *(f"{row['times']:.2f}", f"{row['in float']:.0%}"),
        )
        for row in rows
    ]
    return markdown_table(("model", "sizes", "threads", *(f"{name}, ms (dB, KL)" for name in names), "times", "in float"), body)


def _networks(args: argparse.Namespace, folder: Path) -> list[tuple[Path, Network]]:
    """Return files and what is measured of them; networks that are named are made where they are not there."""
    given = [{name: int(size) for name, size in (each.split("=") for each in text.split(","))} for text in args.size]
    found = [(path, Network(bits=args.bits, sizes=given or [{}])) for path in args.models]
    named = [*NETWORKS] if args.networks == ["all"] else args.networks
    for name in named:
        import transformer_networks

        path = folder / f"{name}{'' if args.layers is None else f'-{args.layers}'}.onnx"
        if not path.exists():
            with _said(f"{path.stem}, made"):
                transformer_networks.make(name, path, args.layers)
        in_torch = partial(transformer_networks.int8_run, name, args.layers)
        found.append((path, replace(NETWORKS[name], sizes=given or NETWORKS[name].sizes, in_torch=in_torch)))
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--networks", nargs="+", default=[], choices=("all", *NETWORKS), help="make and measure these, too")
    parser.add_argument("--folder", type=Path, help="where networks and what is made of models stays; a temporary one")
    parser.add_argument("--layers", type=int, help="of the networks that are made, at most")
    parser.add_argument("--bits", type=int, choices=(8, 4), default=8, help="of the weights of files that are given")
    parser.add_argument("--preset", choices=("fast", "balanced", "best"), default="fast", help="how quantize searches")
    parser.add_argument("--anew", action="store_true", help="quantize, though the folder has a plan")
    parser.add_argument("--size", action="append", default=[], help="NAME=N,NAME=N ...: all dimensions that the files leave open")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=10.0, help="that a row's rounds take, about")
    parser.add_argument("--cpu", action="store_true", help="measure CPU time: on a busy machine, of one thread")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        said = {name: getattr(args, name) for name in ("threads", "preset", "seconds", "anew")}
        options = Options(folder=folder, clock=time.process_time if args.cpu else time.perf_counter, **said)
        for path, network in _networks(args, folder):
            rows += rows_of(path, network, options)
    versions = f"octavo {octavo.__version__}, ONNX Runtime {onnxruntime.__version__}"
    print(f"{versions}, target {os.environ.get('OCTAVO_TARGET', 'of this CPU')}\n\n{table_of(rows)}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
