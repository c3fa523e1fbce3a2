"""Lineage: a pass instrument that can say of each source tensor, after each pass, what became of it.

While passes run it only keeps the states of the module, which share what did not change. What became of the tensors is worked
out when somebody asks, by tracking.py. Works with any Relax pass; knows nothing of quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import local
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ...errors import DataError, ModelError, check_type
from ...runtime.shapes import dimension_places, evaluated, fits, read_sizes
from ...runtime.size import names_in
from ..identity import Change, NameSupply, TensorId, TensorState
from .dataflow import attrs_of, call_to, static_shape
from .evaluate import Evaluator, external_modules
from .fixed_sizes import at_sizes, same_variables
from .model import Model
from .pass_states import PassStates, same_functions
from .tracking import Announced, Tracker
from .value_graph import GraphReader, ValueGraph
from .value_numbers import ValueNumbers
from .value_search import tolerance_of

Array = npt.NDArray[Any]

_GIVEN = "(given)"
_BETWEEN = "(between passes)"
_PROBE_SCALE = 3.0
_PROBE_SIZE = 16
"""Of the first open dimension; others differ, so that none is taken for another."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One state of the module: the pass that made it, its functions, and what the pass itself announced (see `announce`)."""

    pass_name: str
    functions: Any
    externs: Mapping[str, Any]
    announced: Announced | None = None

    def by_name(self) -> dict[str, Any]:
        """Return the functions by name."""
        return {var.name_hint: function for var, function in self.functions.items()}


