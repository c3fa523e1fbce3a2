"""Reading and writing functions: bodies with control flow and local functions, modules of several functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from lineage_nets import value_of
from octavo.errors import CompileError
from octavo.ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    attrs_of,
    entry_points,
    op_name,
    operand_vars,
    replace_operands,
    write_function,
)
from octavo.ir.graph.rules import partition
from octavo.ir.graph.split_to_slices import split_to_slices


@I.ir_module
class Whole:
    """Two entries, a helper, a function for a code generator, a choice and a local function."""

    I.module_attrs({"external": "kept"})

    @R.function(private=True)
    def helper(a: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        return R.add(a, a)

    @R.function
    def fused_npu(a: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        R.func_attr({"Codegen": "npu"})
        return R.tanh(a)

    @R.function
    def second(a: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        return R.exp(a)

    @R.function
    def main(x: R.Tensor((2, 4), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((2, 4), "float32"):
        cls = Whole
        with R.dataflow():
            parts = R.split(x, 2, axis=1)
            left = parts[0]
            start = R.concat((left, left), axis=1)
            R.output(start)

        @R.function
        def shift(a: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
            return R.add(a, start)

        if c:
            first = R.exp(start)
            chosen: R.Tensor((2, 4), "float32") = cls.helper(first)
        else:
            chosen: R.Tensor((2, 4), "float32") = shift(x)
        y = R.multiply(chosen, x)
        return y  # noqa: RET504 (its name is asked for)


def copied(function: Any, rename: dict[str, str]) -> Any:
    """Write a function again, with variables renamed."""
    view = DataflowView(function)
    new: dict[Any, Any] = {param: relax.Var(rename.get(param.name, param.name), param.ty) for param in function.params}

    def body(writer: BodyWriter) -> Any:
        for binding in view.bindings:
            value = replace_operands(binding.value, lambda var: new[var])
            name = rename.get(binding.var.name, binding.var.name)
            new[binding.var] = writer.emit(name, value, is_output=view.is_returned(binding.var))
        return replace_operands(view.result, lambda var: new[var])

    builder = relax.BlockBuilder()
    write_function(builder, "main", [new[param] for param in function.params], body, attrs_of(function))
    return builder.get()["main"]


def test_control_flow_reads_what_its_branches_read() -> None:
    view = DataflowView(Whole["main"])
    by_name = {binding.var.name: binding for binding in view.bindings}
    assert {var.name for var in operand_vars(by_name["chosen"].value)} == {"c", "x", "start", "shift"}
    assert {var.name for var in view.users(by_name["start"].var)} == {"shift", "chosen"}
    assert [op_name(by_name[name].value) for name in ("chosen", "shift")] == ["if", "function"]


@pytest.mark.parametrize("condition", [True, False])
def test_control_flow_written_again_computes_the_same(condition: bool) -> None:
    module = Whole.clone()
    module.update_func(module.get_global_var("main"), copied(Whole["main"], {"start": "begin", "chosen": "taken", "x": "data"}))
    relax.analysis.well_formed(module)  # raises where it is not
    x = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    start = np.concatenate([x[:, :2], x[:, :2]], axis=1)
    expected = (2 * np.exp(start) if condition else x + start) * x
    for each in (Whole, module, split_to_slices(Whole)):
        np.testing.assert_allclose(value_of(each, x, np.array(condition)), expected, rtol=1e-6)


def test_straight_functions_are_one_dataflow_block() -> None:
    [block] = copied(Whole["second"], {}).body.blocks
    assert isinstance(block, relax.DataflowBlock)
    assert [op_name(binding.value) for binding in block.bindings] == ["exp"]


def test_outlining_keeps_every_function_and_attribute() -> None:
    result = partition(Whole, [], repeatable=lambda _view, _var: False, describe=lambda _region: {}).module
    assert entry_points(Whole) == entry_points(result)
    assert {var.name_hint for var in result.get_global_vars()} == {"main", "second", "fused_npu", "helper"}
    assert dict(result.attrs) == dict(Whole.attrs)
    for name in ("second", "fused_npu", "helper"):
        assert_structural_equal(result[name], Whole[name])


def test_a_cast_of_shapes_is_refused() -> None:
    @R.function
    def casting(x: R.Tensor(ndim=2, dtype="float32")) -> R.Tensor((2, 4), "float32"):
        y = R.match_cast(x, R.Tensor((2, 4), "float32"))
        return R.tanh(y)

    with pytest.raises(CompileError, match="y: match_cast cannot be compiled; export a graph of static shapes"):
        DataflowView(casting)
