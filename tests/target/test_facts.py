"""The table of op facts: it names ops that TVM has, contradicts itself nowhere, and nobody keeps a list of movers beside it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from octavo.numerics import ELEMENTWISE as FUNCTIONS
from octavo.target import CPU
from octavo.target.op_facts import (
    CLAMPS,
    ELEMENTWISE,
    FACTS,
    MOVERS,
    REDUCTIONS,
    SHARES_PARAMETERS,
    WEIGHTED,
    movers,
    weight_axis,
)

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "octavo"


@pytest.mark.parametrize("name", FACTS)
def test_each_op_is_one_of_relax(name: str) -> None:
    assert tvm.ir.Op.get(f"relax.{name}").name == f"relax.{name}"


@pytest.mark.parametrize("name", FACTS)
def test_an_op_does_one_thing(name: str) -> None:
    facts = FACTS[name]
    assert sum((facts.movement is not None, facts.elementwise, facts.reduces, facts.weight is not None)) <= 1
    assert facts.elementwise or not facts.clamps
    assert facts.movement is None or not facts.keeps_parameters, "said by the movement"


def test_queries_agree_with_the_table() -> None:
    assert movers("view", "transpose") == ("reshape", "nn.batch_flatten", "flatten", "squeeze", "expand_dims", "permute_dims")
    assert set(MOVERS) - set(SHARES_PARAMETERS) == {"concat", "stack"}
    assert (CLAMPS, REDUCTIONS) == (("nn.relu", "clip"), ("mean", "sum", "max", "min"))
    assert set(ELEMENTWISE) == FUNCTIONS.keys()
    assert "nn.relu" not in SHARES_PARAMETERS
    assert not {*MOVERS, *CLAMPS, *REDUCTIONS} & set(WEIGHTED)


def test_the_cpu_wants_one_scale_of_ops_that_share_parameters_alone() -> None:
    of_two = {"maximum", "minimum"}  # by choice of the kernels, not by what the ops are
    assert {support.op for support in CPU.ops if support.same_params} - of_two <= set(SHARES_PARAMETERS)


def _call(name: str, x: relax.Expr) -> Any:
    calls = {
        "reshape": lambda: relax.op.reshape(x, [3, 2]),
        "nn.batch_flatten": lambda: relax.op.nn.batch_flatten(x),
        "flatten": lambda: relax.op.flatten(x),
        "squeeze": lambda: relax.op.squeeze(x, [0]),
        "expand_dims": lambda: relax.op.expand_dims(x, 1),
        "permute_dims": lambda: relax.op.permute_dims(x, [0, 2, 1]),
        "flip": lambda: relax.op.flip(x, 2),
        "tile": lambda: relax.op.tile(x, [1, 2, 1]),
        "repeat": lambda: relax.op.repeat(x, 2, 1),
        "broadcast_to": lambda: relax.op.broadcast_to(x, [4, 2, 3]),
    }
    return calls[name]()


@pytest.mark.parametrize("name", movers("view", "transpose", "reverse", "repeat"))
def test_a_movement_is_what_tvm_computes(name: str) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([1, 2, 3], "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.normalize(_call(name, x)))
    values = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    machine = relax.VirtualMachine(relax.build(builder.get(), "llvm"), tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(values)).numpy().reshape(-1)
    movement = FACTS[name].movement
    assert set(result.tolist()) == set(values.reshape(-1).tolist())
    assert np.array_equal(result, values.reshape(-1)) == (movement == "view")
    assert (result.size > values.size) == (movement == "repeat")


def test_the_weight_axis_is_read_from_the_layout() -> None:
    x, w = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in (("x", [1, 4, 8, 8]), ("w", [4, 6, 3, 3])))
    conv: Any = relax.op.nn.conv2d_transpose(x, w)
    assert weight_axis(conv.attrs, 4) == 1
    product: Any = relax.op.matmul(x, w)
    assert [weight_axis(product.attrs, rank) for rank in (1, 2, 3)] == [None, 1, 2]


def literal_lists(file: Path) -> Iterator[tuple[int, set[str]]]:
    """Yield the strings of each tuple, list and set that a file writes out, with those unpacked into it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield node.lineno, {element.value for element in node.elts if isinstance(element, ast.Constant)}  # pyright: ignore


def lists_of_movers(package: Path) -> list[str]:
    return [
        f"{file.relative_to(package)}:{line}: {', '.join(sorted(names))}"
        for file in sorted(package.rglob("*.py"))
        if file.relative_to(package).parts[0] != "ops"
        for line, names in literal_lists(file)
        if len(names) >= 3 and names <= set(MOVERS)
    ]


def test_no_other_module_lists_movers() -> None:
    assert lists_of_movers(PACKAGE) == []


def test_a_planted_list_of_movers_is_caught(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        'A = ("reshape", "take", "flip")\nB = ("reshape", "take")\nC = {"reshape", "take", "nn.conv2d"}\n'
    )
    assert lists_of_movers(tmp_path) == ["x.py:1: flip, reshape, take"]
