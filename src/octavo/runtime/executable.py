"""Executable: a compiled model that runs, is timed, saved and loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi

from ..errors import DataError, ExecutableError
from .code import Code
from .control_block import control_layout
from .cpu_features import machine_features, missing_features
from .description import Description, OutputSpec, fixed_dimension
from .file import Contents, read_executable, write_executable
from .input_check import InputCheck
from .inputs import InputSpec, check_batch_size, check_samples, split_batch
from .llvm_host import host_triple, is_foreign, triple_of
from .runner import DeviceCode, DeviceRunner, ForeignRunner, ObservingRunner, Prepared, Runner, runner_of
from .session import Session
from .shapes import fits
from .size import names_in
from .tensors import tensor_from
from .versions import Version, read_versions

Outputs = dict[str, npt.NDArray[Any]]


class BoundCall:
    """A prepared call: inputs lie in place, nothing is checked or copied; for steady use and for timing.

    `inputs[name]` is a writable array over the input's own memory: assign to it (``call.inputs["x"][:] = batch``), then call.
    It is for one thread at a time; another thread binds its own.
    """

    def __init__(self, prepared: Prepared, tensors: list[Any], executable: Executable) -> None:
        self._prepared = prepared
        self._executable = executable
        self.run = prepared.run
        """Run and drop the outputs: the cost of inference alone."""
        self.inputs: dict[str, npt.NDArray[Any]] = {
            spec.source_name: np.from_dlpack(tensor) for spec, tensor in zip(executable.inputs, tensors, strict=True)
        }

    def __call__(self) -> Outputs:
        """Run and return {output name: array}."""
        self._prepared.run()
        return self._executable.name_outputs(self._prepared.results())


class AttachedCall:
    """A call on memory of the caller's, for one thread at a time."""

    def __init__(self, prepared: Prepared, fetch: Callable[[], None] | None = None) -> None:
        self._prepared = prepared
        self._fetch = fetch
        self.run = prepared.run
        """Run on what the memory holds."""

    def fetch(self) -> None:
        """Bring what observers counted elsewhere into the memory; nothing to do where they count there."""
        if self._fetch is not None:
            self._fetch()

    def results(self) -> list[npt.NDArray[Any]]:
        """Return what the last run gave, in order, as views of memory that the next may overwrite."""
        return [np.from_dlpack(value) for value in self._prepared.results()]


