"""The C text of a library: its header, and the source that holds the calls. It writes no files and compiles nothing."""

from __future__ import annotations

from ...compiler.codegen.planned_calls import Operand, PlannedCall
from ...runtime.cpu_features import CpuidBit, Feature
from ...runtime.size import Size, is_open
from .indices import IndexText
from .library import CLibrary, CTensor, Variant
from .literals import c_float, c_string, c_type
from .sizes import SizeText, sizes_declared, sizes_header, sizes_source
from .state import StateText

ALIGNMENT = 64
"""Bytes that every pointer must be a multiple of: kernels load whole vectors."""

# --------------------------------------------------------------------------------------------------------------- header

_HEADER = """/* {summary}. Written by Octavo; do not edit. */
#ifndef {N}_H
#define {N}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {N}_INPUTS {inputs}
#define {N}_OUTPUTS {outputs}

{workspace}/* Inputs, outputs and the workspace must start at a multiple of so many bytes. */
#define {N}_ALIGNMENT {alignment}

{constants}
/* The same as data. Integers stand for the real number (q - zero_point) * scale; where scale is 0, for themselves. */
typedef struct {n}_tensor {{
  const char* name;
  const char* dtype;
  size_t rank;
  const int64_t* shape;
  size_t bytes;
  float scale;
  int32_t zero_point;
}} {n}_tensor;

extern const {n}_tensor {n}_inputs[{N}_INPUTS];
extern const {n}_tensor {n}_outputs[{N}_OUTPUTS];

{types}enum {{
{codes}
}};

/* Finds out once what this CPU can run; {n}_run does so itself where this was not called. Returns {N}_OK or {N}_CPU_UNFIT. */
int {n}_init(void);

/* Runs the model. Allocates nothing, keeps nothing, starts no thread. Several threads may call it at once, each with a workspace
   of its own. Returns {N}_OK, or what went wrong, and then writes nothing. */
int {n}_run({sizes}const void* const* inputs, void* const* outputs, void* workspace);

{functions}/* Says in one line what a return value means. */
const char* {n}_error(int code);

#ifdef __cplusplus
}}
#endif

#endif
"""


_WORKSPACE = """/* Bytes of the block that a call computes in. One block serves one call at a time. */
#define {N}_WORKSPACE_BYTES {workspace}

"""

_OPEN_WORKSPACE = """/* Sizes are open: {n}_find_needs says how many bytes a call needs. One workspace serves one call at a time.
   Of open dimensions the shapes below, and {n}_inputs and {n}_outputs, have -1; the bytes there are 0. */

"""


def header(library: CLibrary) -> str:
    """Return the header."""
    n, text = library.name, SizeText(library)
    state = StateText(library, text)
    workspace = _OPEN_WORKSPACE if library.dimensions else _WORKSPACE
    groups = [("INPUT", library.inputs), ("OUTPUT", library.outputs)]
    constants = "".join(
        _constants(f"{n.upper()}_{kind}{index}", tensor) for kind, tensors in groups for index, tensor in enumerate(tensors)
    )
    return _HEADER.format(
        summary=f"The model {n} as a C library",
        n=n,
        N=n.upper(),
        inputs=len(library.inputs),
        outputs=len(library.outputs),
        workspace=workspace.format(n=n, N=n.upper(), workspace=library.workspace),
        types=sizes_header(library) + state.header(),
        codes=_codes(library),
        sizes=f"const {n}_sizes* sizes, " if library.dimensions else "",
        functions=sizes_declared(library) + IndexText(library, text).declared() + state.declared(),
        alignment=ALIGNMENT,
        constants=constants,
    )


_CODES = {
    "OK": "",
    "CPU_UNFIT": "this CPU lacks instructions that the library was built for",
    "MISALIGNED": "a pointer is null or no multiple of {N}_ALIGNMENT",
    "SIZE": "a size is out of its bounds, or not that of the state: {n}_check says which",
    "CAPACITY": "a state would have more rows than its capacity: {n}_state_check says how many",
    "STATE": "the state keeps no such earlier step",
    "INDEX": "an input picks rows of a table, and holds a number that is none of them: {n}_check_indices says which",
}


def _codes(library: CLibrary) -> str:
    """Return the values of the header's enum."""
    n, kept = library.name, _codes_of(library)
    rows = [(f"{n.upper()}_{name} = {number}", _CODES[name].format(n=n, N=n.upper())) for name, number in kept.items()]
    commas = [f"{value}{',' if number < len(rows) - 1 else ''}" for number, (value, _) in enumerate(rows)]
    width = max(map(len, commas))
    return "\n".join(
        f"  {value.ljust(width)}   /* {said} */" if said else f"  {value}" for value, (_, said) in zip(commas, rows, strict=True)
    )


