"""Speed of the float32 convolution and matmul kernels, layer by layer, as a share of the core's measured peak.

    python benchmarks/float_kernels.py --network mobilenet_v2

Peak: fused multiply-adds of 16 lanes on registers alone. Operands are warm in the cache.
"""

import argparse

import numpy as np

from kernels import NETWORKS, Layer, seconds
from octavo.compiler.backends.cpu.kernels import KNOWN_ISAS, FloatConv2dSpec, Kernel, float_conv2d
from octavo.compiler.backends.cpu.peaks import float_peak_loop
from octavo.compiler.target_choice import resolve_target
from octavo.evaluation.bench.roofline import peak_of
from octavo.runtime.llvm_host import host_target


def spec_of(entry: Layer) -> FloatConv2dSpec:
    """The float layer of the same shape, with a ReLU."""
    spec = entry.spec
    return FloatConv2dSpec(
        batch=spec.batch,
        in_height=spec.in_height,
        in_width=spec.in_width,
        in_channels=spec.in_channels,
        out_channels=spec.out_channels,
        kernel=spec.kernel,
        strides=spec.strides,
        padding=spec.padding,
        groups=spec.groups,
        low=0.0,
        threads=spec.threads,
    )


def kernel_of(spec: FloatConv2dSpec, isa: str) -> Kernel:
    """The kernel of a layer with random weights."""
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 0.1, (*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)).astype(np.float32)
    return float_conv2d(spec, weight=weight, bias=np.zeros(spec.out_channels, np.float32), isa=isa)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="mobilenet_v2")
    parser.add_argument("--isa", choices=KNOWN_ISAS, default=resolve_target(None).isas[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=7, help="measurements of each layer")
    options = parser.parse_args()

    limit = peak_of(float_peak_loop(), host_target()) * options.threads
    print(f"peak {limit:.1f} GMAC/s, threads {options.threads}")
    rng = np.random.default_rng(1)
    totals: dict[str, float] = {}
    for entry in NETWORKS[options.network](options.threads):
        spec = spec_of(entry)
        kernel = kernel_of(spec, options.isa)
        x = rng.normal(0, 1, spec.batch * spec.in_height * spec.in_width * spec.in_channels).astype(np.float32)
        out = np.zeros(spec.batch * spec.out_height * spec.out_width * spec.out_channels, np.float32)
        time = seconds(kernel.func, [x, *kernel.constants, out], options.repeat)
        family = kernel.name.split()[0]
        totals[family] = totals.get(family, 0) + time * entry.count
        shape = f"{spec.in_height}x{spec.in_width}x{spec.in_channels} -> {spec.out_channels}"
        stride = f"{spec.kernel[0]}x{spec.kernel[1]}/{spec.strides[0]}"
        speed = entry.macs / time / 1e9
        share = f"{speed / limit:5.0%}"
        print(
            f"{kernel.name:24} {shape:22} {stride:6} x{entry.count} {time * 1e6:8.1f} us {speed:6.1f} GMAC/s {share}",
            flush=True,
        )
    for family, total in totals.items():
        print(f"{family:24} {total * 1e3:8.3f} ms")
    print(f"{'all':24} {sum(totals.values()) * 1e3:8.3f} ms")


if __name__ == "__main__":
    main()
