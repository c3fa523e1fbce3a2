"""What the command line looks like before a command is known: names, summaries, and the parser that they hang on.

It stands outside the package, and imports the standard library only, so that `octavo_command` need not import TVM.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

SUMMARIES = {
    "demo": "profile, quantize, compile and run a small network on handwritten digits",
    "profile": "measure the range of every tensor of a float model on sample inputs; merge, compare, judge and convert profiles",
    "profile merge": "merge profiles of one model, over parts of the samples, into the profile of all of them",
    "profile diff": "say which tensors moved between two profiles of one model, and by how much",
    "profile adequacy": "say whether the samples were enough: ranges that still grow, channels that never fired",
    "profile export": "write the ranges of a profile as ONNX Runtime, TensorRT or AIMET read them",
    "profile import": "make a profile of a model from a table of ranges that ONNX Runtime, TensorRT or AIMET wrote",
    "profile check": "run a quantized model on samples and say which tensors leave their ranges, and how much of them saturates",
    "quantize": "quantize a float model from its profile, from samples, or as a plan says",
    "compile": "compile a model to one executable file",
    "tune": "measure how the kernels of a model run best on this machine",
    "run": "run an executable on samples",
    "bench": "time a model against other runtimes, in alternating rounds of one process",
    "evaluate": "say whether a quantized model is as good as the float one, or any two models that run, on samples",
    "explain": "say of each op whether it runs in integers, on which kernel, and why not",
    "causes": "say why a quantized model's outputs are off, rounding by rounding, and what would help",
    "search": "find which activations to keep float for an accuracy that is asked for, and what each trade costs",
    "conformance": "write cases that hardware of a target description must pass: models, inputs and expected outputs",
    "conformance run": "run a command on such cases and report which it fails, and how",
    "trace": "tell what became of one tensor in each pass of TVM's default pipeline, or of Octavo's",
    "passes": "list every pass in order: what it does, and why it stands there",
    "report": "show a profile, or a quantized model and what its errors are from, as one HTML page",
}
"""What each command does; one of two words is a subcommand of the first."""

_DESCRIPTION = """\
Profile, quantize and compile neural networks to integer kernels, on Apache TVM.

  octavo profile m.onnx --data calib.npz -o profile.json
  octavo quantize m.onnx --profile profile.json -o m.int8.onnx
  octavo compile m.int8.onnx -o m.so
  octavo run m.so --input x.npz -o y.npz

A model that is quantized already (a .tflite, an ONNX file in QDQ form) goes straight to compile.
`octavo COMMAND --help` shows each command with an example."""


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, which may have both subcommands and arguments of its own: the first word decides."""

    is_command = False
    """Whether it is the parser of a command, not the one of them all."""
    subcommands: Any = None
    """What subcommands are added to; None for a command that has none."""

    def add_subcommands(self) -> Any:
        """Let this command have subcommands, and return what they are added to (argparse keeps its class private)."""
        self.subcommands = self.add_subparsers(title="subcommands", metavar="SUBCOMMAND", prog=self.prog)
        return self.subcommands

    # typeshed writes overloads, of which this is the union.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse as a subcommand does where the first word names one: argparse alone would take that word for an argument."""
        words = list(sys.argv[1:] if args is None else args)
        chosen = self.subcommands.choices.get(words[0]) if self.subcommands is not None and words else None
        if chosen is not None:
            return chosen.parse_known_args(words[1:], namespace)
        if self.is_command:
            self._refuse_unknown(words)
        found, left = super().parse_known_args(words, namespace)
        if left and self.is_command:  # argparse would print the usage of `octavo`
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        """Name an option that there is not before argparse takes what follows it for an argument."""
        known = self._option_string_actions
        for word in words[: words.index("--") if "--" in words else None]:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                near = difflib.get_close_matches(name, [each for each in known if each.startswith("--")], n=1)
                self.error(f"unrecognized arguments: {name}{f'; did you mean {near[0]}?' if near else ''}")


class _Version(argparse.Action):
    """Print the versions, and the ISA whose kernels this machine gets, which TVM has to be asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        """Print them and exit."""
        from octavo.compiler.target_choice import resolve_target

        print(
            f"octavo {metadata.version('octavo')}, apache-tvm {metadata.version('apache-tvm')}, "
            f"kernels for {resolve_target(None).isas[0]}"
        )
        parser.exit()


def base_parser() -> tuple[argparse.ArgumentParser, Any]:
    """Return the parser without a command, and what commands are added to."""
    parser = CommandParser(
        prog="octavo", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, help="show the versions and this machine's kernels, and exit")
    return parser, parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