class Executable:
    """A compiled model. Several Python threads may call it at once.

    Parameters
    ----------
    code
        Machine code with its constants.
    description
        What it takes, gives and is made of.
    """

    def __init__(self, code: Code | DeviceCode, description: Description) -> None:
        self._code = code
        self.description = description
        missing = missing_features(description.features, machine_features())
        first = {spec.shape[:1] for spec in (*description.inputs, *description.outputs)}
        self._counted = [spec.source_name for spec in description.outputs if spec.counted]
        self._check = InputCheck(description.inputs, description.limits, description.extents)
        self._shares_samples = bool(description.inputs) and len(first) == 1 and first != {()} and not names_in(*first)
        self._run: Runner = (
            ForeignRunner() if missing else runner_of(code, [spec.shape for spec in description.inputs], _own_memory(description))
        )

    @property
    def code(self) -> Code | DeviceCode:
        """What it runs."""
        return self._code

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it takes, in order."""
        return self.description.inputs

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """What it gives, in order."""
        return self.description.outputs

    @property
    def threads(self) -> int:
        """How many threads share a call where it pays, and where the machine has so many cores."""
        return self.description.threads

    @property
    def weight_bytes(self) -> int:
        """Size of all constants, in bytes."""
        return self.description.weight_bytes

    def __call__(self, data: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> Outputs:
        """Run once.

        Parameters
        ----------
        data
            An array (of a model with one input), or {input name: array}, of the shapes and dtypes of `inputs`. The first
            dimension may be any multiple of the compiled one where inputs and outputs share it, and where the source leaves it
            open; the samples are then run one compiled batch after the other.

        Returns
        -------
        dict
            {output name in the source: array}.

        Raises
        ------
        DataError
            Missing or unknown input, wrong shape or dtype, NaN or infinity, a number of samples that the source rules out.
        """
        if self.description.any_batch:
            return self._run_batches(data)
        check_samples(self.inputs, data, self.description.batch_obstacle)
        if self._holds_several_runs(data):
            return self._joined_runs(data)
        arrays = self._check(data)
        return self.name_outputs(self._run(_tensors(arrays)))

    def _run_batches(self, data: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> Outputs:
        check_batch_size(self.inputs, data, self.description.batch_range)
        return self._joined_runs(data)

    def _holds_several_runs(self, data: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> bool:
        """Return whether each input holds the samples of several calls, and each output says which are whose."""
        if not self._shares_samples:
            return False
        values = data if isinstance(data, Mapping) else {self.inputs[0].source_name: data} if len(self.inputs) == 1 else {}
        if all(getattr(values.get(spec.source_name), "shape", ())[:1] == spec.shape[:1] for spec in self.inputs):
            return False  # nearly every call
        if values.keys() != {spec.source_name for spec in self.inputs}:
            return False
        shapes = [(np.shape(values[spec.source_name]), spec.shape) for spec in self.inputs]
        return all(
            len(given) == len(own) and fits(given[1:], own[1:]) and own[0] < given[0] and given[0] % own[0] == 0
            for given, own in shapes
        )

    def _joined_runs(self, data: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> Outputs:
        cut = split_batch(self.inputs, data, where="input", limits=self.description.limits)
        runs = [self.run_flat(arrays) for arrays in cut]
        return {spec.source_name: np.concatenate([results[index] for results in runs]) for index, spec in enumerate(self.outputs)}

    @property
    def runner(self) -> Runner:
        """What calls the code."""
        return self._run

    def session(
        self,
        *,
        carry: Mapping[str, str],
        capacity: Mapping[str, int] | None = None,
        start: Mapping[str, npt.NDArray[Any]] | None = None,
        fixed: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Session:
        """Return what calls it step by step, its state in place.

        Parameters
        ----------
        carry
            {output name: input name}: what each step hands to the next.
        capacity
            {dimension name: rows}: for how many rows there is room in states that grow along it, as a decoder's cache does.
        start
            {input name: array}: states to begin with; by default what the source states, else no rows, and zeros.
        fixed
            {input name: array}: inputs that are the same at every step, as keys and values of what was encoded are; steps do not
            take them. Beside states that grow, what is computed of one of them alone, its integers say, is computed once.

        Raises
        ------
        DataError
            An unknown name; an output that does not fit its input; a state that grows without a capacity.
        """
        return Session(self.description, self._run, carry, capacity, start, fixed)

    def bind_on_device(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Callable[[], None]:
        """Return a call on tensors that lie where the code runs: nothing is uploaded, downloaded or copied.

        Parameters
        ----------
        inputs, outputs
            {name in the source: tensor}, all of them: whatever has `__dlpack__` (PyTorch, CuPy), dense, of the shapes and dtypes
            of `inputs` and `outputs`. They must live, and stay where they are, as long as the call is used.

        Returns
        -------
        callable
            Waits until what was queued before on the device is done, runs, and returns when the outputs are there.

        Raises
        ------
        ExecutableError
            The code runs on the host: `bind` is for that.
        DataError
            A tensor is missing or unknown, of another shape or dtype, not dense, or lies elsewhere.
        """
        if not isinstance(self._run, DeviceRunner):
            raise ExecutableError("the executable runs on the host, where inputs are NumPy arrays: use bind")
        given = [_device_tensors("input", self.inputs, inputs), _device_tensors("output", self.outputs, outputs)]
        return self._run.prepare_on_device(*given)

    def bind(self, data: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> BoundCall:
        """Check and place inputs once, for many calls. Raises as a call does."""
        arrays = self._check(data)
        tensors = _tensors(arrays)
        return BoundCall(self._run.prepare(tensors), tensors, self)

    def name_outputs(self, results: list[Any]) -> Outputs:
        """Copy results, which keep the model's order, and give them their names."""
        # By DLPack: TVM's own copies go through ctypes, take ten times as long, and leave a cycle for the garbage collector.
        named = {spec.source_name: np.from_dlpack(value).copy() for spec, value in zip(self.outputs, results, strict=True)}
        for name in self._counted:
            named[name] = named[name][: np.count_nonzero(named[name][:, 0] >= 0)]
        return named

    def attach(self, arrays: list[npt.NDArray[Any]]) -> AttachedCall:
        """Return a call that works on the memory of these arrays, one for each parameter of "main".

        Nothing is checked or copied. Each array must be writable and contiguous, and start at a multiple of 64 bytes; those
        behind the inputs are states of observers.
        """
        tensors = [_shared(array) for array in arrays]
        count = len(self.inputs)
        if len(arrays) > count and isinstance(self._run, ObservingRunner):
            observing = self._run.prepare_observing(tensors[:count], arrays[count:])
            return AttachedCall(observing, observing.fetch)
        return AttachedCall(self._run.prepare(tensors))

    def run_flat(self, arrays: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Run on arrays already checked, in order, and return every result in order."""
        return [value.numpy() for value in self._run(_tensors(arrays))]

    def assembly(self) -> str:
        """Return the machine code of the kernels as assembly text; ExecutableError on a loaded file, which keeps none."""
        text = self._code.assembly(tvm.target.Target(self.description.target))
        if text is None:
            raise ExecutableError("a loaded executable keeps no assembly text; compile the model in this process to read it")
        return text

    def __reduce__(self) -> tuple[Callable[[bytes], Executable], tuple[bytes]]:
        """Copy and pickle by the bytes that `save` writes; ExecutableError for code that runs on a device."""
        if not isinstance(self._code, Code):
            raise ExecutableError(
                f"an executable for {self.description.device} is not pickled or copied; save it, and load it there"
            )
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "executable"
            self.save(saved)
            return _from_bytes, (saved.read_bytes(),)

    def save(self, path: str | Path) -> None:
        """Write one file (library, weights, description), under a temporary name first. Needs a C compiler to link."""
        write_executable(path, self._code.export, self._code.constants, self.description.to_json())

    @staticmethod
    def load(path: str | Path, features: Collection[str] | None = None, device_loader: DeviceLoader | None = None) -> Executable:
        """Load what `save` or `save_versions` wrote; of several versions the first that the CPU can run.

        The file holds machine code: load only files you trust. Truncated, damaged and foreign files are refused before any
        of it runs.

        Parameters
        ----------
        features
            What the CPU is taken to have, by LLVM's names; None: what it has.
        device_loader
            Given a device's name, and code and constants in a file for it, returns the code; None reads the host's alone.

        Raises
        ------
        ExecutableError
            If the file can't be read, isn't one of ours, is damaged, or is for another machine or a CPU with more features.
        """
        present = machine_features() if features is None else features
        versions = read_versions(path)
        if versions is None:
            return Executable._load(Path(path), None, present, device_loader)
        chosen = next((each for each in versions if not missing_features(each.features, present)), versions[-1])
        return Executable._load(Path(path), chosen, present)

    @staticmethod
    def _load(
        path: Path, version: Version | None, present: Collection[str] | None, device_loader: DeviceLoader | None = None
    ) -> Executable:
        """Load what a file holds, or one of its versions."""
        start, length = (0, None) if version is None else (version.start, version.length)
        kept = read_executable(path, start, length)
        description = Description.from_json(kept.description)
        if description.device:
            return Executable(_device_code(path, kept, description, device_loader), description)
        _check_machine(path, description, present)
        return Executable._of_library(path, start, kept, description)

    @staticmethod
    def _of_library(path: Path, start: int, kept: Contents, description: Description) -> Executable:
        """Return the executable of a shared library, which starts there in a file."""
        try:
            library, image = _loaded(path, start, kept.library)
            if description.workspace is None:
                return Executable(Code(library=library, image=image), description)
            outputs = tuple((spec.shape, spec.dtype) for spec in description.outputs)
            control = None
            if description.shared_units:
                control = control_layout(description.threads, len(description.inputs), len(outputs), description.shared_units)
            code = Code(
                library=library,
                image=image,
                constants=kept.constants,
                workspace=description.workspace,
                outputs=outputs,
                control=control,
            )
            return Executable(code, description)
        except (RuntimeError, ValueError, OSError, tvm.error.InternalError) as error:
            last = str(error).strip().splitlines()[-1]
            raise ExecutableError(f"{path}: cannot load the executable (built for {description.target}): {last}") from error


def _from_bytes(data: bytes) -> Executable:
    """Return the executable of a saved file's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "executable"
        path.write_bytes(data)
        return Executable.load(path)


DeviceLoader = Callable[[str, bytes, npt.NDArray[np.uint8]], DeviceCode]
"""From a device's name, the code in a file for it and its constants, to the code; ValueError where it can't be read."""


def _device_code(path: Path, kept: Contents, description: Description, loader: DeviceLoader | None) -> DeviceCode:
    """Return the code in a file for a device; errors name `path`."""
    if loader is None:
        raise ExecutableError(f"{path}: built for {description.device}: load it with octavo.load_executable")
    try:
        with path.open("rb") as file:
            return loader(description.device, file.read(kept.library), kept.constants)
    except (ValueError, KeyError, TypeError) as error:
        raise ExecutableError(f"{path}: cannot load the executable (built for {description.device}): {error}") from error


def _check_machine(path: Path, description: Description, present: Collection[str] | None) -> None:
    """ExecutableError if the code is for another architecture, or for more features than this CPU has."""
    if is_foreign(target := tvm.target.Target(description.target)):
        raise ExecutableError(
            f"{path}: built for {triple_of(target)}, and this machine is {host_triple()}; load it there, or compile it here"
        )
    missing = missing_features(description.features, present)
    if missing:
        raise ExecutableError(
            f"{path}: built for a CPU with {', '.join(missing)}, which this one lacks; compile it here, or for any CPU with "
            "--multiversion"
        )


def _device_tensors(role: str, specs: Sequence[InputSpec | OutputSpec], given: Mapping[str, Any]) -> list[Any]:
    """Return tensors in the order of their specs, as tvm_ffi sees them; DataError where one doesn't fit."""
    names = {spec.source_name for spec in specs}
    for name in [*(names - given.keys()), *(given.keys() - names)]:
        raise DataError(f"{role} {name!r}: {'missing' if name in names else 'unknown'}; expected {', '.join(sorted(names))}")
    found: list[Any] = []
    for spec in specs:
        try:
            tensor: Any = tvm_ffi.from_dlpack(given[spec.source_name])
        except (TypeError, AttributeError, BufferError, RuntimeError) as error:
            raise DataError(f"{role} {spec.source_name!r}: not a tensor that DLPack can hand over: {error}") from error
        said = f"{tensor.dtype} {tuple(tensor.shape)}"
        if tuple(tensor.shape) != spec.shape or str(tensor.dtype) != spec.dtype:
            raise DataError(f"{role} {spec.source_name!r}: expected {spec.dtype} {spec.shape}, got {said}")
        if not tensor.is_contiguous():
            raise DataError(f"{role} {spec.source_name!r}: must be dense, got strides {tuple(tensor.strides)}")
        found.append(tensor)
    return found


def _own_memory(description: Description) -> dict[str, int]:
    """Return the sizes of results that nobody gives memory: with room for the rows that they have, none of them in place.

    Nothing is there from a call before.
    """
    rows = {each.capacity: description.outputs[each.output].shape[each.axis] for each in description.states}
    flags = (*(each.in_place for each in description.states), *map(fixed_dimension, description.fixed))
    return {**rows, **dict.fromkeys(flags, 0)}


def _shared(array: npt.NDArray[Any]) -> Any:
    """Return a tensor on an array's memory; of an array without elements, whose memory may lie anywhere, one of its shape."""
    return tvm.runtime.from_dlpack(array) if array.size else tvm.runtime.empty(array.shape, str(array.dtype))


def _tensors(arrays: list[npt.NDArray[Any]]) -> list[Any]:
    return [tensor_from(array) for array in arrays]


def _loaded(path: Path, start: int, length: int) -> tuple[Any, bytes]:
    """Load a copy of a library that lies within a file, under a name of its own; return it with its bytes.

    TVM knows a library by the suffix .so alone, and the loader of the system takes a name that it has seen before for the file it
    saw then, which may have been written anew.
    """
    with tempfile.TemporaryDirectory() as folder, path.open("rb") as file:
        copied = Path(folder) / "library.so"
        file.seek(start)
        image = file.read(length)
        copied.write_bytes(image)
        return tvm.runtime.load_module(str(copied)), image
