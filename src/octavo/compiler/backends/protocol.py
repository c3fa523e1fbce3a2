"""What a back end is: what some hardware computes, as data, and the code of its composites. It knows no graph and no back end.

A vendor writes one class and hands an instance of it to `quantize`, `partition` and `compile` as `target=`::

    class ToyNpu(CodeGenerator):
        description = TargetDescription(name="toynpu", ops=(OpSupport(op="nn.conv2d", weights=("int8",), fusions=("bias",)),))

        def generate(self, composite):
            text = ...  # C, from composite.op and composite.quantize_info
            return Code(source=CSource(text=text, symbol=composite.name), constants=(weights, bias), layout="NHWC")

The ops that its description takes become composites "toynpu.conv2d" ...; the host's kernels compute the others.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
import tvm
from tvm.relax import Var

from ...errors import CompileError, TargetError, brief, check_type
from ...ir.composites.attributes import HOST, Composite
from ...runtime.runner import DeviceCode
from ...target import TargetDescription
from .op_records import OpRecord
from .tunable import Schedules, Tunable

CodeLayout = Literal["source", "NHWC", "any"]
_BYTES = (bytes, bytearray, memoryview)


@dataclass(frozen=True, kw_only=True, slots=True)
class CSource:
    """A C function ``void symbol(const T0 *input0, ..., const U0 *constant0, ..., uint8_t *workspace, R *output)``.

    It reads its inputs in the order of the composite's parameters, then the constants; the workspace is there if it is not empty.
    Tensors are dense. It may not allocate, and several threads may run it at once. Other functions of the text are its own; ops
    may share one text, each with a symbol of its own or all with one.
    """

    text: str
    symbol: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectCode:
    """The bytes of an object file for the host, with a function as `CSource` describes it: from a compiler of the vendor's.

    It may hold the functions of several ops.
    """

    data: bytes
    symbol: str


Source = tvm.tirx.PrimFunc | CSource | ObjectCode
"""A PrimFunc takes what a C function does, as flat buffers, without `return`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Code:
    """What computes one composite, and what it asks for.

    Parameters
    ----------
    source
        The function.
    constants
        Arrays or bytes that it reads behind its inputs: weights packed as it wants them. C may read bytes as any type, an array
        as its dtype. They are kept with the executable; equal ones, that several ops read, once.
    layout
        How inputs and output of rank 4 lie. "source": as the source graph has them. "NHWC": channels last, also where the source
        graph has them first; only for ops that have a layout (convolutions, pools). "any": NHWC where an input lies so already,
        else as the source has it, all alike; for ops that work element by element. What is kept NHWC is transposed only for a
        reader that asks for another layout. None: "NHWC" for an op that has a layout where the description's `activation_layout`
        says so, "any" for one that works element by element on 8-bit tensors, else "source".
    workspace
        Bytes of scratch memory, aligned to 64; no more than the description's `scratch_bytes`.
    name
        For people: what `explain` and profiles of time call it; the composite's name by default.
    """

    source: Source
    constants: tuple[npt.NDArray[Any] | bytes, ...] = ()
    layout: CodeLayout | None = None
    workspace: int = 0
    name: str = ""


class Host(Protocol):
    """The module that code is emitted into, and the machine that runs it."""

    def run(self, code: Code, composite: Composite, inputs: list[Var], output: Var) -> None:
        """Call a composite's code on tensors of the source graph; its result is `output`."""
        ...


class Backend(ABC):
    """What some hardware computes, and what emits the code for it.

    Attributes
    ----------
    description
        Data: which ops, in which integers, with which roundings. Its name is the prefix of the back end's composites: an
        identifier, and not "octavo", which is the host's.
    has_own_code
        Whether it computes what it describes; else Octavo's kernels do, and it takes what they can compute as it says.
    """

    description: TargetDescription
    has_own_code: bool = True

    @abstractmethod
    def emit(self, composite: Composite, host: Host, inputs: dict[str, Var], output: Var) -> None:
        """Write the calls that compute a composite; `inputs` are by the names of its parameters.

        All that decides them stands in `composite.op` (every field of the op, weights too) and `composite.quantize_info`.
        """


class CodeGenerator(Backend):
    """A back end that generates a function for each composite: what a vendor writes."""

    @abstractmethod
    def generate(self, composite: Composite) -> Code:
        """Return the code of one composite. An exception that it raises becomes a CompileError that names the composite."""

    def emit(self, composite: Composite, host: Host, inputs: dict[str, Var], output: Var) -> None:
        """Call what `generate` returns."""
        host.run(self.code_of(composite), composite, list(inputs.values()), output)

    def code_of(self, composite: Composite) -> Code:
        """Return what `generate` does, checked; CompileError names the composite."""
        try:
            generated: Any = self.generate(composite)
        except Exception as error:  # whatever a vendor's code raises
            said = " ".join(str(error).split())
            raise CompileError(f"{where_of(composite)}: its back end raised {type(error).__name__}: {said}") from error
        if not isinstance(generated, Code):
            raise CompileError(f"{where_of(composite)}: its back end returned {type(generated).__name__}, expected Code")
        wrong = _wrong(generated, self.description)
        if wrong:
            raise CompileError(f"{where_of(composite)}: {wrong}")
        constants = tuple(bytes(each) if isinstance(each, _BYTES) else np.asarray(each) for each in generated.constants)
        return replace(generated, constants=constants, layout=layout_of(generated, composite, self.description))


