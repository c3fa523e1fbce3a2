"""Words that the code gave up for the field's terms (CONTRIBUTING.md names the ones in use): none of them comes back."""

import re
from pathlib import Path

import pytest

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
)


def uses(word: str, package: Path) -> list[str]:
    pattern = re.compile(word)
    return [
        f"{file.relative_to(package)}:{number}: {line.strip()}"
        for file in sorted(package.rglob("*.py"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("word", GONE)
def test_a_word_that_was_given_up_is_gone(word):
    assert uses(word, PACKAGE) == []


def test_a_word_that_comes_back_is_found(tmp_path):
    (tmp_path / "x.py").write_text("class ConvForm:\n    pass\n")
    assert uses(r"\w+Form\b", tmp_path) == ["x.py:1: class ConvForm:"]
