"""The small files around a library's source: constants for the assembler, build files, and examples. It writes none of them."""

from __future__ import annotations

from .indices import IndexText
from .library import CLibrary
from .sizes import SizeText
from .source import constants_symbol
from .state import StateText

_CMAKE = """# Builds the library {n} and its example. Written by Octavo.
cmake_minimum_required(VERSION 3.13)
project({n} C ASM)

file(GLOB {n}_objects "${{CMAKE_CURRENT_SOURCE_DIR}}/objects/*.o")
set_source_files_properties(${{{n}_objects}} PROPERTIES EXTERNAL_OBJECT TRUE)
set_source_files_properties({n}_constants.S PROPERTIES OBJECT_DEPENDS "${{CMAKE_CURRENT_SOURCE_DIR}}/{n}_constants.bin")

add_library({n} {n}.c {n}_constants.S ${{{n}_objects}})
set_target_properties({n} PROPERTIES C_STANDARD 11 POSITION_INDEPENDENT_CODE ON)
target_include_directories({n} PUBLIC "$<BUILD_INTERFACE:${{CMAKE_CURRENT_SOURCE_DIR}}>" $<INSTALL_INTERFACE:include>)
target_include_directories({n} PRIVATE "${{CMAKE_CURRENT_SOURCE_DIR}}")
target_link_libraries({n} PUBLIC m)

add_executable({n}_example main.c)
set_target_properties({n}_example PROPERTIES C_STANDARD 11)
target_link_libraries({n}_example PRIVATE {n})

install(TARGETS {n} ARCHIVE DESTINATION lib LIBRARY DESTINATION lib)
install(FILES {n}.h DESTINATION include)
"""

_PKG_CONFIG = """prefix=${{pcfiledir}}

Name: {n}
Description: A model as a C library, written by Octavo
Version: 1
Cflags: -I${{prefix}}
Libs: -L${{prefix}} -l{n} -lm
"""

_CONSTANTS = """/* The constants of {n}: packed weights, biases, multipliers. Written by Octavo. */
#ifdef __wasm__
        .section .rodata.{n},"",@
#else
        .section .rodata
#endif
{symbols}
#ifndef __wasm__
        .section .note.GNU-stack,"",%progbits
#endif
"""

_SYMBOL = """        .global {symbol}
        .hidden {symbol}
        .p2align 6
{symbol}:
        .incbin "{n}_constants.bin", {offset}, {size}
        .size {symbol}, {size}
"""

_MAIN = """{about}
{includes}
{buffers}static unsigned char* const input_data[] = {{{input_names}}};

static int fail(const char* what) {{
  {std}fprintf(stderr, "%s\\n", what);
  return 1;
}}

int main(int argc, char** argv) {{
  const void* const inputs[] = {{{input_names}}};
  void* const outputs[] = {{{output_names}}};
  const int files = {N}_INPUTS + {N}_OUTPUTS;
  const long calls = argc == files + 2 ? {std}strtol(argv[files + 1], {null}, 10) : 1;
  int i, code = {N}_OK;
  if (argc != files + 1 && argc != files + 2)
    return fail("give a file of raw values for each input, then a file to write for each output");
  for (i = 0; i < {N}_INPUTS; i++) {{
    {std}FILE* file = {std}fopen(argv[1 + i], "rb");
    if (file == {null}) return fail("cannot open an input file");
    const {std}size_t got = {std}fread(input_data[i], 1, {n}_inputs[i].bytes, file);
    {std}fclose(file);
    if (got != {n}_inputs[i].bytes) return fail("an input file is too short");
  }}
  for (long call = 0; call < calls && code == {N}_OK; call++) code = {n}_run(inputs, outputs, workspace);
{indices}  if (code != {N}_OK) return fail({n}_error(code));
  for (i = 0; i < {N}_OUTPUTS; i++) {{
    {std}FILE* file = {std}fopen(argv[1 + {N}_INPUTS + i], "wb");
    if (file == {null}) return fail("cannot open an output file");
    const {std}size_t put = {std}fwrite(outputs[i], 1, {n}_outputs[i].bytes, file);
    if ({std}fclose(file) != 0 || put != {n}_outputs[i].bytes) return fail("cannot write an output file");
  }}
  return 0;
}}
"""


