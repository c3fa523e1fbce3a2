"""What folding and equalization made of the float model, written into its ONNX graph: padding, batch norms, factors of channels.

A tensor that equalization scaled is another tensor than the source's, and named `<name>_divided`. Quantizes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from onnx import helper

from ...errors import QuantizationError
from ...ir.graph.dataflow import DataflowView, call_to, operand_vars
from ...ir.identity import TensorId
from ...ir.simplify import Fold
from ...target.op_facts import movers
from .equalized_tensor import ROTATED, SUFFIX, EqualizedTensor
from .onnx_graph import PASS_THROUGH, attribute, outer_names, set_attribute
from .source_nodes import CONVOLUTIONS, SourceNodes
from .unscaled_constants import is_scaled, unscaled_constants

_MOVERS = ("Expand", "Reshape", "Squeeze", "Unsqueeze")
_KEEPS_FACTORS = movers("view", "transpose", "reverse", "repeat", "select")
"""The ops that hold no numbers: where equalization divides what they read, and so what they make, nothing of theirs changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatRewrites:
    """Rewrites one graph."""

    nodes: SourceNodes

    def fold(self) -> None:
        """Write each fold of the plan."""
        for fold in self.nodes.plan.folds:
            if fold.op == "nn.pad":
                self._fold_padding(fold)
            elif fold.op == "nn.batch_norm":
                self._fold_batch_norm(fold)

    def _fold_padding(self, fold: Fold) -> None:
        pad = self.nodes.node(fold.gone)
        top, left, bottom, right = fold.padding
        for name in self.nodes.names(fold.gone):
            for conv in list(self.nodes.graph.readers(name)):
                if conv.op_type in PASS_THROUGH:
                    continue
                mode = attribute(conv, "auto_pad", b"NOTSET")
                if mode not in (b"NOTSET", b"VALID"):
                    raise QuantizationError(f"{conv.output[0]}: auto_pad {mode.decode()} behind a Pad cannot be written as ONNX")
                is_of_rows = len(self.nodes.model.tensors[fold.gone].shape) == 3
                more = [left, right] if is_of_rows else [top, left, bottom, right]
                pads = attribute(conv, "pads", [0] * len(more)) if mode == b"NOTSET" else [0] * len(more)
                set_attribute(conv, "auto_pad", "NOTSET")
                set_attribute(conv, "pads", [old + new for old, new in zip(pads, more, strict=True)])
                self.nodes.graph.set_input(conv, 0, pad.input[0])

    def _fold_batch_norm(self, fold: Fold) -> None:
        assert fold.weight is not None, "a folded batch norm leaves a weight"
        assert fold.bias is not None, "a folded batch norm leaves a bias"
        norm = self.nodes.node(fold.tensor)
        gone = [norm]
        node = self.nodes.before(norm)
        while node.op_type not in CONVOLUTIONS:
            gone.append(node)
            node = self.nodes.before(node)
        output = norm.output[0]
        for other in gone:
            self.nodes.graph.remove(other)
        self.nodes.graph.rename_output(node, node.output[0], output)
        weight, bias = self.nodes.model.params.get(fold.weight), self.nodes.model.params.get(fold.bias)
        # Convolutions that stay float keep float constants; the others get theirs as integers.
        if weight is not None:
            self.nodes.graph.set_input(node, 1, self.nodes.graph.add_constant(f"{fold.weight}_folded", weight))
        if bias is not None:
            self.nodes.graph.set_input(node, 2, self.nodes.graph.add_constant(f"{fold.bias}_folded", bias.reshape(-1)))

    # -------------------------------------------------------------------------------------------------------- equalization

    def divide(self, done: set[TensorId], others: set[TensorId]) -> None:
        """Give float ops the constants that equalization left them, and clips bounds that all channels are within.

        `done` are the results of ops that others write, `others` the constants that go with these.
        """
        factors, rotations = self.nodes.plan.equalization.factors, self.nodes.plan.equalization.rotations
        changed, folded = {*factors, *rotations}, {name for fold in self.nodes.plan.folds for name in (fold.weight, fold.bias)}
        for layer in self.nodes.plan.layers:
            is_known = layer.output in done or layer.op in _KEEPS_FACTORS
            if not is_known and not changed.isdisjoint((layer.output, *layer.inputs)):
                self._refuse(layer.output)
        in_steps = {fold.tensor for fold in self.nodes.plan.folds if fold.op == "nn.group_norm"} & factors.keys()
        inverses, unscaled = self._inverses(), unscaled_constants(self.nodes.model, changed, in_steps)
        # The module holds these very arrays of the plan: weights and biases, some in float32, written with their layers.
        layers_own = {id(value) for value in self.nodes.plan.weight_values.values()}
        for name, value in self.nodes.model.params.items():
            if name in others:
                continue
            if name in inverses:
                self._multiply(inverses[name], value)
                continue
            if value.dtype != np.float32 or id(value) in layers_own or name in folded or name in unscaled or not value.ndim:
                continue
            if name in self.nodes.model.tensors:
                self._exchange(name, value)
            else:
                self._exchange_for_reader(name, value)
        for tensor in in_steps:
            self._divide_steps(tensor, factors[tensor])
        for tensor in factors:
            node = self.nodes.node(tensor) if tensor in self.nodes.model.tensors else None
            if node is not None and node.op_type == "Clip":
                bound = None if len(node.input) < 3 else self.nodes.graph.constant(node.input[2])
                if bound is None:
                    self._refuse(tensor)
                else:
                    wide = np.asarray((bound / factors[tensor]).max(), np.float32)
                    self.nodes.graph.set_input(node, 2, self.nodes.graph.add_constant(f"{tensor}_max", wide))

    def _divide_steps(self, tensor: TensorId, factors: npt.NDArray[Any]) -> None:
        """Divide the result of a normalization in steps: the factor of its last product, and what is added behind that."""
        node, kind = self.nodes.node(tensor), "Add"
        while kind == "Add":
            kind = node.op_type
            places = [index for index, name in enumerate(node.input) if self.nodes.graph.constant(name) is not None]
            if kind not in ("Add", "Mul") or len(places) != 1:
                self._refuse(tensor)
            name, before = node.input[places[0]], self.nodes.before(node)
            values = self.nodes.graph.constant(name)
            assert values is not None, "it was looked for"
            self.nodes.graph.set_input(node, places[0], self.nodes.graph.add_constant(f"{name}_divided", values / factors))
            node = before

    def name_equalized(self) -> dict[str, EqualizedTensor]:
        """Name tensors that are the source's, scaled or rotated; return the scaled ones by their new names."""
        found: dict[str, EqualizedTensor] = {}
        for tensor in self.nodes.plan.equalization.rotations:
            for name in self.nodes.names(tensor) if tensor in self.nodes.model.tensors else ():
                self.nodes.graph.rename(name, self.nodes.graph.fresh(f"{name}{ROTATED}"))
        for tensor, factors in self.nodes.plan.equalization.factors.items():
            is_named = tensor in self.nodes.model.tensors and tensor not in self.nodes.plan.equalization.rotations
            for name in self.nodes.names(tensor) if is_named else ():
                new = self.nodes.graph.fresh(f"{name}{SUFFIX}")
                self.nodes.graph.rename(name, new)
                found[new] = EqualizedTensor(source_name=name, factors=factors)
        return found

    def _inverses(self) -> dict[TensorId, TensorId]:
        """Return the constants by which results of functions are multiplied, and these results."""
        view = DataflowView(self.nodes.model.module["main"])
        users = ((param, view.only_user(param)) for param in view.function.params)
        return {
            TensorId(param.name): TensorId(user.name)
            for param, user in users
            if user is not None
            and TensorId(param.name) not in self.nodes.model.tensors
            and TensorId(user.name) in self.nodes.plan.equalization.factors
            and call_to(view.definition(user), "multiply") is not None
        }

    def _multiply(self, tensor: TensorId, factors: npt.NDArray[Any]) -> None:
        """Multiply a tensor by factors where it is made."""
        if tensor not in self.nodes.model.tensors:
            self._refuse(tensor)
        name = self.nodes.first_name(tensor)
        made = self.nodes.graph.fresh(f"{name}_function")
        self.nodes.graph.rename_output(self.nodes.node(tensor), name, made)
        factor = self.nodes.graph.add_constant(f"{name}_inverse", factors)
        self.nodes.graph.add_after(made, [helper.make_node("Mul", [made, factor], [name])])

    def _exchange(self, constant: TensorId, value: npt.NDArray[Any]) -> None:
        """Let all nodes that read a constant read another value of it."""
        for name in self.nodes.names(constant):
            name = self._before_movers(name)
            source = self.nodes.graph.constant(name)
            if source is None:
                if self._reads_inputs(name):  # the number of samples, say: the module holds it for one
                    self._refuse(constant)
                new = self.nodes.graph.add_constant(f"{constant}_divided", value)
            elif any(np.array_equal(source.reshape(-1), each.reshape(-1)) for each in (value, value.T)):
                continue
            else:
                new = self._exchanged(constant, value, source)
            # The module's constants may hold a Gemm's own factors, too.
            if any(attribute(node, each, 1.0) != 1.0 for node in self.nodes.graph.readers(name) for each in ("alpha", "beta")):
                self._refuse(constant)
            for node in self.nodes.graph.readers(name):
                for index, read in enumerate(node.input):
                    if read == name:
                        self.nodes.graph.set_input(node, index, new)

    def _exchange_for_reader(self, constant: TensorId, value: npt.NDArray[Any]) -> None:
        """Let one node read another value of a constant that others read, too: the module has one for each."""
        view = DataflowView(self.nodes.model.module["main"])
        param = next(each for each in view.function.params if TensorId(each.name) == constant)
        user = view.only_user(param)
        if user is None or TensorId(user.name) not in self.nodes.model.tensors:
            self._refuse(constant)
        operands = [var.name for var in operand_vars(view.definition(user)) if TensorId(var.name) in self.nodes.model.params]
        node = self.nodes.node(TensorId(user.name))
        places = [place for place, name in enumerate(node.input) if self.nodes.graph.constant(name) is not None]
        if len(places) != len(operands):
            self._refuse(constant)
        place = places[operands.index(param.name)]
        source = self.nodes.graph.constant(node.input[place])
        assert source is not None, "it was looked for"
        self.nodes.graph.set_input(node, place, self._exchanged(constant, value, source))

    def _exchanged(self, constant: TensorId, value: npt.NDArray[Any], source: npt.NDArray[Any]) -> str:
        """Add what equalization made of a constant of the file, in its layout; return its name."""
        if source.squeeze().shape == value.squeeze().shape:
            value = value.reshape(source.shape)
        # A matrix may lie transposed in the module.
        layouts = (value, value.T) if source.ndim == 2 else (value,)
        fits = [each for each in layouts if is_scaled(source, each)]
        if self.nodes.plan.equalization.rotations and not fits and (source.ndim != 2 or source.shape[0] != source.shape[1]):
            fits = [each for each in layouts if each.shape == source.shape]
        if not fits:
            self._refuse(constant)
        return self.nodes.graph.add_constant(f"{constant}_divided", fits[0].reshape(source.shape))

    def _reads_inputs(self, name: str) -> bool:
        """Return whether a tensor depends on more than constants."""
        node = self.nodes.graph.producer(name)
        if node is None:
            return bool(name) and self.nodes.graph.constant(name) is None
        if node.op_type in ("Shape", "Size") and self.nodes.graph.has_fixed_inputs:
            return False
        return bool(outer_names(node)) or any(map(self._reads_inputs, node.input))

    def _before_movers(self, name: str) -> str:
        """Return the constant that nodes give another shape, where nobody else reads it or what is between."""
        node = self.nodes.graph.producer(name)
        while node is not None and node.op_type in _MOVERS and len(self.nodes.graph.readers(node.input[0])) == 1:
            name = node.input[0]
            node = self.nodes.graph.producer(name)
        return name

    def _refuse(self, tensor: TensorId) -> NoReturn:
        raise QuantizationError(
            f"{tensor}: what equalization made of it cannot be written as ONNX; quantize with equalization and rotation 'none'"
        )

    # ------------------------------------------------------------------------------------------------------------- constants
