"""Linear layers that torchao's `quantize_` replaced, in a torch program's graph: back to layers of dequantized tensors.

torchao multiplies integers and scales their sums behind the product, in steps that differ with its version and the machine. What
they come to is one `linear`, of activations that are quantized row by row or not at all, by a weight with its scales. Changes a
program of its own alone, which PyTorch made when it unwrapped the weights. Using this needs PyTorch.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ...errors import ModelError
from ..frontend import quiet, reason

_WRAPPED = "export.access_subclass_inner_tensor"
_CHOOSE = "torchao.choose_qparams_affine.default"
_QUANTIZE = "torchao.quantize_affine.default"
_DEQUANTIZE = "torchao.dequantize_affine.default"
_LINEAR, _INTEGER_PRODUCT, _PRODUCT = "aten.linear.default", "aten._int_mm.default", "aten.mm.default"
_CASTS = frozenset({"aten._to_copy.default", "aten.to.dtype"})
_VIEWS = _CASTS | {"aten.view.default", "aten.reshape.default", "aten.flatten.using_ints", "aten.unsqueeze.default"}
_TURNED = frozenset({"aten.t.default", "aten.permute.default"})
_DIFFERENCES = frozenset({"aten.sub.Tensor", "aten.sub_.Tensor"})
_ASSERT = "aten._assert_tensor_metadata.default"


def unwrapped(program: Any) -> Any:
    """Return a program whose weights are plain tensors: torchao's are classes of their own, which PyTorch can unwrap.

    Raises
    ------
    ModelError
        If PyTorch cannot.
    """
    if not any(str(node.target).startswith(_WRAPPED) for node in program.graph.nodes):
        return program
    try:
        with quiet():
            program = program.run_decompositions({})
            _rewrite(program.graph)
            program.graph_module.recompile()
    except Exception as error:
        raise ModelError(
            f"torch program: weights that torchao's quantize_ replaced cannot be unwrapped: {reason(error)}; quantize with "
            "PT2E (prepare_pt2e, convert_pt2e), or load the float program and call octavo.quantize"
        ) from error
    return program


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Rows:
    """An activation quantized row by row, [rows, values]: the node of its dequantized values."""

    real: Any


def _rewrite(graph: Any) -> None:
    for node in list(graph.nodes):
        if str(node.target) == _ASSERT:
            graph.erase_node(node)
    rows: dict[Any, _Rows] = {}
    for node in list(graph.nodes):
        if str(node.target) == _CHOOSE:
            rows.update(_quantized_rows(graph, node))
    for node in list(graph.nodes):
        name = str(node.target)
        if name in (_INTEGER_PRODUCT, _PRODUCT):
            _as_linear(graph, node, rows)
        elif name == _LINEAR:
            _by_matrix(graph, node, rows)
    graph.eliminate_dead_code()


def _quantized_rows(graph: Any, choose: Any) -> dict[Any, _Rows]:
    """Write the quantization of an activation, whose rows have scales of their own, over a matrix of all rows."""
    source, block = choose.args[0], list(choose.args[2])
    shape = list(source.meta["val"].shape)
    if not shape or not isinstance(shape[-1], int) or block != [*(1 for _ in shape[:-1]), shape[-1]]:
        return {}
    torchao, aten = (getattr(importlib.import_module("torch").ops, name) for name in ("torchao", "aten"))
    size = shape[-1]
    found: dict[Any, _Rows] = {}
    readers = [node for node in source.users if str(node.target) == _QUANTIZE and _item_of(node.args[2]) is choose]
    for node in readers:
        with graph.inserting_before(node):
            matrix = graph.call_function(aten.view.default, (source, [-1, size]))
            mapping, rest = choose.args[1], choose.args[3:9]
            chosen = graph.call_function(torchao.choose_qparams_affine.default, (matrix, mapping, [1, size], *rest, True))
            scale, zero_point = (graph.call_function(_getitem(), (chosen, place)) for place in (0, 1))
            declared = tuple(node.args[4:])
            integers = graph.call_function(torchao.quantize_affine.default, (matrix, [1, size], scale, zero_point, *declared))
            real = graph.call_function(torchao.dequantize_affine.default, (integers, [1, size], scale, zero_point, *declared))
        # By its shape one tells which values keep the batch axis.
        for made in (matrix, chosen, scale, zero_point, integers, real):
            made.meta["val"] = source.meta["val"]
        found[node] = _Rows(real=real)
    return found


def _getitem() -> Any:
    return importlib.import_module("operator").getitem


def _item_of(node: Any) -> Any:
    """Return what a node is a part of."""
    return node.args[0] if getattr(node.target, "__name__", "") == "getitem" else None


def _behind(node: Any, names: frozenset[str]) -> Any:
    """Return what stands behind ops of these names."""
    while hasattr(node, "op") and node.op == "call_function" and str(node.target) in names:
        node = node.args[0]
    return node


def _weight(node: Any) -> Any:
    """Return the parameter of 8-bit integers [outputs, inputs] whose transposition a node is; None for anything else."""
    turned = _behind(node, _CASTS)
    if not hasattr(turned, "op") or str(turned.target) not in _TURNED:
        return None
    source = turned.args[0]
    is_matrix = source.op == "placeholder" and len(source.meta["val"].shape) == 2
    return source if is_matrix and str(source.meta["val"].dtype) == "torch.int8" else None


def _as_linear(graph: Any, product: Any, rows: dict[Any, _Rows]) -> None:
    """Replace a product of integers, or of floats by integers, and the scaling of its result by a linear layer."""
    weight = _weight(product.args[1])
    if weight is None:
        return
    source, shift, quantized = product.args[0], 0, None
    integers = None
    if str(product.target) == _INTEGER_PRODUCT:
        integers = _behind(source, _VIEWS)
        if str(integers.target) == "aten.add.Tensor" and isinstance(integers.args[1], int):
            shift, integers = integers.args[1], _behind(integers.args[0], _VIEWS)
        if integers not in rows:
            return
        quantized = rows[integers]
    ends = _scaled(product, integers, shift)
    if ends is None:
        return
    end, scale = ends
    torch: Any = importlib.import_module("torch")
    inputs = weight.meta["val"].shape[1]
    with graph.inserting_before(end):
        declared = (torch.int8, -128, 127)
        real = graph.call_function(torch.ops.torchao.dequantize_affine.default, (weight, [1, inputs], scale, None, *declared))
        x = source if quantized is None else quantized.real
        linear = graph.call_function(torch.ops.aten.linear.default, (x, real))
    _replaced(graph, end, linear)


def _scaled(product: Any, quantized: Any, shift: int) -> tuple[Any, Any] | None:
    """Follow a product to where all its scales are multiplied in; return that node and the parameter of the weight's scales."""
    node, of_weight, is_centered = product, None, not shift
    of_rows = quantized is None
    while not (of_rows and of_weight is not None and is_centered):
        readers = list(node.users)
        if len(readers) != 1:
            return None
        (reader,) = readers
        name = str(reader.target)
        if name in _DIFFERENCES and _is_sum(reader.args[1], product.args[1], shift):
            is_centered = True
        elif name == "aten.mul.Tensor" and reader.args[0] is node:
            factor = _behind(reader.args[1], _VIEWS)
            if quantized is not None and factor is quantized.args[2]:
                of_rows = True
            elif getattr(factor, "op", "") == "placeholder" and of_weight is None:
                of_weight = factor
            else:
                return None
        elif name not in _CASTS:
            return None
        node = reader
    return node, of_weight


