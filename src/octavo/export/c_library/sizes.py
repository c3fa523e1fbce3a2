"""The C text for open sizes: a struct of the dimensions, the checks of what it holds, and what a call at these sizes needs."""

from __future__ import annotations

import re

from ...runtime.shapes import EMPTY, LARGEST, LEFT_OUT, division_of, without_floor
from ...runtime.size import Size, is_open
from .library import CDimension, CLibrary
from .literals import c_string

TOO_LARGE = " and sizes beside it such that a tensor is too large"

_FUNCTIONS = {
    "floordiv": "{type} floordiv({type} a, {type} b) {{ return a / b - (a % b != 0 && (a < 0) != (b < 0)); }}",
    "max": "{type} max({type} a, {type} b) {{ return a > b ? a : b; }}",
    "min": "{type} min({type} a, {type} b) {{ return a < b ? a : b; }}",
}
_REAL_FUNCTIONS = {
    "floordiv": "static double real_floordiv(double a, double b) { return a / b; }",
    "max": "static double real_max(double a, double b) { return a > b ? a : b; }",
    "min": "static double real_min(double a, double b) { return a < b ? a : b; }",
}
_STRING = re.compile(r'"(\\.|[^"\\])*"')
_CALL = re.compile(r"\b(floordiv|max|min)\(")

_HEADER = """/* The sizes that the model leaves open. */
typedef struct {n}_sizes {{
{fields}}} {n}_sizes;

/* What a call at some sizes needs: bytes of the workspace, and of each input and output its bytes and its shape. */
typedef struct {n}_needs {{
  size_t workspace;
  size_t input_bytes[{N}_INPUTS];
  size_t output_bytes[{N}_OUTPUTS];
  int64_t input_shape[{N}_INPUTS][{rank}];
  int64_t output_shape[{N}_OUTPUTS][{rank}];
}} {n}_needs;

"""

_DECLARED = """/* Says what a call at these sizes needs. Returns {N}_OK or {N}_SIZE, and then writes nothing. */
int {n}_find_needs(const {n}_sizes* sizes, {n}_needs* needs);

/* Returns {N}_OK or {N}_SIZE, and then writes a line to `text`, of at most `bytes` with its 0, that names the dimension, what it
   is and what it may be. */
int {n}_check(const {n}_sizes* sizes, char* text, size_t bytes);

"""

_SOURCE = """
{functions}
/* What is wrong with a size: "NAME is FOUND" and what it should be, of which a number may be the last word. */
typedef struct fault {{
  const char* name;
  int64_t found;
  const char* relation;
  int64_t other;
  int has_other;
}} fault;

static int fail(fault* f, int code, const char* name, int64_t found, const char* relation, const int64_t* other) {{
  f->name = name;
  f->found = found;
  f->relation = relation;
  f->has_other = other != NULL;
  f->other = other != NULL ? *other : 0;
  return code;
}}

static char* put(char* at, char* end, const char* text) {{
  while (*text != 0 && at < end) *at++ = *text++;
  return at;
}}

static char* put_number(char* at, char* end, int64_t number) {{
  char digits[24];
  int first = 23;
  uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
  digits[first] = 0;
  do digits[--first] = (char)('0' + left % 10);
  while ((left /= 10) != 0);
  if (number < 0) digits[--first] = '-';
  return put(at, end, digits + first);
}}

static int tell(const fault* f, int code, char* text, size_t bytes) {{
  char *at = text, *end;
  if (text == NULL || bytes == 0) return code;
  end = text + bytes - 1;
  if (code == {N}_OK) at = put(at, end, "no error");
  else if (f->name == NULL) at = put(at, end, {n}_error(code));
  else {{
    at = put(put(put(at, end, "{n}: "), end, f->name), end, " is ");
    at = put(put_number(at, end, f->found), end, f->relation);
    if (f->has_other) at = put_number(at, end, f->other);
  }}
  *at = 0;
  return code;
}}

{checks}"""

