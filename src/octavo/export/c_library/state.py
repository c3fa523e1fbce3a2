"""The C text for state that stays from call to call: growing states written in place, others handed over between two places."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from math import prod

from ...ir.graph.growing_states import GrowingState
from ...runtime.memory import align
from ...runtime.shapes import LARGEST
from ...runtime.size import Size
from .library import CLibrary, CTensor
from .literals import c_string
from .sizes import TOO_LARGE, SizeText, refusal, state_dimensions

_HEADER = """/* State that each call hands to the next: {pairs}.
   It lies in a block of memory that the caller gives. */
typedef struct {n}_state {{
{fields}  unsigned char* memory;
  int turn;
}} {n}_state;

"""

_OPEN_FIELDS = """  {n}_sizes sizes;    /* of the dimensions that states have{rows} */
  {n}_sizes capacity;
"""

_DECLARED = """{bytes}\
/* Begins a state in a block of that many bytes, at a multiple of {N}_ALIGNMENT: {begins}, no rows of states that grow. */
int {n}_state_open({n}_state* state, {capacity}void* memory);

/* Runs one step. The tables are as {n}_run takes them; of inputs and outputs that are carried nothing is read, NULL will do.
   {step_sizes}A step that fails leaves the state as it was. */
int {n}_state_step({n}_state* state, {sizes}const void* const* inputs, void* const* outputs, void* workspace);

/* {reset}
   Returns {N}_OK or {N}_STATE. */
int {n}_state_reset({n}_state* state{reset_rows});

/* Makes `copy` another state that goes on from where `state` is, in a block of its own of as many bytes. */
int {n}_state_copy(const {n}_state* state, {n}_state* copy, void* memory);

/* Returns where a carried input lies that the next step reads, to read or to set it; NULL for another input.{room} */
void* {n}_state_input(const {n}_state* state, int input);

{check}"""

_BYTES = """/* Finds the bytes of a state's block. Of `capacity` the dimensions of states count{along}. */
int {n}_state_bytes(const {n}_sizes* capacity, size_t* bytes);

"""

_CHECK = """/* As {n}_check, for the step that would come next. */
int {n}_state_check(const {n}_state* state, const {n}_sizes* sizes, char* text, size_t bytes);

"""

_SOURCE = """
{layout}
void* {n}_state_input(const {n}_state* state, int input) {{
  state_layout at;
  if (state == NULL) return NULL;
  set_layout({layout_of_state}&at);
{places}  return NULL;
}}

static void clear(const {n}_state* state) {{
{cleared}}}

int {n}_state_open({n}_state* state, {capacity}void* memory) {{
{begin}  state->memory = (unsigned char*)memory;
  state->turn = 0;
  clear(state);
  return {N}_OK;
}}

int {n}_state_reset({n}_state* state{reset_rows}) {{
  if (state == NULL) return {N}_MISALIGNED;
{reset}  return {N}_OK;
}}

int {n}_state_copy(const {n}_state* state, {n}_state* copy, void* memory) {{
  state_layout at;
  if (state == NULL || copy == NULL || IS_MISPLACED(memory)) return {N}_MISALIGNED;
  set_layout({layout_of_state}&at);
  *copy = *state;
  copy->memory = (unsigned char*)memory;
{copied}  return {N}_OK;
}}

{step_sizes}int {n}_state_step({n}_state* state, {sizes}const void* const* inputs, void* const* outputs, void* workspace) {{
  const void* in[{N}_INPUTS];
  void* out[{N}_OUTPUTS];
  state_layout at;
  int code;
{begun}  set_layout({layout_of_state}&at);
  memcpy((void*)in, (const void*)inputs, sizeof in);
  memcpy((void*)out, (const void*)outputs, sizeof out);
{tables}  code = {run};
  if (code != {N}_OK) return code;
  state->turn ^= 1;
{after}  return {N}_OK;
}}
"""

_BEGIN_AT_SIZES = """  int64_t d[SIZES];
  fault f;
  int code;
  if (state == NULL || capacity == NULL || IS_MISPLACED(memory)) return {N}_MISALIGNED;
  code = check_capacity(capacity, d, &f);
  if (code != {N}_OK) return code;
  state->capacity = *capacity;
  state->sizes = *capacity;
{empty}"""

_CAPACITY = """static int check_capacity(const {n}_sizes* capacity, int64_t* d, fault* f) {{
  set_sizes(capacity, d);
{tests}{too_large}  return {N}_OK;
}}

int {n}_state_bytes(const {n}_sizes* capacity, size_t* bytes) {{
  state_layout at;
  int64_t d[SIZES];
  fault f;
  int code;
  if (capacity == NULL || bytes == NULL) return {N}_MISALIGNED;
  code = check_capacity(capacity, d, &f);
  if (code != {N}_OK) return code;
  set_layout(capacity, &at);
  *bytes = at.end;
  return {N}_OK;
}}

