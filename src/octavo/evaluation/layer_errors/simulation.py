"""The values that errors by layer compare, of a model as `quantize` made it: the referee's program rounds them.

Compares nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm.relax import Var

from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, dtype_of, operand_vars
from ...ir.identity import TensorId
from ...numerics import QuantParams
from ...numerics.arrays import Array
from ...quantizer.causes.table import plan_of
from ...quantizer.plan.plan import QuantizedModel
from ...quantizer.programs import Programs
from ...quantizer.referee.rounded_program import Prepared, State
from ...quantizer.referee.rounding import Rounding
from ...quantizer.sample_threads import in_order
from .blocks import Blocks, find_norms, float_function
from .modules import factors_of


class Simulation:
    """Runs a model that `quantize` made on samples, its blocks and the layers within them, on what the float model has.

    Tensors are seen as the quantized model has them: rotated, and divided by what evens out channels.

    Raises
    ------
    NotImplementedError
        TVM's virtual machine alone can run the model.
    """

    def __init__(self, model: Model, quantized: QuantizedModel, programs: Programs | None = None) -> None:
        plan = plan_of(quantized)
        programs = programs or Programs.of_model(model, plan)
        simple, plan = programs.equalized(plan)
        self.view = view = DataflowView(simple.module["main"])
        self._norms = {norm.gone: norm for norm in find_norms(quantized, float_function(model, quantized), view)}
        gone = {norm.scaled_conv.name: name for name, norm in self._norms.items()}
        order = [var.name for var in (*view.function.params, *(each.var for each in view.bindings))]
        self._paths = _paths(view, {*plan.activations, *(layer.output for layer in plan.layers if layer.reads_reals)})
        tensors = {var: name for var in order if (name := gone.get(var, TensorId(var))) in model.tensors}
        ends = [TensorId(var) for var in order if var in self._paths and var in model.tensors]
        members = {name: tuple(tensors[var] for var in self._paths[name] if var in tensors) for name in ends}
        within = {name for block in members.values() for name in block}
        self.blocks = Blocks(
            quantized=tuple(ends),
            inner=tuple(name for name in tensors.values() if name in within),
            members={name: block for name, block in members.items() if block},
            norms=self._norms,
            divisors={},
        )
        self.params: Mapping[TensorId, QuantParams] = {name: plan.activations[name] for name in ends if name in plan.activations}
        self._everything = (*self.blocks.quantized, *self.blocks.inner)
        self._seen = [self._variable(name) for name in self._everything]
        self._program = program = programs.rounded(simple, plan, seen=self._seen)
        rounding = program.rounding(plan)
        self._rounded = program.prepare(rounding, self._seen)
        self._local = [(name, program.prepare(self._block(rounding, name), self._names_of(name))) for name in ends]
        self._alone = [each for name in self.blocks.members for each in self._by_layer(rounding, name)]

    def run(self, arrays: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Return the quantized model's tensors, quantized then inner; and the float model's, the blocks', and each layer's.

        The last as `isolated_blocks` has them.
        """
        floats = self._program.all_floats(arrays)
        alone = [(name, prepared) for name, prepared in self._alone if prepared is not None]
        rounded, *seen = in_order(
            partial(self._values, arrays=arrays, floats=floats),
            [self._rounded, *(prepared for _, prepared in self._local), *(prepared for _, prepared in alone)],
        )
        local: dict[TensorId, Array] = {}
        for (name, _), found in zip(self._local, seen, strict=False):
            local |= {each: found[self._variable(each)] for each in (name, *self.blocks.members.get(name, ()))}
        real = {name: self._program.floats.value(self._variable(name), floats) for name in self._everything}
        through = iter([found[name] for (name, _), found in zip(alone, seen[len(self._local) :], strict=True)])
        results = [real[name] if prepared is None else next(through) for name, prepared in self._alone]
        made = {name: rounded[self._variable(name)] for name in self._everything}
        now, floating, own = ([self._unscaled(name, each[name]) for name in self._everything] for each in (made, real, local))
        return now, [*floating, *own, *results]

    def _values(self, prepared: Prepared, arrays: Sequence[Array], floats: Mapping[Var, Any]) -> dict[TensorId, Array]:
        """Return the results of a sample as what reads them in integers has them, else as float ops do."""
        state: State = self._program.start(prepared, arrays, floats)
        for _ in self._program.made_by_calls(prepared, [state]):
            pass
        values = {**floats, **state.real, **state.integer}
        return {TensorId(name): self._program.floats.value(name, values) for name in prepared.results}

    def _variable(self, name: TensorId) -> TensorId:
        """Return the variable that stands for a tensor."""
        return TensorId(self._norms[name].scaled_conv.name) if name in self._norms else name

    def _names_of(self, block: TensorId) -> list[TensorId]:
        return [block, *map(self._variable, self.blocks.members.get(block, ()))]

    def _block(self, rounding: Rounding, block: TensorId) -> Rounding:
        """Return what rounds in a block alone: what its layers read per row, their constants, and its result."""
        layers = [name for name in (block, *self._paths[block]) if name in rounding.layers]
        rows = [each for name in layers for each in rounding.rows.get(name, {})]
        only = rounding.only([block, *rows], layers)
        return replace(only, activations={name: each for name, each in only.activations.items() if name == block})

    def _by_layer(self, rounding: Rounding, block: TensorId) -> Iterator[tuple[TensorId, Prepared | None]]:
        """Yield what computes a block's result by its own op alone, and through each member alone; None where that is exact."""
        rounded = self._block(rounding, block)
        for name in (block, *self.blocks.members[block]):
            own = self._constants_of(self._variable(name))
            layers = {
                layer: {key: value for key, value in values.items() if key in own} for layer, values in rounded.layers.items()
            }
            is_last = name == block
            if is_last or any(layers.values()):
                rows = rounded.rows if is_last else {layer: {} for layer in rounded.rows}
                alone = replace(rounded, activations=rounded.activations if is_last else {}, layers=layers, rows=rows)
                yield block, self._program.prepare(alone, [block])
            else:
                yield block, None

    def _constants_of(self, variable: TensorId) -> set[str]:
        """Return the constants of the model that one op reads, as they are or moved."""
        known, found, ahead = {each.var.name: each for each in self.view.bindings}, set[str](), [str(variable)]
        while ahead:
            read = [self.view.root_of(each).name for each in operand_vars(known[ahead.pop()].value)]
            found.update(read)
            ahead += [name for name in read if name in known and name not in self._seen]
        return found

    def _unscaled(self, name: TensorId, value: Array) -> Array:
        """Return what a folded normalization left unscaled; a channel whose factor is 0 is not there any more."""
        if name not in self._norms:
            return value
        factors = factors_of(self._norms[name])
        return np.divide(value, factors, out=np.zeros_like(value), where=factors != 0)


def _paths(view: DataflowView, ends: Collection[str]) -> dict[str, tuple[TensorId, ...]]:
    """Map what is quantized to the float32 variables that it is computed from without passing another of that, in order.

    A value that nothing quantized leads to (a weight, what a float part computes) is on no such path.
    """
    found: dict[str, tuple[TensorId, ...]] = {var.name: () for var in view.function.params if var.name in ends}
    behind: dict[str, dict[TensorId, None]] = {}
    for binding in view.bindings:
        name, read = binding.var.name, [view.root_of(each).name for each in operand_vars(binding.value)]
        path = {each: None for var in read for each in behind.get(var, {})}
        if name in ends:
            found[name] = tuple(path)
        elif any(var in found or var in behind for var in read):
            behind[name] = {**path, **({TensorId(name): None} if dtype_of(binding.var) == "float32" else {})}
    return found
