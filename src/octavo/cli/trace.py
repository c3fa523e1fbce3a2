"""`octavo trace`: one tensor's story through the passes of TVM's default pipeline, or of Octavo's own."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..compiler.target_choice import resolve_target
from ..compiler.text_table import markdown_table
from ..compiler.tvm_pipeline import relax_pipeline
from ..errors import ModelError
from ..ir.graph import Model
from ..ir.graph.dump_ir import dump_name
from ..ir.graph.lineage import Lineage
from ..ir.identity import TensorId, TensorState
from ..profiling.model_profile import Profile
from ..quantizer.quantize import quantize
from .dump import add_dump_ir, check_folder
from .options import Subcommands, add_command, add_json, add_model, add_target
from .outputs import write_file
from .sources import UsageError, load_model

_LONG_NAME = re.compile(r"\w{64,}")


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(commands, "trace", call, example='octavo trace m.onnx --tensor "features.0/Conv_output_0"')
    add_model(parser)
    parser.add_argument("--tensor", required=True, metavar="NAME", help="the tensor, by its name in the source or its TensorId")
    parser.add_argument(
        "--pipeline",
        choices=("tvm", "octavo"),
        default="tvm",
        help="the passes: TVM's default pipeline (the default), or Octavo's, from QDQ to integer kernels",
    )
    parser.add_argument("--profile", type=Path, metavar="FILE", help="with --pipeline octavo: quantize a float model, too")
    add_dump_ir(parser)
    add_target(parser)
    add_json(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.dump_ir is not None:
        check_folder(args.dump_ir)
    if args.profile is not None and args.pipeline != "octavo":
        raise UsageError("a profile is for quantizing, which is no part of TVM's pipeline; give --pipeline octavo as well")
    model = load_model(args)
    tensor = _tensor(model, args.tensor)
    target = resolve_target(args.target).llvm
    lineage = Lineage(model, target=target)
    profile = None if args.profile is None else Profile.load(args.profile)
    with target, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        _run(args, model, profile, target)
    story = lineage.story(tensor)
    if args.dump_ir is not None:
        for index, step in enumerate(lineage.steps):
            _dump(args.dump_ir / dump_name(index, step.pass_name), lineage.after(index), dict(step.functions.items()))
    if args.json:
        steps = [{"step": item.step, "pass": item.pass_name, "kind": item.state.kind, "state": str(item.state)} for item in story]
        print(json.dumps({"tensor": tensor, "story": steps}, indent=2))
    else:
        rows = [(str(item.step), item.pass_name, _shortened(str(item.state))) for item in story]
        print(markdown_table(("step", "pass", "state"), rows))
    return 0


def _shortened(text: str) -> str:
    """Leave out the middle of names that would not fit a terminal: those that TVM gives to fused functions list all their ops."""
    return _LONG_NAME.sub(lambda name: f"{name[0][:24]}...{name[0][-24:]}", text)


def _tensor(model: Model, name: str) -> TensorId:
    found = model.tensors.find(name) or (TensorId(name) if name in model.tensors else None)
    if found is None:
        raise ModelError(f"the model has no tensor {name!r}; its tensors: {', '.join(list(model.tensors)[:8])}, ...")
    return found


def _run(args: argparse.Namespace, model: Model, profile: Profile | None, target: tvm.target.Target) -> None:
    """Run the passes that a Lineage listens to."""
    if args.pipeline == "tvm":
        passes: Any = relax.pipeline.get_default_pipeline(target)
        passes(model.bound())
        return
    lowered = model if profile is None else quantize(model, profile, target=args.target)
    relax_pipeline(target=args.target, ids=lowered.tensors)(lowered.bound())


def _dump(path: Path, states: Mapping[TensorId, TensorState], functions: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc]) -> None:
    """Write a module with, in front, what each tensor of the source is in it."""
    states_text = "".join(f"# {tensor}: {state}\n" for tensor, state in states.items())
    text = f"{states_text}\n{tvm.IRModule(functions).script(show_meta=False)}"
    write_file(path, lambda file: file.write(text.encode()))