"""

_STEP_SIZES = """/* Writes the sizes of a step to d, with those of the state, in whose memory lie the outputs that grow. */
static int step_sizes(const {n}_state* state, const {n}_sizes* sizes, int64_t* d, fault* f) {{
  int code;
  set_sizes(sizes, d);
{kept}{rows}  code = check_sizes(d, f);
  if (code != {N}_OK) return code;
  {{
{grown}  }}
{room}  return {N}_OK;
}}

int {n}_state_check(const {n}_state* state, const {n}_sizes* sizes, char* text, size_t bytes) {{
  int64_t d[SIZES];
  fault f = {{NULL, 0, NULL, 0, 0}};
  if (state == NULL || sizes == NULL) return tell(&f, {N}_MISALIGNED, text, bytes);
  return tell(&f, step_sizes(state, sizes, d, &f), text, bytes);
}}

"""

_COPIED_ROWS = """  {{
    const size_t room = (size_t)state->capacity.{field} * {inner}, rows = (size_t)state->sizes.{field} * {inner};
    size_t i;
    for (i = 0; i < {outer}; i++) memcpy(copy->memory + at.{start} + i * room, state->memory + at.{start} + i * room, rows);
  }}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Carried:
    """One state: its number among them, the input and output, and how it grows; None where it is handed over."""

    number: int
    source: int
    result: int
    tensor: CTensor
    growth: GrowingState | None


