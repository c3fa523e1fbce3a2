"""Pools whose batch, height and width are known only when they run give the bytes of those made for these sizes."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from kernel_runner import EACH_ISA
from open_kernels import check_open

from octavo.compiler.backends.cpu.kernels import Kernel, Pool2dSpec, pool2d
from octavo.ir.composites.outputs import Output

WINDOWS = (
    ((2, 2), (2, 2), (0, 0, 0, 0), 0, (1, 1)),
    ((3, 3), (2, 2), (0, 0, 0, 0), 0, (1, 1)),
    ((3, 3), (2, 2), (1, 1, 1, 1), 0, (1, 1)),
    ((3, 2), (1, 2), (1, 0, 1, 1), 0, (1, 2)),
    ((2, 3), (1, 1), (1, 2, 1, 2), 0, (2, 2)),
    ((3, 3), (2, 2), (0, 0, 0, 0), 1, (1, 1)),
)
"""Kernel, strides, padding, what ceil mode adds, and dilation: windows that stay in the image, and some that leave it."""

IMAGES = ((1, 3, 3), (2, 4, 5), (1, 5, 4), (3, 9, 17), (1, 8, 40))
"""Batch, height, width."""


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("kernel", "strides", "padding", "added", "dilation"), WINDOWS)
def test_pools(
    isa: str,
    kind: Literal["max", "avg"],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    added: int,
    dilation: tuple[int, int],
    rng: np.random.Generator,
) -> None:
    def make(size: Callable[[str], Any]) -> Kernel:
        image = size("height"), size("width")
        out = [
            (image[i] + padding[i] + padding[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // strides[i] + 1 + added
            for i in range(2)
        ]
        spec = Pool2dSpec(
            kind=kind,
            batch=size("batch"),
            in_height=image[0],
            in_width=image[1],
            channels=37,
            kernel=kernel,
            strides=strides,
            padding=padding,
            dilation=dilation,
            out_height=out[0],
            out_width=out[1],
            multiplier=1.0 if kind == "max" else 1.3,
            input_zero_point=3,
            output=Output(zero_point=3 if kind == "max" else 7),
        )
        return pool2d(spec, isa=isa)

    def draw(kernel: Kernel) -> list[np.ndarray]:
        return [rng.integers(0, 256, int(kernel.func.params[0].ty.shape[0])).astype(np.uint8)]

    sizes = [dict(zip(("batch", "height", "width"), image, strict=True)) for image in IMAGES]
    check_open(make, sizes, draw)
