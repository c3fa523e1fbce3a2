"""Observers on the tensors of a module at any stage, and their removal: for looking at values where they are, fused or integer.

What stands in the IR is ir/graph/probes.py's; here it is found which variable is meant, and what its integers stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import tvm
from tvm import relax
from tvm.relax import Var

from ..errors import ModelError, check_type
from ..ir.graph import Model
from ..ir.graph.dataflow import attrs_of, dtype_of, op_name, static_shape
from ..ir.graph.lineage import Lineage
from ..ir.graph.probes import insert_probes, register_callback, remove_probes
from ..ir.identity import TensorId
from ..ir.qdq.results import QuantizedVariable, quantized_variables
from ..numerics.arrays import Array
from .observers import ObservedValue, Observer

Subject = TypeVar("Subject", Model, tvm.IRModule)


def observe(
    subject: Subject,
    tensors: str | Var | Iterable[str | Var],
    what: Observer,
    *,
    lineage: Lineage | None = None,
    entry: str = "main",
) -> Subject:
    """Put an observer on tensors of a module; whatever is computed stays as it is.

    Parameters
    ----------
    subject
        A Model or a module at any stage: as imported, QDQ, after any pass, fused, or the final integer module.
    tensors
        TensorIds, names in a Model's source, or variables of the function (their names where they are unique). A TensorId stands
        for the variable that holds its integers where there is one, as kernels' quantize_info or a quantize op says.
    what
        Called with an ObservedValue for each value at run time: `octavo.profiling.observers` has statistics, printing, files,
        recording and comparing; any function will do.
    lineage
        A Lineage that saw the passes which made the module: finds TensorIds whose variables have other names by now.
    entry
        Name of the function.

    Returns
    -------
    Model or IRModule
        A copy with the observers in it: a probe of each tensor, which `unobserve` takes out again. It runs in this process only.
        A pass that runs later finds another reader of the tensor and may fuse less.

    Raises
    ------
    ModelError
        For a tensor that no variable of the function holds: the message says where it lives.
    """
    if not callable(what):
        raise ModelError("an observer must be a callable that takes an ObservedValue, octavo.profiling.observers.Print() say")
    module = _module_of(subject)
    if entry not in {var.name_hint for var in module.get_global_vars()}:
        raise ModelError(f"the module has no function {entry} to observe; name its entry function")
    finder = _VariableFinder(module, subject if isinstance(subject, Model) else None, lineage, entry)
    asked = [tensors] if isinstance(tensors, (str, Var)) else list(tensors)
    keys: dict[Var, str] = {}
    for tensor in asked:
        var = finder.find(tensor)
        name = tensor if isinstance(tensor, str) else tensor.name
        if var in keys:
            raise ModelError(f"{name} is held by {var.name}, which another of the tensors asked for stands for; name it once")
        keys[var] = register_callback(
            name, _callback(name, var, finder.quantization(name, var), finder.factors(tensor, var), what)
        )
    return _with_function(subject, entry, insert_probes(module[entry], keys))


def unobserve(subject: Subject, tensors: str | Iterable[str] | None = None) -> Subject:
    """Take observers out of a module: afterwards it is, function by function, what it was before.

    Parameters
    ----------
    tensors
        The names that `observe` was given (of a variable its name); all observers by default.
    """
    labels = None if tensors is None else {tensors} if isinstance(tensors, str) else set(tensors)
    for var in _module_of(subject).get_global_vars():
        function = _module_of(subject)[var]
        if isinstance(function, relax.Function):
            clean = remove_probes(function, labels)
            if not clean.same_as(function):
                subject = _with_function(subject, str(var.name_hint), clean)
    return subject


def _module_of(subject: Any) -> tvm.IRModule:
    check_type(subject, Model | tvm.IRModule, ModelError, "a Model, which octavo.load returns, or a tvm IRModule")
    return subject.module if isinstance(subject, Model) else subject


def _with_function(subject: Subject, name: str, function: Any) -> Subject:
    module = _module_of(subject).clone()
    module.update_func(module.get_global_var(name), function)
    changed: Any = replace(subject, module=module) if isinstance(subject, Model) else module
    return changed


def _callback(tensor: str, var: Var, quantized: QuantizedVariable | None, factors: Array | None, what: Observer) -> Any:
    def observe_value(raw: Array) -> None:
        is_integer = np.issubdtype(raw.dtype, np.integer)
        is_known = quantized is not None and (quantized.params is not None) == is_integer
        real = quantized.reals(raw) if quantized is not None and is_known else None if is_integer else raw
        if real is not None and factors is not None:
            real = real * factors
        params = None if quantized is None else quantized.params
        what(ObservedValue(tensor=tensor, variable=var.name, raw=raw, real=real, params=params))

    return observe_value


class _VariableFinder:
    """Finds the variable of a function that a name stands for."""

    def __init__(self, module: tvm.IRModule, model: Model | None, lineage: Lineage | None, entry: str) -> None:
        self._module = module
        self._model = model
        self._lineage = lineage
        self._entry = entry
        function = module[entry]
        self._variables = [*function.params, *(binding.var for binding in _bindings(function))]
        self._by_variable: dict[Var, list[QuantizedVariable]] = {}
        self._by_tensor: dict[str, QuantizedVariable] = {}
        for each in quantized_variables(module, entry):
            self._by_variable.setdefault(each.var, []).append(each)
            self._by_tensor.setdefault(each.tensor, each)
        for var in self._variables:  # integers that only readers know: as the source has them
            known = self._by_tensor.get(var.name)
            params = None if known is None else known.params
            if params is not None and params.dtype == dtype_of(var):
                self._by_variable.setdefault(var, [QuantizedVariable(tensor=var.name, var=var, params=params)])

    def quantization(self, tensor: str, var: Var) -> QuantizedVariable | None:
        """Return what a variable's integers are: those of the tensor asked for where it holds several."""
        known = self._by_variable.get(var, [])
        return next((each for each in known if each.tensor == tensor), known[0] if known else None)

    def factors(self, tensor: str | Var, var: Var) -> Array | None:
        """Return by what a tensor was divided (equalization), None where it was not, or where nothing says so."""
        if isinstance(tensor, Var):
            return None
        if self._model is not None and self._model.divisors is not None:
            return self._model.divisors.get(TensorId(str(self._model.tensors.find(tensor) or tensor)))
        state = None if self._lineage is None or tensor not in self._lineage.ids else self._lineage[tensor]
        shape = static_shape(var)
        if state is None or shape is None or state.evidence != "announced" or not state.relation.is_scaled:
            return None
        axis, factors = state.relation.axis, state.relation.factors
        return (1 / factors).astype(np.float32).reshape([-1 if each == axis else 1 for each in range(len(shape))])

    def find(self, tensor: str | Var) -> Var:
        """Return the variable; ModelError where there is none or no single one."""
        if isinstance(tensor, Var):
            if not any(var.same_as(tensor) for var in self._variables):
                raise ModelError(f"{tensor.name} is no variable of {self._entry}; give one of this very module")
            return self._checked(tensor, tensor.name)
        name = tensor
        if self._model is not None:
            name = str(self._model.tensors.find(tensor) or tensor)
            entry = self._model.tensors.get(TensorId(name))
            if entry is not None and entry.kind == "constant":
                raise ModelError(f"{tensor} is a constant of the model; only what is computed can be observed")
        if self._lineage is not None:
            return self._checked(self._followed(name), name)
        named = [var for var in self._variables if var.name == name]
        if len(named) > 1 and name not in self._by_tensor:
            raise ModelError(f"{len(named)} variables of {self._entry} are called {name}; give the variable itself, or a lineage")
        if len(named) == 1 and (name not in self._by_tensor or named[0] in self._by_variable):
            return self._checked(named[0], name)
        if name not in self._by_tensor:
            raise ModelError(f"no variable of {self._entry} holds {tensor}{self._whereabouts(name)}")
        return self._by_tensor[name].var

    def _checked(self, var: Var, name: str) -> Var:
        if not isinstance(var.ty, relax.TensorType):
            raise ModelError(f"{name} is no tensor but {type(var.ty).__name__}; observe a tensor, a field of the tuple say")
        return var

    def _followed(self, name: str) -> Var:
        assert self._lineage is not None
        if not self._lineage.ends_with(self._module):
            raise ModelError("the lineage ended with another module than the one to observe; give the module its last pass made")
        if name not in self._lineage.ids:
            raise ModelError(f"the lineage follows no tensor {name}; it follows {', '.join(self._lineage.ids[:8])}, ...")
        found = self._lineage.variable(name)
        if found is None:
            raise ModelError(f"no variable of {self._entry} holds {name}: it is {self._lineage[name]}")
        return found

    def _whereabouts(self, name: str) -> str:
        """Say where a value lives that no variable of the function holds."""
        for var, function in self._module.functions_items():
            if str(var.name_hint) == self._entry:
                continue
            inner = isinstance(function, relax.Function) and any(binding.var.name == name for binding in _bindings(function))
            if inner or name in _fused_tensors(function):
                results = _given(function) or [
                    each.var.name for each in _bindings(self._module[self._entry]) if op_name(each.value) == var.name_hint
                ]
                gives = f", which gives {', '.join(results)}" if results else ""
                advice = "observe that, or put the observer in before the pass that did so"
                return f": it is computed inside {var.name_hint}{gives}; {advice}"
        names = list(dict.fromkeys([*self._by_tensor, *(var.name for var in self._variables)]))
        return f" and no kernel says that it computes it; some it has: {', '.join(names[:8])}"


def _bindings(function: Any) -> Iterator[Any]:
    for block in function.body.blocks:
        yield from block.bindings


def _given(function: Any) -> list[str]:
    """Return the tensor that a kernel says it gives."""
    info = attrs_of(function).get("quantize_info", {})
    return [str(info["output"]["id"])] if "output" in info else []


def _fused_tensors(function: Any) -> set[str]:
    """Return the tensors that a kernel says it computes or reads as constants."""
    attrs = attrs_of(function)
    ids = {str(tensor) for tensor in attrs.get("tensor_ids", ())}
    info = attrs.get("quantize_info", {})
    return ids | {str(entry["id"]) for role, entry in info.items() if role in ("weight", "bias")}
