"""Every quantized model: partitioned, saved as JSON, compiled in another process. Its file must be that of a direct compile.

python benchmarks/partition_round_trip.py                      the models of the shared folder
python benchmarks/partition_round_trip.py m.tflite n.onnx
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import tvm

import datasets
import octavo

FOLDERS = ("tflite/*int8.tflite", "tflite/*uint8.tflite", "onnx/*qoperator.onnx", "bench/*int8.tflite")

ELSEWHERE = """
import sys; sys.modules["torch"] = None
import pathlib, tvm, octavo
for name in sys.argv[1:]:
    octavo.compile(octavo.load(tvm.ir.load_json(pathlib.Path(name).read_text()))).save(f"{name}.so")
"""


def quantized_files() -> list[Path]:
    """The shared models whose tensors are integers."""
    models = datasets.shared_folder() / "models"
    return sorted({path for pattern in FOLDERS for path in models.glob(pattern)})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="files (default: all quantized ones of the shared folder)")
    files = parser.parse_args(arguments).models or quantized_files()
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        saved = [Path(folder) / f"{number}.json" for number in range(len(files))]
        for file, json in zip(files, saved, strict=True):
            json.write_text(tvm.ir.save_json(octavo.partition(octavo.load(file))), encoding="utf-8")
        subprocess.run([sys.executable, "-c", ELSEWHERE, *map(str, saved)], check=True)
        for file, json in zip(files, saved, strict=True):
            here = json.with_suffix(".here.so")
            octavo.compile(octavo.load(file)).save(here)
            is_same = here.read_bytes() == Path(f"{json}.so").read_bytes()
            differing += not is_same
            print(f"{file.name:40} {'the same' if is_same else 'DIFFERENT'}, {here.stat().st_size} bytes", flush=True)
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
