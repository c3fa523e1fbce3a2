"""torch.export programs of common networks: does each load, equal PyTorch at every size, profile, quantize and run in int8?

    python benchmarks/torch_programs.py [NAME ...]

Small networks with random weights, written with torch alone (torch_program_images.py, torch_program_sequences.py), their sizes
open where networks of the kind leave them open. A line each: how far float is from PyTorch at most, of all sizes and outputs; how
near int8 is to it, in dB, at the worst of them.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import octavo
import torch_program_images as images
import torch_program_sequences as sequences

Array = npt.NDArray[Any]
Sizes = dict[str, int]
NEAR = 2e-5
"""Of the largest value: sums of float32 in another order."""


@dataclass(frozen=True)
class Input:
    """An input: its shape, whose names are open sizes; it holds floats, pixels in [0; 1], a mask, or ids below `kind`."""

    shape: tuple[str | int, ...]
    kind: str | int = "float"

    def draw(self, sizes: Sizes, rng: np.random.Generator) -> Array:
        """Draw it."""
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.shape)
        if isinstance(self.kind, int):
            return rng.integers(0, self.kind, shape)
        if self.kind == "mask":
            mask = np.ones(shape, np.int64)
            mask[1:, shape[1] - shape[1] // 3 :] = 0
            return mask
        return rng.random(shape, np.float32) if self.kind == "pixels" else rng.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Program:
    """A network, what it reads, and the sizes at which it is exported (first) and run."""

    name: str
    make: Callable[[], torch.nn.Module]
    inputs: tuple[Input, ...]
    sizes: tuple[Sizes, ...] = ({},)
    least: Sizes = field(default_factory=dict[str, int])
    most: Sizes = field(default_factory=dict[str, int])
    rated: tuple[int, ...] = ()
    """Outputs whose int8 form is rated; others follow from a choice of the best, which nearly equal scores turn around."""

    def module(self) -> torch.nn.Module:
        """Return the network, with statistics that are not those of a new one."""
        torch.manual_seed(0)
        found = self.make().eval()
        for part in found.modules():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                torch.nn.init.uniform_(part.running_mean, -0.3, 0.3)
                torch.nn.init.uniform_(part.running_var, 0.3, 1.0)
        return found

    def drawn(self, sizes: Sizes, seed: int) -> list[Array]:
        """Return random inputs of these sizes."""
        rng = np.random.default_rng(seed)
        return [each.draw(sizes, rng) for each in self.inputs]

    def exported(self, module: torch.nn.Module) -> Any:
        """Return the program with its sizes open."""
        dims = {name: torch.export.Dim(name, min=self.least.get(name, 1), max=self.most.get(name)) for name in self.sizes[0]}
        shapes = tuple({axis: dims[dim] for axis, dim in enumerate(each.shape) if isinstance(dim, str)} for each in self.inputs)
        example = tuple(map(torch.from_numpy, self.drawn(self.sizes[0], 0)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, example, dynamic_shapes=shapes if dims else None)


PIXELS = (Input(("batch", 3, "height", "width"), "pixels"),)
ANY = ({"batch": 2, "height": 40, "width": 48}, {"batch": 1, "height": 64, "width": 33})
FIXED = (Input(("batch", 3, 32, 32), "pixels"),)
BATCHES = ({"batch": 2}, {"batch": 3})
IDS, MASK = Input(("batch", "tokens"), sequences.WORDS), Input(("batch", "tokens"), "mask")
TEXTS = ({"batch": 2, "tokens": 9}, {"batch": 3, "tokens": 13})
ROWS = ({"batch": 2, "steps": 20}, {"batch": 1, "steps": 33})
PROGRAMS = [
    Program("ResNet", images.resnet, PIXELS, ANY, {"height": 33, "width": 33}),
    Program("MobileNetV2", images.mobilenet_v2, PIXELS, ANY, {"height": 8, "width": 8}),
    Program("MobileNetV3", images.mobilenet_v3, PIXELS, ANY, {"height": 8, "width": 8}),
    Program("EfficientNet", images.efficientnet, PIXELS, ANY, {"height": 8, "width": 8}),
    Program("ConvNeXt", images.convnext, FIXED, BATCHES),
    Program("DenseNet", images.densenet, PIXELS, ANY, {"height": 16, "width": 16}),
    Program("ShuffleNetV2", images.shufflenet, PIXELS, ANY, {"height": 16, "width": 16}),
    Program("SqueezeNet", images.squeezenet, (Input(("batch", 3, 33, 36), "pixels"),), BATCHES),
    Program("Inception", images.Inception, PIXELS, ANY, {"height": 16, "width": 16}),
    Program(
        "U-Net",
        images.UNet,
        PIXELS,
        ({"batch": 2, "height": 36, "width": 44}, {"batch": 1, "height": 41, "width": 39}),
        {"height": 16, "width": 16},
    ),
    Program("Feature pyramid", images.Pyramid, FIXED, BATCHES),
    Program("RetinaNet", images.RetinaNet, FIXED, BATCHES, rated=(1,)),
    Program("YOLO", images.Yolo, FIXED, BATCHES),
    Program("CenterNet", images.CenterNet, FIXED, BATCHES, rated=(1,)),
    Program("Suppression", images.Suppression, (Input((8, 6)),)),
    Program("Super-resolution", images.SuperResolution, FIXED, BATCHES),
    Program("Warped", images.Warped, FIXED, BATCHES),
    Program("Style transfer", images.Styled, FIXED, BATCHES),
    Program("Film", images.volume, (Input(("batch", 3, 4, 24, 24)),), BATCHES),
    Program("BERT", sequences.Bert, (IDS, MASK), TEXTS, {"tokens": 2}, {"tokens": 60}),
    Program("GPT", sequences.Gpt, (IDS,), TEXTS, {"tokens": 2}),
    Program("LLaMA", sequences.Llama, (IDS,), TEXTS, {"tokens": 2}),
    Program("ViT", sequences.Vit, FIXED, BATCHES),
    Program("Swin", sequences.Swin, FIXED, BATCHES),
    Program(
        "Whisper",
        sequences.Whisper,
        (Input(("batch", 12, 40)), IDS),
        TEXTS,
        {"tokens": 2},
        {"tokens": 60},
    ),
    Program("T5", sequences.T5, (IDS, MASK), TEXTS, {"tokens": 2}),
    Program("Transformer", sequences.Layers, (Input((2, 9, sequences.WIDTH)), Input((2, 9), "mask"))),
    Program("LSTM", sequences.Lstm, (Input((2, 7), sequences.WORDS),)),
    Program("Recurrent", sequences.Recurrent, (Input((5, 2, 8)), Input((1, 2, 10)))),
    Program("Temporal", sequences.Temporal, (Input(("batch", 8, "steps")),), ROWS, {"steps": 4}),
    Program("Vocoder", sequences.Vocoder, (Input(("batch", 10, "steps")),), ROWS, {"steps": 4}),
    Program("Conformer", sequences.Conformer, (Input(("batch", 9, sequences.WIDTH)),), BATCHES),
    Program(
        "Recommender", sequences.Recommender, (Input(("batch", 5)), Input(("batch", 4), 30), Input(("batch", 3), 30)), BATCHES
    ),
    Program("Graph", sequences.Graph, (Input((9, 6)), Input((2, 20), 9))),
    Program("Experts", sequences.Experts, (Input((10, 16)),)),
    Program("Control flow", sequences.Flow, (Input((3, 6)),)),
    Program("State space", sequences.StateSpace, (Input(("batch", 11, 8)),), BATCHES),
    Program("Patches", sequences.Patches, (Input(("batch", 3, 12, 12)),), BATCHES),
    Program(
        "PointNet",
        sequences.PointNet,
        (Input(("batch", 3, "points")),),
        ({"batch": 2, "points": 30}, {"batch": 3, "points": 17}),
        {"points": 4},
    ),
]


def expected(module: torch.nn.Module, inputs: list[Array]) -> list[Array]:
    """Return PyTorch's outputs."""
    with torch.no_grad():
        found = module(*map(torch.from_numpy, inputs))
    return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]


