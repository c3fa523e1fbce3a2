"""Networks and passes for testing lineage: every construct that identity has been lost on, and passes that try to mislead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from nets import model_of
from octavo.evaluation.verify import verify_lineage
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, attrs_of, replace_operands, write_function
from octavo.ir.graph.evaluate import Evaluator
from octavo.ir.graph.lineage import Lineage
from octavo.ir.graph.value_graph import GraphReader, functions_of
from octavo.ir.graph.value_numbers import ValueNumbers
from tvm_alone import TARGET

Rename = Callable[[str], str]
Write = Callable[[BodyWriter, str, Any, dict[str, Any]], Any]


def branched_net(seed: int = 0) -> Model:
    """conv + batch_norm + relu, split, two convolutions with the same weight, concat, a repeated op, mean, dense; NCHW."""
    rng = np.random.default_rng(seed)
    params = {
        "w": (rng.standard_normal((8, 3, 3, 3)) / 5).astype(np.float32),
        "gamma": rng.uniform(0.5, 1.5, 8).astype(np.float32),
        "beta": rng.standard_normal(8).astype(np.float32),
        "mean": rng.standard_normal(8).astype(np.float32),
        "variance": rng.uniform(0.5, 1.5, 8).astype(np.float32),
        "shared": (rng.standard_normal((8, 4, 1, 1)) / 2).astype(np.float32),
        "dense": rng.standard_normal((16, 10)).astype(np.float32),
        "bias": rng.standard_normal(10).astype(np.float32),
    }

    def body(writer: BodyWriter, **v: Any) -> Any:
        op = relax.op
        conv = writer.emit("conv", op.nn.conv2d(v["x"], v["w"], padding=1))
        norm = writer.emit(
            "_norm", op.nn.batch_norm(conv, v["gamma"], v["beta"], v["mean"], v["variance"], axis=1, training=False)
        )
        normed = writer.emit("normed", relax.TupleGetItem(norm, 0))
        active = writer.emit("active", op.nn.relu(normed))
        halves = writer.emit("_halves", op.split(active, 2, axis=1))
        left = writer.emit("left", relax.TupleGetItem(halves, 0))
        right = writer.emit("right", relax.TupleGetItem(halves, 1))
        left_conv = writer.emit("left_conv", op.nn.conv2d(left, v["shared"]))
        right_conv = writer.emit("right_conv", op.nn.conv2d(right, v["shared"]))
        again = writer.emit("again", op.nn.conv2d(right, v["shared"]))
        joined = writer.emit("joined", op.concat([left_conv, right_conv], axis=1))
        once = writer.emit("once", op.tanh(again))
        folded = writer.emit("folded", op.concat([once, right_conv], axis=1))
        summed = writer.emit("summed", op.add(joined, folded))
        writer.emit("unread", op.exp(summed))
        pooled = writer.emit("pooled", op.mean(summed, axis=[2, 3]))
        doubled = writer.emit("doubled", op.multiply(v["bias"], relax.const(2.0, "float32")))
        scores = writer.emit("scores", op.matmul(pooled, v["dense"]))
        return writer.emit("y", op.add(scores, doubled), is_output=True)

    return model_of({"x": ((1, 3, 8, 8), "float32")}, params, body, ("y",))


def python_pass(name: str, change: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.transform.Pass:
    """Make a pass of a function."""
    made: Any = tvm.transform.module_pass(lambda module, _context: change(module), opt_level=0, name=name)
    return made


def rename_pass(rename: Rename) -> tvm.transform.Pass:
    """Return a pass that gives every variable of "main" another name, parameters too, and changes nothing else."""
    return python_pass("Rename", lambda module: renamed(module, rename))


def renamed(module: tvm.IRModule, rename: Rename, functions: Iterable[str] = ("main",)) -> tvm.IRModule:
    """Rewrite functions under other names."""
    result = tvm.IRModule(dict(module.functions.items()))
    for name in functions:
        result.update_func(result.get_global_var(name), _renamed(module[name], rename))
    return result


def _renamed(function: Any, rename: Rename) -> Any:
    view = DataflowView(function)
    params = [relax.Var(rename(param.name), param.ty) for param in function.params]
    mapping: dict[Any, Any] = dict(zip(function.params, params, strict=True))

    def body(writer: BodyWriter) -> Any:
        for binding in view.bindings:
            value = replace_operands(binding.value, lambda var: mapping[var])
            mapping[binding.var] = writer.emit(rename(binding.var.name), value, is_output=view.is_returned(binding.var))
        return replace_operands(view.result, lambda var: mapping[var])

    builder = relax.BlockBuilder()
    write_function(builder, "renamed", params, body, attrs_of(function), is_private=True)
    return builder.get()["renamed"]


def rewriting(name: str, write: Write) -> tvm.transform.Pass:
    """Make a pass that writes "main" anew: `write(writer, name, value, new)` returns the value bound to `name`, None to keep it.

    `new` holds the new variables by their old names.
    """

    def change(module: tvm.IRModule) -> tvm.IRModule:
        function = module["main"]
        view = DataflowView(function)
        mapping: dict[Any, Any] = {param: param for param in function.params}

        def body(writer: BodyWriter) -> Any:
            for binding in view.bindings:
                value = replace_operands(binding.value, lambda var: mapping[var])
                new = {var.name: made for var, made in mapping.items()}
                instead = write(writer, binding.var.name, value, new)
                value = value if instead is None else instead
                mapping[binding.var] = writer.emit(binding.var.name, value, is_output=view.is_returned(binding.var))
            return replace_operands(view.result, lambda var: mapping[var])

        builder = relax.BlockBuilder()
        write_function(builder, "main", list(function.params), body, attrs_of(function))
        result = tvm.IRModule(dict(module.functions.items()))
        result.update_func(result.get_global_var("main"), builder.get()["main"])
        return result

    return python_pass(name, change)


def followed(model: Model, *passes: tvm.transform.Pass) -> Lineage:
    """Run passes under a Lineage, and check every claim on an input that it never saw."""
    lineage = Lineage(model, target=TARGET)
    module = model.bound()
    with TARGET, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        for each in passes:
            module = each(module)
    rng = np.random.default_rng(7)
    inputs = {name: rng.standard_normal(model.tensors[name].shape).astype(np.float32) for name in model.input_ids}
    checks = verify_lineage(model, module, {model.tensors[name].source_name: x for name, x in inputs.items()}, lineage=lineage)
    assert [str(check) for check in checks if not check.is_right] == []
    assert all(check.is_compared for check in checks if check.state.is_alive)
    return lineage


def value_of(module: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    """Compute what a module's main returns, from what was read of it."""
    numbers = ValueNumbers()
    graph = GraphReader(numbers).read(functions_of(module), "main", {})
    return Evaluator(numbers, dict(enumerate(arrays)), TARGET).get([graph.result])[graph.result]
