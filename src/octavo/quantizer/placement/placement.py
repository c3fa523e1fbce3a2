"""Placement: which ops run in integers on a target, and with what in the same kernel. Decides; computes and rewrites nothing.

An op that multiplies by constant weights, or multiplies two activations, pulls its inputs into integers. Any other op that the
target supports stays in integers where all its data already is: it never costs a quantization, nor the precision of a float
tensor, just to run itself. Every op left float has a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tvm import relax
from tvm.relax import Var

from ...errors import QuantizationError
from ...ir.graph.dataflow import call_to, op_name, operand_vars, static_shape
from ...ir.identity import TensorId
from ...ir.qdq.functions import has_factors_alone, has_slopes_alone, is_float_function
from ...runtime.shapes import typical
from ...target import ELEMENTWISE, ELEMENTWISE_PAIR
from ...target.op_facts import NORMS
from ..plan import FloatOp
from ..request import width_of
from .candidates import Candidates, computed_of_inputs
from .inputs import PlanInputs
from .layer import Declined, Layer, Placement, reads_rows, reads_samples
from .reasons import beyond_limits, together, without_range

_MEANS = ("mean", "nn.avg_pool2d", "nn.adaptive_avg_pool2d")
_POLES = {"divide": 1, "rsqrt": 0, "log": 0}
"""Ops that grow beyond bounds where an operand nears 0, and that operand's place."""
_STEPS_FROM_ZERO = 16
"""By how many steps of its integers such an operand stays away from 0: half of one is then 3% of it at most."""
_OF_TWO = ("add", "subtract", "multiply", "divide", "maximum", "minimum")