_CHECKS = """/* Writes the dimensions to d[0], d[1], ... in the order of {n}_sizes. */
static void set_sizes(const {n}_sizes* sizes, int64_t* d) {{
{sets}}}

/* Sizes that numbers of this machine, or the 32 bits in which kernels count, do not hold. */
static int is_too_large(const int64_t* d) {{
{reals}  return {too_large};
}}

static int check_sizes(const int64_t* d, fault* f) {{
{bounds}{too_large_test}{tests}  return {N}_OK;
}}

/* Sizes that no caller gives: outputs that grow have room for their own rows, and lie elsewhere than what they extend. */
static void set_room(int64_t* d) {{
{room}}}

int {n}_check(const {n}_sizes* sizes, char* text, size_t bytes) {{
  int64_t d[SIZES];
  fault f = {{NULL, 0, NULL, 0, 0}};
  if (sizes == NULL) return tell(&f, {N}_MISALIGNED, text, bytes);
  set_sizes(sizes, d);
  return tell(&f, check_sizes(d, &f), text, bytes);
}}

int {n}_find_needs(const {n}_sizes* sizes, {n}_needs* needs) {{
  int64_t d[SIZES];
  fault f;
  int code;
  if (sizes == NULL || needs == NULL) return {N}_MISALIGNED;
  set_sizes(sizes, d);
  code = check_sizes(d, &f);
  if (code != {N}_OK) return code;
  set_room(d);
  {{
{inner_names}{needs}  }}
  return {N}_OK;
}}
"""


class SizeText:
    """Sizes of a library as C expressions of the variables d0, d1, ...: its dimensions, then what is said of growing states."""

    def __init__(self, library: CLibrary) -> None:
        self.names = [dimension.name for dimension in library.dimensions]
        for state in library.growing:
            self.names += [name for name in (state.capacity, state.in_place) if name not in self.names]
        self._renamed = {name: Size.named(f"d{number}") for number, name in enumerate(self.names)}
        self._known: dict[Size, str] = {}

    def __call__(self, size: int | Size) -> str:
        """Return the expression of a size."""
        if isinstance(size, int):
            return str(size)
        if size not in self._known:
            self._known[size] = str(size.substitute(self._renamed))
        return self._known[size]

    def real(self, size: int | Size) -> str:
        """Return the expression that computes it in double, for variables that are double."""
        return _CALL.sub(r"real_\1(", self(size))

    def number(self, name: str) -> int:
        """Return the place of a dimension."""
        return self.names.index(name)

    def variables(self, indent: str = "  ", type_: str = "int64_t", *, used_in: str | None = None) -> str:
        """Return the declarations of the variables, from the array d; of those alone that a text names."""
        code = None if used_in is None else _STRING.sub("", used_in)
        wanted = [k for k in range(len(self.names)) if code is None or re.search(rf"(?<![.>\w])d{k}\b", code)]
        cast = "" if type_ == "int64_t" else f"({type_})"
        return "".join(f"{indent}const {type_} d{k} = {cast}d[{k}];\n" for k in wanted)


def sizes_header(library: CLibrary) -> str:
    """Return the types that the header declares for open sizes; nothing where none is."""
    if not library.dimensions:
        return ""
    fields = "".join(f"  int64_t {each.field}; /* {_takes(each)} */\n" for each in library.dimensions)
    rank = max((1, *(len(each.shape) for each in (*library.inputs, *library.outputs))))
    return _HEADER.format(n=library.name, N=library.name.upper(), fields=fields, rank=rank)


def sizes_declared(library: CLibrary) -> str:
    """Return the functions that the header declares for open sizes."""
    return _DECLARED.format(n=library.name, N=library.name.upper()) if library.dimensions else ""


def _takes(dimension: CDimension) -> str:
    return f"{dimension.low} or more" if dimension.high is None else f"{dimension.low} to {dimension.high}"


def sizes_source(library: CLibrary, text: SizeText, others: str) -> str:
    """Return the functions of open sizes; `others` is what else of the source computes with sizes."""
    checks = _checks(library, text) if library.dimensions else ""
    used = set(_CALL.findall(checks + others))
    real = set(re.findall(r"\breal_(floordiv|max|min)\(", checks + others))
    lines = [f"static {_FUNCTIONS[name].format(type='int64_t')}" for name in sorted(used)]
    lines += [_REAL_FUNCTIONS[name] for name in sorted(real)]
    lines.insert(0, f"#define SIZES {max(len(text.names), 1)}\n")
    return _SOURCE.format(n=library.name, N=library.name.upper(), functions="\n".join([*lines, ""]), checks=f"{checks}\n")


