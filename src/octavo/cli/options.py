"""Options that several commands share, and how their values are spelled. It calls nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from octavo_parser import SUMMARIES, CommandParser

from ..errors import QuantizationError
from ..numerics.quantized.block_matmul import BLOCK_ACTIVATIONS
from ..quantizer.ranges import range_estimator, range_estimator_help
from ..quantizer.recipe import ANY, Preset, Recipe

Subcommands = Any
"""What argparse's add_subparsers returns; its class is private."""
Group = Any
"""A parser, or a group of its options; argparse's class of groups is private."""


def add_command(commands: Subcommands, name: str, call: Callable[[argparse.Namespace], int], *, example: str) -> CommandParser:
    """Add a command of `octavo_parser.SUMMARIES`, whose --help ends with `example`; `call` runs it and returns the exit code.

    `commands` is what the command's last word is added to: a subcommand of `profile` to what that command's parser gives.
    """
    summary = SUMMARIES[name]
    parser: CommandParser = commands.add_parser(
        name.split()[-1],
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(call=call)
    parser.is_command = True
    return parser


def named_shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """Parse "input=1,3,224,224", or "ids=batch,128" with names of dimensions; the input's name may hold "=" itself."""
    name, separator, sizes = text.rpartition("=")
    shape = tuple(int(size) if size.isdecimal() else size for size in sizes.split(","))
    if not separator or not name or not all(dim > 0 if isinstance(dim, int) else dim.isidentifier() for dim in shape):
        raise argparse.ArgumentTypeError(f"expected NAME=1,3,224,224, got {text!r}")
    return name, shape


def named_size(text: str) -> tuple[str, int | tuple[int | None, int | None]]:
    """Parse "sequence=128", "sequence=1..512", "sequence=..512" or "past=0.."."""
    name, _, size = text.rpartition("=")
    low, dots, high = size.partition("..")
    given = [part for part in (low, high) if part]
    if not name or not given or not all(part.isdecimal() and len(part) < 10 for part in given):
        raise argparse.ArgumentTypeError(f"expected NAME=N or NAME=LOW..HIGH, whole numbers below 1000000000, got {text!r}")
    return name, (int(low) if low else None, int(high) if high else None) if dots else int(low)


def named_value(text: str) -> tuple[str, list[int | float | bool] | int | float | bool]:
    """Parse "sr=16000", "shape=2,-1", "scales=1,1,1.5,1.5" or "training=false"; one number has no axis unless the input has."""
    name, separator, values = text.rpartition("=")
    words = {"true": True, "false": False}
    try:
        numbers = [
            words[each] if each in words else float(each) if set(each) & set(".eE") else int(each) for each in values.split(",")
        ]
    except ValueError:
        separator, numbers = "", []
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=16000 or NAME=1,2,3, got {text!r}")
    return name, numbers if len(numbers) > 1 else numbers[0]


def add_model(parser: argparse.ArgumentParser, *, help: str = "model file: .onnx or .tflite") -> None:
    """Add the positional model file, and what `add_shapes` adds."""
    parser.add_argument("model", type=Path, metavar="MODEL", help=help)
    add_shapes(parser)


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """Add --shape, --size, --value and --signature."""
    parser.add_argument(
        "--shape",
        type=named_shape,
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help="fix the shape of an input whose dimensions the file leaves open; a name in place of a size leaves it open (may be "
        "repeated)",
    )
    parser.add_argument(
        "--size",
        type=named_size,
        action="append",
        default=[],
        metavar="NAME=N",
        help="fix a dimension that the file leaves open, by its name; NAME=LOW..HIGH, of which either may be left out, bounds it "
        "(may be repeated)",
    )
    parser.add_argument(
        "--value",
        type=named_value,
        action="append",
        default=[],
        metavar="NAME=N",
        help="fix the values of an input that decides shapes or branches: sr=16000, shape=2,-1 (may be repeated)",
    )
    parser.add_argument(
        "--signature",
        metavar="NAME",
        help="of a .tflite file that has several, the one that is meant (default: its first subgraph)",
    )


def add_output(parser: argparse.ArgumentParser, *, help: str) -> None:
    """Add -o, required."""
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=help)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object for machines instead of a table")


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add the options that make a Recipe."""
    group = parser.add_argument_group("how to quantize")
    group.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="fields of octavo.Recipe, JSON, its overrides for single ops and tensors among them; other options count before it",
    )
    _add_preset(group)
    add_method(group)
    group.add_argument("--activation", choices=("uint8", "int8", "int16"), help="dtype of activations (default: the target's)")
    group.add_argument(
        "--per-tensor", action="store_true", help="one scale for each weight instead of one for each output channel"
    )
    _add_widths(group)
    group.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="NAME",
        help="tensor, by its name in the source, or kind of op (Conv) to leave in float; * and ? stand for other characters "
        "(may be repeated)",
    )
    group.add_argument(
        "--no-corrections",
        action="store_true",
        help="round weights to nearest, keep biases and even out no channels: do not run the model on the samples that the "
        "profile keeps",
    )
    group.add_argument(
        "--min-sqnr",
        type=min_sqnr,
        default=Recipe().min_sqnr,
        metavar="DB",
        help="signal to noise ratio that every output must keep on the samples that the profile keeps (default: %(default)g): "
        "where it is missed, the activations whose rounding costs most get other ranges or stay float; none: whatever it costs",
    )
    group.add_argument(
        "--float-tensor",
        action="append",
        default=[],
        metavar="NAME",
        help="activation, by its name in the source, that is not to be integer (may be repeated)",
    )
    group.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="quantize as this plan says, which `octavo quantize --save-plan` wrote, edited or not; in place of a profile",
    )


def _add_widths(group: Group) -> None:
    group.add_argument(
        "--weight-bits",
        type=weight_bits,
        action="append",
        default=[],
        metavar="[NAME=]N",
        help="width of weights, 2 to 8 (default: 8); with NAME, as --exclude takes it, of those layers alone (may be repeated)",
    )
    group.add_argument(
        "--weight-block",
        type=sample_count,
        metavar="N",
        help="dense layers of 4 bits or fewer have a scale for each 16, 32, 64 or 128 inputs and read float32 activations, or, "
        "with --activation, quantized per row when run",
    )
    group.add_argument(
        "--block-activations",
        choices=BLOCK_ACTIVATIONS,
        help="how exact layers with weights in blocks read float32 activations, at least (default: float32, or what the file "
        "says); int8 is the fastest",
    )
    group.add_argument(
        "--wide-weights",
        type=float,
        default=Recipe().wide_weights,
        metavar="SHARE",
        help="share of all weights, 0 to 1, that keep 8 bits where --weight-bits says fewer: those that cost most (default: 0)",
    )
    group.add_argument(
        "--wide-activations",
        type=sample_limit,
        default=Recipe().wide_activations,
        metavar="N",
        help="how many activations have 16 bits: those whose rounding to 8 bits costs the outputs most (default: 0)",
    )


def _add_preset(group: Group) -> None:
    group.add_argument(
        "--preset",
        choices=get_args(Preset),
        default="balanced",
        help="how much to try (default: %(default)s): fast corrects biases by what the profile says and runs nothing, balanced "
        "tries steps (corrected biases, weights rounded by what their layers read, channels evened out, rows with scales of "
        "their own ...) and keeps what gains on samples held back, best also several ranges of activations; what other options "
        "say counts",
    )


def add_method(parser: Group) -> None:
    """Add the options that choose a range estimator, which `sources.method_of` reads."""
    # argparse takes "%" for a format.
    known = range_estimator_help().replace("%", "%%")
    parser.add_argument("--method", type=method, metavar="NAME", help=f"how a range is chosen (default: min_max): {known}")
    parser.add_argument(
        "--percentile", type=percentile, metavar="P", help="short for --method percentile:P: percent of the values to keep"
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add --threads, one count."""
    parser.add_argument("--threads", type=thread_count, default=None, metavar="N", help="threads of one inference (default: 1)")


