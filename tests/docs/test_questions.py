"""The page of questions quotes messages that Octavo has."""

from __future__ import annotations

import re

from pages import DOCS

SOURCE = DOCS.parent / "src"


def test_each_message_stands_in_the_source() -> None:
    messages = re.findall(r'^### "(.*)"$', (DOCS / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(messages) >= 10
    # Long messages stand in several literals, one after the other.
    source = "\n".join(file.read_text(encoding="utf-8") for file in sorted(SOURCE.rglob("*.py")))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    parts = {part.strip(" ,:;()") for message in messages for part in message.split("...")} - {""}
    assert [part for part in sorted(parts) if part not in joined] == []
