"""Scales made four times too large, one layer at a time, in a quantized model: does the table of errors name the layer first?

    python benchmarks/layer_errors.py                       5 layers of mobilenet_v2_1.0_224_fp32.onnx, drawn at random, 20 images
    python benchmarks/layer_errors.py --layers 10 --seed 3

For each layer drawn: the row that comes first, and whether it is the layer, as the origin and not as inherited, and no other
tensor is said to have an unfit scale that the model as it was did not have.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

import datasets
import octavo


def with_scale(model: Any, tensor: str, factor: float) -> Any:
    """Multiply the scale of one tensor where it is quantized and dequantized."""
    integers: set[str] = set()

    @relax.expr_functor.mutator
    class Scale(relax.PyExprMutator):
        def visit_var_binding_(self, binding: Any) -> None:
            call = binding.value
            name = getattr(getattr(call, "op", None), "name", "")
            read = call.args[0].name if name in ("relax.quantize", "relax.dequantize") and hasattr(call.args[0], "name") else ""
            if name == "relax.quantize" and read == tensor:
                integers.add(binding.var.name)
            if (name == "relax.quantize" and read == tensor) or (name == "relax.dequantize" and read in integers):
                scale = relax.const(np.float32(call.args[1].value.numpy() * factor))
                call = relax.Call(call.op, [call.args[0], scale, *call.args[2:]], call.attrs)
                binding = relax.VarBinding(binding.var, call)
            super().visit_var_binding_(binding)

    main = Scale().visit_expr(model.module["main"])
    return replace(model, module=tvm.IRModule({model.module.get_global_var("main"): main}))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = octavo.load(datasets.shared_folder() / "models" / "onnx" / "mobilenet_v2_1.0_224_fp32.onnx")
    calibration, _ = datasets.images(datasets.plus_minus_one, calibration=True, limit=args.images)
    pictures, _ = datasets.images(datasets.plus_minus_one, calibration=False, limit=args.images)
    quantized = octavo.quantize(model, octavo.profile(model, calibration))
    rng = np.random.default_rng(args.seed)
    layers = [str(layer.output) for layer in quantized.plan.layers if layer.output in quantized.plan.activations]
    chosen = [layers[index] for index in sorted(rng.choice(len(layers), min(args.layers, len(layers)), replace=False))]
    print("| made 4x too large | first row | dB | by itself | excess | inherited | block share | named | CPU |", flush=True)
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    is_right = True
    unfit_before: set[str] = set()
    for tensor in ("", *chosen):
        start = time.process_time()
        rows = octavo.layer_errors(model, with_scale(quantized, tensor, 4.0) if tensor else quantized, pictures)
        first = rows[0]
        unfit = {row.id for row in rows if row.has_unfit_scale}
        if not tensor:
            unfit_before = unfit
        is_named = not tensor or (first.id == tensor and first.is_origin and unfit <= unfit_before | {tensor})
        is_right &= is_named
        named = ("yes" if is_named else "NO") if tensor else ""
        print(
            f"| {tensor or '(nothing)'} | {first.source_name} | {first.sqnr_db:.1f} | {first.local_sqnr_db:.1f} "
            f"| {first.scale_excess_db:.1f} | {first.inherited:.2f} | {first.block_share:.2f} | {named} "
            f"| {time.process_time() - start:.0f} s |",
            flush=True,
        )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
