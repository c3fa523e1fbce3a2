"""The architecture, read off the imports: they point down only, and what lies on one floor does not know its neighbours."""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from sources import statements, texts, tree_of

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
MAX_PACKAGES = 12
NUMPY_ONLY = ("errors", "ir/identity", "numerics")
# Identity and the mechanisms that follow it serve whoever debugs a pipeline: nothing in them is about quantized values.
NO_QUANTIZATION = ("ir/identity", "ir/graph")
QUANTIZATION_FLOORS = ("numerics", "target")
WITHOUT_QUANTIZATION = ("octavo.target.op_facts.", "octavo.numerics.arrays.", "octavo.numerics.window.")
# What LLVM and the operating system call a processor's features, whoever has kernels for them.
NAMES_FEATURES = ("runtime/cpu_features.py", "runtime/llvm_host.py", "compiler/codegen/worker_pool_code.py")
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
    for node in statements(tree_of(texts(package)[file])):
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
    """Return what breaks the floors: loose modules, packages without a floor, imports that do not point down, mutual imports."""
    found: list[str] = []
    known: dict[tuple[str, str], str] = {}
    for file in texts(package):
        inside = file.relative_to(package)
        place = inside.with_suffix("").parts[0]
        if place not in FLOORS:
            kind = "a loose module: move it into a package" if len(inside.parts) == 1 else "a package that no floor names"
            found.append(f"{inside}: {place} is {kind}")
            continue
        for entry in imports_of(file, package):
            if reason := broken_rule(inside, place, entry.module):
                found.append(f"{inside}:{entry.line}: {reason}")
            known.setdefault((place, room_of(entry.module)), f"{inside}:{entry.line}")
    both = sorted((one, other) for one, other in known if one < other and (other, one) in known)
    return found + [f"{one} and {other} import each other: {known[one, other]}, {known[other, one]}" for one, other in both]


def room_of(module: str) -> str:
    """Return the package, or file, of the top that a dotted name is in, "" for another library's."""
    root, *rest = module.split(".")
    if root != "octavo":
        return ""
    # `from octavo import name` and `from .. import name` import from the top unless the name is a part of its own.
    return rest[0] if rest and rest[0] in FLOORS else "__init__"


def broken_rule(inside: Path, place: str, module: str) -> str:
    root, other = module.split(".")[0], room_of(module)
    part = next((each for each in (*NUMPY_ONLY, *NO_QUANTIZATION) if inside.with_suffix("").as_posix().startswith(each)), "")
    if not other:
        if part in NUMPY_ONLY and root not in sys.stdlib_module_names | {"numpy"}:
            return f"{part} imports {root}, but it may import only numpy"
        return ""
    if part in NO_QUANTIZATION and other in QUANTIZATION_FLOORS and not module.startswith(WITHOUT_QUANTIZATION):
        return f"{part} knows nothing of quantization, but imports {other}"
    if other == place or FLOORS[other] < FLOORS[place]:
        return ""
    return f"{place} (floor {FLOORS[place]}) imports {other} (floor {FLOORS[other]})"


def imported_files(package: Path) -> dict[Path, set[Path]]:
    """Return what each file imports of the package, for type checking alone, too."""
    files = {(*file.relative_to(package).with_suffix("").parts,): file for file in texts(package)}
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


@cache
def name_fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(field for field in ("id", "attr", "arg", "name") if field in kind._fields)


