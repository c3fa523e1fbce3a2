"""Atomic operations on a word of 8 bytes that several threads write. TIR has none, so they enter as LLVM's text.

Each is a function of ours in LLVM's language; `importing` puts them in the module of the function that calls them, where LLVM
inlines them. Every one orders the loads and stores around it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx as _tirx
from tvm.script.ir_builder import tirx as B

# TVM annotates its constructors more narrowly than what they take.
tirx: Any = _tirx

_LOOK = "octavo_crew_look"
_ADD = "octavo_crew_add"
_SWAP = "octavo_crew_swap"
_IMPORT = "pragma_import_llvm"

_TEXT = f"""
define i64 @{_LOOK}(ptr %word) {{
  %value = load atomic i64, ptr %word seq_cst, align 8
  ret i64 %value
}}

define i64 @{_ADD}(ptr %word, i64 %more) {{
  %value = atomicrmw add ptr %word, i64 %more seq_cst
  ret i64 %value
}}

define i64 @{_SWAP}(ptr %word, i64 %expected, i64 %new) {{
  %both = cmpxchg ptr %word, i64 %expected, i64 %new seq_cst seq_cst
  %value = extractvalue {{ i64, i1 }} %both, 0
  ret i64 %value
}}
"""


def look(word: Any) -> Any:
    """Return the word at an address, read anew each time."""
    return B.call_extern("int64", _LOOK, word)


def add(word: Any, more: int) -> Any:
    """Add to the word at an address; return what it was."""
    return B.call_extern("int64", _ADD, word, B.int64(more))


def swap(word: Any, expected: Any, new: Any) -> Any:
    """Write `new` to an address if it holds what was expected; return what it held."""
    return B.call_extern("int64", _SWAP, word, expected, new)


def importing(body: Any) -> Any:
    """Return a statement that calls the functions above, with their text."""
    return tirx.AttrStmt(tirx.IntImm("int32", 0), _IMPORT, tvm.ir.StringImm(_TEXT), body)
