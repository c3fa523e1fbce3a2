"""Networks quantized on the spot by PyTorch's PT2E: each must load, be integer, and choose the classes that PyTorch chooses.

    python benchmarks/torch_quantizers.py                                  every network, every variant, 449 held-out digits
    python benchmarks/torch_quantizers.py --network dense --only xnnpack --evaluation 100

The networks are trained here, in seconds, on the demo's handwritten digits (torch_networks.py). Quantizers: those of torchao for
XNNPACK, x86 and ARM Inductor, after training and during it, static and dynamic, and convert_pt2e's options. PyTorch runs the very
program that is loaded. For each variant: how many convolutions and matmuls with weights are integer, how often both choose the
same class, top-1 of both, the share of logits that are equal and their largest difference, in steps where logits are quantized
and else as a share of their range.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import octavo
from torch_networks import NETWORKS, digits, learn, trained

HEAVY_OPS = ("conv2d", "matmul", "nn.conv2d")
CALIBRATION = 64


def _xnnpack(**config: Any) -> Any:
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**config))


def _x86(*, everything: bool = False, **config: Any) -> Any:
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    settings = x86.get_default_x86_inductor_quantization_config(**config)
    quantizer = x86.X86InductorQuantizer().set_global(settings)
    if everything:
        # Left alone it quantizes the operands of these, but nobody's result.
        for op in (torch.ops.aten.add.Tensor, torch.ops.aten.matmul.default):
            quantizer.set_function_type_qconfig(_FUNCTIONS[op], settings)
    return quantizer


_FUNCTIONS = {torch.ops.aten.add.Tensor: torch.add, torch.ops.aten.matmul.default: torch.matmul}


def _arm(**config: Any) -> Any:
    from torchao.quantization.pt2e.quantizer import arm_inductor_quantizer as arm

    return arm.ArmInductorQuantizer().set_global(arm.get_default_arm_inductor_quantization_config(**config))


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A quantizer, and how PT2E prepares and converts with it."""

    quantizer: Callable[[], Any]
    trains: bool = False
    convert: dict[str, bool] | None = None


