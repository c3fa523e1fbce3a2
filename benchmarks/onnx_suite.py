"""ONNX's own node tests on Octavo, as they are: which pass, which are refused and why, which are wrong or end badly.

    python benchmarks/onnx_suite.py [PATTERN ...] [--every N] [--least N] [--list] [--runtime onnxruntime]

The cases are those that the installed `onnx` package generates. Each model is loaded with the shapes of what is fed, compiled and
called; what comes back is compared within the tolerance that ONNX states. Processes of their own do so, some hundred cases each:
one that ends takes only the case with it that it was at. Exits with 1 where a case was wrong, raised something else than an
OctavoError or ended the process, and where fewer than `--least` passed. Of another runtime whatever it raises is a refusal.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fnmatch
import multiprocessing
import os
import re
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

_CHUNK = 200
_BAD = ("wrong", "raw", "crashed")
_SHOWN_REASONS = 40
_MOST_SECONDS = 60
"""Of a processor: a case that takes more has ended its process."""
_ONE_A_BYTE = {"int4": np.int8, "int2": np.int8, "uint4": np.uint8, "uint2": np.uint8}
"""Octavo takes and gives integers of less than 8 bits one to a byte, and bfloat16, which NumPy lacks, as float32."""

Outcome = tuple[str, str]
"""How a case ended (passed, refused, wrong, raw, crashed, or "no tensors" fed), and what there is to say."""


def cases() -> list[Any]:
    """Return the cases of the installed package, by name."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(None), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return sorted(collect_testcases(None), key=lambda case: case.name)


def _octavo(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    import octavo

    executable = octavo.compile(octavo.load(model, shapes={name: value.shape for name, value in feeds.items()}))
    return list(executable(feeds).values())


def _onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    from reference_sessions import reference_session

    return reference_session(model.SerializeToString(), threads=1).run(None, dict(feeds))


def _tvm(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(model, shape_dict={name: list(value.shape) for name, value in feeds.items()})
    machine = tvm.relax.VirtualMachine(tvm.relax.build(module, "llvm"), tvm.cpu())
    given = machine["main"](*(tvm.runtime.tensor(value) for value in feeds.values()))
    return [each.numpy() for each in ([given] if isinstance(given, tvm.runtime.Tensor) else given)]


RUNTIMES = {"octavo": _octavo, "onnxruntime": _onnxruntime, "tvm": _tvm}
Runtime = Callable[[onnx.ModelProto, Mapping[str, np.ndarray]], list[np.ndarray]]
"""What a runtime gives for what a model is fed; `tvm` is TVM's own importer and its machine."""


def outcome(case: Any, runtime: str = "octavo") -> Outcome:
    """Load, compile and call one case."""
    import octavo

    try:
        return _outcome(case, RUNTIMES[runtime])
    except octavo.OctavoError as error:
        return "refused", str(error)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return "raw" if runtime == "octavo" else "refused", f"{type(error).__name__}: {lines[-1]}"


def _outcome(case: Any, run: Runtime) -> Outcome:
    import octavo

    names = [value.name for value in case.model.graph.input]
    for inputs, wanted in case.data_sets:
        fed = [_tensor(value) for value in inputs]
        wanted = [_tensor(value) for value in wanted]
        if any(value is None for value in (*fed, *wanted)):
            if run is _octavo:
                octavo.load(case.model)  # a sequence, or text: it is to be refused
            return "no tensors", ""
        given = run(case.model, {name: _as_taken(value) for name, value in zip(names, fed, strict=False)})
        if len(given) != len(wanted):
            return "wrong", f"{len(given)} outputs, not {len(wanted)}"
        for have, want in zip(given, wanted, strict=True):
            if difference := _difference(have, want, case):
                return "wrong", difference
    return "passed", ""


def _tensor(value: Any) -> Any:
    """Return the array of one value; None where it is a sequence, an absent optional or text."""
    value = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
    if value is None or isinstance(value, list | dict):
        return None
    value = np.asarray(value)
    if value.dtype.kind in "OSU":
        return None
    return value.astype(_ONE_A_BYTE[str(value.dtype)]) if str(value.dtype) in _ONE_A_BYTE else value


def _as_taken(value: np.ndarray) -> np.ndarray:
    """Return a value as Octavo takes and gives it."""
    return value.astype(np.float32) if str(value.dtype) == "bfloat16" else value


def _difference(have: np.ndarray, want: np.ndarray, case: Any) -> str:
    """Return in what a result differs, "" where it does not."""
    is_short = want.dtype.kind not in "iubc" and want.dtype.itemsize < 4  # their last bit is worth more than what ONNX states
    want = _as_taken(want)
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"{have.dtype} {have.shape}, not {want.dtype} {want.shape}"
    if want.dtype.kind in "iub":
        count = np.count_nonzero(have != want)
        return f"{count} of {want.size} values" if count else ""
    limits = {"rtol": 1e-2 if is_short else case.rtol, "atol": 1e-2 if is_short else max(case.atol, 1e-5)}
    near = np.isclose(have.astype(np.complex128), want.astype(np.complex128), **limits, equal_nan=True)
    return "" if near.all() else f"{near.size - np.count_nonzero(near)} of {near.size} values"


def _work(chunk: Sequence[Any], runtime: str, results: Any) -> None:
    warnings.simplefilter("ignore")
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)  # LLVM's and TVM's own words
    for case in chunk:
        used = int(time.process_time()) + _MOST_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (used, resource.RLIM_INFINITY))
        results.send(outcome(case, runtime))


