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

_LOAD = "octavo_atomic_load"
_ADD = "octavo_atomic_add"
_COMPARE_EXCHANGE = "octavo_compare_exchange"
_IMPORT = "pragma_import_llvm"

_TEXT = f"""
define i64 @{_LOAD}(ptr %word) {{
  %value = load atomic i64, ptr %word seq_cst, align 8
  ret i64 %value
}}

define i64 @{_ADD}(ptr %word, i64 %more) {{
  %value = atomicrmw add ptr %word, i64 %more seq_cst
  ret i64 %value
}}

define i64 @{_COMPARE_EXCHANGE}(ptr %word, i64 %expected, i64 %new) {{
  %both = cmpxchg ptr %word, i64 %expected, i64 %new seq_cst seq_cst
  %value = extractvalue {{ i64, i1 }} %both, 0
  ret i64 %value
}}
"""


def atomic_load(word: Any) -> Any:
    """Return the word at an address, read anew each time."""
    return B.call_extern("int64", _LOAD, word)


def atomic_add(word: Any, more: int) -> Any:
    """Add to the word at an address; return what it was."""
    return B.call_extern("int64", _ADD, word, B.int64(more))


def compare_exchange(word: Any, expected: Any, new: Any) -> Any:
    """Write `new` to an address if it holds `expected`; return what was there."""
    return B.call_extern("int64", _COMPARE_EXCHANGE, word, expected, new)


def importing(body: Any) -> Any:
    """Return a statement that calls the functions above, with their text."""
    return tirx.AttrStmt(tirx.IntImm("int32", 0), _IMPORT, tvm.ir.StringImm(_TEXT), body)
