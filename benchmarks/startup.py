"""How long one waits before anything happens: imports and help, each in a process of its own, medians of alternating rounds.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 3 --only octavo

It must import nothing that it measures.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = ("profile", "quantize", "evaluate", "compile")
CASES = {
    "python alone": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import octavo": ["-c", "import octavo"],
    "import octavo, and octavo.load": ["-c", "import octavo; octavo.load"],
    "the same without PyTorch": ["-c", "import sys; sys.modules['torch'] = None; import octavo; octavo.load"],
    "import tvm": ["-c", "import tvm"],
    "import onnxruntime": ["-c", "import onnxruntime"],
    "import openvino": ["-c", "import openvino"],
    "import ai_edge_litert": ["-c", "import ai_edge_litert.interpreter"],
    "octavo --help": ["-m", "octavo_command", "--help"],
    **{f"octavo {name} --help": ["-m", "octavo_command", name, "--help"] for name in COMMANDS},
    "octavo passes": ["-m", "octavo_command", "passes"],
}


def seconds(words: list[str]) -> float | None:
    """Run Python once; None where that fails: something is not installed."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, check=False)
    return time.perf_counter() - start if done.returncode == 0 else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the names of what is measured")
    options = parser.parse_args()
    chosen = {name: words for name, words in CASES.items() if options.only in name}
    times: dict[str, list[float | None]] = {name: [] for name in chosen}
    for words in chosen.values():  # once for the system's caches, and Python's
        seconds(words)
    for _ in range(options.rounds):
        for name, words in chosen.items():
            times[name].append(seconds(words))
    print("| what | seconds |\n| --- | ---: |")
    for name, found in times.items():
        known = [each for each in found if each is not None]
        print(f"| {name} | {f'{statistics.median(known):.3f}' if known else 'not installed'} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