class Lineage(PassStates):
    """Follows the tensors of a model through a pass pipeline.

    Example::

        lineage = octavo.Lineage(model)
        with target, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
            module = relax.get_pipeline("zero")(model.bound())
        print(lineage["conv1"])               # where it is now
        for change in lineage.story("conv1"): print(change.pass_name, change.state)

    Parameters
    ----------
    source
        A Model, whose TensorIds are followed; or an IRModule, where every tensor variable of its entry function is followed by
        its name (the second of a name gets the suffix "_2").
    probe
        Inputs for comparing values where structure doesn't tell: arrays by parameter name, or one array. By default random
        values that are the same each time. Give real ones where random ones make no sense (indices, say).
    entry
        Name of the entry function.
    params
        Constants by parameter name, for an IRModule whose constants are bound by a later pass; a Model brings its own.
    target
        What to build the comparisons for; this machine's baseline by default.
    """

    def __init__(
        self,
        source: Model | tvm.IRModule,
        *,
        probe: Array | Mapping[str, Array] | None = None,
        entry: str = "main",
        params: Mapping[str, Array] | None = None,
        target: tvm.target.Target | None = None,
    ) -> None:
        super().__init__(entry)
        check_type(source, Model | tvm.IRModule, ModelError, "a Model, which octavo.load returns, or a tvm IRModule")
        module = source.module if isinstance(source, Model) else source
        if entry not in {var.name_hint for var in module.get_global_vars()}:
            raise ModelError(f"the module has no function {entry} to follow tensors in; name its entry function")
        self.steps: list[Step] = [Step("(source)", module.functions, {})]
        self._ids = tuple(source.tensors) if isinstance(source, Model) else None
        self._params: dict[str, Array] = {str(name): value for name, value in (params or {}).items()}
        if isinstance(source, Model):
            self._params |= {str(name): value for name, value in source.params.items()}
        self._source, self._probe = source, probe
        self._target = target or tvm.target.Target({"kind": "llvm"})
        self._externals: tuple[Any, ...] = ()
        self.expected: Mapping[str, CodeResults] = {}
        self._tracker: Tracker | None = None
        self._param_numbers: list[tuple[str, int]] = []
        self._history: list[dict[TensorId, TensorState]] = []
        self._sizes: dict[str, int] = {}
        """Of open dimensions: values are compared at these."""
        self._last: Any = None
        """The entry function of the last step that was worked out, at these sizes."""

    # ------------------------------------------------------------------------------------------------- while passes run

    def enter_pass_ctx(self) -> None:
        """Listen to what Octavo's own stages announce."""
        _LISTENING.lineages.append(self)

    def exit_pass_ctx(self) -> None:
        """Stop listening."""
        _LISTENING.lineages.remove(self)

    @property
    def functions(self) -> Any:
        """The functions of the last state."""
        return self.steps[-1].functions

    def take(self, pass_name: str | None, module: tvm.IRModule) -> None:
        """Keep a state of the module."""
        self.record(pass_name or (_GIVEN if len(self.steps) == 1 else _BETWEEN), module)

    def record(
        self, name: str, module: tvm.IRModule, externs: Mapping[str, Any] | None = None, announced: Announced | None = None
    ) -> None:
        """Take a state of the module as the result of the step `name`: for what is no pass.

        Parameters
        ----------
        externs
            PrimFuncs by symbol, where the module calls external symbols that stand for them. Functions with Codegen that a code
            generator has taken are found without.
        announced
            Which variable each tensor became, where the step changes values (floats to integers) and so nothing can be compared.
        """
        before = self.steps[-1]
        if not same_functions(module.functions, before.functions):
            known = {**before.externs, **_left_to_code(before, module), **(externs or {})}
            if announced is None and self.expected:
                announced = _announced_code(self.expected, module[self.entry])
                self.expected = {} if announced is not None else self.expected
            self.steps.append(Step(name, module.functions, known, announced))
        self._externals = external_modules(module) or self._externals

    def ends_with(self, module: tvm.IRModule) -> bool:
        """Return whether `module` is what the last step left."""
        return same_functions(module.functions, self.steps[-1].functions)

    def probed_with(self, probe: Mapping[str, Array]) -> Lineage:
        """Return a lineage of the same steps that compares values on other inputs, at the sizes that their dimensions have."""
        other = Lineage(self._source, probe=probe, entry=self.entry, params=self._params, target=self._target)
        other.steps, other._externals = self.steps, self._externals
        return other

    # ---------------------------------------------------------------------------------------------- when somebody asks

    @property
    def states(self) -> dict[TensorId, TensorState]:
        """The state of every id after the last pass."""
        return self._analysed()[-1]

    @property
    def ids(self) -> tuple[TensorId, ...]:
        """The tensors that are followed, in the order of the source."""
        return tuple(self._analysed()[0])

    def __getitem__(self, tensor: str) -> TensorState:
        """Return the state of one id after the last pass; KeyError for an unknown id."""
        return self.states[TensorId(tensor)]

    def after(self, step: int) -> dict[TensorId, TensorState]:
        """Return the state of every id after a step, an index into `steps`."""
        return self._analysed()[step]

    def story(self, tensor: str) -> tuple[Change, ...]:
        """Return the states that one id went through, each with the pass that brought it there; KeyError for an unknown id."""
        changes: list[Change] = []
        for index, states in enumerate(self._analysed()):
            state = states[TensorId(tensor)]
            if not changes or not state.is_like(changes[-1].state):
                changes.append(Change(step=index, pass_name=self.steps[index].pass_name, state=state))
        return tuple(changes)

    def variable(self, tensor: str) -> relax.Var | None:
        """Return the variable of the entry function that holds one id after the last pass; None where none does."""
        state = self[tensor]
        assert self._tracker is not None
        place = None if state.position is None else self._tracker.graph.places[state.position]
        if place is None or place.path:
            return None
        return same_variables(self._last, self.steps[-1].by_name()[self.entry])[place.var]

    def constant(self, tensor: str) -> Array | None:
        """Return the constant that holds one id after the last pass, None where a variable or nothing holds it."""
        state = self[tensor]
        assert self._tracker is not None
        if state.position is not None or not state.expression or state.kind == "inside":
            return None
        return self._tracker.graph.constants[self._tracker.links[TensorId(tensor)].number].value.numpy()

    def tolerance(self, tensor: str) -> float:
        """Return how far the value of one id may be from its claim, as a share of its largest magnitude."""
        assert self._tracker is not None
        link = self._tracker.links[TensorId(tensor)]
        return tolerance_of(self._tracker.numbers, link.number, self._tracker.sources[TensorId(tensor)])

    def _analysed(self) -> list[dict[TensorId, TensorState]]:
        """Work out the steps that were not yet; without the instruments that may be listening just now."""
        with tvm.transform.PassContext(opt_level=3):
            if self._tracker is None:
                self._tracker = self._start()
                self._history.append(self._complete(self._tracker.states))
            for step in self.steps[len(self._history) :]:
                self._tracker.reader.externs.update(at_sizes(step.externs, self._sizes))
                self._tracker.evaluator.externals = self._externals
                functions = self._fixed(step)
                params = self._params_of(functions[self.entry])
                states = self._tracker.advance(functions, self.entry, params, self._announced(step))
                self._history.append(self._complete(states))
        return self._history

    def _start(self) -> Tracker:
        numbers = ValueNumbers()
        reader = GraphReader(numbers)
        inputs = self._probe_arrays(self.steps[0].by_name()[self.entry])
        functions = self._fixed(self.steps[0])
        main = functions[self.entry]
        constants = {
            index: numbers.constant(tvm.runtime.tensor(np.asarray(self._params[param.name], order="C")), param.ty)
            for index, param in enumerate(main.params)
            if param.name in self._params
        }
        graph = reader.read(functions, self.entry, constants)
        self._param_numbers = [(place.name, place.number) for place in graph.places[: len(main.params)]]
        return Tracker(reader, Evaluator(numbers, inputs, self._target), self._find_ids(graph), graph)

    def _fixed(self, step: Step) -> dict[str, Any]:
        """Return the functions of a step at the sizes of the probe."""
        functions = at_sizes(step.by_name(), self._sizes)
        self._last = functions[self.entry]
        return functions

    def _announced(self, step: Step) -> Announced | None:
        """Return what a step announced, of the variables that its entry function has at the sizes of the probe."""
        if step.announced is None or not self._sizes:
            return step.announced
        there = same_variables(step.by_name()[self.entry], self._last)

        def translated(links: Mapping[str, str | relax.Var]) -> dict[str, str | relax.Var]:
            return {tensor: there.get(var, var) if isinstance(var, relax.Var) else var for tensor, var in links.items()}

        return replace(
            step.announced, holders=translated(step.announced.holders), fused_into=translated(step.announced.fused_into)
        )

    def _find_ids(self, graph: ValueGraph) -> dict[TensorId, int]:
        """Return the number of each id's value in the source module."""
        tensors = [place for place in graph.places if isinstance(place.ty, relax.TensorType) and not place.path]
        if self._ids is None:
            supply = NameSupply()
            return {TensorId(supply.fresh(place.name or "tensor")): place.number for place in tensors}
        names = [place.name for place in tensors]
        wanted = set(self._ids)
        return {TensorId(place.name): place.number for place in tensors if place.name in wanted and names.count(place.name) == 1}

    def _complete(self, states: dict[TensorId, TensorState]) -> dict[TensorId, TensorState]:
        """Add the ids that the source module has no variable for."""
        absent = TensorState(
            kind="gone", reason="the imported module has no one variable for it: a literal, an attribute, or unread"
        )
        return {tensor: states.get(tensor, absent) for tensor in self._ids} if self._ids is not None else states

    def _params_of(self, main: relax.Function) -> dict[int, int]:
        """Return the number of each parameter of the entry function in the next module.

        A call passes arguments by their order, so the same count means the same parameters whatever their names; where some are
        gone (bound to constants), the names say which are left.
        """
        old = self._param_numbers
        names = [name for name, _ in old]
        numbers: dict[int, int] = {}
        for index, param in enumerate(main.params):
            if len(main.params) == len(old):
                numbers[index] = old[index][1]
            elif names.count(param.name) == 1:
                numbers[index] = old[names.index(param.name)][1]
            else:
                assert self._tracker is not None
                numbers[index] = self._tracker.numbers.opaque((), param.ty)
        self._param_numbers = [(param.name, numbers[index]) for index, param in enumerate(main.params)]
        return numbers

    def _probe_arrays(self, main: relax.Function) -> dict[int, Array]:
        """Return an array for each parameter of known rank, from the probe or made up, of sizes made up where they are open."""
        rng = np.random.default_rng(0)
        params = [(index, param) for index, param in enumerate(main.params) if param.name not in self._params]
        given = self._probe
        if given is not None and not isinstance(given, Mapping):
            given = {params[0][1].name: given} if params else {}
        shapes = {index: static_shape(param) for index, param in params}
        names = sorted(names_in(dim for shape in shapes.values() for dim in shape or ()))
        arrays: dict[int, Array] = {}
        for index, param in params:
            if given is not None and param.name in given:
                arrays[index] = given[param.name]
                shape = shapes[index]
                if shape is not None and not fits(arrays[index].shape, shape):
                    raise DataError(f"probe: {param.name} must have shape {list(shape)}, got {list(arrays[index].shape)}")
        places = dimension_places([shapes[index] or () for index in arrays])
        said = read_sizes(places, [array.shape for array in arrays.values()])
        self._sizes = {name: _PROBE_SIZE + place for place, name in enumerate(names)} | said
        for index, param in params:
            shape = shapes[index]
            if index not in arrays and shape is not None:
                arrays[index] = _made_up(rng, evaluated(shape, self._sizes), str(param.ty.dtype))
        return arrays


