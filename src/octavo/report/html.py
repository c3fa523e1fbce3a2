"""One self-contained HTML file of a template, its parts and data. It knows nothing of what is shown.

The data lie in the page as JSON, and its script builds everything shown from them as text nodes: a name in them, whatever it
holds, is never read as HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from ..runtime.shapes import without_sizes

_TEMPLATES = resources.files("octavo.report") / "templates"
_DATA = "/*DATA*/"
LIST_PARTS = {"/*MAKERS*/": "makers.js", "/*LIST*/": "list.js"}
"""The parts of a page with a list and a panel; what its rows hold is the page's own."""


def filled(template: str, parts: Mapping[str, str], data: Any) -> str:
    """Return a page, ASCII but for the template's own characters.

    Parameters
    ----------
    template
        Name of a file in `templates`.
    parts
        By each mark in it the file that stands there.
    data
        Plain values for the mark /*DATA*/.
    """
    page = (_TEMPLATES / template).read_text(encoding="utf-8")
    for mark, part in parts.items():
        page = _put(page, mark, (_TEMPLATES / part).read_text(encoding="utf-8"))
    # The data come last: nothing in them is mistaken for a mark.
    return _put(page, _DATA, _script_json(data))


def _put(page: str, mark: str, text: str) -> str:
    before, found, after = page.partition(mark)
    assert found, f"the template has no {mark}"
    return f"{before}{text}{after}"


def _script_json(value: Any) -> str:
    """Return JSON that no HTML parser finds an end of script, a comment or an entity in; non-ASCII characters are escaped too."""
    text = json.dumps(without_sizes(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def rounded(value: float | None) -> float | None:
    """Return an estimate to 6 significant digits: more would only weigh down the page."""
    return None if value is None else float(f"{value:.6g}")
