"""The demonstration: a float model and labelled samples in, profile, QDQ model, executables and one table out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiler.compile import compile_model
from ..compiler.text_table import markdown_table
from ..evaluation.bench.timing import time_alternating
from ..export.onnx import export_onnx
from ..frontends.load import load
from ..profiling import samples_path
from ..profiling.profile import profile
from ..quantizer.compile import explain
from ..quantizer.quantize import quantize
from ..runtime.executable import Executable

INPUT = "pixels"
OUTPUT = "logits"
PIXEL_MAX = np.float32(16)
THREADS = 1
TIMED_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoReport:
    """What the demonstration found.

    Parameters
    ----------
    profiled, held_out
        Number of samples profiled, and of others that the top-1 is of.
    top1_float, top1_int8, agreement
        Shares in [0; 1] of the held-out samples: labelled right by each, and labelled alike by both.
    float_ms, int8_ms
        Median time of one inference on one thread, in milliseconds, measured in alternating rounds.
    float_integer_ops, int8_integer_ops
        "integer/all" ops of each executable.
    files
        Path of each file, the float model and those written, by what it is; `sizes` are their bytes.
    """

    profiled: int
    held_out: int
    top1_float: float
    top1_int8: float
    agreement: float
    float_ms: float
    int8_ms: float
    float_summary: str
    int8_summary: str
    files: dict[str, str]
    sizes: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def to_markdown(self) -> str:
        """Return the table and where the files are."""
        rows = [
            (f"top-1 on {self.held_out} held-out digits", f"{self.top1_float:.4f}", f"{self.top1_int8:.4f}"),
            ("same answer as float", "", f"{self.agreement:.4f}"),
            (
                "one digit on one thread",
                f"{self.float_ms:.4f} ms",
                f"{self.int8_ms:.4f} ms ({self.float_ms / self.int8_ms:.1f}x)",
            ),
            ("ONNX file", f"{self.sizes['float model']:,} bytes", f"{self.sizes['int8 model']:,} bytes"),
            ("executable", f"{self.sizes['float executable']:,} bytes", f"{self.sizes['int8 executable']:,} bytes"),
            ("runs in integers", self.float_summary, self.int8_summary),
        ]
        headers = (f"profiled on {self.profiled} digits", "float32, by Octavo", "int8, by Octavo")
        table = markdown_table(headers, rows, numbers=(1, 2))
        width = max(len(name) for name in self.files)
        return "\n".join([table, "", *(f"{name.ljust(width)}  {path}" for name, path in self.files.items())])


def run_demo(data: Path, folder: Path, *, progress: Callable[[int], None]) -> DemoReport:
    """Run the whole path on the network and the digits in `data`, write its files to `folder`.

    Parameters
    ----------
    data
        Folder of digits.onnx and digits.npz (see its README.md).
    folder
        Made if it does not exist.
    progress
        Called with 1 after each digit profiled or classified.

    Raises
    ------
    OSError
        `folder` cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(data / "digits.npz", allow_pickle=False) as digits:
        images, labels, held_out = digits["images"], digits["labels"], digits["held_out"]
    pixels = images[:, np.newaxis].astype(np.float32) / PIXEL_MAX
    source = data / "digits.onnx"
    files = {
        "profile": folder / "digits.profile.json",
        "int8 model": folder / "digits.int8.onnx",
        "int8 executable": folder / "digits.int8.so",
        "float executable": folder / "digits.float.so",
    }

    model = load(source)
    ranges = profile(model, _one_by_one(pixels[~held_out]), progress=lambda _: progress(1))
    ranges.save(files["profile"])
    quantized = quantize(model, ranges)
    export_onnx(quantized, files["int8 model"])
    executables = {"float": compile_model(model, threads=THREADS), "int8": compile_model(quantized, threads=THREADS)}
    for name, executable in executables.items():
        executable.save(files[f"{name} executable"])

    answers = {name: _classify(executable, pixels[held_out], progress) for name, executable in executables.items()}
    first = {INPUT: pixels[held_out][:1]}
    timings = time_alternating(
        {name: executable.bind(first).run for name, executable in executables.items()}, seconds=TIMED_SECONDS
    )
    files = {"float model": source, **files}
    if ranges.kept_samples:
        files["kept samples"] = samples_path(files["profile"])
    return DemoReport(
        profiled=int(np.count_nonzero(~held_out)),
        held_out=int(np.count_nonzero(held_out)),
        top1_float=float(np.mean(answers["float"] == labels[held_out])),
        top1_int8=float(np.mean(answers["int8"] == labels[held_out])),
        agreement=float(np.mean(answers["float"] == answers["int8"])),
        float_ms=timings["float"].median_ms,
        int8_ms=timings["int8"].median_ms,
        float_summary=explain(executables["float"]).summary,
        int8_summary=explain(executables["int8"]).summary,
        files={name: str(path) for name, path in files.items()},
        sizes={name: path.stat().st_size for name, path in files.items()},
    )


def _one_by_one(pixels: npt.NDArray[np.float32]) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    for index in range(len(pixels)):
        yield {INPUT: pixels[index : index + 1]}


def _classify(executable: Executable, pixels: npt.NDArray[np.float32], progress: Callable[[int], None]) -> npt.NDArray[np.int64]:
    answers: list[int] = []
    for batch in _one_by_one(pixels):
        answers.append(int(executable(batch)[OUTPUT].argmax()))
        progress(1)
    return np.array(answers, np.int64)