_OPEN_MAIN = """{about}
#include "{n}.h"

#include <stdio.h>
#include <stdlib.h>

static int fail(const char* what) {{
  fprintf(stderr, "%s\\n", what);
  return 1;
}}

/* Returns a block at a multiple of {N}_ALIGNMENT. */
static void* block(size_t bytes) {{
  const size_t start = (size_t)malloc(bytes + 2 * {N}_ALIGNMENT);
  if (start == 0) exit(fail("no memory"));
  return (void*)((start + {N}_ALIGNMENT) / {N}_ALIGNMENT * {N}_ALIGNMENT);
}}

int main(int argc, char** argv) {{
  static {n}_needs needs;
  {n}_sizes sizes;
  const void* inputs[{N}_INPUTS];
  void* outputs[{N}_OUTPUTS];
  char text[256];
  char** files = argv + 1 + {count};
  int i, code;
  if (argc != 1 + {count} + {N}_INPUTS + {N}_OUTPUTS)
    return fail("give {names}, a file of raw values for each input, then a file to write for each output");
{sizes}  if ({n}_check(&sizes, text, sizeof text) != {N}_OK) return fail(text);
  {n}_find_needs(&sizes, &needs);
  for (i = 0; i < {N}_INPUTS; i++) {{
    FILE* file = fopen(files[i], "rb");
    void* data = block(needs.input_bytes[i]);
    if (file == 0) return fail("cannot open an input file");
    if (fread(data, 1, needs.input_bytes[i], file) != needs.input_bytes[i]) return fail("an input file is too short");
    fclose(file);
    inputs[i] = data;
  }}
  for (i = 0; i < {N}_OUTPUTS; i++) outputs[i] = block(needs.output_bytes[i]);
  code = {n}_run(&sizes, inputs, outputs, block(needs.workspace));
{indices}  if (code != {N}_OK) return fail({n}_error(code));
  for (i = 0; i < {N}_OUTPUTS; i++) {{
    FILE* file = fopen(files[{N}_INPUTS + i], "wb");
    if (file == 0 || fwrite(outputs[i], 1, needs.output_bytes[i], file) != needs.output_bytes[i] || fclose(file) != 0)
      return fail("cannot write an output file");
  }}
  return 0;
}}
"""


def cmake(library: CLibrary) -> str:
    """Return CMakeLists.txt, for static and for shared libraries (BUILD_SHARED_LIBS)."""
    return _CMAKE.format(n=library.name)


def pkg_config(library: CLibrary) -> str:
    """Return the pkg-config file, which works where the folder lies."""
    return _PKG_CONFIG.format(n=library.name)


def version_script(library: CLibrary) -> str:
    """Return what a shared library exports: what the header declares."""
    n = library.name
    names = [f"{n}_{each}" for each in ("init", "run", "error", "inputs", "outputs")]
    names += [f"{n}_find_needs", f"{n}_check"] if library.dimensions else []
    names += IndexText(library, SizeText(library)).exported()
    names += StateText(library, SizeText(library)).exported()
    return f"{{\n  global: {'; '.join(names)};\n  local: *;\n}};\n"


def constants_assembly(library: CLibrary) -> str:
    """Return the assembly text that puts the constants' file into .rodata."""
    symbols: list[str] = []
    offset = 0
    for number, variant in enumerate(library.variants):
        size = variant.plan.constants.nbytes
        symbol = constants_symbol(library, number)
        symbols.append(_SYMBOL.format(symbol=symbol, n=library.name, offset=offset, size=size))
        offset += size
    return _CONSTANTS.format(n=library.name, symbols="".join(symbols))


def example(library: CLibrary, *, is_cpp: bool) -> str:
    """Return a program that reads inputs from files, runs the model, and writes the outputs, in C11 or C++11."""
    n = library.name
    if library.dimensions:
        return _open_example(library, is_cpp=is_cpp)
    align = f"{'alignas' if is_cpp else '_Alignas'}({n.upper()}_ALIGNMENT)"
    headers = ("cstddef", "cstdio", "cstdlib") if is_cpp else ("stdio.h", "stdlib.h")
    counts = {"input": len(library.inputs), "output": len(library.outputs)}
    declared = {
        kind: "".join(
            f"{_static(align, is_cpp)} {kind}{index}[{n.upper()}_{kind.upper()}{index}_BYTES];\n" for index in range(count)
        )
        for kind, count in counts.items()
    }
    names = {kind: ", ".join(f"{kind}{index}" for index in range(count)) for kind, count in counts.items()}
    about = "Runs the model on files of raw values: main INPUT... OUTPUT... [CALLS]"
    return _MAIN.format(
        about=f"// {about}" if is_cpp else f"/* {about} */",
        includes=f'#include "{n}.h"\n\n' + "".join(f"#include <{each}>\n" for each in headers),
        buffers="".join(declared.values()) + f"{_static(align, is_cpp)} workspace[{n.upper()}_WORKSPACE_BYTES + 1];\n",
        n=n,
        N=n.upper(),
        std="std::" if is_cpp else "",
        null="nullptr" if is_cpp else "NULL",
        indices=IndexText(library, SizeText(library)).printed(),
        input_names=names["input"],
        output_names=names["output"],
    )


def _static(align: str, is_cpp: bool) -> str:
    return f"{align} static unsigned char" if is_cpp else f"static {align} unsigned char"


def _open_example(library: CLibrary, *, is_cpp: bool) -> str:
    """Return a program that takes the sizes, too; it is C and C++ at once."""
    about = "Runs the model on files of raw values: main SIZE... INPUT... OUTPUT..."
    return _OPEN_MAIN.format(
        about=f"// {about}" if is_cpp else f"/* {about} */",
        n=library.name,
        N=library.name.upper(),
        count=len(library.dimensions),
        indices=IndexText(library, SizeText(library)).printed(),
        names=", ".join(each.field for each in library.dimensions),
        sizes="".join(
            f"  sizes.{each.field} = strtoll(argv[{1 + number}], 0, 10);\n" for number, each in enumerate(library.dimensions)
        ),
    )
