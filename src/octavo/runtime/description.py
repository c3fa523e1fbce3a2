"""What an executable says of itself: plain values, kept in its file."""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ExecutableError
from .inputs import InputSpec
from .shapes import without_sizes
from .size import Size

FORMAT_VERSION = 9
_WORDS = ("fingerprint", "target", "isa", "batch_obstacle")
_PLAIN = (*_WORDS, "threads", "weight_bytes", "workspace", "shared_units", "any_batch")


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputSpec:
    """One result: its TensorId, its name in the source, shape and dtype.

    Of one that is `counted` a call gives as many rows as it chose, of `shape[0]` at most: those ahead of rows of -1.
    """

    id: str
    source_name: str
    shape: tuple[int, ...]
    dtype: str
    counted: bool = False


def fixed_dimension(number: int) -> str:
    """Return the name of the dimension that is 1 where what is computed of an input alone is in the workspace already."""
    return f"input{number}_fixed"


@dataclass(frozen=True, kw_only=True, slots=True)
class StatePlace:
    """A result that extends an input by rows along an axis, and may be written in its memory.

    Parameters
    ----------
    input, output
        Their numbers.
    axis
        Along which it grows.
    dimension
        Name of the open dimension that the input has there.
    capacity
        Name of the dimension that says for how many rows the memory has room.
    in_place
        Name of the dimension that is 1 where input and result are one memory.
    """

    input: int
    output: int
    axis: int
    dimension: str
    capacity: str
    in_place: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """An executable's metadata, kept in its file.

    Parameters
    ----------
    inputs, outputs
        In the order of the source model.
    fingerprint
        The source model's.
    target
        LLVM target the code is for, as TVM's JSON.
    isa
        Instruction set of the integer kernels.
    features
        What a CPU must have to run the code, by LLVM's names.
    threads
        How many threads share a call where it pays, and where the machine has so many cores.
    weight_bytes
        Size of all constants, in bytes.
    workspace
        Bytes of the block that intermediate tensors share; None where TVM's virtual machine allocates them as it runs.
    shared_units
        Parts of a call that its threads share; 0 where no kernel is large enough, and on TVM's virtual machine.
    any_batch
        Whether the source left the first dimension of its inputs open: then a call takes any multiple of the compiled one.
    batch_range
        Fewest and most samples that the source allows in a call where `any_batch`; None: no bound.
    batch_obstacle
        Why it does not, though the source left that dimension open.
    ops
        One plain record for each op, for `explain`.
    limits
        Open sizes up to which its kernels are right, each with the most that it may be: of sums, and of the elements of tensors.
    extents
        Open sizes of tensors within, which must be at least 1: of an image after windows that it may be too small for.
    states
        The results that may be written in the memory of an input.
    fixed
        Numbers of the inputs of which something is computed that a session, where they stay the same, computes once.
    device
        Name of the device that runs the code, in memory of its own; "" for the host.
    """

    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    fingerprint: str
    target: str
    isa: str
    features: tuple[str, ...]
    threads: int
    weight_bytes: int
    workspace: int | None
    shared_units: int
    any_batch: bool
    batch_range: tuple[int, int | None]
    batch_obstacle: str
    ops: tuple[dict[str, Any], ...]
    states: tuple[StatePlace, ...] = ()
    limits: tuple[tuple[Size, int], ...] = ()
    extents: tuple[Size, ...] = ()
    device: str = ""
    fixed: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        plain = without_sizes(asdict(self))
        plain["inputs"] = [
            {**entry, "start": _encoded(spec.start)} for entry, spec in zip(plain["inputs"], self.inputs, strict=True)
        ]
        return {"format_version": FORMAT_VERSION, **plain}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Description:
        """Read what `to_json` wrote. ExecutableError for another format version, and for what it did not write."""
        if data.get("format_version") != FORMAT_VERSION:
            raise ExecutableError(
                f"executable format {data.get('format_version')}, this version reads {FORMAT_VERSION}; recompile"
            )
        try:
            return Description._read(data)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ExecutableError(f"the executable's description is none of Octavo's ({why[:200]}); recompile") from error

    @staticmethod
    def _read(data: dict[str, Any]) -> Description:
        inputs = tuple(InputSpec(**_with_tuple(entry)) for entry in data["inputs"])
        outputs = tuple(OutputSpec(**_with_tuple(entry)) for entry in data["outputs"])
        ops = tuple(_with_tuple(entry) for entry in data["ops"])
        plain = {key: data[key] for key in _PLAIN}
        plain["workspace"] = None if data["workspace"] is None else Size.parse(data["workspace"])
        fewest, most = data["batch_range"]
        features = tuple(data["features"])
        words = (*features, *(plain[key] for key in _WORDS))
        if not all(isinstance(word, str) for word in words):
            raise TypeError(f"{_WORDS} and features are text")
        plain["limits"] = tuple((_size(size), int(largest)) for size, largest in data.get("limits", ()))
        plain["extents"] = tuple(_size(text) for text in data["extents"])
        plain["states"] = tuple(StatePlace(**entry) for entry in data["states"])
        plain["fixed"] = tuple(int(number) for number in data.get("fixed", ()))
        plain["device"] = str(data.get("device", ""))  # files of earlier versions are the host's
        return Description(inputs=inputs, outputs=outputs, ops=ops, batch_range=(fewest, most), features=features, **plain)


def _encoded(start: npt.NDArray[Any] | None) -> dict[str, Any] | None:
    if start is None:
        return None
    return {"dtype": str(start.dtype), "shape": list(start.shape), "data": base64.b64encode(start.tobytes()).decode()}


def _decoded(start: dict[str, Any]) -> npt.NDArray[Any]:
    return np.frombuffer(base64.b64decode(start["data"]), start["dtype"]).reshape(start["shape"])


def _size(text: str) -> Size:
    size = Size.parse(text)
    if not isinstance(size, Size):
        raise ValueError(f"{text!r} is no size with a limit")
    return size


def _with_tuple(entry: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples and no sizes."""
    pairs: dict[str, Any] = {}
    if "bounds" in entry:
        pairs["bounds"] = {name: (low, high) for name, (low, high) in entry["bounds"].items()}
    if entry.get("indices") is not None:
        low, high = entry["indices"]
        pairs["indices"] = (int(low), int(high))
    if entry.get("start") is not None:
        pairs["start"] = _decoded(entry["start"])
    return {**entry, "shape": tuple(Size.parse(dim) for dim in entry["shape"]), **pairs}