class _Listening(local):
    """The lineages that hear of the steps of this thread, as their pass contexts are this thread's."""

    def __init__(self) -> None:
        self.lineages: list[Lineage] = []


_LISTENING = _Listening()


def is_listening() -> bool:
    """Return whether a Lineage follows what this thread does."""
    return bool(_LISTENING.lineages)


@contextmanager
def one_step() -> Generator[None]:
    """Let a step that announces what it made run passes of its own: for a Lineage they are no steps."""
    if not _LISTENING.lineages:
        yield
        return
    with tvm.transform.PassContext(opt_level=3):
        yield


@contextmanager
def lineage_paused() -> Generator[None]:
    """Let a step build modules of its own, which the module that is followed does not become: no Lineage hears of them."""
    listening = list(_LISTENING.lineages)
    _LISTENING.lineages.clear()
    try:
        with tvm.transform.PassContext(opt_level=3):
            yield
    finally:
        _LISTENING.lineages[:] = listening


def announce(name: str, module: Callable[[], tvm.IRModule], externs: Mapping[str, Any], announced: Announced) -> None:
    """Tell every Lineage that is listening what a step which is no TVM pass made of the module; see `Lineage.record`."""
    listening = list(_LISTENING.lineages)
    if not listening:
        return
    with one_step():
        made = module()
    for lineage in listening:
        lineage.record(name, made, externs, announced)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeResults:
    """What a code generator says of one function that it took: the tensors whose integers it gives, in order, and those inside.

    A result of which nothing is said is "".
    """

    results: tuple[str, ...]
    computed: tuple[str, ...]


