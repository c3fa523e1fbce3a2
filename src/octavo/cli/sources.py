"""From a command line's files and options to a Model: load, and quantize where a profile is given. It chooses nothing itself."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..errors import OctavoError
from ..export.tflite import is_of_tflite
from ..export.tflite import quantize as quantize_for_tflite
from ..frontends.load import load
from ..ir.graph import Model
from ..ir.qdq.block_activations import with_block_activations
from ..profiling import Profile
from ..quantizer.plan.plan import QuantizationPlan, QuantizedModel
from ..quantizer.quantize import quantize
from ..quantizer.recipe import Recipe, read_recipe


class UsageError(OctavoError):
    """Options that make no sense together."""


def load_model(args: argparse.Namespace) -> Model:
    """Load MODEL under --shape, --size, --value and --signature."""
    return load(
        args.model,
        shapes=dict(args.shape) or None,
        sizes=dict(args.size) or None,
        values=dict(args.value) or None,
        signature=args.signature,
    )


def shape_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return --shape and --size as functions take them that load a model themselves, without values and signatures."""
    if args.value:
        raise UsageError("--value is for what works on one model on this machine: write the value into the file, as a constant")
    if args.signature:
        raise UsageError(
            "--signature is for what works on one model on this machine: convert that signature to a file of its own"
        )
    return {"shapes": dict(args.shape) or None, "sizes": dict(args.size) or None}


def method_of(args: argparse.Namespace) -> str:
    """Return the range estimator that the options of `add_method` name."""
    if args.percentile is None:
        return args.method or Recipe().range_estimator
    if args.method not in (None, "percentile"):
        raise UsageError(f"--percentile goes with --method percentile, not with {args.method}; leave one out")
    return args.percentile


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Return what the options of `add_recipe` ask for."""
    said = Recipe(
        range_estimator=method_of(args),
        activation_dtype=args.activation,
        weight_granularity="per_tensor" if args.per_tensor else "per_axis",
        weight_bits=dict(args.weight_bits) if args.weight_bits else Recipe().weight_bits,
        weight_block=args.weight_block,
        block_activations=args.block_activations,
        wide_weights=args.wide_weights,
        wide_activations=args.wide_activations,
        exclude=tuple(args.exclude),
        weight_rounding="nearest" if args.no_corrections else Recipe().weight_rounding,
        equalization="none" if args.no_corrections else Recipe().equalization,
        bias_correction=not args.no_corrections,
        min_sqnr=args.min_sqnr,
        float_tensors=tuple(args.float_tensor),
    )
    if args.recipe is not None:
        usual = Recipe()
        names = [each.name for each in fields(Recipe)]
        options = {name: value for name in names if (value := getattr(said, name)) != getattr(usual, name)}
        said = replace(read_recipe(args.recipe), **options)
    return said.with_preset(args.preset)


def load_quantized(args: argparse.Namespace) -> Model:
    """Load MODEL; with --profile or --plan, quantize it too."""
    model, profile, recipe = load_to_compile(args)
    return model if profile is None else quantize(model, profile, target=args.target, recipe=recipe)


def by_plan(model: Model, path: Path, target: str | Path | None) -> QuantizedModel:
    """Quantize as a plan says: for LiteRT's kernels where `octavo quantize m.tflite` made it."""
    plan = QuantizationPlan.load(path)
    if target is None and is_of_tflite(plan):
        return quantize_for_tflite(model, plan=plan)
    return quantize(model, plan=plan, target=target)


def is_downcast(args: argparse.Namespace) -> bool:
    """Return whether --precision asks for 16 bits: then nothing is quantized."""
    return getattr(args, "precision", "float32") != "float32"


def _loaded(args: argparse.Namespace) -> Model:
    return with_block_activations(load_model(args), args.block_activations or "float32")


def load_to_compile(args: argparse.Namespace) -> tuple[Model, Profile | None, Recipe | None]:
    """Load MODEL and --profile, and return them with the recipe, as `compile` takes them; UsageError where options do nothing."""
    recipe = replace(recipe_of(args), block_activations=None)  # said of the model, which may be quantized already
    if args.plan is not None:
        if args.profile or recipe != Recipe() or is_downcast(args):
            raise UsageError("--plan says all that is to be said of quantizing: leave out --profile, --precision and the options")
        return by_plan(_loaded(args), args.plan, args.target), None, None
    if recipe != Recipe() and is_downcast(args):
        raise UsageError(f"--precision {args.precision} quantizes nothing: leave out the options that say how to quantize")
    if recipe != Recipe() and not args.profile:
        raise UsageError(
            "--recipe, --preset, --method, --percentile, --activation, --per-tensor, --exclude, --float-tensor, --min-sqnr and "
            "--no-corrections say how to quantize; give --profile too"
        )
    profile = Profile.load(args.profile) if args.profile else None
    return _loaded(args), profile, None if recipe == Recipe() else recipe