class StateText:
    """The parts of header and source that are about a library's carried state; empty where it has none."""

    def __init__(self, library: CLibrary, text: SizeText) -> None:
        self._library, self._text = library, text
        self._n, self._N = library.name, library.name.upper()
        self._fields = {each.name: each.field for each in library.dimensions}
        growing = {(each.output, each.input): each for each in library.growing}
        self._states = [
            _Carried(number=k, source=pair[1], result=pair[0], tensor=library.inputs[pair[1]], growth=growing.get(pair))
            for k, pair in enumerate(library.carried)
        ]
        self._growth = {each.growth.dimension: each.growth for each in self._states if each.growth is not None}
        self._is_open = bool(library.dimensions)

    # ------------------------------------------------------------------------------------------------------- header

    def header(self) -> str:
        """Return the type of a state."""
        if not self._states:
            return ""
        outputs, inputs = self._library.outputs, self._library.inputs
        pairs = ", ".join(
            f"{c_string(outputs[each.result].name)} to {c_string(inputs[each.source].name)}" for each in self._states
        )
        rows = "; of those along which they grow, the rows that are there" if self._growth else ""
        fields = _OPEN_FIELDS.format(n=self._n, rows=rows) if self._is_open else ""
        return _HEADER.format(n=self._n, pairs=pairs.replace("*/", "*\\057"), fields=fields)

    def declared(self) -> str:
        """Return the functions."""
        if not self._states:
            return ""
        n, N = self._n, self._N
        grows = ", ".join(sorted(self._fields[name] for name in self._growth))
        along = f";\n   {grows}: for how many rows there is to be room" if grows else ""
        if self._is_open:
            said = _BYTES.format(n=n, along=along)
        else:
            said = f"/* Bytes of a state's block. */\n#define {N}_STATE_BYTES {self._layout_end()}\n\n"
        own = f"{grows} of `sizes` is not read: the state knows it. " if grows else ""
        reset = "Starts anew."
        if self._growth:
            reset = "Drops the rows behind the first `rows` of states that grow; 0 starts anew. Others keep no earlier step."
        return _DECLARED.format(
            n=n,
            N=N,
            bytes=said,
            begins="zeros" if all(each.tensor.start is None for each in self._states) else "what the model states, else zeros",
            capacity=self._sizes("capacity"),
            sizes=self._sizes("sizes"),
            step_sizes=own,
            reset=reset,
            reset_rows=", int64_t rows" if self._growth else "",
            room=" A state that grows\n   lies with its whole capacity along that axis." if self._growth else "",
            check=_CHECK.format(n=n) if self._is_open else "",
        )

    def exported(self) -> list[str]:
        """Return the names of the functions."""
        names = ["open", "step", "reset", "copy", "input", *(["bytes", "check"] if self._is_open else [])]
        return [f"{self._n}_state_{name}" for name in names] if self._states else []

    def _sizes(self, name: str) -> str:
        return f"const {self._n}_sizes* {name}, " if self._is_open else ""

    # ------------------------------------------------------------------------------------------------------- source

    def source(self) -> str:
        """Return the functions' bodies."""
        if not self._states:
            return ""
        n, N = self._n, self._N
        layout = "".join(_start_values(each) for each in self._states) + self._layout()
        if self._is_open:
            run = "call_model(variant, d, in, out, workspace)"
            layout += _CAPACITY.format(n=n, N=N, tests=self._capacity_tests(), too_large=self._too_large())
        else:
            run = f"{n}_run(in, out, workspace)"
        return _SOURCE.format(
            n=n,
            N=N,
            layout=layout,
            layout_of_state="&state->capacity, " if self._is_open else "",
            places="".join(f"  if (input == {each.source}) return state->memory + {_now(each)};\n" for each in self._states),
            cleared=self._cleared(),
            capacity=self._sizes("capacity"),
            begin=self._begin(),
            reset_rows=", int64_t rows" if self._growth else "",
            reset=self._reset(),
            copied="".join(self._copied(each) for each in self._states),
            step_sizes=self._step_sizes(),
            sizes=self._sizes("sizes"),
            begun=self._begun(),
            tables="".join(_table_entries(each) for each in self._states),
            run=run,
            after="".join(f"  state->sizes.{self._fields[name]} = {self._rows_place(name)};\n" for name in self._growth),
        )

    def _bytes(self, state: _Carried) -> int | Size:
        return state.tensor.bytes

    def _layout_end(self) -> int | Size:
        return sum((align(self._bytes(each)) * (1 if each.growth else 2) for each in self._states), start=0)

    def _layout(self) -> str:
        """Return where states lie in their block: at multiples of 64 bytes; those that are handed over have two places."""
        fields, lines, start = "", "", 0
        for each in self._states:
            fields += f"  size_t start{each.number}, bytes{each.number};\n"
            size = align(self._bytes(each))
            lines += f"  at->start{each.number} = (size_t)({self._text(start)});\n"
            lines += f"  at->bytes{each.number} = (size_t)({self._text(size)});\n"
            start = start + size * (1 if each.growth else 2)
        lines += f"  at->end = (size_t)({self._text(start)});\n"
        declared, names = "", ""
        if self._is_open:
            declared = f"const {self._n}_sizes* capacity, "
            variables = self._text.variables(used_in=lines)
            names = f"  int64_t d[SIZES];\n  set_sizes(capacity, d);\n  {{\n{variables}{lines}  }}\n"
        body = names or lines
        struct = f"typedef struct state_layout {{\n{fields}  size_t end;\n}} state_layout;\n\n"
        return f"{struct}static void set_layout({declared}state_layout* at) {{\n{body}}}\n\n"

    def _cleared(self) -> str:
        others = [each for each in self._states if each.growth is None]
        if not others:
            return "  (void)state;\n"
        lines = "".join(_first(each) for each in others)
        given = "&state->capacity, " if self._is_open else ""
        return f"  state_layout at;\n  set_layout({given}&at);\n{lines}"

    def _capacity_tests(self) -> str:
        tests = ""
        for each in state_dimensions(self._library):
            number = self._text.number(each.name)
            grows = each.name in self._growth
            low, high = (1, LARGEST) if grows else (each.low, LARGEST if each.high is None else each.high)
            name = f"capacity.{each.name}" if grows else each.name
            condition, said = f"d[{number}] < {low} || d[{number}] > {high}", f", and takes {low} to {high}"
            tests += refusal(condition, f"{self._N}_SIZE", name, f"d[{number}]", said)
        return tests

    def _too_large(self) -> str:
        sizes = [each.tensor.size for each in self._states if isinstance(each.tensor.size, Size)]
        if not sizes:
            return ""
        conditions = [f"{self._text.real(size)} > {float(LARGEST)}" for size in dict.fromkeys(sizes)]
        condition = " || ".join([*conditions, f"{self._text.real(self._layout_end())} > (double)(SIZE_MAX / 4)"])
        name = next(name for size in sizes for name in sorted(size.names))
        variables = self._text.variables("  ", "double", used_in=condition)
        test = refusal(condition, f"{self._N}_SIZE", name, f"d[{self._text.number(name)}]", TOO_LARGE)
        return f"  {{\n{variables}{test}  }}\n"

    def _begin(self) -> str:
        if not self._is_open:
            return f"  if (state == NULL || IS_MISPLACED(memory)) return {self._N}_MISALIGNED;\n"
        empty = "".join(f"  state->sizes.{self._fields[name]} = 0;\n" for name in self._growth)
        return _BEGIN_AT_SIZES.format(N=self._N, empty=empty)

    def _reset(self) -> str:
        tests, others = "", any(each.growth is None for each in self._states)
        for name in self._growth:
            tests += f"  if (rows < 0 || rows > state->sizes.{self._fields[name]}) return {self._N}_STATE;\n"
        if self._growth and others:
            tests += f"  if (rows != 0) return {self._N}_STATE;\n"
        tests += "".join(f"  state->sizes.{self._fields[name]} = rows;\n" for name in self._growth)
        return tests + ("  clear(state);\n" if others else "")

    def _copied(self, state: _Carried) -> str:
        if state.growth is None:
            return f"  memcpy(copy->memory + {_now(state, 'copy')}, state->memory + {_now(state)}, at.bytes{state.number});\n"
        shape, axis = state.tensor.shape, state.growth.axis
        inner, outer = prod(shape[axis + 1 :]) * state.tensor.item_bytes, prod(shape[:axis])
        return _COPIED_ROWS.format(
            field=self._fields[state.growth.dimension],
            inner=self._of_state(inner),
            outer=self._of_state(outer),
            start=f"start{state.number}",
        )

    def _of_state(self, size: int | Size) -> str:
        """Return a size that the state's own dimensions say."""
        fields = {f"d{self._text.number(name)}": field for name, field in self._fields.items()}
        return f"(size_t)({re.sub(r'd[0-9]+', lambda found: f'state->capacity.{fields[found[0]]}', self._text(size))})"

    # ------------------------------------------------------------------------------------------------------- a step

    def _begun(self) -> str:
        N = self._N
        if not self._is_open:
            return f"  if (state == NULL || IS_MISPLACED(state->memory)) return {N}_MISALIGNED;\n"
        count = len(self._growth)
        return (
            f"  int64_t d[SIZES]{''.join(f', rows{k}' for k in range(count))};\n  fault f;\n"
            "  const int variant = chosen_variant();\n"
            f"  if (variant < 0) return {N}_CPU_UNFIT;\n"
            f"  if (state == NULL || sizes == NULL || IS_MISPLACED(state->memory)) return {N}_MISALIGNED;\n"
            "  code = step_sizes(state, sizes, d, &f);\n"
            f"  if (code != {N}_OK) return code;\n"
        ) + self._rows_after()

    def _rows_place(self, dimension: str) -> str:
        return f"rows{list(self._growth).index(dimension)}"

    def _rows_after(self) -> str:
        lines = "".join(
            f"    {self._rows_place(name)} = {self._text(self._grown(growth))};\n" for name, growth in self._growth.items()
        )
        return f"  {{\n{self._text.variables('    ', used_in=lines)}{lines}  }}\n" if lines else ""

    def _grown(self, growth: GrowingState) -> int | Size:
        return self._library.outputs[growth.output].shape[growth.axis]

    def _step_sizes(self) -> str:
        if not self._is_open:
            return ""
        n, N = self._n, self._N
        kept, rows = "", ""
        for each in state_dimensions(self._library):
            number = self._text.number(each.name)
            own = f"state->sizes.{each.field}"
            if each.name in self._growth:
                rows += f"  d[{number}] = {own};\n"
            else:
                said = ", and of the state "
                kept += refusal(f"d[{number}] != {own}", f"{N}_SIZE", each.name, f"d[{number}]", said, f"&{own}")
        grown = ""
        room = ""
        for name, growth in self._growth.items():
            size, field = self._text(self._grown(growth)), self._fields[name]
            said, most = " after this step, and the capacity is ", f"state->capacity.{field}"
            grown += refusal(f"{size} > {most}", f"{N}_CAPACITY", name, size, said, f"&{most}")
            room += f"  d[{self._text.number(growth.capacity)}] = {most};\n  d[{self._text.number(growth.in_place)}] = 1;\n"
        grown = self._text.variables(used_in=grown) + grown
        room = "  set_room(d);\n" + room
        return _STEP_SIZES.format(n=n, N=N, kept=kept, rows=rows, grown=grown or "    ;\n", room=room)


