"""`octavo run`: run an executable file on samples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiler.load_executable import load_executable
from ..errors import DataError
from ..runtime.executable import Executable
from ..runtime.inputs import split_batch
from .calibration import data_files, file_source, steps_source
from .options import Subcommands, add_command, add_output, add_state, row_count
from .outputs import check_output, write_file
from .progress import progress_bar
from .samples import batch_size, named, write_npz
from .sources import UsageError


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(commands, "run", call, example="octavo run m.so --input x.npz -o y.npz")
    parser.add_argument("executable", type=Path, metavar="EXECUTABLE", help="what `octavo compile` wrote")
    parser.add_argument(
        "--input",
        type=Path,
        required=True,
        metavar="FILE",
        help="preprocessed samples: .npy, .npz with one array for each input, samples first, or a folder of such files",
    )
    add_state(
        parser,
        help="output that is the input IN of the next step: samples are steps then; the state is not in the data, and "
        "starts as the file states, else as zeros, one that grows without rows",
    )
    parser.add_argument(
        "--capacity",
        type=row_count,
        action="append",
        default=[],
        metavar="NAME=ROWS",
        help="room for so many rows in states that grow along the open dimension NAME (may be repeated)",
    )
    add_output(
        parser,
        help="results to write: .npz, one array for each output, samples first; of a folder a folder with one for each file",
    )


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.capacity and not args.state:
        raise UsageError("--capacity is of states: name them by --state OUT=IN, too")
    executable = load_executable(args.executable)

    def run(path: Path, output: Path) -> None:
        if args.state:
            _run_steps(executable, path, output, dict(args.state), dict(args.capacity))
        else:
            _run(executable, path, output)

    if not args.input.is_dir():
        check_output(args.output, args.executable, args.input)
        run(args.input, args.output)
        return 0
    files = data_files(args.input)
    if not files:
        raise DataError(f"{args.input}: holds no .npz or .npy file; write them with numpy.savez(path, x=array)")
    outputs = [args.output / f"{path.stem}.npz" for path in files]
    args.output.mkdir(exist_ok=True)
    for path, output in zip(files, outputs, strict=True):
        check_output(output, args.executable, *files)
        run(path, output)
    return 0


def _run(executable: Executable, path: Path, output: Path) -> None:
    """Run on the samples of one file."""
    specs = executable.inputs
    source = file_source(path, specs)
    runs: dict[str, list[npt.NDArray[Any]]] = {}
    with progress_bar("run", source.runs, "run") as advance:
        for number, sample in enumerate(source.read()):
            for values in split_batch(specs, sample, where=f"{path}, run {number}", limits=executable.description.limits):
                for name, value in executable(named(specs, values)).items():
                    runs.setdefault(name, []).append(value)
            advance(1)
    _write(output, {name: joined(values, batch_size(specs)) for name, values in runs.items()})


def _run_steps(executable: Executable, path: Path, output: Path, state: dict[str, str], capacity: dict[str, int]) -> None:
    """Run step by step on what one file holds, with the state of a session of its own."""
    results: dict[str, list[npt.NDArray[Any]]] = {}
    with executable.session(carry=state, capacity=capacity) as step:
        specs = [spec for spec in executable.inputs if spec.source_name not in state.values()]
        source, has_axis = steps_source(path, specs)
        with progress_bar("run", source.runs, "step") as advance:
            for sample in source.read():
                for name, value in step(sample).items():
                    results.setdefault(name, []).append(value)
                advance(1)
    sizes = {name: {value.shape for value in values} for name, values in results.items()}
    for name, shapes in sizes.items():
        if len(shapes) > 1:
            raise DataError(f"{path}: output {name} has another shape in each step; hand it to its input by --state {name}=INPUT")
    batch = batch_size([spec for spec in specs if spec.shape])
    _write(output, {name: np.stack(each) if has_axis or batch is None else joined(each, batch) for name, each in results.items()})


def _write(output: Path, outputs: dict[str, npt.NDArray[Any]]) -> None:
    write_file(output, lambda file: write_npz(file, outputs))
    print(f"{output}: {', '.join(f'{name} {value.dtype} {list(value.shape)}' for name, value in outputs.items())}")


def joined(values: Sequence[npt.NDArray[Any]], batch: int | None) -> npt.NDArray[Any]:
    """Return the results of all runs as one array, samples first: [1, 10] of 449 runs of batch 1 becomes [449, 10].

    An output whose first dimension is not the batch (a scalar, say) gets a new first dimension, one entry for each run. Without a
    batch, and where it is open, there is one run, whose result it is.
    """
    if batch is None and len(values) == 1:
        return values[0]
    if batch is not None and values[0].ndim and values[0].shape[0] == batch:
        return np.concatenate(values)
    return np.stack(values)
