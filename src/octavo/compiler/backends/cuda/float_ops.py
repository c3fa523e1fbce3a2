"""What stays float: TVM's own kernels, scheduled by its dlight rules, as launches among ours. No quantized value in here.

TVM's passes lower a group of Relax ops to kernels and the host code that launches them. The kernels' CUDA C is taken as it is,
and of the host code which kernel gets which tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call, GenericConst, GlobalVar
from tvm.relax import Expr, Var
from tvm.s_tir import dlight
from tvm.s_tir.pipeline import default_s_tir_pipeline

from ....errors import CompileError
from ....ir.graph.dataflow import BodyWriter, DataflowView, dtype_of, op_name, replace_operands, static_shape, write_function
from ....ir.graph.lineage import lineage_paused
from ....ir.untyped import tirx
from ....runtime.size import names_in
from .emission import Emission, Value
from .isa import Isa
from .kernel import BYTES, Argument, Kernel
from .plan import Buffer


def emit_float_ops(
    bindings: Sequence[relax.VarBinding], results: Sequence[Var], values: Mapping[Var, Value], emission: Emission
) -> dict[Var, Value]:
    """Launch TVM's kernels for a group of Relax ops.

    Parameters
    ----------
    bindings
        The ops, in their order.
    results
        Their variables that are read behind them.
    values
        Where the tensors lie that they read.

    Returns
    -------
    dict
        Where each of `results` lies, as the source has it.

    Raises
    ------
    CompileError
        TVM has no schedule for one of them, or its kernels don't fit a launch.
    """
    read = _read(bindings)
    names = ", ".join(dict.fromkeys(op_name(binding.value) for binding in bindings))
    try:
        with lineage_paused():
            module = _lowered(_function(bindings, read, results), emission.isa)
            functions = _device_functions(module, emission.isa)
    except (RuntimeError, ValueError, TypeError, tvm.error.InternalError) as error:
        raise CompileError(f"TVM compiles {names} for {emission.isa.name} not: {str(error).strip().splitlines()[-1]}") from error
    sources = [emission.lying(values[var], is_nhwc=False) for var in read]
    return dict(zip(results, _launched(module, functions, sources, emission), strict=True))


def _read(bindings: Sequence[relax.VarBinding]) -> list[Var]:
    """Return the variables that come from before, in the order in which they are read."""
    own = {binding.var for binding in bindings}
    found: dict[Var, None] = {}

    def note(var: Var) -> Expr:
        if var not in own:
            found.setdefault(var)
        return var

    for binding in bindings:
        replace_operands(binding.value, note)
    return list(found)


def _function(bindings: Sequence[relax.VarBinding], read: Sequence[Var], results: Sequence[Var]) -> tvm.IRModule:
    """Return a module of one function of these ops."""
    params = {var: relax.Var(var.name, var.ty) for var in read}
    new: dict[Var, Expr] = dict(params)

    def body(writer: BodyWriter) -> Expr:
        for binding in bindings:
            value = replace_operands(binding.value, lambda var: new.get(var, var))
            new[binding.var] = writer.emit(binding.var.name, value, is_output=binding.var in results)
        return relax.Tuple([new[var] for var in results])

    builder = relax.BlockBuilder()
    write_function(builder, "main", list(params.values()), body, {})
    return builder.get()


def _lowered(module: tvm.IRModule, isa: Isa) -> tvm.IRModule:
    """Return Relax ops as calls of scheduled PrimFuncs."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(["main"]),
        relax.transform.RewriteDataflowReshape(),
    ]
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Transpose(), gpu.Fallback())
    schedule: Any = dlight.ApplyDefaultSchedule(*rules)
    with _target(isa):
        return schedule(tvm.transform.Sequential(passes)(module))


def _target(isa: Isa) -> tvm.target.Target:
    return tvm.target.Target({"kind": "cuda", "arch": isa.arch}, host="llvm")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Call:
    """One launch in the host code of a PrimFunc.

    Each operand is the number of the function's parameter, or the size in bytes of memory that lives as long as the call.
    """

    kernel: Kernel
    operands: tuple[tuple[str, int], ...]


@tvm.instrument.pass_instrument
class _BeforePacking:
    """Leaves host code as it is before it takes packed arguments: parameters are its tensors then."""

    def should_run(self, _module: tvm.IRModule, info: Any) -> bool:
        return str(info.name) not in ("tirx.MakePackedAPI", "tirx.FP8StorageLegalize", "tirx.BF16StorageLegalize")