@dataclass(kw_only=True, slots=True)
class Placer:
    """Finds the integer ops of one function.

    `refuse` says why a layer must stay float for its numbers' sake, `block_of` how many of its inputs share a scale of its
    weight, 0 where all do. By an op's variable it is declined why targets, by name, do not take it: they are not asked again.
    """

    inputs: PlanInputs
    refuse: Callable[[Layer], str | None]
    block_of: Callable[[Layer], int]
    declined: Declined
    reasons: dict[Var, str] = field(default_factory=dict[Var, str])
    _functions: set[Var] = field(default_factory=set[Var])
    """The results of functions that are computed of float sums."""
    _sums: set[Var] = field(default_factory=set[Var])
    """The results of additions in whose kernels functions of them can be computed."""
    _planned: dict[TensorId, tuple[Var, bool]] = field(default_factory=dict[TensorId, "tuple[Var, bool]"])
    """By the output of a layer of the plan that is followed the op that could be it, and whether it is as the plan says."""

    def place(self) -> Placement:
        """Decide for every op of the function."""
        candidates = self._candidates()
        reals = {layer.output for layer in candidates if layer.reads_reals}
        integer, floats = self._keep(candidates, self._between_widths(candidates) | reals)
        if self.inputs.followed is None:
            self._revise(candidates, integer)
            floats |= self._float_results(candidates, integer)
            # What goes into additions alone they read in float32: 8 bits would only lose some.
            products = {layer.output for layer in candidates if layer.output in integer and self._may_leave_float(layer)}
            floats |= {var for layer in candidates if layer.output in integer for var in self._real_inputs(layer, products)}
        layers = tuple(
            replace(layer, leaves_float=layer.output in floats, floats=self._real_inputs(layer, floats))
            for layer in candidates
            if layer.output in integer
        )
        return Placement(layers=layers, float_ops=self._float_ops(layers), overridden=self.inputs.overridden(layers))

    def _candidates(self) -> list[Layer]:
        """Return every op that could run in integers if its inputs were; note the reason of every other."""
        taken: set[Var] = set()
        found: list[Layer] = []
        computed = computed_of_inputs(self.inputs.form.view, self.inputs.form.constants)
        finders = [Candidates(inputs=self.inputs, target=target, computed=computed) for target in self.inputs.targets]
        for binding in self.inputs.form.view.bindings:
            var = binding.var
            if var in taken or not isinstance(binding.value, relax.Call) or self.inputs.form.constants.find(var) is not None:
                continue
            layer = self._first(finders, var)
            if isinstance(layer, str):
                self.reasons[var] = layer
                continue
            taken.update(layer.members)
            self._sums.update(layer.inputs if self._is_function_of_sum(layer, found) else ())
            excluded = self._excluded(layer) or self._near_pole(layer)
            if excluded is not None:
                self.reasons[var] = excluded
                continue
            found.append(layer)
        return found

    def _first(self, finders: list[Candidates], var: Var) -> Layer | str:
        """Return the op for the first target that takes it, or why none does."""
        reasons = dict(self.declined.get(var, {}))
        for finder in finders:
            name = finder.target.name
            if name not in reasons:
                layer = finder.find(var)
                reason = layer if isinstance(layer, str) else beyond_limits(self.inputs.form.view, layer, name)
                if isinstance(layer, Layer) and reason is None:
                    layer = self._reading_reals(replace(layer, taker=name))
                    reason = self._unlike_plan(layer)
                    if reason is None:
                        return layer
                reasons[name] = reason or ""
        return together(reasons)

    def _unlike_plan(self, layer: Layer) -> str | None:
        """Return why a layer that a target could take is none of the plan that is followed, or None."""
        if self.inputs.followed is None:
            return None
        reason = self.inputs.followed.unlike(layer)
        if reason is None:
            self._planned[layer.name] = layer.core, True
        else:
            self._planned.setdefault(layer.name, (layer.core, False))
        return reason

    def check_plan(self, placement: Placement) -> None:
        """Raise QuantizationError unless a placement has all layers of the plan that is followed: the first missing, and why."""
        plan = None if self.inputs.followed is None else self.inputs.followed.plan
        placed = {layer.name for layer in placement.layers}
        missing = next((layer for layer in plan.layers if layer.output not in placed), None) if plan is not None else None
        if plan is None or missing is None:
            return
        core, is_like = self._planned.get(missing.output, (None, True))
        reasons = {op.tensor: op.reason for op in placement.float_ops}
        # Else it is said of the last op of its kind before its output.
        before = list(placement.float_ops)[: list(reasons).index(missing.output) + 1] if missing.output in reasons else []
        reason = next((op.reason for op in reversed(before) if op.op == missing.op), f"the model has no {missing.op} there")
        if is_like and missing.output not in plan.activations and not missing.reads_reals:
            reason = f"its result {missing.output} has no parameters in the plan"
        elif core is not None:
            reason = self.reasons[core]
        raise QuantizationError(f"the plan: {missing.op} {missing.output} cannot be integer: {reason}")

    def _reading_reals(self, layer: Layer) -> Layer:
        """Return a layer with blocks of weights, its activations quantized per row, and its result float, where these are chosen.

        A product of a tensor with itself would read that in two ways.
        """
        block, copied = self.block_of(layer), self.inputs.choices.float_results
        # Where some read floats, others read what is nearest to them that the target has.
        is_usual = self.inputs.recipe.weight_block is not None and bool(block) != self.inputs.recipe.is_weight_only
        is_chosen = layer.name in self.inputs.choices.per_row
        is_row = reads_rows(layer.support) and len({*layer.inputs}) == len(layer.inputs) and not layer.constants
        takes = (is_row and (is_chosen or is_usual)) or (is_chosen and reads_samples(layer.support))
        per_row = layer.inputs if takes else ()
        leaves_copies = layer.name in copied and layer.op is not None and layer.may_leave_float and not (block or per_row)
        return replace(layer, block=block, per_row=per_row, leaves_copies=leaves_copies)

    def _excluded(self, layer: Layer) -> str | None:
        own = self.inputs.override_of(layer).exclude
        if own is not None:
            return "an override of the recipe excludes it" if own else None
        hit = self.inputs.named(self.inputs.recipe.exclude, layer.support.op, [var.name for var in layer.members])
        return None if hit is None else f"the recipe excludes {hit}"

    def _near_pole(self, layer: Layer) -> str | None:
        """Return which tensor an op can't read in integers, which don't tell its least values from those that are far off."""
        statistics, view = self.inputs.form.statistics, self.inputs.form.view
        if self.inputs.followed is not None or statistics is None:
            return None
        for var in layer.members:
            call = call_to(view.definition(var), *_POLES)
            operand = None if call is None else view.binding_of(call.args[_POLES[op_name(call)]])
            source = None if operand is None or operand not in layer.inputs else self.inputs.form.sources.source(operand)
            if source is None:
                continue
            ends = sorted(map(abs, (statistics[source].minimum, statistics[source].maximum)))
            least = ends[0] if statistics[source].minimum * statistics[source].maximum > 0 else 0.0
            if least * 2 ** width_of(self.inputs.preferred) < ends[1] * _STEPS_FROM_ZERO:
                return (
                    f"it would read {source} in integers, which are too coarse near 0, where its result is largest: there are "
                    f"values of {least:.3g} among others of {ends[1]:.3g}"
                )
        return None

    def _keep(self, candidates: list[Layer], between: Collection[Var]) -> tuple[set[Var], set[Var]]:
        """Return the outputs of the candidates that run in integers, and those of them that stay float.

        That is for want of a range, for a function in the same kernel, `between` two widths, and where inputs are quantized when
        run: who reads such quantizes them. Places are counted among them.
        """
        integer: set[Var] = set()
        floats: set[Var] = set()
        pulled: set[Var] = set()
        for layer in candidates:
            made = integer - floats
            if self._is_fused(layer, candidates, integer):
                self._functions.add(layer.output)
                floats.update(layer.inputs)
            real = self._real_inputs(layer, floats)
            reason = self._no_range(layer, made.union(real)) or self._not_worth(layer, made.union(pulled, real, between))
            leaves = layer.output in between or layer.gives_places or layer.leaves_copies
            leaves = leaves or (self._may_leave_float(layer) and not self._can_be_integer(layer.output))
            reason = reason or self.refuse(replace(layer, floats=real, leaves_float=leaves))
            if reason is None:
                integer.add(layer.output)
                pulled.update(layer.quantized_inputs)
                if leaves:
                    floats.add(layer.output)
            else:
                self.reasons[layer.core] = reason
        return integer, floats

    def _is_fused(self, layer: Layer, candidates: list[Layer], integer: set[Var]) -> bool:
        """Return whether a function of one tensor is computed in the kernel that makes that, of its float sums.

        It can cost more time than a table: so are those whose tables would differ from channel to channel, where the kernel has
        what differs, and those of tensors that must not be quantized, or that a plan does not quantize.
        """
        if not self._is_function(layer):
            return False
        source = layer.inputs[0]
        makers = (other for other in candidates if other.output.same_as(source) and source in integer)
        maker = next((other for other in makers if not other.reads_reals), None)
        if maker is None or layer.taker != maker.taker or not maker.support.float_function or not self._may_leave_float(maker):
            return False
        if self.inputs.followed is not None:
            return not self.inputs.has_range(source)
        if layer.support.op != ELEMENTWISE_PAIR:
            return source.name in self.inputs.choices.float_tensors
        axis = -1 if maker.op is None else maker.op.output_axis
        return has_factors_alone(self.inputs.form.view, self.inputs.form.constants, layer.members, axis)

    def _is_function_of_sum(self, layer: Layer, before: Sequence[Layer]) -> bool:
        """Return whether the kernel of an addition can compute a function of it."""
        if not self._is_function(layer) or self.inputs.is_wide:
            return False
        maker = next((other for other in reversed(before) if other.output.same_as(layer.inputs[0])), None)
        if maker is None or maker.pulls or not (maker.takes_floats and maker.support.float_function):
            return False
        return maker.taker == layer.taker and has_slopes_alone(self.inputs.form.view, self.inputs.form.constants, layer.members)

    def _is_function(self, layer: Layer) -> bool:
        kinds = (ELEMENTWISE, ELEMENTWISE_PAIR)
        return (
            layer.support.op in kinds
            and len(layer.inputs) == 1
            and is_float_function(self.inputs.form.view, layer.inputs[0], layer.members)
        )

    def _revise(self, candidates: list[Layer], integer: set[Var]) -> None:
        """Leave normalizations float that only float ops read, and make moves integer that only integer ops read."""
        for layer in candidates:
            readers = (other for other in candidates if other.output in integer and layer.output in other.quantized_inputs)
            if layer.support.op in NORMS and layer.output in integer and next(readers, None) is None:
                integer.discard(layer.output)
                self.reasons[layer.core] = "only float ops read its result, which 8 bits would only make coarser"
        rows: set[Var] = set()
        """What is taken of constant tables, moved and joined, with what is integer already."""
        for layer in candidates:
            if (layer.moves or layer.support.op == "concat") and all(var in rows or var in integer for var in layer.inputs):
                rows.add(layer.output)
        # Backwards: moving data before an integer op is cheaper in integers, and the Q then sits at the graph's edge.
        inputs_of, view = {layer.output: layer for layer in candidates}, self.inputs.form.view
        for layer in reversed(candidates):
            stays_float = layer.name in self.inputs.choices.float_tensors or not all(map(self._can_be_integer, layer.inputs))
            adds_nothing = layer.moves or layer.output in rows or self._joins_parts(layer)
            if layer.output in integer or not adds_nothing or stays_float:
                continue
            readers = [inputs_of[out] for out in integer if layer.output in inputs_of[out].quantized_inputs]
            count = sum(reader.inputs.count(layer.output) for reader in readers)
            is_inner = count == len(view.users(layer.output)) and not view.is_returned(layer.output)
            if readers and is_inner and self.refuse(layer) is None:
                integer.add(layer.output)
                self.reasons.pop(layer.core, None)

    def _joins_parts(self, layer: Layer) -> bool:
        """Return whether an op puts together what was moved from one tensor, as an importer's steps to slices do."""
        sources = {self.inputs.form.sources.source(var) for var in layer.inputs}
        return layer.support.op == "concat" and len(sources) == 1 and self.inputs.form.sources.source(layer.output) in sources

    def _float_results(self, candidates: list[Layer], integer: set[Var]) -> set[Var]:
        """Return the products whose results no integer op needs; tables and moves behind them leave `integer`, too.

        Scores of attention are such where softmax is float, and outputs of the model: in float they keep what 8 bits would lose.
        """
        layers = [layer for layer in candidates if layer.output in integer]
        floats = {layer.output for layer in layers if self._may_leave_float(layer) or self._passes(layer)}
        while True:  # the largest set of which no integer op reads any, and in which what passes on reads only the set
            needed = {data for layer in layers if layer.pulls or layer.output not in floats for data in layer.quantized_inputs}
            for layer in layers:
                reads = any if layer.support.op in _OF_TWO else all  # float32 results of products
                if not layer.pulls and not reads(var in floats for var in layer.inputs):
                    needed.add(layer.output)
            if floats.isdisjoint(needed):
                break
            floats -= needed
        passed = [layer for layer in layers if layer.output in floats and not layer.pulls]
        integer.difference_update(layer.output for layer in passed)
        self.reasons.update({layer.core: "no integer op needs its result, and what it reads is float" for layer in passed})
        return {layer.output for layer in layers if layer.output in floats and layer.pulls}

    def _real_inputs(self, layer: Layer, floats: Collection[Var]) -> tuple[Var, ...]:
        """Return what an addition reads of products that leave float32; such have one reader, and the shape of the sum.

        So does a function that is computed in a product's kernel.
        """
        if layer.output in self._functions:
            return layer.inputs
        if not layer.takes_floats:
            return ()
        view = self.inputs.form.view
        read = (var for var in layer.inputs if var in floats and not view.is_returned(var))
        return tuple(dict.fromkeys(var for var in read if all(user in layer.members for user in view.users(var))))

    def _between_widths(self, candidates: list[Layer]) -> set[Var]:
        """Return the results of products whose inputs have another width: they leave float32, which their readers quantize.

        All other ops compute at one width, and pass it on.
        """
        usual = 16 if self.inputs.is_wide else 8
        odd = {name: bits for name, bits in self.inputs.requested.items() if bits not in (None, usual)}
        changing = [layer for layer in candidates if layer.op is not None and layer.may_leave_float and not layer.reads_reals]
        count = -1
        while odd and count != len(odd):
            count = len(odd)
            for layer in candidates:
                if not layer.takes_floats and not layer.reads_reals:
                    names = {var.name for var in (*layer.inputs, *(() if layer in changing else (layer.output,)))}
                    found = next((odd[name] for name in sorted(names) if name in odd), None)
                    odd |= {} if found is None else dict.fromkeys(names, found)
        return {layer.output for layer in changing if (layer.name in odd) != (layer.inputs[0].name in odd)}

    def _may_leave_float(self, layer: Layer) -> bool:
        """Return whether a product can end in float32, which those of two activations of 16 bits cannot, and nobody minds.

        So can a sum before a function in the same kernel.
        """
        is_taken = layer.op is None and self.inputs.is_wide
        can = (layer.may_leave_float and not is_taken) or layer.output in self._sums
        return can and layer.output.name not in self.inputs.requested

    def _can_be_integer(self, var: Var) -> bool:
        return var.name not in self.inputs.choices.float_tensors and self.inputs.has_range(var)

    def _passes(self, layer: Layer) -> bool:
        """Return whether a layer may as well work in float: element by element, a mean, a norm, or a move that adds nothing."""
        if layer.output.name in self.inputs.requested:
            return False
        if layer.support.op in _OF_TWO or layer.gives_places:
            return True
        if layer.support.op in (ELEMENTWISE, ELEMENTWISE_PAIR, *_MEANS, *NORMS) or layer.constants:
            return len(layer.inputs) == 1
        shapes = [static_shape(var) for var in (*layer.inputs, layer.output)]
        if None in shapes or not layer.passes_values:
            return False
        *before, after = (typical(prod(shape)) for shape in shapes if shape is not None)
        return after <= sum(before)

    def _no_range(self, layer: Layer, integer: set[Var]) -> str | None:
        if layer.reads_reals:
            return None
        needed = [data for data in layer.inputs if data not in integer]
        if not layer.moves and not layer.gives_places and not self._may_leave_float(layer):
            needed.append(layer.output)
        if layer.name in self.inputs.choices.float_tensors and not self._may_leave_float(layer):
            return f"its result stays float: {self.inputs.choices.float_tensors[layer.name]}"
        if layer.name in self.inputs.choices.float_results and not layer.pulls:
            return f"its result stays float: {self.inputs.choices.float_results[layer.name]}"
        left = (data for data in layer.inputs if data.name in self.inputs.choices.float_tensors and data not in integer)
        unfit = next((TensorId(data.name) for data in left), None)
        if unfit is not None:
            return f"it reads {unfit}, which stays float: {self.inputs.choices.float_tensors[unfit]}"
        missing = [var for var in needed if not self.inputs.has_range(var)]
        touched, form = (*layer.inputs, layer.output), self.inputs.form
        return without_range(form.view, form.model.tensors, missing, touched, multiplies=layer.pulls) if missing else None

    def _not_worth(self, layer: Layer, integers: set[Var]) -> str | None:
        """Return which inputs keep an op float: it would have to quantize them for itself alone; so it would rows of a table."""
        if not layer.inputs and self.inputs.followed is None:
            return "not only integer ops read its rows, which 8 bits would make coarser for the others"
        floats = (
            []
            if layer.pulls or self.inputs.followed is not None
            else [data.name for data in layer.inputs if data not in integers]
        )
        if not floats:
            return None
        return f"its input {', '.join(floats)} is float, and quantizing it for this op alone would cost more than it saves"

    def _float_ops(self, layers: tuple[Layer, ...]) -> tuple[FloatOp, ...]:
        integer = {var for layer in layers for var in (*layer.members, *layer.gathering)}
        result: list[FloatOp] = []
        for binding in self.inputs.form.view.bindings:
            var = binding.var
            if var in integer or not isinstance(binding.value, relax.Call) or self.inputs.form.constants.find(var) is not None:
                continue
            reason = self.reasons.get(var) or self._reason_of_owner(var)
            result.append(FloatOp(op=op_name(binding.value), tensor=TensorId(var.name), reason=reason))
        return tuple(result)

    def _reason_of_owner(self, var: Var) -> str:
        """Return the reason of the op whose kernel `var` would have been part of."""
        for data in operand_vars(self.inputs.form.view.definition(var)):
            root = self.inputs.form.view.root_of(data)
            if root in self.reasons:
                return f"it follows {root.name}, which stays float: {self.reasons[root]}"
        return "the op before it stays float"