def words_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield every name and every string of a file that the program sees: neither comments nor docstrings."""
    nodes = list(ast.walk(tree_of(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in nodes:
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in docstrings:
                yield node.lineno, node.value
            continue
        for field in name_fields(type(node)):
            name = getattr(node, field)
            if isinstance(name, str):
                yield getattr(node, "lineno", 0), name


def words_found(words: re.Pattern[str], package: Path, is_meant: Callable[[str], bool]) -> list[str]:
    return [
        f"{file.relative_to(package)}:{line}: {word}"
        for file, text in texts(package).items()
        if is_meant(file.relative_to(package).as_posix()) and words.search(text)
        for line, word in words_of(text)
        if words.search(word)
    ]


def quantization_words(package: Path) -> list[str]:
    return words_found(QUANTIZATION_WORDS, package, lambda file: file.startswith(tuple(f"{each}/" for each in NO_QUANTIZATION)))


def isa_names(package: Path) -> list[str]:
    """Return where something other than a back end names an instruction set; docstrings may, as examples."""
    return words_found(ISA_NAMES, package, lambda file: "backends/cpu" not in file and file not in NAMES_FEATURES)


def test_only_back_ends_name_isas() -> None:
    assert isa_names(PACKAGE) == []


def test_a_planted_isa_is_caught(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "x.py").write_text('"""On x86.avx2."""\nif isa in (AVX512_VNNI, "x86.avx2"):\n    pass\n')
    assert isa_names(tmp_path) == ["report/x.py:2: AVX512_VNNI", "report/x.py:2: x86.avx2"]


def test_identity_and_graph_know_nothing_of_quantization() -> None:
    assert quantization_words(PACKAGE) == []


def test_a_planted_word_of_quantization_is_caught(tmp_path: Path) -> None:
    (tmp_path / "ir" / "graph").mkdir(parents=True)
    text = '"""Knows no zero_point."""\n# nor qmin\ndef follow(zero_point):\n    return call_to(x, "quantize").qmax\n'
    (tmp_path / "ir" / "graph" / "x.py").write_text(text)
    assert quantization_words(tmp_path) == [f"ir/graph/x.py:{each}" for each in ("3: zero_point", "4: qmax", "4: quantize")]


def test_imports_point_down() -> None:
    assert len(list(PACKAGE.rglob("*.py"))) > 20, "the package was not found where this test looks"
    assert violations(PACKAGE) == []


def test_no_files_import_each_other() -> None:
    assert [sorted(str(file.relative_to(PACKAGE)) for file in circle) for circle in circles(PACKAGE)] == []


def test_a_planted_circle_is_caught(tmp_path: Path) -> None:
    (tmp_path / "ir" / "graph").mkdir(parents=True)
    texts = {
        "a.py": "from .b import B",
        "b.py": "if TYPE_CHECKING:\n    from .c import C",
        "c.py": "from . import a",
        "d.py": "from .a import A",
    }
    for name, text in texts.items():
        (tmp_path / "ir" / "graph" / name).write_text(text)
    assert [{file.name for file in circle} for circle in circles(tmp_path)] == [{"a.py", "b.py", "c.py"}]


def test_every_part_of_the_package_is_in_the_table() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts == FLOORS.keys()
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}
    assert sum(path.is_dir() for path in PACKAGE.iterdir() if path.name != "__pycache__") <= MAX_PACKAGES


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("compiler/x.py", "from ..quantizer import Recipe", "compiler (floor 3) imports quantizer (floor 5)"),
        ("compiler/x.py", "from ..quantizer.recipe import Recipe", "compiler (floor 3) imports quantizer (floor 5)"),
        ("compiler/x.py", "from ..frontends.load import load", "compiler (floor 3) imports frontends (floor 3)"),
        ("numerics/x86/conv.py", "from ...ir.graph import Model", "numerics (floor 0) imports ir (floor 2)"),
        ("ir/qdq/conv.py", "import octavo.compiler.compile", "ir (floor 2) imports compiler (floor 3)"),
        ("ir/qdq/conv.py", "from ... import load", "ir (floor 2) imports __init__ (floor 10)"),
        ("runtime/x.py", "from ..compiler.codegen import generate", "runtime (floor 0) imports compiler (floor 3)"),
        ("ir/graph/x.py", "def f():\n    from octavo import cli", "ir (floor 2) imports cli (floor 9)"),
        ("report/x.py", "from ..cli import main", "report (floor 8) imports cli (floor 9)"),
        (
            "ir/identity/x.py",
            "from ...numerics import QuantParams",
            "ir/identity knows nothing of quantization, but imports numerics",
        ),
        ("ir/graph/x.py", "from ...numerics import QuantParams", "ir/graph knows nothing of quantization, but imports numerics"),
        ("ir/graph/x.py", "from ...target import CPU", "ir/graph knows nothing of quantization, but imports target"),
        ("errors.py", "from .ir.identity import TensorId", "errors (floor -1) imports ir (floor 2)"),
        ("numerics/x.py", "import tvm.runtime", "numerics imports tvm, but it may import only numpy"),
        ("ir/identity/x.py", "from onnx import helper", "ir/identity imports onnx, but it may import only numpy"),
        ("misc/x.py", "", "misc is a package that no floor names"),
        ("pipeline.py", "", "pipeline is a loose module: move it into a package"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path: Path, file: str, line: str, said: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    [found] = violations(tmp_path)
    assert said in found
    assert found.startswith(file)


def test_packages_that_import_each_other_are_caught(tmp_path: Path) -> None:
    for file, line in (
        ("export/a.py", "from ..quantizer.b import B"),
        ("quantizer/b.py", "if TYPE_CHECKING:\n    from ..export import a"),
    ):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(line)
    up, both = violations(tmp_path)
    assert up == "quantizer/b.py:2: quantizer (floor 5) imports export (floor 6)"
    assert both == "export and quantizer import each other: export/a.py:1, quantizer/b.py:2"


@pytest.mark.parametrize(
    ("file", "line"),
    [
        (
            "compiler/partition/conv.py",
            "from ...ir.qdq import conv2d\nfrom .rules import Rule\nfrom ...errors import CompileError",
        ),
        ("compiler/backends/cpu/conv.py", "from ....numerics import requantize\nfrom ..cpu.spec import Output"),
        ("cli/bench.py", "from ..report import bench_page"),
        ("numerics/x.py", "import math\nimport numpy as np\nimport numpy.typing as npt"),
        ("__init__.py", "from .frontends import load"),
    ],
)
def test_imports_that_point_down_pass(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    assert violations(tmp_path) == []