class _EachTarget(argparse.Action):
    """Keeps one target as it is given, and several as a list."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Note one more."""
        before = getattr(namespace, self.dest)
        given = [before] if isinstance(before, str) else before
        setattr(namespace, self.dest, values if given is None else [*given, values])


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add --target, which may be given several times."""
    parser.add_argument(
        "--target",
        action=_EachTarget,
        default=None,
        metavar="TARGET",
        help='"cpu", an ISA (an unknown one is answered with the list), an LLVM target ("llvm -mcpu=znver4"), or the path of a '
        "target description, JSON; given several times, each op goes to the first that takes it (default: cpu, all that this "
        "machine has, or the ISA that OCTAVO_TARGET names)",
    )


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Add --precision."""
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="what a float model is computed in (default: float32); in 16 bits --profile says what stays float32, and nothing is "
        "quantized",
    )


def add_state(
    parser: argparse.ArgumentParser,
    *,
    help: str = "output that is the input IN of the next sample; it starts as the file states, else as zeros, and is not in "
    "the data",
) -> None:
    """Add --state."""
    parser.add_argument(
        "--state",
        type=state_pair,
        action="append",
        default=[],
        metavar="OUT=IN",
        help=f"{help} (may be repeated)",
    )


def state_pair(text: str) -> tuple[str, str]:
    """Parse "stateN=state", an output and an input."""
    output, separator, name = text.partition("=")
    if not separator or not output or not name:
        raise argparse.ArgumentTypeError(f"expected OUTPUT=INPUT, got {text!r}")
    return output, name