VARIANTS: dict[str, Variant] = {
    "xnnpack": Variant(quantizer=lambda: _xnnpack()),
    "xnnpack_per_channel": Variant(quantizer=lambda: _xnnpack(is_per_channel=True)),
    "xnnpack_7_bits": Variant(quantizer=lambda: _xnnpack(is_per_channel=True, act_qmin=-64, act_qmax=63)),
    "xnnpack_unfolded": Variant(quantizer=lambda: _xnnpack(is_per_channel=True), convert={"fold_quantize": False}),
    "xnnpack_reference": Variant(quantizer=lambda: _xnnpack(), convert={"use_reference_representation": True}),
    "xnnpack_qat": Variant(quantizer=lambda: _xnnpack(is_qat=True), trains=True),
    "xnnpack_qat_per_channel": Variant(quantizer=lambda: _xnnpack(is_qat=True, is_per_channel=True), trains=True),
    "xnnpack_dynamic": Variant(quantizer=lambda: _xnnpack(is_dynamic=True, is_per_channel=True)),
    "x86": Variant(quantizer=lambda: _x86()),
    "x86_7_bits": Variant(quantizer=lambda: _x86(reduce_range=True)),
    "x86_unfolded": Variant(quantizer=lambda: _x86(), convert={"fold_quantize": False}),
    "x86_all_functions": Variant(quantizer=lambda: _x86(everything=True)),
    "x86_qat": Variant(quantizer=lambda: _x86(is_qat=True), trains=True),
    "x86_dynamic": Variant(quantizer=lambda: _x86(is_dynamic=True)),
    "arm": Variant(quantizer=lambda: _arm()),
    "arm_qat": Variant(quantizer=lambda: _arm(is_qat=True), trains=True),
    "arm_dynamic": Variant(quantizer=lambda: _arm(is_dynamic=True)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    network: str
    variant: str
    loads: str
    heavy_integer: int = 0
    heavy: int = 0
    agreement: float = 0.0
    top1: float = 0.0
    top1_theirs: float = 0.0
    equal: float = 0.0
    largest: float = 0.0
    unit: str = ""
    explained: str = ""
    float_ops: tuple[str, ...] = ()
    seconds: float = 0.0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch warns of its own deprecations at every step."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def quantized(net: nn.Module, variant: Variant, *, samples: int | None = None) -> Any:
    """Return the exported program, of batch 1, of a network that PT2E quantized; `samples` to train on (default: all)."""
    from torchao.quantization.pt2e import allow_exported_model_train_eval, move_exported_model_to_eval, quantize_pt2e

    pixels, labels, _, _ = digits()
    with _quiet():
        example = (pixels[:16],)
        open_batch = ({0: torch.export.Dim("batch", min=2, max=1024)},)
        if variant.trains:
            exported = torch.export.export(net.train(), example, dynamic_shapes=open_batch).module()
            prepared = quantize_pt2e.prepare_qat_pt2e(exported, variant.quantizer())
            allow_exported_model_train_eval(prepared)
            prepared.train()
            learn(prepared, pixels[:samples], labels[:samples], epochs=1, rate=3e-4)
            prepared.eval()
        else:
            exported = torch.export.export(net.eval(), example, dynamic_shapes=open_batch).module()
            prepared = quantize_pt2e.prepare_pt2e(exported, variant.quantizer())
            for start in range(0, CALIBRATION, 16):
                prepared(pixels[start : start + 16])
        converted = quantize_pt2e.convert_pt2e(prepared, **(variant.convert or {}))
        move_exported_model_to_eval(converted)
        return torch.export.export(converted, (pixels[:1],))


def measure(network: str, variant: str, *, net: nn.Module, evaluation: int | None = None) -> Result:
    """Quantize, load, compile, and compare with PyTorch on the held-out digits."""
    start = time.perf_counter()
    _, _, pixels, labels = digits()
    pixels, labels = pixels[:evaluation], labels[:evaluation].numpy()
    try:
        program = quantized(net, VARIANTS[variant])
    except Exception as error:  # PT2E's own refusals, of many types
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Result(network=network, variant=variant, loads=f"PyTorch: {reason[:80]}")
    try:
        model = octavo.load(program)
        executable = octavo.compile(model)
    except octavo.OctavoError as error:
        return Result(network=network, variant=variant, loads=str(error))
    with torch.no_grad(), _quiet():
        module = program.module()
        theirs = np.concatenate([module(x[None]).numpy() for x in pixels])
    ours = np.concatenate([next(iter(executable(x[None].numpy()).values())) for x in pixels])
    explanation = octavo.explain(executable)
    heavy = [op for op in explanation.counted if op.op in HEAVY_OPS and op.macs and not is_product(model, op.tensor)]
    scale = output_scale(program)
    off = np.abs(ours - theirs) if scale is None else np.rint(np.abs(ours - theirs) / scale)
    return Result(
        network=network,
        variant=variant,
        loads="yes",
        heavy_integer=sum(op.integer for op in heavy),
        heavy=len(heavy),
        agreement=float(np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1))),
        top1=float(np.mean(ours.argmax(axis=1) == labels)),
        top1_theirs=float(np.mean(theirs.argmax(axis=1) == labels)),
        equal=float(np.mean(off == 0)),
        largest=float(off.max() / (np.ptp(theirs) if scale is None else 1.0)),
        unit="of range" if scale is None else "steps",
        explained=explanation.summary,
        float_ops=tuple(f"{op.op} {op.tensor}: {op.reason}" for op in explanation.counted if not op.integer),
        seconds=time.perf_counter() - start,
    )


def is_product(model: octavo.Model, tensor: str) -> bool:
    """Whether a tensor is the product of two activations, which has no weights."""
    entry = next((entry for entry in model.tensors.values() if str(entry.id) == tensor), None)
    return entry is not None and entry.op in ("aten.matmul.default", "aten.bmm.default")


def output_scale(program: Any) -> float | None:
    """Return the scale of the program's result, None where it is float."""
    [name] = program.graph_signature.user_outputs
    [node] = [node for node in program.graph.nodes if node.name == name]
    return float(node.args[1]) if "dequantize_per_tensor" in str(node.target) and isinstance(node.args[1], float) else None


def line(result: Result) -> str:
    """One row of the table."""
    numbers = (result.agreement, result.top1, result.top1_theirs, result.equal)
    cells = (result.network, result.variant, result.loads, f"{result.heavy_integer}/{result.heavy}")
    largest = f"{result.largest:.2g} {result.unit}"
    return f"| {' | '.join((*cells, *(f'{number:.4f}' for number in numbers), largest, result.explained))} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=[*NETWORKS, "all"], default="all")
    parser.add_argument("--only", help="comma-separated variants, by their names' beginnings")
    parser.add_argument("--evaluation", type=int, help="digits to evaluate on (default: all 449)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="list the float ops with their reasons")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the order of float sums, and so the weights, would depend on the thread count
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    results: list[Result] = []
    if not options.json:
        print("| network | variant | loads | conv, dense integer | agreement | top-1 | PyTorch's | equal | largest | explain |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for network in NETWORKS if options.network == "all" else [options.network]:
        for variant in (name for name in VARIANTS if name.startswith(wanted)):
            # Trained anew each time: preparing for training changes the weights.
            result = measure(network, variant, net=trained(network), evaluation=options.evaluation)
            results.append(result)
            if not options.json:
                print(line(result), flush=True)
                for op in result.float_ops if options.verbose else ():
                    print(f"    {op}")
    if options.json:
        json.dump([asdict(result) for result in results], sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
