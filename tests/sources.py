"""Source files as rules of the repository look at them: read and parsed once in a process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_ASIDE = re.compile(
    r"""(?P<code>\b(?:[rR]?[fF]|[fF][rR])(?P<quote>\"{3}|'{3}|"|')(?:\\.|(?!(?P=quote)).)*(?P=quote))"""
    r"""|(?:\"{3}(?:\\.|(?!\"{3}).)*\"{3}|'{3}(?:\\.|(?!'{3}).)*'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|\#[^\n]*""",
    re.DOTALL,
)


@cache
def tree_of(source: str) -> ast.Module:
    """Return what Python parses a source to."""
    return ast.parse(source)


@cache
def texts(package: Path) -> dict[Path, str]:
    """Return the text of each Python file of a folder."""
    return {file: file.read_text(encoding="utf-8") for file in sorted(package.rglob("*.py"))}


def code_names(source: str) -> set[str]:
    """Return all names of a source, and no word of a comment or of a string; of strings with expressions, all words."""
    return set(re.findall(r"[^\W\d]\w*", _ASIDE.sub(lambda found: found["code"] or " ", source)))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Return all statements within a node, itself left out. No expression holds one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from statements(child)
