"""The C text that looks for numbers which pick no row of their table, before anything is computed."""

from __future__ import annotations

from .library import CLibrary
from .literals import c_string, c_type
from .sizes import SizeText

_DECLARED = """/* Returns {N}_OK or {N}_INDEX, and then writes a line to `text`, of at most `bytes` with its 0, that names the
   input, its first number that is no row of the table it picks from, and what it may be. */
int {n}_check_indices({sizes}const void* const* inputs, char* text, size_t bytes);

"""

_SOURCE = """
static int find_index({d}const void* const* inputs, fault* f) {{
  int64_t i;
{loops}  return {N}_OK;
}}

int {n}_check_indices({sizes}const void* const* inputs, char* text, size_t bytes) {{
  fault f = {{NULL, 0, NULL, 0, 0}};
{known}  return tell(&f, find_index({given}inputs, &f), text, bytes);
}}
"""

_KNOWN = """  int64_t d[SIZES];
  int code;
  if (sizes == NULL) return tell(&f, {N}_MISALIGNED, text, bytes);
  set_sizes(sizes, d);
  code = check_sizes(d, &f);
  if (code != {N}_OK) return tell(&f, code, text, bytes);
"""

_LOOP = """  for (i = 0; i < {size}; i++) {{
    const int64_t row = (int64_t)((const {type}*)inputs[{number}])[i];
    if (row < {low} || row > {high}) return fail(f, {N}_INDEX, {name}, row, {said}, NULL);
  }}
"""

_PRINTED = """  if (code == {N}_INDEX) {{
    char text[256];
    {n}_check_indices({sizes}inputs, text, sizeof text);
    return fail(text);
  }}
"""

_TEST = """  {{
    fault f;
    if (find_index({given}inputs, &f) != {N}_OK) return {N}_INDEX;
  }}
"""


class IndexText:
    """The parts of header and source about inputs that pick rows of tables; empty where there is none."""

    def __init__(self, library: CLibrary, text: SizeText) -> None:
        self._library, self._text = library, text
        self._n, self._N, self._is_open = library.name, library.name.upper(), bool(library.dimensions)
        self._sizes = f"const {library.name}_sizes* sizes, " if library.dimensions else ""

    def declared(self) -> str:
        """Return the function that the header declares."""
        return _DECLARED.format(n=self._n, N=self._N, sizes=self._sizes) if self._library.picks else ""

    def exported(self) -> list[str]:
        """Return the names of the functions."""
        return [f"{self._n}_check_indices"] if self._library.picks else []

    def source(self) -> str:
        """Return the functions' bodies."""
        loops = ""
        for number, tensor in self._library.picks:
            assert tensor.indices is not None
            low, high = tensor.indices
            loops += _LOOP.format(
                N=self._N,
                size=self._text(tensor.size),
                type=c_type(tensor.dtype),
                number=number,
                low=low,
                high=high,
                name=c_string(tensor.name),
                said=c_string(f", and takes {low} to {high}"),
            )
        if not loops:
            return ""
        return _SOURCE.format(
            n=self._n,
            N=self._N,
            d="const int64_t* d, " if self._is_open else "",
            sizes=self._sizes,
            loops=self._text.variables(used_in=loops) + ("  (void)d;\n" if self._is_open else "") + loops,
            known=_KNOWN.format(N=self._N) if self._is_open else "",
            given="d, " if self._is_open else "",
        )

    def test(self) -> str:
        """Return the statements of a run that refuse such numbers."""
        return _TEST.format(N=self._N, given="d, " if self._is_open else "") if self._library.picks else ""

    def printed(self) -> str:
        """Return the statements of the example that print such a line."""
        sizes = "&sizes, " if self._is_open else ""
        return _PRINTED.format(n=self._n, N=self._N, sizes=sizes) if self._library.picks else ""
