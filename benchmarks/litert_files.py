"""Files of TFLite that others wrote: which give LiteRT's values, which are refused and why, which are wrong or end badly.

    python benchmarks/litert_files.py FOLDER [PATTERN ...]

Of a folder of files, LiteRT's own test data for one (the folders testdata of github.com/google-ai-edge/LiteRT), each is loaded,
compiled and called twice on random inputs, states handed on, and compared with LiteRT's default kernels: integers are equal,
floats within 1e-5 of the largest. Where they are not, LiteRT's reference kernels are asked, and then both kinds for the same
products in another form, where none of them knows what the file states (`litert_forms.py`). A file without outputs gives nothing
that could differ. A line each, in a process of its own; exits with 1 where a file that LiteRT runs is wrong, raises something
else than an OctavoError, ends its process or takes minutes.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import octavo
from litert_forms import other_form
from octavo.ir.graph.unbound import UnboundModel

CALLS = 2
NEAR = 1e-5
MAX_SECONDS = 120
"""Of a processor."""
_MOST_WAITED = 20 * MAX_SECONDS
_BAD = ("wrong", "raw", "crashed")
_KERNELS = (OpResolverType.AUTO, OpResolverType.BUILTIN_REF)

Arrays = list[np.ndarray]
Outcome = tuple[str, str]
"""What became of a file, and what there is to say."""


def feeds(interpreter: Any, call: int, limit: int) -> Arrays:
    """Return random inputs, integers that stand for no real numbers below `limit`: they may be places."""
    rng = np.random.default_rng(call)
    made: Arrays = []
    for detail in interpreter.get_input_details():
        dtype, shape = np.dtype(detail["dtype"]), detail["shape"]
        if dtype.kind == "f":
            made.append(rng.normal(size=shape).astype(dtype))
        elif dtype.kind == "i" and detail["quantization"][0]:
            made.append(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype))
        else:
            made.append(rng.integers(0, 2 if dtype.kind == "b" else limit, shape).astype(dtype))
    return made


def theirs(path: str, kernels: Any, limit: int) -> tuple[list[Arrays], list[Arrays]]:
    """Return what is fed to LiteRT, and what it gives, call by call."""
    interpreter = Interpreter(path, num_threads=1, experimental_op_resolver_type=kernels)
    interpreter.allocate_tensors()
    fed, given = [], []
    for call in range(CALLS):
        fed.append(feeds(interpreter, call, limit))
        for detail, value in zip(interpreter.get_input_details(), fed[-1], strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        given.append([np.asarray(interpreter.get_tensor(detail["index"])) for detail in interpreter.get_output_details()])
    return fed, given


def first_values(path: str) -> dict[str, np.ndarray]:
    """Return what a file gives variables before the first call, by their names, flat: constants that a CALL_ONCE assigns."""
    model = schema.ModelT.InitFromPackedBuf(Path(path).read_bytes(), 0)
    found: dict[str, np.ndarray] = {}
    for graph in model.subgraphs:
        names: dict[int, str] = {}
        for op in graph.operators:
            code = model.operatorCodes[op.opcodeIndex]
            kind = max(code.builtinCode, code.deprecatedBuiltinCode)
            if kind == schema.BuiltinOperator.VAR_HANDLE:
                names[op.outputs[0]] = op.builtinOptions.sharedName.decode()
            elif kind == schema.BuiltinOperator.ASSIGN_VARIABLE:
                data = model.buffers[graph.tensors[op.inputs[1]].buffer].data
                if data is not None and graph.tensors[op.inputs[1]].type == schema.TensorType.FLOAT32:
                    found[names[op.inputs[0]]] = np.asarray(data, np.uint8).view(np.float32)
    return found


def ours(path: str, fed: Sequence[Arrays]) -> list[Arrays]:
    """Return what Octavo gives, call by call, states handed on."""
    model = octavo.load(path)
    executable = octavo.compile(model)
    if isinstance(model, UnboundModel):
        return [list(executable(dict(zip(model.inputs, arrays, strict=True))).values()) for arrays in fed]
    inputs = {spec.source_name: spec for spec in executable.inputs}
    outputs = [spec.source_name for spec in executable.outputs]
    states = {f"{name}_next": name for name in inputs if f"{name}_next" in outputs}
    plain = [name for name in inputs if name not in states.values()]
    start = {name: value.reshape(inputs[name].shape) for name, value in first_values(path).items() if name in states.values()}
    step = executable.session(carry=states, start=start) if states else executable
    calls = [step(dict(zip(plain, arrays, strict=True))) for arrays in fed]
    return [[value for name, value in call.items() if name not in states] for call in calls]


def difference(have: Sequence[Arrays], want: Sequence[Arrays]) -> str:
    """Return in what results differ, "" where they don't."""
    for call, (mine, other) in enumerate(zip(have, want, strict=True)):
        if len(mine) != len(other):
            return f"{len(mine)} outputs, not {len(other)}"
        for place, (a, b) in enumerate(zip(mine, other, strict=True)):
            found = _array_difference(a, b)
            if found:
                return f"call {call}, output {place}: {found}"
    return ""


