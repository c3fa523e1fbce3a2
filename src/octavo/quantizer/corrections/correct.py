"""Corrections that follow from running a quantized model on samples: weights rounded anew, and biases. Rewrites no graph.

Layer by layer in the order of the graph, each on the integers that the layers before it give once they are corrected themselves:

* weights first make up for what is wrong with what it reads, as far as they can (numerics/statistics/inherited.py), and are
  rounded so that the layer's sums change least on it (numerics/statistics/gptq.py);
* what its outputs are then off on average goes into its bias. Rounding weights moves the mean of each output channel, by most
  where a channel has few weights (depthwise layers): what runs on is wrong everywhere by the same amount (Nagel et al., Data-Free
  Quantization Through Weight Equalization and Bias Correction, 2019, section 4.2 and appendix D, in its empirical form).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.ir import GenericConst
from tvm.relax import Var

from ...compiler.backends.cpu.link import link, linked_kernel
from ...compiler.backends.cpu.lowering import isa_for, lower_composites
from ...compiler.codegen.kernel_calls import KernelCall, KernelCalls, KernelLibraries
from ...compiler.float_values import FloatValues
from ...compiler.module_runner import ModuleRunner
from ...compiler.partition.pipeline import partition_module
from ...compiler.target_choice import ResolvedTarget
from ...errors import CompileError, DataError, ProfileError
from ...ir.composites.attributes import read_composites
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, call_to, operand_vars, static_shape
from ...ir.graph.inputs import input_specs
from ...ir.graph.lineage import lineage_paused
from ...ir.graph.products import with_bias
from ...ir.graph.results import with_results
from ...ir.identity import TensorId
from ...numerics.arrays import Array, Samples
from ...profiling import Profile
from ...runtime.heap import trim_heap
from ...runtime.inputs import check_inputs
from ...target.op_facts import WEIGHTED
from ..plan.corrections import Corrections
from ..plan.nearness import Nearness
from ..plan.plan import QuantizedModel
from ..recipe import AUTO, WEIGHT_BITS, Recipe
from .error import nearness
from .float_run import MEAN_SAMPLES, FloatRun, Product, run_float
from .gram import ExactRows
from .layers import WeightedLayer, bias_of, composite_calls, kernel_constants, weighted_layers
from .weights import WeightSources, rounded_weights
from .window_sums import mean_accumulators

Shifts = dict[TensorId, npt.NDArray[np.float32]]

_FOR_WEIGHTS = 32
"""Samples that weights of 8 bits are rounded on where samples are large: of as many positions more say hardly anything else."""
_LARGE = 2**19
"""Bytes of a sample that has many positions."""


def samples_of(model: Model, profile: Profile) -> Samples:
    """Return the samples that a profile keeps, as the model takes them.

    Raises
    ------
    ProfileError
        They are none of this model.
    """
    specs = input_specs(model)
    try:
        return [
            check_inputs(specs, {spec.source_name: array for spec, array in zip(specs, arrays, strict=True)})
            for arrays in profile.kept_samples
        ]
    except (ValueError, DataError) as error:
        raise ProfileError(f"the samples that the profile keeps do not fit the model: {error}; profile it again") from error


def corrected_on(samples: Samples, recipe: Recipe) -> Samples:
    """Return as many of the samples as say how to correct weights and biases."""
    if recipe.weight_rounding != "gram":
        return samples[:MEAN_SAMPLES]
    size = sum(array.nbytes for array in samples[0]) if samples else 0
    is_plain = recipe.weight_bits == WEIGHT_BITS and recipe.range_estimator != AUTO
    return samples[:_FOR_WEIGHTS] if is_plain and size > _LARGE else samples


class Corrector:
    """Corrects quantized models of one float model, and says how near they come to it.

    Parameters
    ----------
    simple
        The float model whose ops become integer, variable by variable.
    samples
        Its inputs, sample by sample; one at least.
    target
        Whose kernels compute it here.
    floats
        What else runs the float model, and need not build it twice.
    """

    def __init__(self, simple: Model, *, samples: Samples, target: ResolvedTarget, floats: FloatValues | None = None) -> None:
        self._simple = simple
        self._view = DataflowView(simple.module["main"])
        self._samples = samples
        self._target = target
        self._values = floats or FloatValues(target.host, target.isas, target.llvm)
        self._floats: FloatRun | None = None

    def corrections(self, quantized: QuantizedModel, kept: Collection[str] = ()) -> Corrections:
        """Return weights and biases that keep a quantized model nearer to the float one, as its recipe wants them.

        None where the model cannot be run call by call. The parameters of what is `kept` stay as they are.
        """
        with lineage_paused(), ThreadPoolExecutor(1) as beside:  # what is built here is none of the model's own steps
            # The float model runs beside all that is built of the integer program: kernels work outside Python's lock.
            running = beside.submit(self._run_float)
            run = _Run(self._simple, quantized, self._target, kept)
            cores = {binding.var.name: binding.var for binding in self._view.bindings}
            layers = {bias: layer for bias, layer in run.layers.items() if layer.core in cores}
            wanted = {bias: with_bias(self._view, cores[layer.core]).name for bias, layer in layers.items()}
            trim_heap(self._simple.constant_bytes)
            if not wanted:
                return Corrections()
            try:
                run.build()
            except (NotImplementedError, CompileError):  # what cannot be compiled is for `compile` to say
                return Corrections()
            trim_heap(self._simple.constant_bytes)
            floats = running.result()
            means = {bias: floats.means[name] for bias, name in wanted.items()}
            rows = {bias: floats.rows[name] for bias, name in wanted.items() if name in floats.rows}
            seen = {bias: floats.seen[name] for bias, name in wanted.items()}
            results = run.correct(self._samples, means, rows, seen)
            trim_heap(self._simple.constant_bytes)
        corrected = [
            layer for layer in quantized.plan.layers if quantized.plan.recipe.bias_correction is True and layer.bias in run.shifts
        ]
        return Corrections(
            bias_shifts={layer.output: run.shifts[layer.bias] for layer in corrected if layer.bias},
            weight_values=run.weights,
            weight_scales=run.scales,
            nearness=self._compared(results),
        )

    def nearness(self, quantized: QuantizedModel) -> Nearness:
        """Return how near a quantized model's outputs are to the float model's; nothing of one that cannot be run."""
        with lineage_paused(), suppress(CompileError):
            results = ModuleRunner(quantized.bound(), self._target).results(self._samples)
            return self._compared(results)
        return Nearness()

    def _compared(self, results: Samples) -> Nearness:
        return nearness(self._view, self._run_float().results, results)

    def _run_float(self) -> FloatRun:
        """Run the float model, unless that was done."""
        if self._floats is None:
            with tvm.transform.PassContext(opt_level=3):  # a thread has its own
                self._floats = run_float(self._simple, _products(self._view), self._samples, self._values)
            self._values.forget()
        return self._floats


def _products(view: DataflowView) -> dict[str, Product]:
    """Return what products with weights come to, before any clamp, by name."""
    found: dict[str, Product] = {}
    for binding in view.bindings:
        call: Any = call_to(binding.value, *WEIGHTED)
        if call is not None:
            layout = "" if call_to(call, "matmul") is not None else str(call.attrs.out_layout or call.attrs.data_layout)
            axis, size = layout.find("C"), prod(static_shape(call.args[1]) or (0,))  # -1, the last axis, of a matmul
            found[with_bias(view, binding.var).name] = Product(
                axis=axis, inputs=size // (static_shape(binding.var) or (1,))[axis]
            )
    return found


class _Run:
    """The integer program of a quantized model, call by call.

    Parameters
    ----------
    layers
        Those that can be corrected, by their biases.
    shifts
        What was added to biases, by these.
    weights
        Integers of weights that were rounded anew, as their parameters hold them.
    scales
        Of those whose scales are others now.
    """

    def __init__(self, simple: Model, quantized: QuantizedModel, target: ResolvedTarget, kept: Collection[str]) -> None:
        self._target = target
        self._parts = _with_all_pixels(quantized, target)
        self._composites = read_composites(self._parts)
        self.layers = weighted_layers(self._composites.values())
        self._calls = composite_calls(self._parts)
        self._program: KernelCalls
        self._sources = WeightSources(simple, quantized, kept) if quantized.plan.recipe.weight_rounding == "gram" else None
        self._moves_biases = quantized.plan.recipe.bias_correction is True
        self.shifts = Shifts()
        self.weights: dict[TensorId, Array] = {}
        self.scales: dict[TensorId, npt.NDArray[np.float32]] = {}

    def build(self) -> None:
        """Compile the program. NotImplementedError or CompileError where that cannot be."""
        llvm = self._target.llvm
        libraries = KernelLibraries(llvm)
        lowered = lower_composites(
            self._parts,
            self._target.host,
            tuple(self._target.isas),  # of the core nothing is known that code depends on weights for: they are exchanged
            1,
            composites=self._composites,
            listener=lambda kernel: libraries.add(kernel.symbol, linked_kernel(kernel, llvm)),
        )
        self._program = KernelCalls(link(lowered, llvm), llvm, libraries)

    def correct(
        self,
        samples: Samples,
        means: Mapping[TensorId, npt.NDArray[np.float64]],
        rows: Mapping[TensorId, ExactRows],
        seen: Mapping[TensorId, int],
    ) -> list[list[Array]]:
        """Run all samples through one call after the other; before that of a layer, correct it. Return the results.

        Parameters
        ----------
        means, rows
            Of what layers should give, by their biases.
        seen
            How many of the samples means are over.
        """
        program = self._program
        states: list[dict[Var, Any]] = [
            dict(zip(program.params, map(tvm.runtime.tensor, arrays), strict=True)) for arrays in samples
        ]
        for number, call in enumerate(program.calls):
            layer = self._layer_of(call)
            if layer is not None and layer.bias not in self.shifts:
                inputs = [np.from_dlpack(_value(state, call.operands[0])) for state in states]
                layer = self._rounded(layer, inputs, rows.get(layer.bias))
                mean = means[layer.bias]
                shift = _shift(layer, inputs[: seen[layer.bias]], mean) if self._moves_biases else np.zeros_like(mean)
                self.shifts[layer.bias] = shift.astype(np.float32)
                self._exchange(call, layer.with_shift(shift))
            for state in states:
                state[call.var] = call.run([_value(state, operand) for operand in call.operands])
                for var in program.unread_after[number]:
                    state.pop(var, None)
        return [[np.from_dlpack(_value(state, result)) for result in program.results] for state in states]

    def _rounded(self, layer: WeightedLayer, inputs: Sequence[Array], exact: ExactRows | None) -> WeightedLayer:
        """Return the layer with weights that suit what it reads; as it is where these are not to be had."""
        source = None if self._sources is None else self._sources.of(layer)
        if source is None:
            return layer
        # Other weights move means, which biases then have to bring back.
        found = rounded_weights(layer.op, source, inputs, exact if self._moves_biases else None)
        if found is None:
            return layer
        values, params = found
        self.weights[source.name] = source.placed(values)
        if source.is_free:
            self.scales[source.name] = params.scale
        return layer.with_weights(values, params)

    def _layer_of(self, call: KernelCall) -> WeightedLayer | None:
        bias = bias_of(call.attrs)
        return self.layers.get(TensorId(bias)) if bias is not None and len(call.operands) > 1 else None

    def _exchange(self, call: KernelCall, layer: WeightedLayer) -> None:
        """Give a call the constants of its layer as it is now."""
        binding = self._calls[layer.composite.name]
        constants = iter(kernel_constants(layer, binding, isa_for(self._target.host, self._target.isas)))
        call.operands[:] = [next(constants) if isinstance(each, GenericConst) else each for each in call.operands]


def _shift(layer: WeightedLayer, inputs: Sequence[Array], mean: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what the outputs of a layer are off, on what it reads now."""
    x: Any = layer.op.x
    is_narrow = len(inputs) * np.iinfo(inputs[0].dtype).max < np.iinfo(np.int32).max // 2  # half the memory to go through
    sums = np.zeros(inputs[0].shape, np.int32 if is_narrow else np.int64)
    for values in inputs:
        sums += values
    total = sums.astype(np.int64) - x.zero_point * len(inputs)
    return mean - (mean_accumulators(layer.op, total, len(inputs)) * layer.unit + layer.real_bias)


def _value(state: Mapping[Var, Any], operand: Any) -> Any:
    if isinstance(operand, Var):
        return state[operand]
    return operand.value if isinstance(operand, GenericConst) else operand


def _with_all_pixels(quantized: QuantizedModel, target: ResolvedTarget) -> tvm.IRModule:
    """Return a partitioned model in which all pixels of every quantized tensor are computed, whether anybody reads them or not.

    Partition computes those of results. What it made of them returns the model's own results alone, or each tensor would be
    brought into the source's layout.
    """
    module = quantized.bound()
    view = DataflowView(module["main"])
    names = [binding.var.name for binding in view.bindings if call_to(binding.value, "quantize") is not None]
    parts = partition_module(with_results(module, names, keep=True), target.host, quantized.tensors)
    own = operand_vars(DataflowView(parts["main"]).result)[: len(operand_vars(view.result))]
    return with_results(parts, [var.name for var in own])
