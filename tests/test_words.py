"""Words that the code gave up for the field's terms (docs/glossary.md): none of them comes back."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from sources import code_names, texts, tree_of

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "octavo"
GONE = (
    r"[Cc]rew",
    r"Sighting",
    r"unheard",
    r"\w+Form\b",
    r"\bWay\b",
    r"_?(MOST|LEAST|FEW)_[A-Z]\w*",
    r"Hear that",
    r"\btruth\b",
    r"\bparted\b",
    r"\blegs\b",
    r"octavo\.edge\b",
    r"onnx_straight|onnx_halves|torch_writes",
    r"\bswallow(ed|s)?\b",
    r"place_of_extreme|top_places",
    r"\bas_(held|stored|uint8)\b",
    r"int16_(pairwise|pool2d|conv2d|gemm|elementwise|spec)\b|Int16(Gemm|Conv2dSpec|PairwiseSpec|LookupSpec)",
    r"\b(tail|region|found)\.form\b|\bform: Any|\b(weight|input|dynamic|float)_form\b",
    r"\bas_held\b|\bstated\b",
    r"\bform: (ScaledRounding|ChannelGroups)",
    r"Judge|Runnable|Stepwise|Divided",
    r"\b(class|def) \w*([Mm]oved|[Hh]eads|[Oo]pened)\b",
)


NAMES_GONE = {"told", "held", "parted", "stated", "written", "apart", "inside", "whole", "built", "legs", "crew", "swallowed"} | {
    *("doubt", "doubts", "judge", "judges", "judged", "guest", "divided", "undivided", "costliest", "opening", "opened", "way"),
    *("runnable", "ways"),
}
"""Parts of names, between underscores; prose may say them."""
GLOSSARY = Path(__file__).resolve().parents[1] / "docs" / "glossary.md"


@cache
def name_fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(field for field in ("id", "attr", "arg", "name") if field in kind._fields)


def has_part_gone(name: object) -> bool:
    return isinstance(name, str) and not NAMES_GONE.isdisjoint(name.strip("_").lower().split("_"))


def names(package: Path) -> list[str]:
    found: set[str] = set()
    for file, text in texts(package).items():
        if not any(map(has_part_gone, code_names(text))):
            continue  # to parse all files takes ten times as long
        nodes = ast.walk(tree_of(text))
        for name in {getattr(node, field) for node in nodes for field in name_fields(type(node))}:
            if has_part_gone(name):
                found.add(f"{file.relative_to(package)}: {name}")
    return sorted(found)


def test_no_name_has_a_part_that_was_given_up(tmp_path):
    of_samples = ("held_out", "held_back", "_MAX_HELD_BACK")  # kept from training, and from what steps are fitted to
    assert [each for each in names(PACKAGE) if not each.endswith(of_samples)] == []
    planted = {
        "x.py": "def rows_inside(held):\n    return held.whole\n",
        "y.py": """# built\nx = f"{'#'}{divided} ways"\ny = {'"': "legs", "'": f(told=1)}  # a "judge\n""",
        "z.py": '"""What is "built"."""\nz = "\\"held", r"whole"  # crew\n',
    }
    for name, text in planted.items():
        (tmp_path / name).write_text(text)
    assert names(tmp_path) == ["x.py: held", "x.py: rows_inside", "x.py: whole", "y.py: divided", "y.py: told"]


def test_the_glossary_lists_what_was_given_up():
    table = GLOSSARY.read_text(encoding="utf-8").split("## Words given up")[1]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    listed = {word for cell in cells for word in re.findall(r"`([\w.]+)`", cell)}
    plain = {"Form", "form", "_MOST_", "_LEAST_", "_FEW_"}  # of which GONE has patterns
    assert [word for word in sorted(listed - NAMES_GONE - plain) if not any(re.search(each, word) for each in GONE)] == []
    assert listed >= {
        "told",
        "held",
        "parted",
        "stated",
        "written",
        "apart",
        "inside",
        "whole",
        "built",
        "Way",
        "legs",
        "truth",
        "unheard",
    }


def uses(word: str, package: Path) -> list[str]:
    pattern = re.compile(word)
    rough = re.compile(word.replace(r"\b", ""))  # which is found by its first letters
    return [
        f"{file.relative_to(package)}:{number}: {line.strip()}"
        for file, text in texts(package).items()
        if rough.search(text)  # line by line takes ten times as long
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("word", GONE)
def test_a_word_that_was_given_up_is_gone(word):
    assert uses(word, PACKAGE) == []


def test_a_word_that_comes_back_is_found(tmp_path):
    (tmp_path / "x.py").write_text("class ConvForm:\n    pass\n")
    assert uses(r"\w+Form\b", tmp_path) == ["x.py:1: class ConvForm:"]
