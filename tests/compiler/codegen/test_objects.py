"""Keys of machine code, and what a module and a library hold besides the kernels."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.ir import StringImm
from tvm.script import tirx as T
from tvm_ffi import structural_equal, structural_hash

import octavo
from nets import residual_net
from octavo.compiler.codegen import generate as codegen
from octavo.compiler.codegen import tir_passes
from octavo.compiler.codegen.objects import distinct_functions, named_functions
from octavo.compiler.codegen.tir_passes import as_given, llvm_module, with_hidden_values
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR, OPEN_ATTR
from octavo.runtime.llvm_host import host_target

BASELINE = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"})
WITH_HALVES = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})


def function_of(*args):
    return tirx.PrimFunc([], tirx.Evaluate(tirx.call_extern("int32", "f", *args)))


def key_of(function):
    return named_functions({"f": function}, host_target()).key


def test_functions_that_share_a_hash_have_keys_of_their_own():
    """TVM's hash of two numbers is the same for many pairs of small ones."""
    functions = [function_of(a, b) for a, b in itertools.product(range(96, 128), range(32, 128, 3))]
    assert len({structural_hash(each) for each in functions}) < len(functions), "TVM's hash tells numbers apart now"
    assert len({key_of(each) for each in functions}) == len(functions)


def test_keys_tell_apart_what_makes_other_code():
    x, y = (tirx.Var(name, "int32") for name in "xy")
    made = [
        function_of(1),
        function_of(tirx.IntImm("int64", 1)),
        function_of(tirx.FloatImm("float32", 1.0)),
        function_of(StringImm("1")),
        *(tirx.PrimFunc(params, tirx.Evaluate(value)) for params in ([x, y], [y, x]) for value in (x + y, x * y, x - y, x)),
        function_of(1).with_attr("octavo.llvm", "text"),
    ]
    assert len({key_of(each) for each in made}) == len(made)
    assert key_of(function_of(1)) == key_of(function_of(1))


def test_the_last_keys_stay_known():
    module = tvm.IRModule({"f": function_of(987_654)})
    known = weakref.ref(distinct_functions(module, host_target())["f"])
    gc.collect()
    assert distinct_functions(module, host_target())["f"] is known() is not None


@pytest.mark.parametrize(("level", "is_open"), [(0, True), (2, False), (2, True)])
def test_common_subexpressions_of_open_sizes_are_looked_for_where_llvm_optimizes(monkeypatch, level, is_open):
    monkeypatch.setattr(tir_passes, "KERNEL_LEVEL", level)
    names = [each.info.name for each in tir_passes.kernel_passes(is_open).passes]
    assert ("tirx.CommonSubexprElim" in names) == (level > 0 and is_open)


@T.prim_func(private=True, s_tir=True)
def signs(x: T.Buffer((2, 3), "float32"), y: T.Buffer((6,), "bool")):
    positive = T.alloc_buffer((2, 3), "bool", scope="local")
    for i, j in T.grid(2, 3):
        positive[i, j] = x[i, j] > T.float32(0)
    for i, j in T.grid(2, 3):
        y[i * 3 + j] = positive[i, j]


def test_a_kernel_may_have_buffers_of_several_dimensions_and_of_booleans():
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    y = tvm.runtime.empty((6,), "bool")
    llvm_module({"signs": signs.with_attr(KERNEL_ATTR, "signs")}, host_target())["signs"](tvm.runtime.tensor(x), y)
    assert np.array_equal(y.numpy(), x.ravel() > 0)


@pytest.mark.parametrize(("target", "converts"), [(BASELINE, True), (WITH_HALVES, False)], ids=["x86-64", "x86-64-v3"])
def test_conversions_of_half_floats_come_where_the_machine_has_none(target, converts):
    code = str(llvm_module({"octavo_some": function_of(1)}, target).inspect_source("asm"))
    assert "octavo_some:" in code
    assert ("__truncsfhf2:" in code, "__extendhfsf2:" in code) == (converts, converts)


@pytest.mark.parametrize(("period", "has_vectors"), [(None, True), (4, False)])
def test_what_keeps_one_function_scalar_is_no_option_of_the_process(period, has_vectors):
    """Options ("cl-opt") count for what other threads compile meanwhile, too."""
    x, y = (tirx.decl_buffer((4096,), "float32", name) for name in "xy")
    index = tirx.Var("index", "int32")
    store = tirx.BufferStore(y, x[index if period is None else tirx.floormod(index, period)] * 3.0, [index])
    loop = tirx.For(index, 0, 4096, tirx.ForKind.SERIAL, store)
    function = tirx.PrimFunc([x, y], loop).with_attrs({"tirx.noalias": True, KERNEL_ATTR: "some"})
    text = str(llvm_module({"octavo_some": function}, WITH_HALVES).inspect_source("ll"))
    assert ("vector.body" in text, "cl-opt" in text) == (has_vectors, False)


def test_a_library_needs_no_libraries_of_cpp_and_links_without_ours(monkeypatch):
    executable = octavo.compile(residual_net())
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    assert b"libstdc++" not in executable._code.image
    monkeypatch.setattr(codegen, "_PLAIN_C", ("-nostdlib", "-loctavo-no-such-library"))
    usual = octavo.compile(residual_net())
    assert usual._code.image is not None
    np.testing.assert_array_equal(*executable(x).values(), *usual(x).values())


def test_passes_do_not_see_what_a_size_is_made_of():
    """They would put one quotient into the next, wherever it is read."""
    size, width, height = (tirx.Var(name, "int32") for name in ("size", "width", "height"))
    statements = [
        tirx.Bind(width, tirx.truncdiv(size + 1, 2) * size),
        tirx.Bind(height, tirx.truncdiv(width, size) + width),
        tirx.Evaluate(tirx.call_extern("int32", "f", width, height - width)),
    ]
    function = tirx.PrimFunc([size], tirx.SeqStmt(statements)).with_attr("global_symbol", "main")
    assert with_hidden_values(function) is function, "a kernel of known sizes"

    function = function.with_attr(OPEN_ATTR, 1)
    hidden = with_hidden_values(function)
    simplified = tirx.transform.StmtSimplify()(tvm.IRModule({"main": hidden}))["main"]
    assert structural_equal(simplified.body.seq[2], hidden.body.seq[2], map_free_vars=True)
    assert structural_equal(as_given(hidden), function)
    seen = tirx.transform.StmtSimplify()(tvm.IRModule({"main": function}))["main"]
    assert not structural_equal(seen.body.seq[2], function.body.seq[2], map_free_vars=True), "TVM simplifies less: is it needed?"
