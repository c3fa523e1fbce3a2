"""The table of transformers: ours beside each peer (transformer_table.py says how).

    python benchmarks/transformers.py --networks all --folder /tmp/networks [--threads 1 2] [--json table.json]
    OCTAVO_TARGET=x86.avx2 python benchmarks/transformers.py bert.onnx --size b=1,s=16 --size b=1,s=128

Hugging Face's package has this file's name. Who imports it, with this folder before others on the path, gets the package.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

if __name__ == "__main__":
    from transformer_table import main

    sys.exit(main())

_OTHERS = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]
_SPEC = importlib.machinery.PathFinder.find_spec(__name__, _OTHERS)
if _SPEC is None or _SPEC.loader is None:
    raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)
sys.modules[__name__] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(sys.modules[__name__])