def run(todo: Sequence[Any], runtime: str = "octavo") -> Iterator[tuple[Any, Outcome]]:
    """Yield each case with its outcome, in their order."""
    context = multiprocessing.get_context("fork")  # the parent has no thread, and the cases need not be made again
    position = 0
    while position < len(todo):
        receiver, sender = context.Pipe(duplex=False)
        chunk = todo[position : position + _CHUNK]
        worker = context.Process(target=_work, args=(chunk, runtime, sender))
        worker.start()
        sender.close()
        try:
            for case in chunk:
                yield case, receiver.recv()
                position += 1
        except EOFError:
            worker.join()
            yield todo[position], ("crashed", f"exit code {worker.exitcode}")
            position += 1
        worker.join()


def reason_of(message: str) -> str:
    """Return what a refusal says without what is particular to its case: names, numbers, shapes."""
    text = re.sub(r"^ONNX model: ", "", message).split("; do the shapes that are given")[0]
    text = re.sub(r" \((?:node '[^']*', )?output tensor '[^']*'\)", "", text)
    text = re.sub(r"'[^']*'", "'...'", text)
    text = re.sub(r"octavo\.definitions\.(\w+?)_\d+", r"\1", text)
    return re.sub(r"-?\d+(\.\d+)?", "N", text)[:150]


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", help="names of cases, with * and ?; all of them where none is given")
    parser.add_argument("--every", type=int, default=1, help="one case of so many")
    parser.add_argument("--least", type=int, default=0, help="how many must pass")
    parser.add_argument("--list", action="store_true", help="print each case that does not pass")
    parser.add_argument("--runtime", choices=RUNTIMES, default="octavo", help="what runs them")
    asked = parser.parse_args()
    patterns = asked.patterns or ["*"]
    chosen = [case for case in cases() if any(fnmatch.fnmatchcase(case.name, each) for each in patterns)][:: asked.every]
    counts, reasons = collections.Counter[str](), collections.Counter[str]()
    for case, (kind, said) in run(chosen, asked.runtime):
        counts[kind] += 1
        if kind == "refused":
            reasons[reason_of(said)] += 1
        if kind in _BAD or (asked.list and kind != "passed"):
            print(f"{kind}: {case.name}: {said}", flush=True)
    for reason, count in reasons.most_common(None if asked.list else _SHOWN_REASONS):
        print(f"{count:5d} refused: {reason}")
    others = ", ".join(f"{counts[kind]} {kind}" for kind in ("refused", "no tensors", *_BAD))
    print(f"{counts['passed']} of {len(chosen)} passed; {others}")
    return int(any(counts[kind] for kind in _BAD) or counts["passed"] < asked.least)


if __name__ == "__main__":
    sys.exit(main())
