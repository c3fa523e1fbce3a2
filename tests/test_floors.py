"""The architecture, read off the imports: they point down only, and what lies on one floor does not know its neighbours."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "octavo"

TABLE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
ROW = re.compile(r"\| (-?\d+) \| ([^|]+) \|")


def floors_of(text: str) -> dict[str, int]:
    """Read the table of floors, packages and files by their names in the package."""
    rows = [ROW.match(line) for line in text.splitlines()]
    return {
        name.removesuffix("/").removesuffix(".py"): int(row[1]) for row in rows if row for name in re.findall(r"`(\S+)`", row[2])
    }


FLOORS = floors_of(TABLE.read_text(encoding="utf-8"))
# The command line prints what report lays out. Quantized forms are forms of graphs. What a choice of target names is read by the
# whole path. A target description speaks of ops.
NEIGHBOURS = {("cli", "report"), ("qdq", "graph"), ("target", "ops")}
NUMPY_ONLY = ("errors", "identity", "numerics")
# Identity and the mechanisms that follow it serve whoever debugs a pipeline: nothing in them is about quantized values.
NO_QUANTIZATION = ("identity", "graph")
QUANTIZATION_FLOORS = ("numerics", "target")
# What LLVM and the operating system call a processor's features, whoever has kernels for them.
NAMES_FEATURES = ("target/cpu_features.py", "target/llvm_host.py", "build/worker_pool_code.py")
ISA_NAMES = re.compile(r"avx|vnni|\bsse|\bneon|dotprod|\bx86\.", re.IGNORECASE)
QUANTIZATION_WORDS = re.compile(r"quanti[sz]|zero_?point|qmin|qmax|qdq|calibrat", re.IGNORECASE)


@dataclass(frozen=True)
class Import:
    """`module`, a dotted name, as imported at `line` of `file`; names of `from` imports are part of it."""

    file: Path
    line: int
    module: str


def imports_of(file: Path, package: Path) -> Iterator[Import]:
    here = ("octavo", *file.relative_to(package).with_suffix("").parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            # A relative import starts at the package the file lies in: one dot drops the file's own name, two drop one more.
            base = here[: len(here) - node.level] if node.level else ()
            parts = (*base, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield Import(file, node.lineno, ".".join((*parts, alias.name)))


def violations(package: Path) -> list[str]:
    found: list[str] = []
    for file in sorted(package.rglob("*.py")):
        place = file.relative_to(package).with_suffix("").parts[0]
        if place not in FLOORS:
            found.append(f"{file.relative_to(package)}: {place} is on no floor")
            continue
        for entry in imports_of(file, package):
            reason = broken_rule(place, entry.module)
            if reason:
                found.append(f"{file.relative_to(package)}:{entry.line}: {reason}")
    return found


def broken_rule(place: str, module: str) -> str:
    root, *rest = module.split(".")
    if root != "octavo":
        if place in NUMPY_ONLY and root not in sys.stdlib_module_names | {"numpy"}:
            return f"{place} imports {root}, but it may import only numpy"
        return ""
    # `from octavo import name` and `from .. import name` import from the top unless the name is a part of its own.
    other = rest[0] if rest and rest[0] in FLOORS else "__init__"
    if place in NO_QUANTIZATION and other in QUANTIZATION_FLOORS:
        return f"{place} knows nothing of quantization, but imports {other}"
    if other == place or (place, other) in NEIGHBOURS or FLOORS[other] < FLOORS[place]:
        return ""
    return f"{place} (floor {FLOORS[place]}) imports {other} (floor {FLOORS[other]})"


def imported_files(package: Path) -> dict[Path, set[Path]]:
    """Return what each file imports of the package, for type checking alone, too."""
    files = {(*file.relative_to(package).with_suffix("").parts,): file for file in package.rglob("*.py")}
    graph: dict[Path, set[Path]] = {}
    for file in files.values():
        graph[file] = set()
        for entry in imports_of(file, package):
            root, *parts = entry.module.split(".")
            while root == "octavo" and parts:
                found = files.get(tuple(parts)) or files.get((*parts, "__init__"))
                if found is not None:
                    graph[file] |= {found} - {file}
                    break
                parts.pop()
    return graph


def circles(package: Path) -> list[set[Path]]:
    """Return the sets of files that import each other, on any path."""
    graph = imported_files(package)
    reached = {file: set(direct) for file, direct in graph.items()}
    for middle in graph:
        for file in graph:
            if middle in reached[file]:
                reached[file] |= reached[middle]
    found = {frozenset(other for other in graph if other in reached[file] and file in reached[other]) for file in graph}
    return [set(circle) for circle in found if circle]


def words_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield every name and every string of a file that the program sees: neither comments nor docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in docstrings:
                yield line, node.value
        else:
            names = (getattr(node, field, None) for field in ("id", "attr", "arg", "name"))
            yield from ((line, name) for name in names if isinstance(name, str))


def quantization_words(package: Path) -> list[str]:
    return [
        f"{file.relative_to(package)}:{line}: {word}"
        for place in NO_QUANTIZATION
        for file in sorted((package / place).rglob("*.py"))
        for line, word in words_of(file)
        if QUANTIZATION_WORDS.search(word)
    ]


def isa_names(package: Path) -> list[str]:
    """Return where something other than a back end names an instruction set; docstrings may, as examples."""
    outside = (file for file in sorted(package.rglob("*.py")) if file.relative_to(package).parts[:2] != ("backends", "cpu"))
    return [
        f"{file.relative_to(package)}:{line}: {word}"
        for file in outside
        if file.relative_to(package).as_posix()
        not in ("target/cpu_features.py", "target/llvm_host.py", "build/worker_pool_code.py")
        for line, word in words_of(file)
        if ISA_NAMES.search(word)
    ]


def test_only_back_ends_name_isas() -> None:
    assert isa_names(PACKAGE) == []


def test_a_planted_isa_is_caught(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "x.py").write_text('"""On x86.avx2."""\nif isa in (AVX512_VNNI, "x86.avx2"):\n    pass\n')
    assert isa_names(tmp_path) == ["report/x.py:2: AVX512_VNNI", "report/x.py:2: x86.avx2"]


def test_identity_and_graph_know_nothing_of_quantization() -> None:
    assert quantization_words(PACKAGE) == []


def test_a_planted_word_of_quantization_is_caught(tmp_path: Path) -> None:
    (tmp_path / "graph").mkdir()
    text = '"""Knows no zero_point."""\n# nor qmin\ndef follow(zero_point):\n    return call_to(x, "quantize").qmax\n'
    (tmp_path / "graph" / "x.py").write_text(text)
    assert quantization_words(tmp_path) == ["graph/x.py:3: zero_point", "graph/x.py:4: qmax", "graph/x.py:4: quantize"]


def test_imports_point_down() -> None:
    assert len(list(PACKAGE.rglob("*.py"))) > 20, "the package was not found where this test looks"
    assert violations(PACKAGE) == []


def test_no_files_import_each_other() -> None:
    assert [sorted(str(file.relative_to(PACKAGE)) for file in circle) for circle in circles(PACKAGE)] == []


def test_a_planted_circle_is_caught(tmp_path: Path) -> None:
    (tmp_path / "graph").mkdir()
    texts = {
        "a.py": "from .b import B",
        "b.py": "if TYPE_CHECKING:\n    from .c import C",
        "c.py": "from . import a",
        "d.py": "from .a import A",
    }
    for name, text in texts.items():
        (tmp_path / "graph" / name).write_text(text)
    assert [{file.name for file in circle} for circle in circles(tmp_path)] == [{"a.py", "b.py", "c.py"}]


def test_every_part_of_the_package_is_in_the_table() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts == FLOORS.keys()


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("partition/conv.py", "from ..quantize import Recipe", "partition (floor 3) imports quantize (floor 3)"),
        ("partition/conv.py", "from ..quantize.recipe import Recipe", "partition (floor 3) imports quantize (floor 3)"),
        ("numerics/x86/conv.py", "from ...graph import Model", "numerics (floor 0) imports graph (floor 2)"),
        ("qdq/conv.py", "import octavo.pipeline", "qdq (floor 2) imports pipeline (floor 6)"),
        ("qdq/conv.py", "from .. import load", "qdq (floor 2) imports __init__ (floor 10)"),
        ("qdq/conv.py", "from .. import build", "qdq (floor 2) imports build (floor 3)"),
        ("graph/x.py", "def f():\n    from octavo import cli", "graph (floor 2) imports cli (floor 9)"),
        ("report/x.py", "from ..cli import main", "report (floor 9) imports cli (floor 9)"),
        ("identity/x.py", "from ..numerics import QuantParams", "identity knows nothing of quantization, but imports numerics"),
        ("graph/x.py", "from ..numerics import QuantParams", "graph knows nothing of quantization, but imports numerics"),
        ("graph/x.py", "from ..target import CPU", "graph knows nothing of quantization, but imports target"),
        ("graph/x.py", "from ..qdq.dynamic import write_dynamic", "graph (floor 2) imports qdq (floor 2)"),
        ("errors.py", "from .identity import TensorId", "errors (floor -1) imports identity (floor 0)"),
        ("numerics/x.py", "import tvm.runtime", "numerics imports tvm, but it may import only numpy"),
        ("identity/x.py", "from onnx import helper", "identity imports onnx, but it may import only numpy"),
        ("misc/x.py", "", "misc is on no floor"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path: Path, file: str, line: str, said: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    [found] = violations(tmp_path)
    assert said in found
    assert found.startswith(file)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("partition/conv.py", "from ..qdq import conv2d\nfrom .rules import Rule\nfrom ..errors import CompileError"),
        ("backends/cpu/conv.py", "from ...numerics import requantize\nfrom ..cpu.spec import Output"),
        ("cli/bench.py", "from ..report import bench"),
        ("numerics/x.py", "import math\nimport numpy as np\nimport numpy.typing as npt"),
        ("__init__.py", "from .pipeline import load"),
    ],
)
def test_imports_that_point_down_pass(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    assert violations(tmp_path) == []
