"""What TVM's RunCodegen calls for a back end: functions with Codegen = NAME become C of the packed calling convention.

The back end's `generate` gives the code of each composite; here they are called in their order, with buffers between them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import Expr, Var

from ...errors import CompileError
from ...ir.composites.attributes import Composite, read_composite
from ...ir.graph.dataflow import dtype_of, static_shape
from ...ir.graph.lineage import CodeResults, announce_code
from ...ir.qdq.results import region_results
from ...runtime.size import names_in
from ..backends.external import External, c_types, static_libraries
from ..backends.protocol import Code, CodeGenerator, CSource, where_of

_HEAD = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

/* The data of an argument: a DLTensor, or an object that holds one. */
static void *octavo_data(const TVMFFIAny *argument) {
  DLTensor *tensor = argument->type_index == kTVMFFIDLTensorPtr
      ? (DLTensor *)argument->v_ptr : (DLTensor *)((char *)argument->v_obj + sizeof(TVMFFIObject));
  return (char *)tensor->data + tensor->byte_offset;
}

/* [batch][first][second][size bytes] -> [batch][second][first]: between channels first and channels last. */
static inline void octavo_swap(const char *x, char *y, int batch, int first, int second, int size) {
  for (int n = 0; n < batch; n++, x += first * second * size, y += first * second * size)
    for (int i = 0; i < first; i++)
      for (int j = 0; j < second; j++) memcpy(y + (j * first + i) * size, x + (i * second + j) * size, size);
}
"""
_ENTRY = """
TVM_FFI_DLL_EXPORT int {symbol}(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {{
  char *memory = count == {count} ? (char *)aligned_alloc({alignment}, {memory}) : 0;
  if (memory == 0) {{
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", count == {count} ? "out of memory" : "expected {count} arguments");
    return -1;
  }}
{body}  free(memory);
  result->type_index = kTVMFFINone;
  result->v_int64 = 0;
  return 0;
}}
"""
_ALIGNMENT = 64
_BYTES = np.array([f"\\{byte:03o}".encode() for byte in range(256)])
_LINE = 4000
"""Bytes of a line of a constant in C."""


class RunCodegenError(CompileError):
    """What goes wrong in a back end's code within RunCodegen."""


def register_codegen(backend: CodeGenerator) -> None:
    """Register ``relax.ext.NAME``, which turns the functions of a back end into object code."""
    name = backend.description.name
    # What Python code that C++ calls raises keeps its type only then.
    tvm_ffi.register_error(RunCodegenError.__name__, RunCodegenError)

    def codegen(functions: Sequence[relax.Function], _options: Any, _names: Any) -> list[Any]:
        library = _Library(backend)
        try:
            for function in functions:
                library.add(function)
            announce_code({str(each.attrs["global_symbol"]): _results(each) for each in functions})
            # Whoever exports the library may link the vendor's own to it.
            return static_libraries(library.externals(), is_complete=False)
        except CompileError as error:
            raise RunCodegenError(str(error)) from error

    tvm_ffi.register_global_func(f"relax.ext.{name}", codegen, override=True)


@dataclass(slots=True, eq=False)
class _Library:
    """The functions with Codegen of one module, as one C source; the code of their composites apart from it."""

    backend: CodeGenerator
    _called: dict[str, External] = field(default_factory=dict[str, External])
    _regions: list[_Region] = field(default_factory=list["_Region"])
    _constants: dict[bytes, str] = field(default_factory=dict[bytes, str])

    def add(self, function: relax.Function) -> None:
        """Write a function."""
        region = _Region(self, function)
        region.write()
        self._regions.append(region)

    def externals(self) -> dict[str, External]:
        """Return the functions of the source, by which TVM calls them, and those that they call."""
        constants = "".join(_definition(name, data) for data, name in self._constants.items())
        calls = "".join(f"extern void {each.symbol}();\n" for each in self._called.values())
        text = f"{_HEAD}{constants}{calls}{''.join(region.entry for region in self._regions)}"
        headers = (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())
        found = dict(self._called)
        for region in self._regions:
            source = CSource(text=text, symbol=region.entry_symbol)
            external = External(source=source, where=region.symbol, headers=headers, keeps_symbol=True)
            found[external.key] = external
        return found

    def call(self, code: Code, composite: Composite, dtypes: Sequence[str]) -> str:
        """Return the symbol of a composite's function."""
        source = code.source
        if isinstance(source, tvm.tirx.PrimFunc):
            raise CompileError(f"{where_of(composite)}: RunCodegen takes C source or object code, its back end gives a PrimFunc")
        external = External(source=source, where=where_of(composite), arguments=c_types(code, dtypes))
        return self._called.setdefault(external.key, external).symbol

    def constant(self, value: Any) -> str:
        """Return the name of a constant in the C source; equal ones are one."""
        data = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
        return self._constants.setdefault(data, f"octavo_constant_{len(self._constants)}")