def error_of(found: Array, wanted: Array) -> float:
    """Return the largest difference by the largest value."""
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), (found.shape, found.dtype, wanted.shape, wanted.dtype)
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def decibels(wanted: Array, found: Array) -> float:
    """Return the signal-to-noise ratio."""
    noise = np.square(found.astype(np.float64) - wanted).sum()
    return float(10 * np.log10(np.square(wanted.astype(np.float64)).sum() / noise)) if noise else np.inf


def called(executable: Any, inputs: list[Array]) -> list[Array]:
    """Return an executable's outputs in order."""
    names = [each.source_name for each in executable.inputs]
    return list(executable(dict(zip(names, inputs, strict=True))).values())


def go(program: Program) -> str:
    """Take one program the whole way, and say what it came to."""
    module = program.module()
    model = octavo.load(program.exported(module))
    executable = octavo.compile(model)
    errors: list[float] = []
    for seed, sizes in enumerate(program.sizes):
        inputs = program.drawn(sizes, seed)
        wanted = expected(module, inputs)
        errors += [error_of(*pair) for pair in zip(called(executable, inputs), wanted, strict=True)]
    assert max(errors) < NEAR, f"float is {max(errors):.1e} from PyTorch"
    names = list(model.input_ids)
    samples = [program.drawn(sizes, 100 + seed) for seed, sizes in enumerate(program.sizes * (12 // len(program.sizes)))]
    profile = octavo.profile(model, [dict(zip(names, each, strict=True)) for each in samples])
    integer = octavo.compile(octavo.quantize(model, profile, preset="fast"))
    qualities: list[float] = []
    for seed, sizes in enumerate(program.sizes):
        inputs = program.drawn(sizes, 50 + seed)
        pairs = list(zip(expected(module, inputs), called(integer, inputs), strict=True))
        chosen = [pairs[place] for place in program.rated] or pairs
        qualities += [decibels(*pair) for pair in chosen if pair[0].dtype == np.float32]
    return f"{max(errors):>10.1e}{min(qualities):>9.1f}"


def main() -> int:
    """Print the table; 1 where a program goes not the whole way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs, by the beginnings of their names (default: all)")
    args = parser.parse_args()
    chosen = [each for each in PROGRAMS if any(each.name.lower().startswith(name.lower()) for name in args.names or [""])]
    failed = 0
    print(f"{'program':<18}{'float':>10}{'int8 dB':>9}{'seconds':>9}", flush=True)
    for program in chosen:
        start = time.perf_counter()
        try:
            print(f"{program.name:<18}{go(program)}{time.perf_counter() - start:>9.1f}", flush=True)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            print(f"{program.name:<18}{type(error).__name__}: {lines[-1]}", flush=True)
            failed += 1
    print(f"{len(chosen) - failed} of {len(chosen)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
