"""Runners: call compiled code on tensors. One for native programs, one for TVM's virtual machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ..errors import ExecutableError
from .code import ENTRY, Code, takes_table
from .huge_pages import empty_bytes, tensor_of
from .mapped import can_share
from .shapes import Place, dimension_places, read_sizes
from .size_functions import Numbers, size_function
from .tensors import empty_tensor, tensor_from
from .worker_pool import WorkerPool


class Prepared(Protocol):
    """A call whose inputs are in state."""

    def run(self) -> None:
        """Run and leave the results where `results` finds them."""
        ...

    def results(self) -> list[Any]:
        """Return the tensors of the last run, in order."""
        ...


class Runner(Protocol):
    """Code that can be called from several Python threads."""

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on tvm tensors, in order; return fresh ones."""
        ...

    def prepare(self, inputs: Sequence[Any]) -> Prepared:
        """Return a call on these very tensors, for many runs."""
        ...


@runtime_checkable
class DeviceRunner(Protocol):
    """A runner that takes tensors where its code runs."""

    def prepare_on_device(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Return a call that reads and writes these very tensors (tvm_ffi's, in order); DataError for one that lies elsewhere."""
        ...


class ObservingCall(Prepared, Protocol):
    """A call whose observers write where its code runs."""

    def fetch(self) -> None:
        """Move the counts of all runs since the last time to the arrays."""
        ...


@runtime_checkable
class ObservingRunner(Protocol):
    """A runner of an instrumented model in memory that is not the host's."""

    def prepare_observing(self, inputs: Sequence[Any], states: Sequence[npt.NDArray[Any]]) -> ObservingCall:
        """Return a call on these very tensors.

        `states` are ranges and counts of each observer, as `numerics.statistics.observer_state` lays them out. A run adds to the
        ranges and to the first number of the counts; the other counts come with `fetch`.
        """
        ...


class DeviceCode(Protocol):
    """Code that brings its own runner: a device's, whose memory is not the host's."""

    @property
    def constants(self) -> npt.NDArray[np.uint8] | None:
        """What is kept beside the code in its file."""
        ...

    def export(self, path: str) -> None:
        """Write the code, without constants, to a file."""
        ...

    def assembly(self, target: tvm.target.Target) -> str | None:
        """Return the machine code as text."""
        ...

    def runner(self) -> Runner:
        """Return what calls it."""
        ...


def runner_of(
    code: Code | DeviceCode, shapes: Sequence[Sequence[int]] = (), others: Mapping[str, int] = MappingProxyType({})
) -> Runner:
    """Return what calls this code, whose inputs have these shapes; `others` are sizes that no input has."""
    if not isinstance(code, Code):
        return code.runner()
    if code.library is None:
        return ForeignRunner()
    if code.workspace is None:
        return MachineRunner(code.library)
    return NativeRunner(code, Dimensions(places=dimension_places(shapes), others=dict(others)))


def _no_memory(size: int, what: str) -> ExecutableError:
    return ExecutableError(
        f"a call needs {size} bytes ({size / 2**30:.1f} GiB) for {what}, more than this machine gives; feed less, or compile "
        "the model for smaller shapes"
    )


class ForeignRunner:
    """Stands for code of another architecture, which can be saved and not called."""

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Raise ExecutableError."""
        raise ExecutableError("the executable is for another machine: save it, and load it there")

    def prepare(self, inputs: Sequence[Any]) -> Prepared:
        """Raise ExecutableError."""
        raise ExecutableError("the executable is for another machine: save it, and load it there")


class NativeRunner:
    """Calls the entry of a Program. Calls share nothing but the constants, so they may overlap.

    Parameters
    ----------
    code
        The Program's machine code, with its constants.
    dimensions
        The open dimensions.
    """

    def __init__(self, code: Code, dimensions: Dimensions) -> None:
        assert code.constants is not None, "a program has constants"
        assert code.workspace is not None, "a program has a workspace"
        assert code.outputs is not None, "a program has outputs"
        self._dimensions = dimensions
        self._library = code.library
        self._control = code.control
        self._entry: Callable[..., None] = code.library[ENTRY]
        # In the memory that the compiler made for them, or that a file is mapped to; what was read has none that is as fast.
        is_placed = code.constants.flags.writeable and can_share(code.constants)
        self._constants: Any = tvm.runtime.from_dlpack(code.constants) if is_placed else tensor_of(code.constants)
        self._names = sorted({**dimensions.places, **dimensions.others})
        self._workspace = size_function([code.workspace], self._names)
        self._shapes = [size_function(shape, self._names) for shape, _ in code.outputs]
        self._dtypes = [dtype for _, dtype in code.outputs]
        self._idle: list[CallState] = []

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on fresh outputs, with a workspace that no other call has."""
        sizes = self._dimensions.of(inputs)
        outputs = self.empty_outputs(sizes)
        self.run_on(inputs, outputs, sizes)
        return outputs

    def empty_outputs(self, sizes: Mapping[str, int]) -> list[Any]:
        """Return memory for the results at these sizes."""
        numbers = self._in_order(sizes)
        shapes = [shape(*numbers) for shape in self._shapes]
        try:
            return [empty_tensor(shape, dtype) for shape, dtype in zip(shapes, self._dtypes, strict=True)]
        except Exception as error:  # std::bad_alloc, as TVM passes it on
            count = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in zip(shapes, self._dtypes, strict=True))
            raise _no_memory(count, "its results") from error

    def run_on(self, inputs: Sequence[Any], outputs: Sequence[Any], sizes: Mapping[str, int]) -> None:
        """Run on memory for inputs and outputs, whose shapes count for nothing: the sizes of open dimensions are these."""
        numbers = self._in_order(sizes)
        [workspace] = self._workspace(*numbers)
        try:
            state = self._idle.pop()  # atomic, as append is
        except IndexError:
            state = self._call_state(workspace)
        if state.workspace < workspace:
            state = self._call_state(workspace)
        self._entry(*state.sizes_of(numbers), *entry_inputs(inputs), self._constants, *state.arguments, *outputs)
        self._idle.append(state)

    def run_again(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        sizes: Mapping[str, int],
        flags: Collection[str],
        before: CallState | None,
    ) -> CallState:
        """Run as `run_on` in a workspace that no other call uses, and return that.

        `flags` are dimensions that say what is there already: 1 in the workspace of the run `before`, where that holds this one.
        """
        [workspace] = self._workspace(*self._in_order({**sizes, **dict.fromkeys(flags, 1)}))
        is_there = before is not None and before.workspace >= workspace
        # Twice as much as is needed: where states grow, so does what a step computes on its way.
        state = before if before is not None and is_there else self._call_state(2 * workspace)
        numbers = self._in_order({**sizes, **dict.fromkeys(flags, int(is_there))})
        self._entry(*state.sizes_of(numbers), *entry_inputs(inputs), self._constants, *state.arguments, *outputs)
        return state

    def prepare(self, inputs: Sequence[Any]) -> Prepared:
        """Return a call with outputs and a workspace of its own."""
        sizes = self._dimensions.of(inputs)
        outputs, numbers = self.empty_outputs(sizes), self._in_order(sizes)
        state = self._call_state(*self._workspace(*numbers))
        arguments = (*state.sizes_of(numbers), *entry_inputs(inputs), self._constants, *state.arguments, *outputs)
        return _PreparedNative(self._entry, arguments, outputs, state, inputs)

    def _in_order(self, sizes: Mapping[str, int]) -> list[int]:
        return [sizes[name] for name in self._names]

    def _call_state(self, size: int) -> CallState:
        try:
            workspace = empty_bytes(size)
        except MemoryError as error:
            raise _no_memory(size, "what it computes on its way") from error
        sizes = empty_tensor((len(self._names),), "int64")
        if self._control is None:
            return CallState(arguments=(workspace,), workspace=size, sizes=sizes)
        pool = WorkerPool(self._library, self._control)
        return CallState(arguments=(workspace, pool.control), workspace=size, sizes=sizes, pool=pool)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimensions:
    """The open dimensions of a program.

    Parameters
    ----------
    places
        Where the size of each is read, by its name.
    others
        Sizes of dimensions that no input has, by their names: how results lie that nobody gives memory.
    """

    places: Mapping[str, Place] = field(default_factory=dict[str, Place])
    others: Mapping[str, int] = field(default_factory=dict[str, int])
    _computed: Numbers = field(init=False)

    def __post_init__(self) -> None:
        """Prepare what computes the others."""
        object.__setattr__(self, "_computed", size_function(list(self.others.values()), list(self.places)))

    def of(self, inputs: Sequence[Any]) -> dict[str, int]:
        """Return the sizes that inputs have, and the others."""
        sizes = read_sizes(self.places, [each.shape for each in inputs]) if self.places else {}
        sizes.update(zip(self.others, self._computed(*sizes.values()), strict=True))
        return sizes


def entry_inputs(inputs: Sequence[Any]) -> Sequence[Any]:
    """Return what the entry takes for its inputs: they themselves, or the table of their addresses."""
    if not takes_table(len(inputs)):
        return inputs
    return [tensor_from(np.array([tensor.data_ptr() for tensor in inputs], np.int64))]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallState:
    """What one call at a time uses alone: its workspace and worker pool, as arguments of the entry, and memory for sizes."""

    arguments: tuple[Any, ...]
    workspace: int
    sizes: Any
    pool: WorkerPool | None = None

    def sizes_of(self, numbers: Sequence[int]) -> Sequence[Any]:
        """Return what the entry takes for sizes: these numbers; nothing where no dimension is open."""
        if not numbers:
            return ()
        np.from_dlpack(self.sizes)[:] = numbers
        return (self.sizes,)


class _PreparedNative:
    def __init__(
        self, entry: Callable[..., None], arguments: tuple[Any, ...], outputs: list[Any], state: CallState, inputs: Sequence[Any]
    ) -> None:
        self._entry = entry
        self._inputs = inputs  # kept alive, for a table holds their addresses alone
        self._arguments = arguments
        self._state = state
        self._outputs = outputs

    def run(self) -> None:
        self._entry(*self._arguments)

    def results(self) -> list[Any]:
        return self._outputs


class MachineRunner:
    """Calls "main" on TVM's virtual machine, which keeps a call's registers in itself: calls take turns."""

    def __init__(self, library: Any) -> None:
        device: Any = tvm.cpu()
        self._machine = relax.VirtualMachine(library, device)
        self._main = self._machine["main"]
        self._lock = Lock()

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run when no other call does."""
        with self._lock:
            results: Any = self._main(*inputs)
        return [results] if isinstance(results, tvm.runtime.Tensor) else list(results)

    def prepare(self, inputs: Sequence[Any]) -> Prepared:
        """Return the same call with its inputs; the machine allocates outputs anew."""
        return _PreparedMachine(self, inputs)


class _PreparedMachine:
    def __init__(self, runner: MachineRunner, inputs: Sequence[Any]) -> None:
        self._runner = runner
        self._inputs = inputs
        self._outputs: list[Any] = []

    def run(self) -> None:
        self._outputs = self._runner(self._inputs)

    def results(self) -> list[Any]:
        return self._outputs
