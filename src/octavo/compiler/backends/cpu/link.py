"""Putting kernels into the module: calls to external symbols become call_tir of their PrimFuncs.

The kernels are plain loops without s_tir blocks, which TVM's passes over TIR blocks (operator patterns, fusion, reshape
rewriting) can't read. So these run first, over the float remainder, and the kernels enter after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import tvm
from tvm.ir import Call, GenericConst, GlobalVar
from tvm.relax import Expr, Var

from ....errors import CompileError, OctavoError
from ....ir.graph.bool_comparisons import compared_as_integers
from ....ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    attrs_of,
    eliminate_dead_code,
    new_main,
    replace_operands,
)
from ....ir.graph.integer_division import guarded_divisions
from ....ir.graph.kernel_attributes import KERNEL_ATTR
from ....ir.graph.nodes import constant
from ....ir.graph.sizes import buffers_and_dimensions, open_dimensions
from ....ir.untyped import relax, tirx
from ....runtime.mapped import runs_on
from ....runtime.size import Size
from ....runtime.tensors import array_of
from ..external import static_libraries
from .context import PlacedKernel
from .copy_rows import copy_rows
from .inline_indices import inline_indices
from .join_sizes import join_sizes
from .kernels import without_vbmi
from .legalize import legalizations
from .lowering import Lowered
from .rewrite_views import rewrite_views
from .settle_rounding import settle_rounding
from .share_kernels import Numbers, share_kernels
from .start_sums import start_sums


def float_passes() -> tvm.transform.Pass:
    """Return TVM's own passes over what stays float: legalize, fold, fuse."""
    return tvm.transform.Sequential(
        [
            relax.transform.CanonicalizeBindings(),
            # Sorting and running sums (TopK, CumSum) have no plain loops: LegalizeOps leaves them.
            relax.backend.DispatchSortScan(),
            relax.transform.LegalizeOps(legalizations()),
            guarded_divisions(),
            compared_as_integers(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            tvm.transform.module_pass(lambda module, _: inline_indices(module), opt_level=0, name="InlineIndices"),
            relax.transform.FuseOps(),
            tvm.transform.module_pass(lambda module, _: join_sizes(module), opt_level=0, name="JoinSizes"),
            relax.transform.FuseTIR(),
            tvm.transform.module_pass(lambda module, _: settle_rounding(module), opt_level=0, name="SettleRounding"),
            tvm.transform.module_pass(lambda module, _: eliminate_dead_code(module), opt_level=0, name="EliminateDeadCode"),
            tvm.transform.module_pass(lambda module, _: start_sums(module), opt_level=0, name="StartSums"),
            # Reshapes become views of the same memory; it must see TIR blocks, so it comes before the kernels.
            tvm.transform.module_pass(lambda module, _: rewrite_views(module), opt_level=0, name="RewriteViews"),
            relax.transform.RewriteDataflowReshape(),
            tvm.transform.module_pass(lambda module, _: copy_rows(module), opt_level=0, name="CopyRows"),
        ]
    )


def link(lowered: Lowered, target: tvm.target.Target) -> tvm.IRModule:
    """Run TVM's float passes, then replace each external kernel call by call_tir.

    Before::

        y = R.call_dps_packed("octavo_kernel_3", (x, w), out_ty=R.Tensor((1, 56, 56, 24), "uint8"))

    After::

        y = R.call_tir(cls.octavo_kernel_3, (x, w), out_ty=R.Tensor((1, 56, 56, 24), "uint8"))

    Raises
    ------
    CompileError
        Where TVM has no way to compute an op that stays float; where the code of another back end cannot be compiled.
    """
    try:
        with target:
            module = float_passes()(_with_constants_that_run(lowered.module))
    except OctavoError:
        raise
    except Exception as error:  # whatever TVM's legalizations assert
        said = [line for line in str(error).strip().splitlines() if line and not line.startswith("#")]
        raise CompileError(f"TVM cannot compute an op that stays float: {said[-1] if said else type(error).__name__}") from error
    builder = relax.BlockBuilder(module)
    kernels, numbers = share_kernels(lowered.kernels)
    placed: dict[str, GlobalVar] = {}
    linked: dict[GlobalVar, Any] = {}
    for symbol, kernel in kernels.items():
        named: Any = _linked_kernel(kernel, target)
        placed[symbol] = GlobalVar(builder.get_unique_name(symbol))
        relax.expr._update_type(placed[symbol], named.ty)
        # Not by `add_func`, which compares what it is given with all that is there: no two functions have one symbol.
        linked[placed[symbol]] = named
    main = module["main"]
    view = DataflowView(main)
    variables = open_dimensions(main)
    mapping: dict[int, Expr] = {}  # by the address of the variable

    def dimension(name: str) -> Any:
        return variables.setdefault(name, tirx.Var(name, "int64"))

    @cache
    def expression(size: int | Size) -> Any:
        """Return a size, the same for equal ones: it takes long to write, and to read again."""
        return size.expression(dimension) if isinstance(size, Size) else tirx.IntImm("int32", size)

    def mapped(var: Var) -> Expr:
        return mapping.get(hash(var), var)

    def body(writer: BodyWriter) -> Expr:
        for binding in view.bindings:
            value = _linked(replace_operands(binding.value, mapped), placed, lowered.kernels, numbers, expression)
            mapping[hash(binding.var)] = writer.emit(binding.var.name, value, is_output=view.is_returned(binding.var))
        return replace_operands(view.result, mapped)

    linked_main = new_main(list(main.params), body, attrs_of(main))
    result = builder.get()
    result.update_func(result.get_global_var("main"), linked_main)
    for var, function in linked.items():
        result.update_func(var, function)
    if lowered.externals:
        others = list(result.attrs["external_mods"]) if result.attrs and "external_mods" in result.attrs else []
        result = result.with_attr("external_mods", [*others, *static_libraries(lowered.externals)])
    return result


def _with_constants_that_run(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with copies of constants that lie where kernels can't read them: of what no kernel packs."""
    main = module["main"]
    view = DataflowView(main)
    copies = {
        int(each.value.data_ptr()): constant(array_of(each.value))
        for value in (*(binding.value for binding in view.bindings), view.result)
        for each in _constants_in(value)
        if not runs_on(each.value)
    }
    if not copies:
        return module
    mapping: dict[int, Expr] = {}

    def mapped(value: Expr) -> Expr:
        return _with_copies(replace_operands(value, lambda var: mapping.get(hash(var), var)), copies)

    def body(writer: BodyWriter) -> Expr:
        for binding in view.bindings:
            value, is_output = mapped(binding.value), view.is_returned(binding.var)
            mapping[hash(binding.var)] = writer.emit(binding.var.name, value, is_output=is_output)
        return mapped(view.result)

    result = module.clone()
    result.update_func(result.get_global_var("main"), new_main(list(main.params), body, attrs_of(main)))
    return result


def _constants_in(value: Any) -> Iterator[GenericConst]:
    if isinstance(value, GenericConst):
        yield value
    for each in value.args if isinstance(value, Call) else value.fields if isinstance(value, relax.Tuple) else ():
        yield from _constants_in(each)


def _with_copies(value: Any, copies: Mapping[int, Expr]) -> Any:
    """Return an expression with constants exchanged, by the addresses of their values."""
    if isinstance(value, GenericConst):
        return copies.get(int(value.value.data_ptr()), value)
    if not any(int(each.value.data_ptr()) in copies for each in _constants_in(value)):
        return value
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_with_copies(each, copies) for each in value.fields])
    return Call(value.op, [_with_copies(each, copies) for each in value.args], value.attrs, value.ty_args, value.span, value.ty)


def _linked_kernel(kernel: PlacedKernel, target: tvm.target.Target) -> tvm.tirx.PrimFunc:
    """Return the PrimFunc of a kernel as `link` puts it into the module."""
    func: Any = without_vbmi(kernel.func, target)
    return func.with_attr("global_symbol", kernel.symbol).with_attr(KERNEL_ATTR, kernel.name)


def _linked(
    value: Expr,
    placed: dict[str, GlobalVar],
    kernels: dict[str, PlacedKernel],
    numbers: dict[str, Numbers],
    expression: Callable[[int | Size], Any],
) -> Expr:
    if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.Op) or value.op.name != "relax.call_dps_packed":
        return value
    symbol = str(getattr(value.args[0], "global_symbol", ""))
    if symbol not in kernels:
        return value
    taken: Numbers = numbers.get(symbol) or tuple(
        Size.named(str(each.name)) for each in buffers_and_dimensions(kernels[symbol].func)[1]
    )
    given = map(expression, taken)
    return relax.call_tir(placed[symbol], relax.Tuple([*value.args[1].fields, *given]), out_ty=value.ty_args[0])