def _checks(library: CLibrary, text: SizeText) -> str:
    N = library.name.upper()
    tests: list[str] = []
    for size in library.extents:
        division = division_of(size)
        shown, bound, why = without_floor(size), "at least 1", EMPTY
        if division is not None:
            shown, bound, why = division[0], f"a multiple of {division[1]}", LEFT_OUT
        tests.append(refusal(f"{text(size)} < 1", f"{N}_SIZE", str(shown), text(shown), f", and must be {bound}: {why}"))
    for size, most in library.limits:
        said = f", and integer sums are exact up to {most}"
        tests.append(refusal(f"{text(size)} > {most}", f"{N}_SIZE", str(size), text(size), said))
    room: dict[int, str] = {}
    for state in library.growing:
        room[text.number(state.capacity)] = text(library.outputs[state.output].shape[state.axis])
        room[text.number(state.in_place)] = "0"
    room_text = "".join(f"  d[{number}] = {value};\n" for number, value in room.items()) or "  (void)d;\n"
    too_large = _too_large(library, text)
    needs = _needs(library, text)
    return _CHECKS.format(
        n=library.name,
        N=N,
        sets="".join(f"  d[{number}] = sizes->{each.field};\n" for number, each in enumerate(library.dimensions)),
        reals=text.variables(type_="double", used_in=too_large),
        too_large=too_large,
        bounds="".join(_bounds_test(N, number, each) for number, each in enumerate(library.dimensions)),
        tests=_in_block("".join(tests), text),
        too_large_test=refusal("is_too_large(d)", f"{N}_SIZE", library.dimensions[0].name, "d[0]", TOO_LARGE),
        room=_with_variables(room_text, text),
        inner_names=text.variables("    ", used_in=needs),
        needs=needs,
    )


def _with_variables(code: str, text: SizeText) -> str:
    return text.variables(used_in=code) + code


def refusal(condition: str, code: str, name: str, found: str, said: str, other: str = "NULL") -> str:
    """Return the statement that fails on a condition: the line "NAME is FOUND" and what is said, with `other` behind it."""
    return f"  if ({condition})\n    return fail(f, {code}, {c_string(name)}, {found}, {c_string(said)}, {other});\n"


def _in_block(code: str, text: SizeText) -> str:
    """Return statements behind others as a block that begins with its variables."""
    lines = _with_variables(code, text).splitlines()
    return "".join(f"{line}\n" for line in ("  {", *(f"  {each}" for each in lines), "  }")) if code else ""


def _bounds_test(N: str, number: int, dimension: CDimension) -> str:
    low, high, found = dimension.low, LARGEST if dimension.high is None else dimension.high, f"d[{number}]"
    below = refusal(f"{found} < {low}", f"{N}_SIZE", dimension.name, found, f", and takes {_takes(dimension)}")
    return below + refusal(f"{found} > {high}", f"{N}_SIZE", dimension.name, found, f", and takes {low} to {high}")


def _too_large(library: CLibrary, text: SizeText) -> str:
    """Return the condition, of doubles: elements of a tensor or numbers that kernels take beyond 32 bits, bytes beyond size_t."""
    counted = [each.size for each in (*library.inputs, *library.outputs)]
    counted += [size for variant in library.variants for call in variant.plan.calls for size in call.sizes]
    plain = {state.capacity: library.outputs[state.output].shape[state.axis] for state in library.growing}
    plain |= {state.in_place: 0 for state in library.growing}
    found = dict.fromkeys(size.substitute(plain) for size in counted if isinstance(size, Size))
    tests = [f"{text.real(size)} > {float(LARGEST)}" for size in found if is_open(size)]
    return "\n         || ".join([*tests, f"{text.real(library.workspace)} > (double)(SIZE_MAX / 4)"])


def _needs(library: CLibrary, text: SizeText) -> str:
    lines = [f"    needs->workspace = (size_t)({text(library.workspace)});\n"]
    for kind, tensors in (("input", library.inputs), ("output", library.outputs)):
        for index, tensor in enumerate(tensors):
            lines.append(f"    needs->{kind}_bytes[{index}] = (size_t)({text(tensor.bytes)});\n")
            lines += [f"    needs->{kind}_shape[{index}][{axis}] = {text(dim)};\n" for axis, dim in enumerate(tensor.shape)]
    return "".join(lines)


def state_dimensions(library: CLibrary) -> list[CDimension]:
    """Return the dimensions that carried states have."""
    shapes = (library.inputs[source].shape for _, source in library.carried)
    names = {name for shape in shapes for dim in shape if isinstance(dim, Size) for name in dim.names}
    return [each for each in library.dimensions if each.name in names]
