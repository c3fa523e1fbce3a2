"""TVM's own way to bring a back end: patterns for FuseOpsByPattern, and what RunCodegen calls, from one CodeGenerator."""

from __future__ import annotations

from ..backends.protocol import CodeGenerator, check_backend
from .codegen import register_codegen
from .patterns import duplicate_dequantize, patterns, register_patterns

__all__ = ["duplicate_dequantize", "patterns", "register", "register_codegen", "register_patterns"]


def register(backend: CodeGenerator) -> None:
    """Give TVM a back end under its name: patterns ``NAME.conv2d`` ... in its registry, and ``relax.ext.NAME`` for RunCodegen.

    ::

        octavo.compiler.byoc.register(ToyNpu())
        module = octavo.compiler.byoc.duplicate_dequantize()(module)             # QDQ, constants bound
        module = relax.transform.FuseOpsByPattern(get_patterns_with_prefix("toynpu"))(module)
        module = relax.transform.MergeCompositeFunctions()(module)
        module = relax.transform.RunCodegen()(module)
        library = tvm.compile(module, "llvm", relax_pipeline=octavo.relax_pipeline())

    A back end that is registered again takes the place of the one before.
    """
    check_backend(backend)
    register_codegen(backend)
    register_patterns(backend.description)
