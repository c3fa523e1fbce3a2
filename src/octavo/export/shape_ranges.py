"""One executable for a range of shapes: a batch of 1 to 8, a width of 64 to 320, sequences of 1 to 128.

Every size in the ranges has code of its own, specialised for its shapes, so that results are exactly those of a model compiled
for that size alone: nothing is padded. Where samples are independent of each other, as the frontend proves, batches are put
together of a few sizes. Weights are there once, and so is the memory of a call, which is the greatest size's.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx

from ..compiler.codegen.program import ConstantPool
from ..compiler.compile import compile_model
from ..compiler.load_executable import load_executable
from ..compiler.target_choice import present_features, resolve_target
from ..errors import DataError, ExecutableError, ModelError, check_path
from ..frontends import load
from ..quantizer.compile import prepared
from ..quantizer.plan.plan import QuantizationPlan
from ..quantizer.quantize import quantize
from ..runtime.executable import Executable, memory_of
from ..runtime.file import SIZES_MAGIC, is_executable
from ..runtime.inputs import InputSpec

MAX_SIZES = 64
"""Of one executable: each takes time to compile, and room for its code."""
Outputs = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeRange:
    """Sizes of a dimension: first, first + step, ... up to last."""

    first: int
    last: int
    step: int = 1

    def __post_init__(self) -> None:
        """Check that there is a size."""
        if not 1 <= self.first <= self.last or self.step < 1 or (self.last - self.first) % self.step:
            raise ModelError(f"sizes {self}: expected FIRST..LAST or FIRST..LAST:STEP, from 1 on, with LAST among the sizes")

    def __str__(self) -> str:
        """Return "64..320:32"."""
        return f"{self.first}..{self.last}" + (f":{self.step}" if self.step > 1 else "")

    @property
    def sizes(self) -> range:
        """All sizes."""
        return range(self.first, self.last + 1, self.step)

    @staticmethod
    def parse(text: str) -> int | SizeRange:
        """Read "224", "1..8" or "64..320:32"; ModelError for anything else."""
        ends, colon, step = text.partition(":")
        first, dots, last = ends.partition("..")
        numbers = (first, *((last,) if dots else ()), *((step,) if colon else ()))
        if not all(number.isdecimal() and len(number) < 10 for number in numbers) or (colon and not dots):
            raise ModelError(f"size {text!r}: expected a number, FIRST..LAST or FIRST..LAST:STEP")
        return SizeRange(first=int(first), last=int(last), step=int(step or 1)) if dots else int(first)


Shape = tuple[int | SizeRange, ...]
Shapes = Mapping[str, Shape]


class RangedExecutable:
    """A model compiled for all sizes of its ranges; called as an Executable.

    Parameters
    ----------
    executables
        One for each size.
    constants
        What they share.
    shapes
        The shapes of the inputs, with their ranges.
    batches
        Whether the first dimension is the batch, of samples that are independent: then sizes are put together.
    """

    def __init__(
        self, executables: Sequence[Executable], constants: npt.NDArray[np.uint8] | None, shapes: Shapes, *, batches: bool
    ) -> None:
        self.executables = tuple(executables)
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._constants = constants
        self._batches = batches
        self._by_shapes = {tuple(spec.shape for spec in each.inputs): each for each in self.executables}

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it takes, in order, with the shapes of the first size."""
        return self.executables[0].inputs

    @property
    def weight_bytes(self) -> int:
        """Size of the constants of all sizes together, in bytes."""
        return 0 if self._constants is None else self._constants.size

    def __call__(self, data: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> Outputs:
        """Run once, at the size of the data.

        Raises
        ------
        DataError
            A size outside of the ranges; else as an Executable does.
        """
        arrays = dict(data) if isinstance(data, Mapping) else {self.inputs[0].source_name: data}
        exact = self._by_shapes.get(tuple(np.shape(arrays.get(spec.source_name, ())) for spec in self.inputs))
        if exact is not None:
            return exact(arrays)
        if not self._batches or not self._fits(arrays):
            raise DataError(self._outside(arrays))
        return self._together(arrays)

    def of_size(self, shapes: Mapping[str, Sequence[int]]) -> Executable:
        """Return the executable of one size of all inputs; DataError for a size that it has no code for."""
        found = self._by_shapes.get(tuple(tuple(shapes.get(spec.source_name, spec.shape)) for spec in self.inputs))
        if found is None or not shapes.keys() <= self.shapes.keys():
            sizes = "; ".join(
                ", ".join(f"{spec.source_name}={_text(spec.shape)}" for spec in each.inputs) for each in self.executables
            )
            given = ", ".join(f"{name}={_text(shape)}" for name, shape in shapes.items())
            raise DataError(f"there is no code for {given}: the sizes are {sizes}")
        return found

    def calls(self, data: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> list[Mapping[str, npt.NDArray[Any]]]:
        """Cut samples into calls where the first dimension of all inputs has one size: [40,3,48,320] is 40 of x=1,3,48,64..320.

        What can't be cut so is one call, which says what is wrong with it.
        """
        arrays = dict(data) if isinstance(data, Mapping) else {self.inputs[0].source_name: data}
        sizes = {shape[0] if shape else None for shape in self.shapes.values()}
        counts = {np.shape(array)[:1] for array in arrays.values()}
        if len(sizes) != 1 or len(counts) != 1 or () in counts:
            return [arrays]
        [size], [(count,)] = sizes, counts
        if not isinstance(size, int) or count % size or count == 0:
            return [arrays]
        return [{name: array[start : start + size] for name, array in arrays.items()} for start in range(0, count, size)]

    def _fits(self, arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Return whether all inputs hold one number of samples, of the ranges, of the model's other dimensions."""
        counts = {np.shape(array)[:1] for array in arrays.values()}
        if set(arrays) != {spec.source_name for spec in self.inputs} or len(counts) != 1 or counts == {()}:
            return False
        [(count,)] = counts
        rest = all(np.shape(arrays[spec.source_name])[1:] == spec.shape[1:] for spec in self.inputs)
        return rest and all(count in _sizes(shape[0]) for shape in self.shapes.values())

    def _together(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Outputs:
        """Run batches of the sizes that there are, the largest first, and join what they give."""
        left, start, results = len(next(iter(arrays.values()))), 0, list[Outputs]()
        sizes = {each.inputs[0].shape[0]: each for each in self.executables}
        for size in sorted(sizes, reverse=True):
            while left >= size:
                results.append(sizes[size]({name: array[start : start + size] for name, array in arrays.items()}))
                start, left = start + size, left - size
        return {name: np.concatenate([each[name] for each in results]) for name in results[0]}

    def _outside(self, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
        wanted = ", ".join(f"{name}={_text(shape)}" for name, shape in self.shapes.items())
        given = ", ".join(f"{name}={_text(np.shape(array))}" for name, array in arrays.items())
        return f"the executable is for {wanted}, got {given}; compile it with --shape for these sizes"

    def save(self, path: str | Path) -> None:
        """Write one file, under a temporary name first. Needs a C compiler to link; ExecutableError for what was loaded."""
        if self._constants is None:
            raise ExecutableError(f"{path}: the executable comes from a file, and its code is there alone: copy that file")
        notes = {"shapes": {name: [str(dim) for dim in shape] for name, shape in self.shapes.items()}, "batches": self._batches}
        Executable.save_sizes(path, self.executables, self._constants, notes)


def _sizes(dim: int | SizeRange) -> range:
    return range(dim, dim + 1) if isinstance(dim, int) else dim.sizes


def _text(shape: Sequence[Any]) -> str:
    return ",".join(map(str, shape))


def load_ranged(path: str | Path) -> RangedExecutable:
    """Load what `RangedExecutable.save` wrote. It holds machine code: load only files you trust.

    Raises
    ------
    ExecutableError
        If the file can't be read, isn't one of ours, is damaged, or is for another machine or a CPU with more features.
    """
    executables, notes = Executable.load_sizes(path, present_features())
    shapes = {name: tuple(SizeRange.parse(dim) for dim in shape) for name, shape in notes["shapes"].items()}
    return RangedExecutable(executables, None, shapes, batches=bool(notes["batches"]))


def load_sized(path: str | Path, shapes: Mapping[str, Sequence[int]]) -> Executable:
    """Load an executable; of one for a range of shapes that of these, by the inputs' names: the first without any.

    Raises
    ------
    DataError
        There is no code for this size.
    ExecutableError
        It is no executable of Octavo, or of another machine or version.
    """
    return load_ranged(path).of_size(shapes) if is_ranged(Path(path)) else load_executable(path)


def is_ranged(path: Path) -> bool:
    """Return whether a file is one that `load_ranged` reads."""
    return is_executable(path, (SIZES_MAGIC,))


def compile_ranged(
    source: Any, shapes: Mapping[str, Shape], *, plan: QuantizationPlan | str | Path | None = None, **options: Any
) -> RangedExecutable:
    """Compile a model for all sizes of its inputs' ranges.

    Parameters
    ----------
    source
        As `octavo.load` takes it: an ONNX file, quantized or float, whose dimensions are open.
    shapes
        Of each input with open dimensions its shape: numbers and SizeRanges. Dimensions that the file gives one name
        ("sequence") have one size.
    plan
        Quantize a float model by this plan, at each size.
    options
        Those of `octavo.compile`, but for profile and recipe.

    Raises
    ------
    ModelError
        Shapes that the file does not have, too many sizes, a network that cannot have one of them.
    CompileError, TargetError
        As `octavo.compile` does.
    """
    if {"profile", "recipe"} & options.keys():
        raise ModelError("a range of shapes is compiled of a quantized file, or by a plan: a profile is of one size")
    if isinstance(source, str | os.PathLike):
        source = onnx.load(check_path(cast("Any", source), ModelError, "the path of a model"))
    if not isinstance(source, onnx.ModelProto):
        raise ModelError("a range of shapes is of an ONNX model: give its path, or an onnx.ModelProto")
    names = _dimension_names(source, shapes)
    is_batch = _is_batch(source, shapes)
    sizes = _batches(shapes) if is_batch else _all_sizes(names, shapes)
    if len(sizes) > MAX_SIZES:
        raise ModelError(f"the ranges hold more than {MAX_SIZES} sizes, each of which is compiled: give a step, as in 32..320:32")
    models = [load(source, shapes=each) for each in sizes]
    if plan is not None:
        read = plan if isinstance(plan, QuantizationPlan) else QuantizationPlan.load(plan)
        models = [quantize(model, plan=read, target=options.get("target")) for model in models]
    pool = ConstantPool()
    precision, target = options.pop("precision", None), resolve_target(options.pop("target", None))
    ready = [prepared(model, target, precision, None) for model in models]
    made = [compile_model(model, target=target, precision=downcast, pool=pool, **options) for model, downcast in ready]
    constants = pool.blob()
    memory = memory_of(constants, [each.description for each in made])
    return RangedExecutable([each.sharing(memory) for each in made], constants, shapes, batches=is_batch)


def _dimension_names(source: onnx.ModelProto, shapes: Mapping[str, Shape]) -> dict[tuple[str, int], str]:
    """Return by input and axis what the file calls each dimension that has a range; ModelError where there is no such input."""
    inputs = {value.name: [dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in source.graph.input}
    found: dict[tuple[str, int], str] = {}
    for name, shape in shapes.items():
        if name not in inputs or len(inputs[name]) != len(shape):
            known = ", ".join(f"{each} of {len(dims)} dimensions" for each, dims in inputs.items())
            raise ModelError(f"--shape {name}={_text(shape)}: the model has no such input; it has {known}")
        for axis, dim in enumerate(shape):
            if isinstance(dim, SizeRange):
                found[name, axis] = inputs[name][axis] or f"{name}, axis {axis}"
    if not found:
        raise ModelError("no dimension has a range; octavo.compile takes models of one shape")
    return found


def _is_batch(source: onnx.ModelProto, shapes: Mapping[str, Shape]) -> bool:
    """Return whether the ranges are of the batch alone, and the frontend proves that samples are independent."""
    firsts = {shape[0] for shape in shapes.values() if shape}
    rest = [dim for shape in shapes.values() for dim in shape[1:]]
    if len(firsts) != 1 or not isinstance(next(iter(firsts)), SizeRange) or any(isinstance(dim, SizeRange) for dim in rest):
        return False
    try:
        return load(source).any_batch
    except ModelError:  # other dimensions are open, too: then nothing is known of the batch
        return False


def _batches(shapes: Mapping[str, Shape]) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of batches of 1, 2, 4 ... samples."""
    last = max(_sizes(shape[0])[-1] for shape in shapes.values())
    counts = [1 << power for power in range(last.bit_length())]
    return [{name: (count, *cast("tuple[int, ...]", shape[1:])) for name, shape in shapes.items()} for count in counts]


def _all_sizes(names: Mapping[tuple[str, int], str], shapes: Mapping[str, Shape]) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of all inputs for each combination of sizes; dimensions of one name have one size."""
    ranges: dict[str, SizeRange] = {}
    for (name, axis), dimension in names.items():
        dim = cast("SizeRange", shapes[name][axis])
        if ranges.setdefault(dimension, dim) != dim:
            raise ModelError(f"dimension {dimension!r} has two ranges, {ranges[dimension]} and {dim}: give one")
    found: list[dict[str, tuple[int, ...]]] = []
    # `product` makes a tuple of each range, however long.
    some = [each.sizes[: MAX_SIZES + 1] for each in ranges.values()]
    for sizes in itertools.islice(itertools.product(*some), MAX_SIZES + 1):
        chosen = dict(zip(ranges, sizes, strict=True))
        found.append(
            {
                name: tuple(chosen[names[name, axis]] if isinstance(dim, SizeRange) else dim for axis, dim in enumerate(shape))
                for name, shape in shapes.items()
            }
        )
    return found