def _codes_of(library: CLibrary) -> dict[str, int]:
    """Return the codes that functions of the library return, with their numbers."""
    has_growth = any((state.output, state.input) in library.carried for state in library.growing)
    absent = {
        "SIZE": not library.dimensions,
        "CAPACITY": not has_growth,
        "STATE": not library.carried,
        "INDEX": not library.picks,
    }
    return {name: number for number, name in enumerate(_CODES) if not absent.get(name, False)}


def _constants(prefix: str, tensor: CTensor) -> str:
    lines = [
        f"NAME {c_string(tensor.name)}",
        f"DTYPE {c_string(tensor.dtype)}",
        f"TYPE {c_type(tensor.dtype)}",
        f"RANK {len(tensor.shape)}",
        f"SHAPE {{{_shape(tensor)}}}",
    ]
    if not is_open(tensor.size):
        lines += [f"SIZE {tensor.size}", f"BYTES {tensor.bytes}"]
    if tensor.scale is not None:
        lines += [f"SCALE {c_float(tensor.scale)}", f"ZERO_POINT ({tensor.zero_point})"]
    return "".join(f"#define {prefix}_{line}\n" for line in lines) + "\n"


def _shape(tensor: CTensor) -> str:
    """Return a shape's dimensions, of open ones -1."""
    return ", ".join("-1" if is_open(dim) else str(dim) for dim in tensor.shape)


# --------------------------------------------------------------------------------------------------------------- source

_SOURCE = """/* The calls of the model {n}, one after the other. Written by Octavo; do not edit. */
#include "{n}.h"

#include <string.h>
{includes}
#define IS_MISPLACED(pointer) ((pointer) == NULL || ((uintptr_t)(pointer) & ({N}_ALIGNMENT - 1)) != 0)

{tensors}
{kernels}
{runs}
{cpu}
int {n}_init(void) {{ return chosen_variant() < 0 ? {N}_CPU_UNFIT : {N}_OK; }}
{open_parts}
{start}  int i;
{unfit}  for (i = 0; i < {N}_INPUTS; i++)
    if (IS_MISPLACED(inputs[i])) return {N}_MISALIGNED;
  for (i = 0; i < {N}_OUTPUTS; i++)
    if (IS_MISPLACED(outputs[i])) return {N}_MISALIGNED;
  if ({has_workspace}IS_MISPLACED(workspace)) return {N}_MISALIGNED;
{indices}{dispatch}
  return {N}_OK;
}}
{state}
const char* {n}_error(int code) {{
  if (code == {N}_OK) return "no error";
  if (code == {N}_MISALIGNED) return "{n}: a pointer is null or not aligned to {alignment} bytes";
  if (code == {N}_CPU_UNFIT) return unfit_text();
{errors}  return "{n}: unknown error";
}}
"""


_CLOSED_RUN = """int {n}_run(const void* const* inputs, void* const* outputs, void* workspace) {{
  const int variant = chosen_variant();
"""

_OPEN_RUN = """static int call_model(
    int variant, const int64_t* d, const void* const* inputs, void* const* outputs, void* workspace) {{
"""

_RUN_AT_SIZES = """
int {n}_run(const {n}_sizes* sizes, const void* const* inputs, void* const* outputs, void* workspace) {{
  const int variant = chosen_variant();
  int64_t d[SIZES];
  fault f;
  int code;
  if (variant < 0) return {N}_CPU_UNFIT;
  if (sizes == NULL) return {N}_MISALIGNED;
  set_sizes(sizes, d);
  code = check_sizes(d, &f);
  if (code != {N}_OK) return code;
  set_room(d);
  return call_model(variant, d, inputs, outputs, workspace);
}}
"""