def announce_code(functions: Mapping[str, CodeResults]) -> None:
    """Tell every Lineage that is listening what stands for tensors once the running pass has put calls of symbols in place."""
    for lineage in _LISTENING.lineages:
        lineage.expected = {**lineage.expected, **functions}


def _announced_code(expected: Mapping[str, CodeResults], main: Any) -> Announced | None:
    """Return what became of the tensors of functions that a module calls as object code; None where it calls none."""
    holders: dict[str, Any] = {}
    fused: dict[str, Any] = {}
    fields: dict[Any, CodeResults] = {}
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    for var, value in ((binding.var, binding.value) for binding in bindings):
        call = call_to(value, "call_dps_packed")
        code = expected.get(str(getattr(call.args[0], "global_symbol", ""))) if call is not None else None
        if code is not None:
            fields[var] = code
            fused |= dict.fromkeys(code.computed, var)
            if isinstance(var.ty, relax.TensorType):
                holders |= dict.fromkeys(code.results, var)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in fields:
            holders[fields[value.tuple_value].results[int(value.index)]] = var
    return Announced(holders=holders, fused_into=fused) if fields else None


def _left_to_code(before: Step, module: tvm.IRModule) -> dict[str, Any]:
    """Return by symbol the functions that were for a code generator and are gone: the module calls its code by their symbols."""
    left = {var.name_hint for var in module.get_global_vars()}
    gone = [function for name, function in before.by_name().items() if name not in left and "Codegen" in attrs_of(function)]
    return {str(function.attrs["global_symbol"]): function for function in gone}


def _made_up(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Return values wide enough to reach the clamps of a network; of integers that may be indices, the lowest."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in ("int8", "uint8"):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)
    if dtype.startswith(("int", "uint")):
        return rng.integers(0, 2, shape).astype(dtype)
    return (rng.standard_normal(shape) * _PROBE_SCALE).astype(dtype)
