"""Speed of the convolution and matmul kernels, layer by layer, as a share of the core's measured peak.

    python benchmarks/kernels.py --network mobilenet_v2 --weight-zero-point 5 --threads 1

Peak: that of `octavo bench --layers`, a loop of the ISA's product of bytes, or of words. Operands are warm in the cache: what a
layer costs inside a network is for `octavo bench` to say.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tvm

from octavo.compiler.backends.cpu.kernels import KNOWN_ISAS, Conv2dSpec, Kernel, conv2d
from octavo.compiler.backends.cpu.peaks import integer_peak_loop
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.compiler.target_choice import resolve_target
from octavo.evaluation.bench.roofline import peak_of
from octavo.ir.composites.outputs import Output
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR
from octavo.runtime.llvm_host import host_target

OUTPUT = Output(zero_point=128)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer and how often the network has it."""

    spec: Conv2dSpec
    count: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates, those with padding included."""
        spec = self.spec
        pixels = spec.batch * spec.out_height * spec.out_width
        return pixels * spec.out_channels * spec.kernel[0] * spec.kernel[1] * spec.in_channels // spec.groups


def layer(
    size: int, channels: tuple[int, int], kernel: int = 1, stride: int = 1, groups: int = 1, *, count: int = 1, threads: int = 1
) -> Layer:
    """A layer with SAME padding over a square image."""
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    padding = (total // 2, total // 2, total - total // 2, total - total // 2)
    spec = Conv2dSpec(
        batch=1,
        in_height=size,
        in_width=size,
        in_channels=channels[0],
        out_channels=channels[1],
        kernel=(kernel, kernel),
        strides=(stride, stride),
        padding=padding,
        groups=groups,
        input_zero_point=117,
        output=OUTPUT,
        threads=threads,
    )
    return Layer(spec=spec, count=count)


def mobilenet_v2(threads: int) -> Iterator[Layer]:
    """MobileNetV2 1.0 over 224 x 224."""
    yield layer(224, (3, 32), 3, 2, threads=threads)
    for size, channels, stride, count in (
        (112, 32, 1, 1), (112, 96, 2, 1), (56, 144, 1, 1), (56, 144, 2, 1), (28, 192, 1, 2), (28, 192, 2, 1),
        (14, 384, 1, 4), (14, 576, 1, 2), (14, 576, 2, 1), (7, 960, 1, 3),
    ):  # fmt: skip
        yield layer(size, (channels, channels), 3, stride, channels, count=count, threads=threads)
    for size, *channels, count in (
        (112, 32, 16, 1), (112, 16, 96, 1), (56, 96, 24, 1), (56, 24, 144, 2), (56, 144, 24, 1), (28, 144, 32, 1),
        (28, 32, 192, 3), (28, 192, 32, 2), (14, 192, 64, 1), (14, 64, 384, 4), (14, 384, 64, 3), (14, 384, 96, 1),
        (14, 96, 576, 3), (14, 576, 96, 2), (7, 576, 160, 1), (7, 160, 960, 3), (7, 960, 160, 2), (7, 960, 320, 1),
        (7, 320, 1280, 1), (1, 1280, 1001, 1),
    ):  # fmt: skip
        yield layer(size, tuple(channels), count=count, threads=threads)


def resnet50(threads: int) -> Iterator[Layer]:
    """ResNet50 over 224 x 224, the stride in the 3 x 3 layers."""
    yield layer(224, (3, 64), 7, 2, threads=threads)
    inputs, size = 64, 56
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        stride = 1 if width == 64 else 2
        yield layer(size, (inputs, width), threads=threads)
        yield layer(size, (width, width), 3, stride, threads=threads)
        yield layer(size, (inputs, 4 * width), 1, stride, threads=threads)
        size //= stride
        inputs = 4 * width
        yield layer(size, (width, inputs), count=blocks, threads=threads)
        yield layer(size, (inputs, width), count=blocks - 1, threads=threads)
        yield layer(size, (width, width), 3, count=blocks - 1, threads=threads)
    yield layer(1, (2048, 1000), threads=threads)


NETWORKS = {"mobilenet_v2": mobilenet_v2, "resnet50": resnet50}


def seconds(function: object, arguments: list[np.ndarray], repeat: int) -> float:
    """The least time of one call, of `repeat` measurements of 2 ms or more each: other work on the machine only ever adds."""
    library = llvm_module({"kernel": function.with_attr(KERNEL_ATTR, "kernel")}, host_target())
    tensors = [tvm.runtime.tensor(value) for value in arguments]
    library["kernel"](*tensors)
    timer = library.time_evaluator("kernel", tvm.cpu(), number=1, repeat=repeat, min_repeat_ms=2)
    return min(timer(*tensors).results)


def kernel_of(spec: Conv2dSpec, weight_zero_point: int, isa: str) -> Kernel:
    """The kernel of a layer with random weights: most near 0, one at each end of the range, as in a trained layer."""
    rng = np.random.default_rng(0)
    shape = (*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)
    weight = np.clip(np.rint(rng.normal(weight_zero_point, 25, shape)), -128, 127).astype(np.int8)
    weight.flat[0], weight.flat[-1] = -128, 127
    multiplier = np.full(spec.out_channels, 0.005 / weight[..., 0].size ** 0.5, np.float32)
    bias = np.zeros(spec.out_channels, np.int32)
    return conv2d(spec, weight=weight, weight_zero_point=weight_zero_point, bias=bias, multiplier=multiplier, isa=isa)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="mobilenet_v2")
    parser.add_argument("--isa", choices=KNOWN_ISAS, default=resolve_target(None).isas[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weight-zero-point", type=int, default=0, help="0 is symmetric")
    parser.add_argument("--repeat", type=int, default=15, help="measurements of each layer")
    options = parser.parse_args()

    loop = integer_peak_loop(options.isa)
    limit = peak_of(loop, host_target()) * options.threads if loop else None
    print(f"peak {limit:.0f} GMAC/s, threads {options.threads}" if limit else f"threads {options.threads}")
    rng = np.random.default_rng(1)
    totals: dict[str, float] = {}
    for entry in NETWORKS[options.network](options.threads):
        spec = entry.spec
        kernel = kernel_of(spec, options.weight_zero_point, options.isa)
        x = rng.integers(0, 256, spec.batch * spec.in_height * spec.in_width * spec.in_channels).astype(np.uint8)
        out = np.zeros(spec.batch * spec.out_height * spec.out_width * spec.out_channels, np.uint8)
        time = seconds(kernel.func, [x, *kernel.constants, out], options.repeat)
        family = kernel.name.split()[0]
        totals[family] = totals.get(family, 0) + time * entry.count
        shape = f"{spec.in_height}x{spec.in_width}x{spec.in_channels} -> {spec.out_channels}"
        stride = f"{spec.kernel[0]}x{spec.kernel[1]}/{spec.strides[0]}"
        speed = entry.macs / time / 1e9
        share = f"{speed / limit:5.0%}" if limit else ""
        print(
            f"{kernel.name:24} {shape:22} {stride:6} x{entry.count} {time * 1e6:8.1f} us {speed:6.1f} GMAC/s {share}", flush=True
        )
    for family, total in totals.items():
        print(f"{family:24} {total * 1e3:8.3f} ms")
    print(f"{'all':24} {sum(totals.values()) * 1e3:8.3f} ms")


if __name__ == "__main__":
    main()