def source(library: CLibrary) -> str:
    """Return the source: tables of tensors, the calls of each variant, and which of them this CPU runs."""
    n, N, text = library.name, library.name.upper(), SizeText(library)
    includes, cpu = _cpu(library)
    runs = "\n".join(_run(library, number, variant, text) for number, variant in enumerate(library.variants))
    sizes = "d, " if library.dimensions else ""
    calls = "".join(
        f"  {'else ' if number else ''}if (variant == {number}) run_{number}({sizes}inputs, outputs, (uint8_t*)workspace);\n"
        for number in range(len(library.variants))
    )
    state = StateText(library, text).source()
    start, unfit = _CLOSED_RUN.format(n=n), f"  if (variant < 0) return {N}_CPU_UNFIT;\n"
    if library.dimensions:
        start, unfit = _OPEN_RUN.format(n=n), ""
        state = _RUN_AT_SIZES.format(n=n, N=N) + state
    return _SOURCE.format(
        n=n,
        N=n.upper(),
        alignment=ALIGNMENT,
        includes=includes,
        tensors=_table(n, "inputs", library.inputs) + _table(n, "outputs", library.outputs),
        kernels=_prototypes(library),
        runs="" if library.dimensions else runs,
        cpu=cpu,
        open_parts=_checks(library, text, runs + state) + (runs if library.dimensions else ""),
        indices=IndexText(library, text).test(),
        start=start,
        unfit=unfit,
        has_workspace="" if library.dimensions else f"{N}_WORKSPACE_BYTES > 0 && ",
        state=state,
        errors="".join(
            f'  if (code == {N}_{name}) return "{n}: {_CODES[name].format(n=n, N=N)}";\n' for name in list(_codes_of(library))[3:]
        ),
        dispatch=calls.rstrip("\n"),
    )


def _checks(library: CLibrary, text: SizeText, others: str) -> str:
    """Return the functions that look at what a caller gives; `others` is what else of the source computes with sizes."""
    indices = IndexText(library, text).source()
    return sizes_source(library, text, others + indices) + indices if library.dimensions or indices else ""


def _table(n: str, kind: str, tensors: tuple[CTensor, ...]) -> str:
    shapes = "".join(
        f"static const int64_t {kind}_shape{index}[] = {{{_shape(tensor) or '1'}}};\n" for index, tensor in enumerate(tensors)
    )
    rows = "".join(
        f"  {{{c_string(tensor.name)}, {c_string(tensor.dtype)}, {len(tensor.shape)}, {kind}_shape{index}, "
        f"{0 if is_open(tensor.bytes) else tensor.bytes}, "
        f"{c_float(tensor.scale or 0.0)}, {tensor.zero_point or 0}}},\n"
        for index, tensor in enumerate(tensors)
    )
    return f"{shapes}const {n}_tensor {n}_{kind}[{n.upper()}_{kind.upper()}] = {{\n{rows}}};\n"


def constants_symbol(library: CLibrary, number: int) -> str:
    """Return the name of a variant's constants."""
    return f"{library.name}_constants{number}"


def _prototypes(library: CLibrary) -> str:
    """Return what the source calls and reads from elsewhere."""
    lines: dict[str, None] = {}
    for number, variant in enumerate(library.variants):
        lines[f"extern const uint8_t {constants_symbol(library, number)}[];"] = None
        for call in variant.plan.calls:
            if call.kernel is not None:
                params = ["const void*"] * call.reads + ["void*"] * (len(call.operands) - call.reads)
                params += [c_type(dtype) for dtype in call.dtypes]
                lines[f"extern int32_t {variant.symbols[call.kernel]}({', '.join(params)});"] = None
    return "\n".join(lines)


def _run(library: CLibrary, number: int, variant: Variant, text: SizeText) -> str:
    starts: dict[Size, str] = {}
    for call in variant.plan.calls:
        for operand in call.operands:
            if isinstance(operand.offset, Size):
                starts.setdefault(operand.offset, f"slot{len(starts)}")
    slots = "".join(f"  uint8_t* const {name} = workspace + {_index(text(start))};\n" for start, name in starts.items())
    calls = "".join(f"  {_call(library, number, variant, call, text, starts)};\n" for call in variant.plan.calls)
    unused = "  (void)inputs;\n  (void)workspace;\n"
    sizes, variables = "", ""
    if library.dimensions:
        sizes, variables = "const int64_t* d, ", text.variables(used_in=slots + calls)
        unused = f"  (void)d;\n{unused}"
    return (
        f"static void run_{number}({sizes}const void* const* inputs, void* const* outputs, uint8_t* workspace) {{\n"
        f"{variables}{slots}{unused}{calls}}}\n"
    )


def _index(size: str) -> str:
    return f"(size_t)({size})"


def _call(library: CLibrary, number: int, variant: Variant, call: PlannedCall, text: SizeText, starts: dict[Size, str]) -> str:
    pointers = [_pointer(operand, constants_symbol(library, number), starts) for operand in call.operands]
    if call.kernel is None:
        size = _index(text(call.bytes)) if is_open(call.bytes) else str(call.bytes)
        return f"memcpy({pointers[1]}, {pointers[0]}, {size})"
    sizes = [f"({c_type(dtype)})({text(size)})" for size, dtype in zip(call.sizes, call.dtypes, strict=True)]
    return f"{variant.symbols[call.kernel]}({', '.join([*pointers, *sizes])})"