def _device_functions(module: tvm.IRModule, isa: Isa) -> dict[str, list[_Call]]:
    """Return the launches of each PrimFunc of a module, by its name."""
    own = {
        var: func.with_attr("global_symbol", var.name_hint)
        for var, func in module.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    if not own:
        return {}
    target = _target(isa)
    pipeline: Any = default_s_tir_pipeline()
    passes, _, finalize = pipeline
    with target, tvm.transform.PassContext(opt_level=3, instruments=[_BeforePacking()]):
        split = passes(tirx.transform.BindTarget(target)(tvm.IRModule(own)))
    is_kernel = {var.name_hint: "tirx.kernel_launch_params" in func.attrs for var, func in split.functions_items()}
    device = tvm.IRModule({var: func for var, func in split.functions_items() if is_kernel[var.name_hint]})
    source = _cuda_c(finalize()(device))
    hosts = {var.name_hint: func for var, func in split.functions_items() if not is_kernel[var.name_hint]}
    return {name: _calls(func, source, isa) for name, func in hosts.items()}


_ASKING = Lock()
"""TVM's code generator tells what it wrote by a function that is registered for the whole process."""
_SAYS, _COMPILES = "tvm_callback_cuda_postproc", "tvm_callback_cuda_compile"


def _generated(module: tvm.IRModule) -> str:
    """Return the CUDA C that TVM generates for kernels; nothing is compiled."""
    texts: list[str] = []

    def keep(code: str, _target: Any) -> str:
        texts.append(str(code))
        return str(code)

    with _ASKING:
        before = {name: tvm.get_global_func(name, allow_missing=True) for name in (_SAYS, _COMPILES)}
        tvm.register_global_func(_SAYS, keep, override=True)
        tvm.register_global_func(_COMPILES, lambda code, *_: b"", override=True)
        try:
            tvm.get_global_func("target.build.cuda")(module, next(iter(module.functions.values())).attrs["target"])
        finally:
            for name, function in before.items():
                if function is None:
                    tvm_ffi.registry.remove_global_func(name)
                else:
                    tvm.register_global_func(name, function, override=True)
    (text,) = texts
    return text


def _cuda_c(module: tvm.IRModule) -> dict[str, str]:
    """Return the CUDA C of each kernel, by its name."""
    found: dict[str, str] = {}
    for part in re.split(r'(?=^extern "C" __global__ )', _generated(module), flags=re.MULTILINE)[1:]:
        head = re.match(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(', part)
        if head is not None and "{" in part.split(";", 1)[0]:  # the others are declarations
            # Host compilers want an alignment before what says where a variable lies; NVRTC takes both.
            found[head[1]] = re.sub(r"__shared__ (alignas\(\d+\)) ", r"\1 __shared__ ", part.strip())
    return found


_LAUNCH = tvm.ir.Op.get("tirx.call_ffi_kernel")
_AXES = {"blockIdx.x": 0, "blockIdx.y": 1, "blockIdx.z": 2, "threadIdx.x": 3, "threadIdx.y": 4, "threadIdx.z": 5}
_SHARED = "tirx.use_dyn_shared_memory"


def _calls(func: Any, source: Mapping[str, str], isa: Isa) -> list[_Call]:
    """Read the launches off the host code of a PrimFunc: buffers under other shapes, own memory, then calls of kernels."""
    roots: dict[Any, tuple[str, int]] = {param: ("parameter", number) for number, param in enumerate(func.params)}
    dtypes: dict[tuple[str, int], str] = {("parameter", number): str(param.ty.dtype) for number, param in enumerate(func.params)}
    calls: list[_Call] = []

    def declared(statement: Any) -> None:
        roots[statement.buffer] = roots[statement.data.args[0]]

    def allocated(statement: Any) -> None:
        dtype, size = str(statement.buffer.ty.dtype), int(np.prod([int(each) for each in statement.buffer.ty.shape]))
        roots[statement.buffer] = root = f"own {len(roots)}", size * BYTES[dtype]
        dtypes[root] = dtype

    def called(call: Any) -> None:
        if not _LAUNCH.same_as(call.op):
            return
        name, tags = str(call.args[0].value), [str(tag) for tag in call.attrs.launch_params]
        tensors, extents = call.args[1 : len(call.args) - len(tags)], call.args[len(call.args) - len(tags) :]
        operands = tuple(roots[tensor.args[0]] for tensor in tensors)
        sizes = {tag: int(extent) for tag, extent in zip(tags, extents, strict=True)}
        calls.append(
            _Call(kernel=_kernel(name, source[name], sizes, [dtypes[each] for each in operands], isa), operands=operands)
        )

    statements = ((tirx.DeclBuffer, declared), (tirx.AllocBuffer, allocated), (Call, called))
    tvm_ffi.structural_walk(func.body, statements)
    return calls


def _kernel(name: str, text: str, sizes: Mapping[str, int], dtypes: Sequence[str], isa: Isa) -> Kernel:
    """Return a kernel of TVM's as one of ours."""
    extents = [1] * 6
    for tag, size in sizes.items():
        if tag != _SHARED:
            extents[_AXES[tag]] = size
    return Kernel(
        name=f"tvm_{name.removesuffix('_kernel')}",
        header="tvm.cuh",
        function=name,
        parameters={},
        arguments=tuple(Argument(name=f"a{number}", dtype=dtype, writes=True) for number, dtype in enumerate(dtypes)),
        grid=(extents[0], extents[1], extents[2]),
        block=(extents[3], extents[4], extents[5]),
        isa=isa.name,
        shared_bytes=sizes.get(_SHARED, 0),
        text=text,
    )


def _launched(
    module: tvm.IRModule, functions: Mapping[str, list[_Call]], sources: Sequence[Value], emission: Emission
) -> list[Value]:
    """Write the launches of a lowered module; return its results."""
    view = DataflowView(module["main"])
    values: dict[Var, Value] = {
        param: Value(buffer=source.buffer, shape=static_shape_of(param), dtype=source.dtype)
        for param, source in zip(view.function.params, sources, strict=True)
    }
    tuples: dict[Var, list[Value]] = {}

    def value_of(expr: Expr) -> Value:
        if isinstance(expr, GenericConst):
            return emission.given(expr.value.numpy())
        assert isinstance(expr, Var)
        return values[expr]

    for binding in view.bindings:
        var, value = binding.var, binding.value
        if isinstance(value, (Var, GenericConst)):
            values[var] = value_of(value)
        elif isinstance(value, relax.TupleGetItem):
            values[var] = tuples[_variable(value.tuple_value)][value.index]
        elif op_name(value) == "reshape" and isinstance(value, Call):
            x = value_of(value.args[0])
            values[var] = Value(buffer=x.buffer, shape=static_shape_of(var), dtype=x.dtype)
        else:
            assert isinstance(value, Call)
            assert isinstance(value.args[0], GlobalVar), f"{op_name(value)} is no call of a PrimFunc"
            results = [emission.new(*each) for each in _results_of(var)]
            operands = [*(value_of(each) for each in value.args[1]), *results]
            _launch(functions[value.args[0].name_hint], operands, emission)
            if isinstance(var.ty, relax.TupleType):
                tuples[var] = results
            else:
                (values[var],) = results
    return [value_of(each) for each in view.result.fields]


def _variable(expr: Expr) -> Var:
    assert isinstance(expr, Var), f"{op_name(expr)} is no variable in normal form"
    return expr


def _results_of(var: Var) -> list[tuple[tuple[int, ...], str]]:
    """Return shape and dtype of a call's result, or of each of its results."""
    fields = list(var.ty.fields) if isinstance(var.ty, relax.TupleType) else [var.ty]
    parts = [relax.Var(var.name, field) for field in fields]
    for part in parts:
        width_of(part, dtype_of(part))
    return [(static_shape_of(part), dtype_of(part)) for part in parts]


def _launch(calls: Sequence[_Call], operands: Sequence[Value], emission: Emission) -> None:
    own: dict[tuple[str, int], Buffer] = {}
    for call in calls:
        buffers = [
            operands[root[1]].buffer if root[0] == "parameter" else own.setdefault(root, Buffer(root[1]))
            for root in call.operands
        ]
        emission.steps.append((call.kernel, tuple(buffers)))


def static_shape_of(var: Var) -> tuple[int, ...]:
    """Return a variable's shape; CompileError where it is symbolic."""
    shape = static_shape(var)
    if shape is None or names_in(shape):
        raise CompileError(f"{var.name}: its shape is symbolic; kernels for CUDA have static ones: give sizes when loading")
    return shape


def width_of(var: Var, dtype: str) -> int:
    """Return the bytes of one of its elements; CompileError for a dtype that kernels don't hold."""
    if dtype not in BYTES:
        raise CompileError(f"{var.name}: kernels for CUDA hold no {dtype}: expected one of {', '.join(BYTES)}")
    return BYTES[dtype]
