"""`octavo run`: run an executable file on samples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiler.load_executable import load_executable
from ..export.shape_ranges import is_ranged, load_ranged
from ..runtime.inputs import split_batch
from .calibration import file_source
from .options import Subcommands, add_command, add_output
from .outputs import check_output, write_file
from .progress import progress_bar
from .samples import batch_size, named, read_samples, write_npz


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(commands, "run", call, example="octavo run m.so --input x.npz -o y.npz")
    parser.add_argument("executable", type=Path, metavar="EXECUTABLE", help="what `octavo compile` wrote")
    parser.add_argument(
        "--input",
        type=Path,
        required=True,
        metavar="FILE",
        help="preprocessed samples: .npy, or .npz with one array for each input, samples first",
    )
    add_output(parser, help="results to write: .npz, one array for each output, samples first")


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    check_output(args.output, args.executable, args.input)
    if is_ranged(args.executable):
        return _run_ranged(args)
    executable = load_executable(args.executable)
    specs = executable.inputs
    source = file_source(args.input, specs)
    runs: dict[str, list[npt.NDArray[Any]]] = {}
    with progress_bar("run", source.runs, "run") as advance:
        for number, sample in enumerate(source.read()):
            for values in split_batch(specs, sample, where=f"{args.input}, run {number}"):
                for name, value in executable(named(specs, values)).items():
                    runs.setdefault(name, []).append(value)
            advance(1)
    outputs = {name: joined(values, batch_size(specs)) for name, values in runs.items()}
    write_file(args.output, lambda file: write_npz(file, outputs))
    print(f"{args.output}: {', '.join(f'{name} {value.dtype} {list(value.shape)}' for name, value in outputs.items())}")
    return 0


def _run_ranged(args: argparse.Namespace) -> int:
    """Run an executable for several sizes on what the file holds, which is of one size."""
    executable = load_ranged(args.executable)
    calls = executable.calls(read_samples(args.input))
    runs: dict[str, list[npt.NDArray[Any]]] = {}
    with progress_bar("run", len(calls), "run") as advance:
        for arrays in calls:
            for name, value in executable(arrays).items():
                runs.setdefault(name, []).append(value)
            advance(1)
    batch = batch_size(executable.inputs) if len(calls) > 1 else None
    outputs = {name: values[0] if len(values) == 1 else joined(values, batch) for name, values in runs.items()}
    write_file(args.output, lambda file: write_npz(file, outputs))
    print(f"{args.output}: {', '.join(f'{name} {value.dtype} {list(value.shape)}' for name, value in outputs.items())}")
    return 0


def joined(values: Sequence[npt.NDArray[Any]], batch: int | None) -> npt.NDArray[Any]:
    """Return the results of all runs as one array, samples first: [1, 10] of 449 runs of batch 1 becomes [449, 10].

    An output whose first dimension is not the batch (a scalar, say) gets a new first dimension, one entry for each run.
    """
    if batch is not None and values[0].ndim and values[0].shape[0] == batch:
        return np.concatenate(values)
    return np.stack(values)