def _array_difference(a: np.ndarray, b: np.ndarray) -> str:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype} {a.shape}, not {b.dtype} {b.shape}"
    if a.dtype.kind not in "fc":
        unequal = np.count_nonzero(a != b)
        largest = np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0)
        return f"{unequal} of {a.size} integers, by up to {largest:g}" if unequal else ""
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "what is not finite"
    distance = np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0)
    largest = np.abs(b[finite].astype(np.float64)).max(initial=0)
    return "" if distance <= NEAR * largest else f"{distance / largest:.2g} of the largest"


def _reference(path: str, kernels: Any = _KERNELS[0]) -> Any:
    """Return what LiteRT is fed and gives, or its complaint."""
    said = ""
    for limit in (8, 2, 1):
        try:
            return theirs(path, kernels, limit)
        except Exception as error:
            said = said or (str(error).strip().splitlines() or [type(error).__name__])[0]
    return said


def _result(path: str, fed: Any) -> Any:
    try:
        return ours(path, fed) if fed is not None else octavo.compile(octavo.load(path)) and None
    except octavo.OctavoError as error:
        return "refused", re.sub(f"^{re.escape(path)}: ", "", str(error))
    except Exception as error:
        return "raw", f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"


def outcome(path: str) -> Outcome:
    """Say what became of a file."""
    reference = _apart(_reference, path)
    if isinstance(reference, str):
        found = _apart(_result, path, None)
        said = f"LiteRT: {reference[:90]}"
        if isinstance(found, tuple):
            return (found[0] if found[0] != "refused" else "refused by both"), f"{found[1]}; {said}"
        return ("crashed", found) if isinstance(found, str) else ("loads here alone", said)
    found = _apart(_result, path, reference[0])
    if isinstance(found, str):
        return "crashed", found
    if isinstance(found, tuple):
        return found if any(reference[1]) else ("without results", found[1])
    said = difference(found, reference[1])
    if not said:
        return "equal", ""
    again = _apart(_reference, path, _KERNELS[1])
    if not isinstance(again, str) and not difference(found, again[1]):
        return "equal to reference kernels", said
    return ("equal to another form", said) if _equals_other_form(path, found) else ("wrong", said)


def _equals_other_form(path: str, found: Sequence[Arrays]) -> bool:
    """Return whether results are those of LiteRT's kernels for the file in another form."""
    content = other_form(Path(path).read_bytes())
    if content is None:
        return False
    with tempfile.NamedTemporaryFile(suffix=".tflite") as file:
        file.write(content)
        file.flush()
        given = [_apart(_reference, file.name, kernels) for kernels in _KERNELS]
    return any(not isinstance(each, str) and not difference(found, each[1]) for each in given)


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return a function's result out of a process of its own; how that ended, where it did so without one."""
    context = multiprocessing.get_context("fork")  # what is imported need not be so again
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        warnings.simplefilter("ignore")
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + MAX_SECONDS, used + MAX_SECONDS + 1))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # LLVM's, TVM's and LiteRT's own words
        sender.send(function(*arguments))

    worker = context.Process(target=work)
    worker.start()
    sender.close()
    try:
        if not receiver.poll(_MOST_WAITED):
            return f"not done in {_MOST_WAITED} s"
        return receiver.recv()
    except EOFError:
        worker.join()
        if worker.exitcode == -signal.SIGXCPU:
            return f"took more than {MAX_SECONDS} s"
        return f"ended its process ({worker.exitcode})"
    finally:
        worker.kill()
        worker.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("patterns", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for imported_once in ("load", "compile"):  # for all processes
        getattr(octavo, imported_once)
    counts: collections.Counter[str] = collections.Counter()
    for path in sorted(each for each in options.folder.rglob("*") if each.is_file()):
        name = str(path.relative_to(options.folder))
        wanted = not options.patterns or any(fnmatch.fnmatch(name, pattern) for pattern in options.patterns)
        with path.open("rb") as file:
            wanted = wanted and file.read(8)[4:] == b"TFL3"
        if wanted:
            started = time.perf_counter()
            kind, said = outcome(str(path))
            counts[kind] += 1
            print(f"{name}: {kind}{': ' if said else ''}{said} [{time.perf_counter() - started:.1f} s]", flush=True)
    print(f"{counts.total()} files: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return int(any(counts[kind] for kind in _BAD))


if __name__ == "__main__":
    sys.exit(main())
