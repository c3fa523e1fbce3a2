"""`octavo explain`: what each op of a model runs as, and why."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..compiler.explanation import ExplainedOp, Explanation
from ..compiler.load_executable import load_executable
from ..compiler.text_table import markdown_table
from ..quantizer.compile import explain
from ..runtime.file import is_executable
from .dump import add_dump_ir, dumping
from .options import Subcommands, add_command, add_json, add_model, add_precision, add_recipe, add_target
from .sources import UsageError, load_to_compile

EXECUTABLE_SUFFIX = ".so"


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(commands, "explain", call, example="octavo explain m.tflite")
    add_model(parser, help="model file (.onnx or .tflite), or an executable (.so)")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="quantize a float model first, from its profile")
    add_precision(parser)
    add_target(parser)
    add_dump_ir(parser)
    add_json(parser)
    add_recipe(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.model.suffix == EXECUTABLE_SUFFIX or is_executable(args.model):
        if args.dump_ir is not None:
            raise UsageError(f"{args.model}: an executable has no IR; give --dump-ir with the model that it was made from")
        if args.shape or args.size or args.value:
            raise UsageError(f"{args.model}: an executable keeps its sizes: leave out --shape, --size and --value")
        explanation = explain(load_executable(args.model))
    else:
        model, profile, recipe = load_to_compile(args)
        with dumping(args.dump_ir):
            explanation = explain(model, target=args.target, precision=args.precision, profile=profile, recipe=recipe)
    if args.json:
        print(json.dumps(explanation.to_json(), indent=2))
        return 0
    print(f"{_interface(explanation)}\n\n{_ops(explanation)}\n\n{explanation.summary}")
    if explanation.journal:
        print("\nhow it was quantized:\n" + "\n".join(f"  {line}" for line in explanation.journal))
    if explanation.advice:
        print(explanation.advice)
    return 0


def _interface(explanation: Explanation) -> str:
    """Return what the model takes and gives as a table: data files and results go by these names."""
    rows = [
        (kind, port.name, port.dtype, port.dims)
        for kind, ports in (("input", explanation.inputs), ("output", explanation.outputs))
        for port in ports
    ]
    return markdown_table(("", "name", "dtype", "shape"), rows)


def _ops(explanation: Explanation) -> str:
    rows = [
        (op.op, op.source_name or op.tensor, op.runs_in, op.kernel, _where(op), _why(op, explanation)) for op in explanation.ops
    ]
    headers = ("op", "tensor", "runs in", "kernel", "isa", "reason")
    has_reasons = any(row[-1] for row in rows)
    last = len(headers) if has_reasons else -1
    return markdown_table(headers[:last], [row[:last] for row in rows], names=(1,))


def _where(op: ExplainedOp) -> str:
    """Return the instruction set, with the target in whose place it computes."""
    return f"{op.isa} for {op.backend}" if op.backend not in ("", op.isa) else op.isa


def _why(op: ExplainedOp, explanation: Explanation) -> str:
    """Return why an op is where it is: why vendors declined it, and why it is float."""
    return "; ".join(reason for reason in (op.declined, explanation.reason_of(op)) if reason)
