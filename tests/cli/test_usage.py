"""What the parser takes and refuses; no command runs here."""

import argparse
import runpy
import shlex
import subprocess
import sys
from importlib import metadata

import pytest

import octavo
import octavo_command
import octavo_parser
from octavo.cli import options, profile, profiles
from octavo.cli.main import COMMANDS, build_parser, main
from octavo.compiler.target_choice import resolve_target
from octavo.quantizer.ranges import range_estimator_names

SUBCOMMANDS = [name for name in octavo_parser.SUMMARIES if " " in name]
NAMES = [command.__name__.rsplit(".", 1)[-1] for command in COMMANDS]


def run_expecting_exit(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert isinstance(left.value.code, int)
    return left.value.code


def test_the_commands_are_those_of_the_design() -> None:
    listed = "demo profile quantize compile tune run bench evaluate explain causes search conformance trace passes report"
    assert " ".join(NAMES) == listed


@pytest.mark.parametrize("name", [*NAMES, *SUBCOMMANDS])
def test_help_ends_with_an_example_that_parses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_expecting_exit([*name.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    example = lines[lines.index("example:") + 1]
    program, *words = shlex.split(example)
    assert program == "octavo"
    assert words[: len(name.split())] == name.split()
    assert lines[0].startswith(f"usage: octavo {name} ")
    assert callable(build_parser().parse_args(words).call)


@pytest.mark.parametrize(
    ("line", "command", "said"),
    [
        ("run m.so --inputs x.npz -o y.npz", "run", "unrecognized arguments: --inputs; did you mean --input?"),
        ("profile m.onnx --dta x.npz", "profile", "unrecognized arguments: --dta; did you mean --data?"),
        ("profile merge a.json --bogus", "profile merge", "unrecognized arguments: --bogus"),
        ("explain m.onnx other.onnx", "explain", "unrecognized arguments: other.onnx"),
    ],
)
def test_what_a_command_does_not_know_is_answered_with_its_own_usage(
    line: str, command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_expecting_exit(line.split()) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"usage: octavo {command} ")
    assert shown.splitlines()[-1] == f"octavo {command}: error: {said}"


def test_an_interrupt_while_it_is_imported_leaves_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "octavo.cli.main":
                raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch"))
    monkeypatch.delitem(sys.modules, "octavo.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert octavo_command.main(["passes"]) == 130
    assert capsys.readouterr().err == "octavo: interrupted\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_expecting_exit(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in NAMES if f"\n    {name}" not in shown] == []


def test_help_of_profile_lists_its_subcommands_and_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_expecting_exit(["profile", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "usage: octavo profile MODEL --data FILE -o FILE [options]\n       octavo profile SUBCOMMAND ...\n" in shown
    own = [name for name in SUBCOMMANDS if name.startswith("profile ")]
    assert [name for name in own if f"\n    {name.split()[1]} " not in shown] == []
    assert "  --checkpoint N " in shown


def test_the_first_word_decides_whether_profile_measures() -> None:
    parser = build_parser()
    measured = parser.parse_args(shlex.split("profile ./merge --data x.npz -o p.json"))
    assert measured.call is profile.call
    assert str(measured.model) == "merge"
    assert parser.parse_args(shlex.split("profile merge a.json b.json -o c.json")).call is profiles.call_merge


def test_the_front_door_says_what_the_parser_of_all_commands_says(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for entry in (main, octavo_command.main):
        with pytest.raises(SystemExit):
            entry(["--help"])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), ([], 2), (["fly"], 2)])
def test_the_front_door_answers_without_importing_tvm(words: list[str], code: int) -> None:
    program = (
        "import sys, octavo_command\n"
        f"try: octavo_command.main({words!r})\n"
        "except SystemExit as left: code = left.code\n"
        "assert not {'octavo', 'tvm', 'numpy'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == code


def test_commands_run_without_pytorch() -> None:
    program = "import sys, octavo_command\nassert octavo_command.main(['report', 'no.json', '-o', 'no.html']) == 1"
    program += "\nimport octavo, octavo.cli.main\nassert 'tvm' in sys.modules and sys.modules['torch'] is None"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stderr.startswith("octavo: error: no.json")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_expecting_exit(["--version"]) == 0
    assert capsys.readouterr().out == (
        f"octavo {octavo.__version__}, apache-tvm {metadata.version('apache-tvm')}, kernels for {resolve_target(None).isas[0]}\n"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "COMMAND"),
        ("fly", "invalid choice: 'fly'"),
        ("profile m.onnx", "--data, -o/--output"),
        ("profile m.onnx --data x.npz -o p.json --threads 0", "expected a number of threads, 1 or more, got '0'"),
        ("profile m.onnx --data x.npz -o p.json --checkpoint 0", "expected a number of samples, 1 or more, got '0'"),
        ("profile merge a.json -o c.json", "octavo profile merge: error: the following arguments are required: PROFILE"),
        ("profile merge a.json b.json -o c.json --fast", "unrecognized arguments: --fast"),
        ("profile m.onnx merge --data x.npz -o p.json", "merge"),
        ("profile", "MODEL, --data, -o/--output"),
        ("compile m.onnx -o m.so --shape x=1,2.5", "expected NAME=1,3,224,224, got 'x=1,2.5'"),
        ("compile m.onnx -o m.so --shape 1,3", "expected NAME=1,3,224,224, got '1,3'"),
        ("compile m.onnx -o m.so --shape x=0,3", "expected NAME=1,3,224,224, got 'x=0,3'"),
        ("quantize m.onnx --profile p.json -o q.onnx --percentile 120", "percentile must lie in [50; 100], got 120"),
        (
            "quantize m.onnx --profile p.json -o q.onnx --method magic",
            f"must be one of {', '.join(range_estimator_names())}, got 'magic'",
        ),
        ("bench m.onnx --against litert,abacus", "unknown 'abacus'; choose from litert, onnxruntime, openvino, tvm"),
        ("bench m.onnx --threads 1,two", "expected a number of threads, 1 or more, got 'two'"),
        ("bench m.onnx --seconds -1", "expected a time in seconds, above 0, got '-1'"),
        ("run m.so --input x.npz", "-o/--output"),
        ("explain m.onnx --jso", "--jso"),
    ],
)
def test_bad_usage_exits_with_2_and_says_what_is_wrong(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_expecting_exit(line.split()) == 2
    assert said in capsys.readouterr().err


def test_shapes_keep_their_names() -> None:
    assert options.named_shape("x=1,3,224,224") == ("x", (1, 3, 224, 224))
    assert options.named_shape("a=b=2") == ("a=b", (2,))
    assert options.named_shape("ids=batch,128") == ("ids", ("batch", 128))


@pytest.mark.parametrize(
    ("text", "size"),
    [("s=128", 128), ("s=1..512", (1, 512)), ("s=..512", (None, 512)), ("s=0..", (0, None)), ("a=b=2", 2)],
)
def test_sizes_are_fixed_or_bounded(text: str, size: object) -> None:
    assert options.named_size(text) == (text.rpartition("=")[0], size)


@pytest.mark.parametrize("text", ["s", "s=", "=3", "s=..", "s=1...3", "s=-1", "s=a"])
def test_sizes_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_expecting_exit(["compile", "m.onnx", "-o", "m.so", "--size", text]) == 2
    assert "expected NAME=N or NAME=LOW..HIGH" in capsys.readouterr().err


def test_lists() -> None:
    assert options.thread_counts("1,2") == (1, 2)
    assert options.one_of(("a", "b"))("b,a,b") == ("b", "a")
    with pytest.raises(argparse.ArgumentTypeError):
        options.thread_counts("1,,2")


@pytest.mark.parametrize("width", ["many", "=4", "conv=", "-4"])
def test_a_width_is_a_number_with_a_name_or_none(width: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_expecting_exit(["quantize", "m.onnx", "--profile", "p.json", "-o", "q.onnx", f"--weight-bits={width}"]) == 2
    assert f"expected a number of bits or NAME=BITS, got '{width}'" in capsys.readouterr().err


def test_the_package_runs_as_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As `python -m octavo` does it, and in a process of its own, whose exit code says how it ended."""
    monkeypatch.setattr(sys, "argv", ["octavo", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("octavo", run_name="__main__", alter_sys=True)
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"octavo {octavo.__version__}, apache-tvm ")
    wrong = subprocess.run([sys.executable, "-m", "octavo", "wishes"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "octavo: error: " in wrong.stderr
