"""Rules of the repository that no linter knows: the size of files, and that nothing ties it to one machine."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sources import texts, tree_of

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 600
MAX_FUNCTION_LINES = 60
FOLDERS = ("src", "tests", "benchmarks", "examples", "docs", "requirements", ".ci")
BINARY = (".onnx", ".npz", ".tflite", ".so", ".pyc", ".png")
# Absolute paths of somebody's machine, and addresses that packages are fetched from: a clone must not depend on either.
TIED = re.compile(r"/(?<![\w.]/)(?:work|root|home|opt|Users)/[\w.]|https?://[^\s)]*(?:pypi|pythonhosted|registry|mirror)")


def repository_files() -> Iterator[Path]:
    candidates = [*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    for path in candidates:
        generated = any(part == "__pycache__" or part.endswith(".egg-info") for part in path.parts)
        if path.is_file() and path.name != ".git" and not generated and path.suffix not in BINARY:
            yield path


def test_no_source_file_is_too_long() -> None:
    sources = [path for path in repository_files() if path.suffix == ".py"]
    assert len(sources) > 20
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their names alone, and collects only the first of two."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert {name: count for name, count in names.items() if count > 1} == {}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(node: ast.AST) -> int:
    return (node.end_lineno or 0) - node.lineno + 1 if isinstance(node, ast.stmt) else 0


def code_lines(function: Function) -> int:
    """Lines without the docstring and without functions defined inside, which are counted themselves (TVMScript nests them)."""
    nested = sum(lines_of(node) for node in outermost_functions(function))
    return lines_of(function) - nested - (lines_of(function.body[0]) if ast.get_docstring(function) else 0)


def outermost_functions(function: ast.AST) -> Iterator[Function]:
    for node in ast.iter_child_nodes(function):
        if isinstance(node, Function):
            yield node
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):  # no expression holds a statement
            yield from outermost_functions(node)


def all_functions(tree: ast.AST) -> Iterator[Function]:
    for function in outermost_functions(tree):
        yield function
        yield from all_functions(function)


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{path.relative_to(ROOT)}:{node.name}": code_lines(node)
        for path, text in texts(ROOT / "src").items()
        for node in all_functions(tree_of(text))
    }
    assert len(lengths) > 100
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def test_the_length_of_a_function_leaves_out_what_is_counted_elsewhere() -> None:
    source = '''
def outer():
    """Two lines
    of docstring."""
    x = 1
    if x:
        def inner():
            y = 2
            return y
    return inner
'''
    outer, inner = (node for node in ast.walk(ast.parse(source)) if isinstance(node, Function))
    assert (code_lines(outer), code_lines(inner)) == (4, 3)


def test_every_module_says_what_it_does() -> None:
    silent = [str(path.relative_to(ROOT)) for path, text in texts(ROOT / "src").items() if not ast.get_docstring(tree_of(text))]
    assert silent == []


def test_nothing_is_tied_to_one_machine() -> None:
    tied = {
        f"{path.relative_to(ROOT)}:{number}": match.group()
        for path in repository_files()
        if TIED.search(text := path.read_text(encoding="utf-8", errors="replace")) and path != Path(__file__)
        for number, line in enumerate(text.splitlines(), 1)
        if (match := TIED.search(line))
    }
    assert tied == {}


@pytest.mark.parametrize("line", ["see /" + "work/x", "'/" + "root/.venv'", "--index-url https://" + "pypi.org/simple"])
def test_a_planted_tie_is_caught(line: str) -> None:
    assert TIED.search(line)


@pytest.mark.parametrize("line", ["https://keepachangelog.com/en", "src/octavo/cli/demo_data", "a/root/x", "#!/usr/bin/env bash"])
def test_what_is_not_a_tie_passes(line: str) -> None:
    assert not TIED.search(line)


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_sessions_whose_values_count_are_made_in_one_place() -> None:
    """Left to its defaults, ONNX Runtime gives other integers on other CPUs. A benchmark of time alone may leave it to them."""
    made = {
        str(path.relative_to(ROOT))
        for folder in ("tests", "benchmarks")
        for path, text in texts(ROOT / folder).items()
        if re.search(r"\bInferenceSession\(\w|\.compile_model\(\w", text)
    }
    # The last is what a runtime's defaults are worth.
    of_time = {f"benchmarks/{name}.py" for name in ("profiling", "open_sizes", "transformer_peers", "decode")}
    assert made == {"benchmarks/reference_sessions.py", "benchmarks/peer_values.py", *of_time}


def generators_in_functions(source: str) -> set[str]:
    """Names of a module's own random generators that its functions draw from."""
    if not re.search(r"^\S.*=\s*np\.random\.default_rng", source, re.MULTILINE):
        return set()
    tree = tree_of(source)
    made = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func) == "np.random.default_rng"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    inside: set[str] = set()
    for function in outermost_functions(tree):
        own = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
        read = {node.id for part in function.body for node in ast.walk(part) if isinstance(node, ast.Name)}
        inside |= read - own
    return made & inside


def test_no_tests_share_a_random_generator() -> None:
    """A test draws from its `rng` (tests/conftest.py): else it would see other numbers alone than after its neighbours."""
    sharing = {
        str(path.relative_to(ROOT)): names
        for path, text in texts(ROOT / "tests").items()
        if (names := generators_in_functions(text))
    }
    assert sharing == {}


def test_a_planted_generator_is_caught() -> None:
    source = "RNG = np.random.default_rng(0)\nDRAWN = RNG.normal()\nX = np.random.default_rng(1).normal()\n"
    assert generators_in_functions(source + "def f(RNG):\n    return RNG.normal() + X\n") == set()
    assert generators_in_functions(source + "def f():\n    return RNG.normal()\n") == {"RNG"}


def test_programs_that_say_how_they_are_run_do_run() -> None:
    """A file that tells of `python benchmarks/NAME.py`, its own name, does something when it is."""
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if f"python benchmarks/{path.name}" in text:
            assert '\nif __name__ == "__main__":\n' in text, f"{path.name} defines things and runs nothing"
