"""Names of a quantized file's tensors as its float model has them: a tensor is paired by what it stands for. It compares nothing.

Before, as a file has it (ONNX names what a DequantizeLinear leaves, TFLite the integers, which it clamps)::

    y_float = R.add(...); y_q = R.quantize(y_float, ...); y = R.dequantize(y_q, ...)
    y_add = R.add(...); y_quantize = R.quantize(y_add, ...); y = R.clip(y_quantize, 0, 127)

After, as `quantize` leaves a model::

    y = R.add(...); y_q = R.quantize(y, ...); y_dq = R.dequantize(y_q, ...)
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tflite
import tvm
from tvm import relax
from tvm.relax import Expr, Var

from ...errors import ModelError
from ...export.onnx.equalized_tensor import METADATA_KEY, EqualizedTensor
from ...frontends.onnx.large_tensors import OnnxSource
from ...frontends.tflite.source import TfliteSource
from ...ir.graph import Model
from ...ir.graph.dataflow import BodyWriter, DataflowView, call_to, dtype_of, replace_operands, with_main
from ...ir.identity import TensorId
from ...ir.identity.naming import NameSupply
from ...ir.qdq.values import params_of
from ...ir.untyped import ops


def with_source_names(model: Model, quantized: Model) -> tvm.IRModule:
    """Return the quantized module, constants bound, its quantized tensors named by the ids of the float `model`."""
    module = quantized.bound()
    pairing = _Pairing(view=DataflowView(module["main"]), model=model, quantized=quantized)
    pairing.find()
    return with_main(module, pairing.write) if pairing.names else module


@dataclass(kw_only=True, slots=True)
class _Pairing:
    """The variables of one function that get other names.

    Parameters
    ----------
    names
        New names by variable.
    clamped
        By the integers that a quantize makes the clamp behind it: its bounds move before the quantize.
    stands_for
        Of a variable that the file names as the float model names a tensor, that tensor's id.
    """

    view: DataflowView
    model: Model
    quantized: Model
    names: dict[Var, str] = field(default_factory=dict[Var, str])
    clamped: dict[Var, tuple[Var, TensorId]] = field(default_factory=dict[Var, "tuple[Var, TensorId]"])
    stands_for: dict[Var, TensorId] = field(default_factory=dict[Var, TensorId])

    def find(self) -> None:
        """Pair the operand of each quantize with a tensor of the float model, and name all others by what they stand for."""
        ids = {
            name: entry.id
            for entry in self.model.tensors.values()
            if entry.kind != "constant"
            for name in (entry.source_name, *entry.aliases)
        }
        ids |= {
            name: ids[each.source_name] for name, each in equalized_tensors(self.quantized).items() if each.source_name in ids
        }
        entries = {var: self.quantized.tensors.get(TensorId(var.name)) for var in self._variables()}
        # Two files number ids of like names each in its own order: an id alone says nothing, the source's name does.
        self.stands_for = {var: ids[entry.source_name] for var, entry in entries.items() if entry and entry.source_name in ids}
        taken = {self.stands_for.get(var, var.name) for var in self.view.function.params}
        for binding in self.view.bindings:
            call: Any = call_to(binding.value, "quantize")
            if call is None or not isinstance(call.args[0], Var) or self.view.binding_of(call.args[0]) is None:
                continue
            if call.args[0] in self.stands_for:
                taken.add(self.stands_for[call.args[0]])
                continue
            for var in self._holders(binding.var):
                known = self.stands_for.get(var)
                if known is not None and known not in taken:
                    taken.add(known)
                    self._pair(call.args[0], binding.var, var, known)
                    break
        self._name_others()

    def _variables(self) -> Collection[Var]:
        return (*self.view.function.params, *(binding.var for binding in self.view.bindings))

    def _name_others(self) -> None:
        """Name what is left by the tensor that it stands for; an id of the model that it doesn't stand for it must not bear."""
        supply = NameSupply([*self.model.tensors, *(var.name for var in self._variables()), *self.names.values()])
        used = {var.name for var in self.view.function.params} | set(self.names.values())
        for var in self._variables():
            if var in self.names or var in self.view.function.params:
                continue
            known = self.stands_for.get(var)
            if known is not None and known not in used:
                used.add(known)
                if var.name != known:
                    self.names[var] = str(known)
            elif var.name in self.model.tensors:
                self.names[var] = supply.fresh(f"{var.name}_of_file")

    def _holders(self, integers: Var) -> Collection[Var]:
        """Return what a file may name in place of the real numbers: integers, clamped or not, or what is dequantized of them."""
        users = self.view.users(integers)
        return (integers, *(user for user in users if call_to(self.view.definition(user), "clip", "dequantize") is not None))

    def _pair(self, real: Var, integers: Var, holder: Var, known: TensorId) -> None:
        if call_to(self.view.definition(holder), "clip") is not None and self.view.only_user(integers) is not None:
            self.clamped[integers] = holder, known
            self.names[holder] = f"{known}_clamped"
            return
        self.names[real] = str(known)
        self.names |= {
            var: f"{known}_{suffix}"
            for var, suffix in ((integers, "q"), *((user, "dq") for user in self.view.users(integers)))
            if self.stands_for.get(var) == known
        }

    def write(self, writer: BodyWriter) -> Expr:
        """Write the function with the names found."""
        new: dict[Var, Expr] = {}

        def emitted(value: Expr) -> Expr:
            return replace_operands(value, lambda var: new.get(var, var))

        holders = {holder: integers for integers, (holder, _) in self.clamped.items()}
        for binding in self.view.bindings:
            var, is_output = binding.var, not isinstance(binding.var, relax.DataflowVar)
            if var in holders:
                new[var] = new[holders[var]]
                if is_output:
                    new[var] = writer.emit(self.names[var], new[var], is_output=True)
                continue
            value = emitted(binding.value)
            if var in self.clamped:
                value = self._clamped(writer, var, value)
            new[var] = writer.emit(self.names.get(var, var.name), value, is_output=is_output)
        return emitted(self.view.result)

    def _clamped(self, writer: BodyWriter, integers: Var, quantize: Any) -> Expr:
        """Return the quantize of what is clamped to the bounds of the clamp behind it: the same integers."""
        holder, known = self.clamped[integers]
        clip: Any = self.view.definition(holder)
        params = params_of(quantize, dtype_of(integers))
        assert params is not None, "TFLite's scales are constants"
        low, high = ((float(bound.value) - int(params.zero_point)) * float(params.scale) for bound in clip.args[1:3])
        real = writer.emit(str(known), ops.clip(quantize.args[0], low, high))
        return relax.Call(quantize.op, [real, *quantize.args[1:]], quantize.attrs)


def equalized_tensors(model: Model) -> dict[str, EqualizedTensor]:
    """Return what the file that a model was loaded from says, by the file's names; empty where it says nothing.

    Raises
    ------
    ModelError
        The metadata is not what `equalized_metadata` writes.
    """
    text = _metadata(model)
    if text is None:
        return {}
    try:
        return {
            str(name): EqualizedTensor(
                source_name=str(each["source"]), factors=np.asarray(each["factors"], np.float32).reshape(tuple(each["shape"]))
            )
            for name, each in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the file's metadata {METADATA_KEY} is not what octavo quantize writes: {error}") from error


def _metadata(model: Model) -> str | bytes | None:
    if isinstance(model.source, OnnxSource):
        return next((each.value for each in model.source.proto.metadata_props if each.key == METADATA_KEY), None)
    if not isinstance(model.source, TfliteSource):
        return None
    root: Any = tflite.Model.GetRootAs(model.source.graph.data, 0)
    for each in map(root.Metadata, range(root.MetadataLength())):
        if each.Name() == METADATA_KEY.encode():
            return bytes(root.Buffers(each.Buffer()).DataAsNumpy())
    return None