def row_count(text: str) -> tuple[str, int]:
    """Parse "past=2048", an open dimension and a number of rows."""
    name, _, rows = text.rpartition("=")
    if not name or not rows.isdecimal() or not 0 < len(rows) < 10 or int(rows) < 1:
        raise argparse.ArgumentTypeError(f"expected NAME=ROWS, 1 or more, got {text!r}")
    return name, int(rows)


def weight_bits(text: str) -> tuple[str, int]:
    """Parse "4" and "conv1=8"; the name may hold "=" itself."""
    name, separator, bits = text.rpartition("=")
    if not bits.isdecimal() or bool(name) != bool(separator):
        raise argparse.ArgumentTypeError(f"expected a number of bits or NAME=BITS, got {text!r}")
    return name or ANY, int(bits)


def thread_count(text: str) -> int:
    """Parse a positive number of threads."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of threads, 1 or more, got {text!r}")
    return int(text)


def sample_count(text: str) -> int:
    """Parse a positive number of samples."""
    return _samples(text, 1)


def sample_limit(text: str) -> int:
    """Parse a number of samples that may be 0."""
    return _samples(text, 0)


def _samples(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a number of samples, {least} or more, got {text!r}")
    return int(text)


def thread_counts(text: str) -> tuple[int, ...]:
    """Parse "1,2"."""
    return tuple(thread_count(part) for part in text.split(","))


def method(text: str) -> str:
    """Parse the spelling of a range estimator."""
    name, colon, argument = text.partition(":")
    spelling = name.replace("-", "_") + colon + argument
    try:
        range_estimator(spelling)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return spelling


def percentile(text: str) -> str:
    """Parse a percentage in [50; 100], to the spelling of a range estimator."""
    return method(f"percentile:{text}")


def min_sqnr(text: str) -> float | None:
    """Parse a signal to noise ratio in dB, or "none"."""
    if text == "none":
        return None
    try:
        return Recipe(min_sqnr=float(text)).min_sqnr
    except (ValueError, QuantizationError):
        raise argparse.ArgumentTypeError(f"expected dB, 0 or more, or none, got {text!r}") from None


def positive_seconds(text: str) -> float:
    """Parse a positive time in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected a time in seconds, above 0, got {text!r}")
    return value


def one_of(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of a comma-separated list whose entries must be among `known`."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(map(repr, unknown))}; choose from {', '.join(known)}")
        return names

    return parse