def _start_values(state: _Carried) -> str:
    """Return what a state begins as where the source states it."""
    if state.tensor.start is None:
        return ""
    values = textwrap.fill(", ".join(map(str, state.tensor.start)), 126, initial_indent="  ", subsequent_indent="  ")
    return f"static const unsigned char begins{state.number}[] = {{\n{values}\n}};\n\n"


def _first(state: _Carried) -> str:
    """Return the line that writes what a state begins as."""
    k, place = state.number, f"state->memory + {_now(state)}"
    if state.tensor.start is None:
        return f"  memset({place}, 0, at.bytes{k});\n"
    return f"  memcpy({place}, begins{k}, sizeof begins{k});\n"


def _now(state: _Carried, name: str = "state") -> str:
    """Return where in the block a state lies that the next step reads."""
    if state.growth is not None:
        return f"at.start{state.number}"
    return f"at.start{state.number} + ({name}->turn ? at.bytes{state.number} : 0)"


def _table_entries(state: _Carried) -> str:
    k, place = state.number, f"  in[{state.source}] = state->memory + {_now(state)};\n"
    if state.growth is not None:
        return f"{place}  out[{state.result}] = state->memory + at.start{k};\n"
    return f"{place}  out[{state.result}] = state->memory + at.start{k} + (state->turn ? 0 : at.bytes{k});\n"
