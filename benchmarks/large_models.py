"""Time and memory of large networks, from the file to the executable: `python benchmarks/large_models.py [--gb 1.2] [--inline]`.

A chain of dense layers of random weights is written. A process of its own goes to each stage, and `/usr/bin/time -v` says its
"Maximum resident set size", which has in it what the import, the first of them, takes by itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

WIDTH = 4096
ROWS = 4
STAGES = ("import", "load", "profile", "quantize", "save")


def write_chain(path: Path, gigabytes: float, *, inline: bool, width: int = WIDTH) -> int:
    """Write a chain of dense layers with so many GB of float32 weights; return the bytes of its files."""
    layers = max(1, round(gigabytes * 1e9 / (4 * width * width)))
    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    tensors: list[Any] = []
    data = path.with_suffix(".data")
    with data.open("wb") as file:
        for layer in range(layers):
            value = rng.standard_normal((width, width), np.float32) * np.float32((2 / width) ** 0.5)
            tensor = onnx.TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[width, width])
            if inline:
                tensor.raw_data = value.tobytes()
            else:
                tensor.data_location = TensorProto.EXTERNAL
                place = {"location": data.name, "offset": file.tell(), "length": value.nbytes}
                for key, text in place.items():
                    tensor.external_data.add(key=key, value=str(text))
                file.write(value.data)
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"h{layer}" if layer else "x", f"w{layer}"], [f"m{layer}"]))
            nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"h{layer + 1}"]))
    nodes[-1].output[0] = "y"
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, width]) for name in "xy"]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], tensors)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    if inline:
        data.unlink()
    return path.stat().st_size + (0 if inline else data.stat().st_size)


def _stages(last: str, model_path: Path, saved: Path) -> dict[str, float]:
    """Run the stages up to the last; return the seconds of each."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM imports it where it is
    begin = time.perf_counter()
    import octavo
    from octavo import compiler, frontends, profiling, quantizer  # noqa: F401  # what the verbs would import first
    from octavo.compiler import load_executable as _  # noqa: F401

    found = {"import": time.perf_counter() - begin}

    def timed(name: str, run: Any) -> Any:
        begin = time.perf_counter()
        result = run()
        found[name] = time.perf_counter() - begin
        return result

    if last == "import":
        return found
    if last == "start":
        executable = timed("start", lambda: octavo.load_executable(saved))
        timed("first call", lambda: executable(np.zeros((ROWS, executable.inputs[0].shape[1]), np.float32)))
        return found
    model = timed("load", lambda: octavo.load(model_path))
    if last == "load":
        return found
    width = next(iter(model.tensors.values())).shape[1]
    samples = [np.random.default_rng(seed).standard_normal((ROWS, width), np.float32) for seed in range(8)]
    profile = timed("profile", lambda: octavo.profile(model, samples))
    if last == "profile":
        return found
    quantized = timed("quantize", lambda: octavo.quantize(model, profile))
    if last == "quantize":
        return found
    executable = timed("compile", lambda: octavo.compile(quantized))
    timed("save", lambda: executable.save(saved))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.2)
    parser.add_argument("--inline", action="store_true", help="weights in the .onnx file, not beside it")
    parser.add_argument("--last", default="save", choices=STAGES, help="the last stage; by default all")
    parser.add_argument("--stage", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage:
        print(json.dumps(_stages(given.stage[0], Path(given.stage[1]), Path(given.stage[2]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path, saved = Path(folder) / "chain.onnx", Path(folder) / "chain.oct"
        size = write_chain(path, given.gb, inline=given.inline)
        print(f"{size / 1e9:.2f} GB")
        for last in (*STAGES[: STAGES.index(given.last) + 1], *(["start"] if given.last == "save" else [])):
            command = [sys.executable, __file__, "--stage", last, str(path), str(saved)]
            run = subprocess.run(["/usr/bin/time", "-v", *command], check=True, capture_output=True, text=True)
            stages = json.loads(run.stdout.splitlines()[-1])
            kib = int(next(line for line in run.stderr.splitlines() if "Maximum resident set size" in line).split()[-1])
            done, total = stages.get(last, stages.get("start", 0.0)), sum(stages.values())
            print(
                f"to {last:9s} {done:7.2f} s of {total:7.2f}  {kib:9d} KiB  {kib * 1024 / size:5.2f} times the file", flush=True
            )


if __name__ == "__main__":
    main()