@dataclass(slots=True, eq=False)
class _Region:
    """One function with Codegen: composites and their calls."""

    library: _Library
    function: relax.Function
    entry: str = ""
    _lines: list[str] = field(default_factory=list[str])
    _places: dict[Var, str] = field(default_factory=dict[Var, str])
    _memory: int = 0

    @property
    def symbol(self) -> str:
        """Its symbol, as TVM has it."""
        return str(self.function.attrs["global_symbol"])

    @property
    def entry_symbol(self) -> str:
        """Its symbol in the library."""
        return f"__tvm_ffi_{self.symbol}"

    def write(self) -> None:
        """Fill `entry`, which calls the code of each composite."""
        composites: dict[Any, Composite] = {}
        outputs: list[Any] = _outputs(self.function)
        for number, var in enumerate(self.function.params):
            self._places[var] = f"octavo_data(&args[{number}])"
        aliases = _aliases(self.function)
        name = self.library.backend.description.name
        for block in self.function.body.blocks:
            for binding in block.bindings:
                value: Any = binding.value
                if isinstance(value, relax.Function):
                    # TVM makes a region's symbol of all ops in it: too long a name to read.
                    digest = hashlib.sha256(self.symbol.encode()).hexdigest()[:8]
                    composites[binding.var] = read_composite(f"{name}_{digest}_{len(composites)}", value)
                elif (composite := composites.get(getattr(value, "op", None))) is not None:
                    read: list[Any] = list(value.args)
                    self._call(composite, [aliases.get(var, var) for var in read], binding.var)
                elif not isinstance(value, (relax.Var, relax.Tuple)):
                    raise CompileError(f"{self.symbol}: {binding.var.name} is no composite of {name}")
        count = len(self.function.params)
        for number, var in enumerate(outputs, count):
            size = _bytes(var, self.symbol)
            self._lines.append(f"memcpy(octavo_data(&args[{number}]), {self._places[aliases.get(var, var)]}, {size});")
        self.entry = _ENTRY.format(
            symbol=self.entry_symbol,
            count=count + len(outputs),
            alignment=_ALIGNMENT,
            memory=max(self._memory, _ALIGNMENT),
            body="".join(f"  {line}\n" for line in self._lines),
        )

    def _call(self, composite: Composite, inputs: list[Any], output: Var) -> None:
        where = where_of(composite)
        sizes = {var: _bytes(var, where) for var in (*inputs, output)}
        code = self.library.backend.code_of(composite)
        symbol = self.library.call(code, composite, [dtype_of(var) for var in (*inputs, output)])
        own = getattr(composite.op, "layout", None)
        if code.layout == "NHWC" and own is None:
            raise CompileError(f"{where}: layout 'NHWC' is for ops that have a layout, not for {composite.op_name}")
        is_swapped = code.layout == "NHWC" and own == "NCHW"
        arguments = [self._swapped(self._places[var], var) if is_swapped else self._places[var] for var in inputs]
        arguments += [self.library.constant(constant) for constant in code.constants]
        if code.workspace:
            arguments.append(self._room(code.workspace))
        result = self._room(sizes[output])
        self._lines.append(f"{symbol}({', '.join((*arguments, result))});")
        self._places[output] = self._swapped(result, output, to_first=True) if is_swapped else result

    def _room(self, size: int) -> str:
        start = self._memory
        self._memory += -(-size // _ALIGNMENT) * _ALIGNMENT
        return f"(memory + {start})"

    def _swapped(self, place: str, var: Var, *, to_first: bool = False) -> str:
        """Copy a tensor between channels first, as the graph has it, and channels last."""
        shape = static_shape(var)
        assert shape is not None
        if len(shape) != 4:
            return place
        room, (batch, channels, rows, columns) = self._room(_bytes(var, "")), shape
        first, second = (rows * columns, channels) if to_first else (channels, rows * columns)
        self._lines.append(f"octavo_swap({place}, {room}, {batch}, {first}, {second}, {_width(var)});")
        return room


def _results(function: relax.Function) -> CodeResults:
    """Return which tensors a function gives and computes, for those who follow them."""
    results = tuple("" if entry is None else str(entry["id"]) for entry in region_results(function))
    inner: list[str] = []
    for composite in (binding.value for block in function.body.blocks for binding in block.bindings):
        if isinstance(composite, relax.Function):
            bindings = (binding for block in composite.body.blocks for binding in block.bindings)
            inner += [str(binding.var.name) for binding in bindings]
    return CodeResults(results=results, computed=tuple(dict.fromkeys(inner)))


def _definition(name: str, data: bytes) -> str:
    """Return a C definition of bytes: as text, which compilers read many times as fast as numbers."""
    rows = (_BYTES[np.frombuffer(data[at : at + _LINE], np.uint8)].tobytes().decode() for at in range(0, len(data), _LINE))
    lines = "\n".join(f'"{row}"' for row in rows) or '""'
    return f"static const _Alignas({_ALIGNMENT}) unsigned char {name}[{max(len(data), 1)}] =\n{lines};\n"


def _outputs(function: relax.Function) -> list[Any]:
    body: Expr = function.body.body
    for block in function.body.blocks:
        for binding in block.bindings:
            if binding.var.same_as(body) and isinstance(binding.value, relax.Tuple):
                body = binding.value
    fields: Any = body.fields if isinstance(body, relax.Tuple) else [body]
    return list(fields)


def _aliases(function: relax.Function) -> Mapping[Var, Var]:
    found: dict[Var, Var] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Var):
                found[binding.var] = found.get(binding.value, binding.value)
    return found


def _width(var: Var) -> int:
    return np.dtype(dtype_of(var)).itemsize


def _bytes(var: Var, where: str) -> int:
    shape = static_shape(var)
    if shape is None or names_in(shape):
        raise CompileError(f"{where}: the shape of {var.name} is symbolic; code generators take static ones")
    return math.prod(shape) * _width(var)
