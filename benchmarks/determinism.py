"""One model profiled and quantized in processes that compute in other ways: on one thread and on two, with AVX-512 and without.

    python benchmarks/determinism.py                              the digits network, random samples
    python benchmarks/determinism.py --model m.onnx --samples 16

Prints the SHA-256 of the profile, the plan and the exported model of each; the lines must be equal. For "avx2" Octavo's kernels,
NumPy and BLAS take what a CPU with AVX2 and no more has; a CPU without AVX-512 has that anyway.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.resources
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.modules["torch"] = None  # TVM imports it where it is

import numpy as np

import octavo
from octavo.compiler.backends.cpu.kernels import AVX2
from octavo.compiler.target_choice import resolve_target
from octavo.ir.graph.inputs import input_specs

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
DIGITS = Path(str(importlib.resources.files("octavo") / "cli/demo_data/digits.onnx"))


def environments() -> dict[str, dict[str, str]]:
    """The ways to compute, each as what it adds to the environment."""
    found = {"two threads": dict.fromkeys(THREADS, "2"), "one thread": dict.fromkeys(THREADS, "1")}
    if AVX2 in resolve_target(None).isas:
        found["avx2"] = dict.fromkeys(THREADS, "1") | {
            "OCTAVO_TARGET": AVX2,
            "OPENBLAS_CORETYPE": "Haswell",
            "NPY_DISABLE_CPU_FEATURES": " ".join(_numpy_avx512()),
        }
    return found


def _numpy_avx512() -> list[str]:
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return [name for name in __cpu_dispatch__ if __cpu_features__.get(name) and "AVX512" in name]


def digests(path: Path, samples: int) -> str:
    """Profile and quantize here."""
    model = octavo.load(path)
    random = np.random.default_rng(0)
    batches = [
        {spec.source_name: random.standard_normal(spec.shape).astype(spec.dtype) for spec in input_specs(model)}
        for _ in range(samples)
    ]
    profile = octavo.profile(model, batches)
    quantized = octavo.quantize(model, profile)
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / file for file in ("profile.json", "profile.json.samples", "plan.json", "int8.onnx")]
        profile.save(files[0])
        journal = quantized.plan.journal
        entries = tuple(replace(entry, seconds=0.0) for entry in journal.entries)  # they alone depend on the machine
        replace(quantized.plan, journal=replace(journal, entries=entries)).save(files[2])
        octavo.export_onnx(quantized, files[3])
        return " ".join(hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files)


def everywhere(path: Path, samples: int) -> dict[str, str]:
    """Profile and quantize in a process of each environment; return the digests of what came of it."""
    command = [sys.executable, __file__, "--here", "--model", str(path), "--samples", str(samples)]
    return {
        name: subprocess.run(command, env=os.environ | added, check=True, capture_output=True, text=True).stdout.strip()
        for name, added in environments().items()
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DIGITS, help="a float ONNX file (default: the digits network)")
    parser.add_argument("--samples", type=int, default=8, help="random samples (default: 8)")
    parser.add_argument("--here", action="store_true", help="print the digests of this process alone")
    options = parser.parse_args(arguments)
    if options.here:
        print(digests(options.model, options.samples))
        return 0
    found = everywhere(options.model, options.samples)
    for name, digest in found.items():
        print(f"{name:12} {digest}")
    return int(len(set(found.values())) > 1)


if __name__ == "__main__":
    sys.exit(main())
