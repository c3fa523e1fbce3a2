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
from .calibration import data_files, file_source
from .options import Subcommands, add_command, add_output
from .outputs import check_output, write_file
from .progress import progress_bar
from .samples import batch_size, named, write_npz


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
    add_output(
        parser,
        help="results to write: .npz, one array for each output, samples first; of a folder a folder with one for each file",
    )


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    executable = load_executable(args.executable)
    if not args.input.is_dir():
        check_output(args.output, args.executable, args.input)
        _run(executable, args.input, args.output)
        return 0
    files = data_files(args.input)
    if not files:
        raise DataError(f"{args.input}: holds no .npz or .npy file; write them with numpy.savez(path, x=array)")
    outputs = [args.output / f"{path.stem}.npz" for path in files]
    args.output.mkdir(exist_ok=True)
    for path, output in zip(files, outputs, strict=True):
        check_output(output, args.executable, *files)
        _run(executable, path, output)
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
    outputs = {name: joined(values, batch_size(specs)) for name, values in runs.items()}
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