def _wrong(code: Code, description: TargetDescription) -> str:
    """Return what is wrong with a back end's code, "" for nothing."""
    source: Any = code.source
    if not isinstance(source, Source):
        return f"its source must be a PrimFunc, CSource or ObjectCode, got {type(source).__name__}"
    if not isinstance(source, tvm.tirx.PrimFunc):
        symbol: Any = source.symbol
        if not isinstance(symbol, str) or not symbol:
            return f"its function's symbol must be text, got {symbol!r}"
        field, wanted = ("text", str) if isinstance(source, CSource) else ("data", bytes)
        if not isinstance(found := getattr(source, field), wanted):
            return f"{field} of its {type(source).__name__} must be {wanted.__name__}, got {type(found).__name__}"
    constants: Any = code.constants
    if not isinstance(constants, (tuple, list)):
        return f"its constants must be a tuple of arrays and bytes, got {type(constants).__name__}"
    for number, constant in enumerate(constants):
        if not isinstance(constant, (np.ndarray, np.generic, *_BYTES)) or getattr(constant, "dtype", np.dtype(bool)).hasobject:
            return f"its constant {number} must be an array of numbers or bytes, got {brief(constant)}"
    if code.layout not in (None, *get_args(CodeLayout)):
        return f"its layout must be one of {', '.join(map(repr, get_args(CodeLayout)))} or None, got {code.layout!r}"
    workspace: Any = code.workspace
    if not isinstance(workspace, int) or workspace < 0:
        return f"its workspace must be a number of bytes, got {workspace!r}"
    if description.scratch_bytes is not None and code.workspace > description.scratch_bytes:
        asked = f"its code asks for a workspace of {code.workspace} bytes"
        return f"{asked}; target {description.name} has scratch_bytes {description.scratch_bytes}"
    return ""


def layout_of(code: Code, composite: Composite, description: TargetDescription) -> CodeLayout:
    """Return how the tensors of rank 4 lie that code reads and writes."""
    if code.layout is not None:
        return code.layout
    if getattr(composite.op, "layout", None) is not None:
        return "NHWC" if description.activation_layout == "NHWC" else "source"
    return "source" if composite.op.element_function() is None else "any"


def where_of(composite: Composite) -> str:
    """Return what names a composite in errors: its kind, and the tensor that it gives."""
    return f"{composite.kind} of {composite.quantize_info.get('output', {}).get('id', composite.core)}"


class DeviceLowered(Protocol):
    """A module as a device runs it."""

    @property
    def records(self) -> tuple[OpRecord, ...]:
        """What became of each op, in graph order."""
        ...

    @property
    def tunables(self) -> Mapping[str, Tunable]:
        """What can be chosen of its kernels, by their keys."""
        ...

    @property
    def calls(self) -> Mapping[str, int]:
        """How many calls each key has."""
        ...


class DeviceClock(Protocol):
    """A module on a device, to be timed there."""

    def burst(self, runs: int) -> dict[str, float]:
        """Run that often; return the mean microseconds of all calls of each key together, and of the module under ""."""
        ...


class DeviceBackend(ABC):
    """Hardware with memory of its own that runs whole modules: integers in its kernels, and what stays float, too.

    Attributes
    ----------
    description
        What it computes in integers.
    name
        What `target=` calls it.
    isa
        The instruction set of its kernels.
    chip
        This machine's, as its driver names it, where that is what code is for; None where code is for any that has the ISA.
    """

    description: TargetDescription
    name: str
    isa: str
    chip: str | None = None

    @abstractmethod
    def lower(self, module: tvm.IRModule, schedules: Schedules = MappingProxyType({})) -> DeviceLowered:
        """Lower a partitioned module whose constants are bound; kernels take the schedules that were measured for their keys.

        CompileError for an op that nothing of it computes, TuningError for a schedule that no kernel can take.
        """

    @abstractmethod
    def code(self, lowered: Any) -> DeviceCode:
        """Compile what `lower` returned."""

    @abstractmethod
    def check_present(self) -> None:
        """Raise TargetError unless this machine has the device, and it runs the code."""

    @abstractmethod
    def present(self) -> DeviceBackend:
        """Return the back end for this machine's device, with its `chip`; TargetError where none runs code for `isa`."""

    @abstractmethod
    def clock(self, lowered: Any, inputs: Sequence[npt.NDArray[Any]]) -> DeviceClock:
        """Load what `lower` returned onto this machine's device, to be timed on inputs; ExecutableError where that fails."""

    @abstractmethod
    def loaded(self, data: bytes, constants: npt.NDArray[np.uint8]) -> DeviceCode:
        """Return what `DeviceCode.export` wrote; ValueError where it is damaged, or for another device."""


def check_backend(backend: Backend) -> Backend:
    """Return a back end. TargetError unless it has a description whose name can be a prefix."""
    description: object = getattr(backend, "description", None)
    where = f"back end {type(backend).__name__}"
    check_type(description, TargetDescription, TargetError, f"{where}: its attribute `description`, a TargetDescription")
    name = backend.description.name
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or name == HOST:
        raise TargetError(f"{where}: its description's name is a prefix of composites: an identifier, not {HOST!r}; got {name!r}")
    return backend
