"""The C text of a library: its header, and the source that holds the calls. It writes no files and compiles nothing."""

from __future__ import annotations

from ...compiler.codegen.program import Operand, PlannedCall
from ...runtime.cpu_features import CpuidBit, Feature
from .library import CLibrary, CTensor, Variant

ALIGNMENT = 64
"""Bytes that every pointer must be a multiple of: kernels load whole vectors."""

_C_TYPES = {"float32": "float", "float64": "double", "bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t"}


def c_type(dtype: str) -> str:
    """Return the C type of one element."""
    return _C_TYPES.get(dtype, f"{dtype}_t")


def c_string(text: str) -> str:
    """Return a C string literal; other bytes than plain ASCII are octal, "?" too, which could begin a trigraph."""
    plain = set(range(32, 127)) - set(b'"\\?')
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def _float(value: float) -> str:
    digits = f"{value:.9g}"
    return f"{digits if set(digits) & set('.e') else digits + '.0'}f"


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

/* Bytes of the block that a call computes in. One block serves one call at a time. */
#define {N}_WORKSPACE_BYTES {workspace}

/* Inputs, outputs and the workspace must start at a multiple of so many bytes. */
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

enum {{
  {N}_OK = 0,
  {N}_CPU_UNFIT = 1,   /* this CPU lacks instructions that the library was built for */
  {N}_MISALIGNED = 2   /* a pointer is null or no multiple of {N}_ALIGNMENT */
}};

/* Finds out once what this CPU can run; {n}_run does so itself where this was not called. Returns {N}_OK or {N}_CPU_UNFIT. */
int {n}_init(void);

/* Runs the model. Allocates nothing, keeps nothing, starts no thread. Several threads may call it at once, each with a workspace
   of its own. Returns {N}_OK, or what went wrong, and then writes nothing. */
int {n}_run(const void* const* inputs, void* const* outputs, void* workspace);

/* Says in one line what a return value means. */
const char* {n}_error(int code);

#ifdef __cplusplus
}}
#endif

#endif
"""


def header(library: CLibrary) -> str:
    """Return the header."""
    n = library.name
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
        workspace=library.workspace,
        alignment=ALIGNMENT,
        constants=constants,
    )


def _constants(prefix: str, tensor: CTensor) -> str:
    lines = [
        f"NAME {c_string(tensor.name)}",
        f"DTYPE {c_string(tensor.dtype)}",
        f"TYPE {c_type(tensor.dtype)}",
        f"RANK {len(tensor.shape)}",
        f"SHAPE {{{', '.join(str(dim) for dim in tensor.shape)}}}",
        f"SIZE {tensor.size}",
        f"BYTES {tensor.bytes}",
    ]
    if tensor.scale is not None:
        lines += [f"SCALE {_float(tensor.scale)}", f"ZERO_POINT ({tensor.zero_point})"]
    return "".join(f"#define {prefix}_{line}\n" for line in lines) + "\n"


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

int {n}_run(const void* const* inputs, void* const* outputs, void* workspace) {{
  const int variant = chosen_variant();
  int i;
  if (variant < 0) return {N}_CPU_UNFIT;
  for (i = 0; i < {N}_INPUTS; i++)
    if (IS_MISPLACED(inputs[i])) return {N}_MISALIGNED;
  for (i = 0; i < {N}_OUTPUTS; i++)
    if (IS_MISPLACED(outputs[i])) return {N}_MISALIGNED;
  if ({N}_WORKSPACE_BYTES > 0 && IS_MISPLACED(workspace)) return {N}_MISALIGNED;
{dispatch}
  return {N}_OK;
}}

const char* {n}_error(int code) {{
  if (code == {N}_OK) return "no error";
  if (code == {N}_MISALIGNED) return "{n}: a pointer is null or not aligned to {alignment} bytes";
  if (code == {N}_CPU_UNFIT) return unfit_text();
  return "{n}: unknown error";
}}
"""


def source(library: CLibrary) -> str:
    """Return the source: tables of tensors, the calls of each variant, and which of them this CPU runs."""
    n = library.name
    includes, cpu = _cpu(library)
    runs = "\n".join(_run(library, number, variant) for number, variant in enumerate(library.variants))
    calls = "".join(
        f"  {'else ' if number else ''}if (variant == {number}) run_{number}(inputs, outputs, (uint8_t*)workspace);\n"
        for number in range(len(library.variants))
    )
    return _SOURCE.format(
        n=n,
        N=n.upper(),
        alignment=ALIGNMENT,
        includes=includes,
        tensors=_table(n, "inputs", library.inputs) + _table(n, "outputs", library.outputs),
        kernels=_prototypes(library),
        runs=runs,
        cpu=cpu,
        dispatch=calls.rstrip("\n"),
    )


def _table(n: str, kind: str, tensors: tuple[CTensor, ...]) -> str:
    shapes = "".join(
        f"static const int64_t {kind}_shape{index}[] = {{{', '.join(str(dim) for dim in tensor.shape) or '1'}}};\n"
        for index, tensor in enumerate(tensors)
    )
    rows = "".join(
        f"  {{{c_string(tensor.name)}, {c_string(tensor.dtype)}, {len(tensor.shape)}, {kind}_shape{index}, {tensor.bytes}, "
        f"{_float(tensor.scale or 0.0)}, {tensor.zero_point or 0}}},\n"
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
                lines[f"extern int32_t {variant.symbols[call.kernel]}({', '.join(params)});"] = None
    return "\n".join(lines)


def _run(library: CLibrary, number: int, variant: Variant) -> str:
    calls = "".join(f"  {_call(library, number, variant, call)};\n" for call in variant.plan.calls)
    unused = "  (void)inputs;\n  (void)workspace;\n"
    return (
        f"static void run_{number}(const void* const* inputs, void* const* outputs, uint8_t* workspace) {{\n{unused}{calls}}}\n"
    )


def _call(library: CLibrary, number: int, variant: Variant, call: PlannedCall) -> str:
    pointers = [_pointer(operand, constants_symbol(library, number)) for operand in call.operands]
    if call.kernel is None:
        return f"memcpy({pointers[1]}, {pointers[0]}, {call.bytes})"
    return f"{variant.symbols[call.kernel]}({', '.join(pointers)})"


def _pointer(operand: Operand, constants: str) -> str:
    if operand.region in ("input", "output"):
        assert operand.offset == 0, "a kernel reads and writes whole tensors"
        return f"{operand.region}s[{operand.index}]"
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
