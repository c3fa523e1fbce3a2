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

from ..backends.cpu.guest import External, static_libraries
from ..backends.protocol import CodeGenerator, CSource, where_of
from ..backends.toolkit import c_array
from ..composites.attributes import Composite, read_composite
from ..errors import CompileError
from ..graph.dataflow import dtype_of, static_shape

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
TVM_FFI_DLL_EXPORT int __tvm_ffi_{symbol}(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {{
  if (count != {count}) return -1;
  char *memory = (char *)malloc({memory});
  if (memory == 0) return -1;
{body}  free(memory);
  result->type_index = kTVMFFINone;
  result->v_int64 = 0;
  return 0;
}}
"""
_ALIGNMENT = 64


def register_codegen(backend: CodeGenerator) -> None:
    """Register ``relax.ext.NAME``, which turns the functions of a back end into object code."""
    name = backend.description.name

    def codegen(functions: Sequence[relax.Function], _options: Any, _names: Any) -> list[Any]:
        regions = [_Region(backend, function) for function in functions]
        externals: dict[str, External] = {}
        for region in regions:
            region.write()
            externals |= region.externals
        return static_libraries(externals)

    tvm_ffi.register_global_func(f"relax.ext.{name}", codegen, override=True)


@dataclass(kw_only=False, slots=True, eq=False)
class _Region:
    """One function with Codegen: composites and their calls."""

    backend: CodeGenerator
    function: relax.Function
    externals: dict[str, External] = field(default_factory=dict[str, External])
    _lines: list[str] = field(default_factory=list[str])
    _declarations: list[str] = field(default_factory=list[str])
    _places: dict[Var, str] = field(default_factory=dict[Var, str])
    _memory: int = 0

    @property
    def symbol(self) -> str:
        """Its symbol in the library."""
        return str(self.function.attrs["global_symbol"])

    def write(self) -> None:
        """Fill `externals`: the code of each composite, and an entry that calls them."""
        composites: dict[Any, Composite] = {}
        outputs: list[Any] = _outputs(self.function)
        results = [*self.function.params, *outputs]
        for number, var in enumerate(self.function.params):
            self._places[var] = f"octavo_data(&args[{number}])"
        aliases = _aliases(self.function)
        for block in self.function.body.blocks:
            for binding in block.bindings:
                value: Any = binding.value
                if isinstance(value, relax.Function):
                    # TVM makes a region's symbol of all ops in it: too long a name to read.
                    digest = hashlib.sha256(self.symbol.encode()).hexdigest()[:8]
                    name = f"{self.backend.description.name}_{digest}_{len(composites)}"
                    composites[binding.var] = read_composite(name, value)
                elif (composite := composites.get(getattr(value, "op", None))) is not None:
                    read: list[Any] = list(value.args)
                    self._call(composite, [aliases.get(var, var) for var in read], binding.var)
                elif not isinstance(value, (relax.Var, relax.Tuple)):
                    raise CompileError(f"{self.symbol}: {binding.var.name} is no composite of {self.backend.description.name}")
        for number, var in enumerate(outputs, len(self.function.params)):
            size = _bytes(var)
            self._lines.append(f"memcpy(octavo_data(&args[{number}]), {self._places[aliases.get(var, var)]}, {size});")
        body = "".join(f"  {line}\n" for line in self._lines)
        entry = _ENTRY.format(symbol=self.symbol, count=len(results), memory=max(self._memory, 1), body=body)
        source = CSource(text=f"{_HEAD}{''.join(self._declarations)}{entry}", symbol=f"__tvm_ffi_{self.symbol}")
        headers = (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())
        self.externals[source.symbol] = External(source=source, where=self.symbol, headers=headers)

    def _call(self, composite: Composite, inputs: list[Any], output: Var) -> None:
        code = self.backend.code_of(composite)
        if isinstance(code.source, tvm.tirx.PrimFunc):
            raise CompileError(f"{where_of(composite)}: RunCodegen takes C source or object code, its back end gives a PrimFunc")
        source = code.source
        self.externals[source.symbol] = External(source=source, where=where_of(composite))
        layout = str(getattr(composite.op, "layout", "NHWC")) if code.layout == "NHWC" else "NHWC"
        arguments = [self._swapped(self._places[var], var) if layout == "NCHW" else self._places[var] for var in inputs]
        for number, constant in enumerate(code.constants):
            name = f"{source.symbol}_{number}"
            self._declarations.append(_definition(name, np.ascontiguousarray(constant)))
            arguments.append(name)
        if code.workspace:
            arguments.append(self._room(code.workspace))
        result = self._room(_bytes(output))
        pointers = ", ".join("void *" for _ in (*arguments, result))
        self._declarations.append(f"extern void {source.symbol}({pointers.replace('void *', 'const void *')});\n")
        self._lines.append(f"{source.symbol}({', '.join((*arguments, result))});")
        self._places[output] = self._swapped(result, output, to_first=True) if layout == "NCHW" else result

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
        room, (batch, channels, rows, columns) = self._room(_bytes(var)), shape
        first, second = (rows * columns, channels) if to_first else (channels, rows * columns)
        self._lines.append(f"octavo_swap({place}, {room}, {batch}, {first}, {second}, {_width(var)});")
        return room


def _definition(name: str, values: np.ndarray[Any, Any]) -> str:
    if values.dtype.kind in "iu":
        return c_array(name, values)
    if values.dtype == np.float32:
        return f"static const float {name}[{values.size}] = {{{', '.join(float(v).hex() for v in values.ravel())}}};\n"
    raise CompileError(f"{name}: a constant is {values.dtype}; a C source takes integers and float32")


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


def _bytes(var: Var) -> int:
    shape = static_shape(var)
    if shape is None:
        raise CompileError(f"{var.name}: its shape is symbolic; code generators take static ones")
    return math.prod(shape) * _width(var)