def _is_sum(node: Any, weight: Any, shift: int) -> bool:
    """Whether a node is the shift of the activations, times the sum of each column of the weight."""
    if str(getattr(node, "target", "")) != "aten.mul.Tensor" or node.args[1] != shift:
        return False
    total = node.args[0]
    return str(total.target) == "aten.sum.dim_IntList" and total.args[0] is weight and list(total.args[1]) == [0]


def _by_matrix(graph: Any, linear: Any, rows: dict[Any, _Rows]) -> None:
    """Let a linear layer of an activation that was quantized row by row read the matrix of all rows."""
    source = linear.args[0]
    if str(getattr(source, "target", "")) != _DEQUANTIZE or source.args[0] not in rows:
        return
    shape = list(linear.meta["val"].shape)
    if not all(isinstance(size, int) for size in shape[1:]):
        return
    torch: Any = importlib.import_module("torch")
    with graph.inserting_before(linear):
        matrix = graph.call_function(torch.ops.aten.linear.default, (rows[source.args[0]].real, *linear.args[1:]))
        matrix.meta = dict(linear.meta)
        first = shape[0] if isinstance(shape[0], int) else -1
        full = graph.call_function(torch.ops.aten.view.default, (matrix, [first, *shape[1:]]))
    _replaced(graph, linear, full)


def _replaced(graph: Any, old: Any, new: Any) -> None:
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    name = old.name
    graph.erase_node(old)
    new.name = name