def _pointer(operand: Operand, constants: str, starts: dict[Size, str]) -> str:
    if operand.region in ("input", "output"):
        assert operand.offset == 0, "a kernel reads and writes whole tensors"
        return f"{operand.region}s[{operand.index}]"
    if isinstance(operand.offset, Size):
        return starts[operand.offset]
    return f"{constants if operand.region == 'constants' else 'workspace'} + {operand.offset}"


# ------------------------------------------------------------------------------------------------------------------ CPU

_CHOICE = """
/* 0: not chosen yet; v + 1: variant v; -1: none. Threads that choose at once choose the same. */
static int chosen;

static int chosen_variant(void) {{
  int now = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
  if (now == 0) {{
    now = -1;
{tests}
    __atomic_store_n(&chosen, now, __ATOMIC_RELAXED);
  }}
  return now < 0 ? -1 : now - 1;
}}

static const char* unfit_text(void) {{
{text}
}}
"""

_X86_CODE = """
typedef struct feature {
  const char* text;
  unsigned leaf, subleaf, word, bit, state;
} feature;

static unsigned enabled_state(void) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return a;
}

/* Returns the first feature that this CPU lacks, or its operating system does not keep the registers of; NULL: it has all. */
static const char* missing(const feature* wanted, unsigned count) {
  unsigned words[4] = {0, 0, 0, 0}, leaf = 0, subleaf = 0, i;
  const unsigned state = enabled_state();
  for (i = 0; i < count; i++) {
    const feature* f = &wanted[i];
    if (f->leaf != leaf || f->subleaf != subleaf) {
      leaf = f->leaf;
      subleaf = f->subleaf;
      if (!__get_cpuid_count(leaf, subleaf, &words[0], &words[1], &words[2], &words[3])) memset(words, 0, sizeof words);
    }
    if (!(words[f->word] >> f->bit & 1) || (state & f->state) != f->state) return f->text;
  }
  return NULL;
}
"""

_ARM_CODE = """
typedef struct feature {
  const char* text;
  unsigned long entry, bit;
} feature;

/* Returns the first feature that this CPU lacks; NULL: it has all. */
static const char* missing(const feature* wanted, unsigned count) {
  unsigned i;
  for (i = 0; i < count; i++)
    if (!(getauxval(wanted[i].entry) >> wanted[i].bit & 1)) return wanted[i].text;
  return NULL;
}
"""


def _cpu(library: CLibrary) -> tuple[str, str]:
    """Return what the source includes for it, and the code that chooses a variant."""
    every = [feature for variant in library.variants for feature in variant.features]
    if not every:
        return "", _CHOICE.format(tests="    now = 1;", text='  return "";')
    is_x86 = isinstance(every[0].place, CpuidBit)
    tables = "".join(_features(library.name, number, variant) for number, variant in enumerate(library.variants))
    tests = "\n".join(
        f"    {'else ' if number else ''}if ({_missing(number, variant)} == NULL) now = {number + 1};"
        for number, variant in enumerate(library.variants)
    )
    last = len(library.variants) - 1
    choice = _CHOICE.format(
        tests=tests, text=f'  const char* text = {_missing(last, library.variants[last])};\n  return text == NULL ? "" : text;'
    )
    return ("#include <cpuid.h>\n" if is_x86 else "#include <sys/auxv.h>\n"), (
        _X86_CODE if is_x86 else _ARM_CODE
    ) + tables + choice


def _missing(number: int, variant: Variant) -> str:
    return f"missing(features_{number}, {len(variant.features)})" if variant.features else "NULL"


def _features(n: str, number: int, variant: Variant) -> str:
    if not variant.features:
        return ""
    rows = "".join(f"  {_row(n, feature)},\n" for feature in variant.features)
    return f"\nstatic const feature features_{number}[] = {{\n{rows}}};\n"


def _row(n: str, feature: Feature) -> str:
    text = c_string(f"{n}: built for a CPU with {feature.llvm}, which this one lacks")
    place = feature.place
    if isinstance(place, CpuidBit):
        word = ("eax", "ebx", "ecx", "edx").index(place.register)
        return f"{{{text}, {place.leaf:#x}u, {place.subleaf}, {word}, {place.bit}, {place.state:#x}}}"
    return f"{{{text}, {place.entry}, {place.bit}}}"
