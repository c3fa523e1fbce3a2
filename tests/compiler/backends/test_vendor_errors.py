"""What goes wrong in a vendor's code: one line with the op and its tensor, in Octavo's flow and in TVM's, and no file begun."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.compiler.backends import Code, CSource, ObjectCode
from octavo.errors import CompileError, OctavoError
from vendors import Vendor, machine_of, object_of, samples_of, through_tvm, with_code, with_weights


@pytest.fixture(name="quantized", scope="module")
def fixture_quantized():
    text = "net (float[1, 3, 4, 4] x) => (float[1, 4, 4, 4] y) { y = Conv<pads=[1, 1, 1, 1]>(x, w1, b1) }"
    model = octavo.load(with_weights(text, {"w1": (4, 3, 3, 3)}, np.random.default_rng(1)))
    return octavo.quantize(model, octavo.profile(model, samples_of(model)), target=Vendor("npu"))


def changed(**fields: Any) -> Any:
    return lambda _, code: replace(code, **fields)


def rewritten(change: Any, **fields: Any) -> Any:
    """The toy NPU's code with another text."""

    def make(composite: Any, code: Code) -> Code:
        return replace(code, source=replace(code.source, text=change(code.source.text, composite.name)), **fields)

    return make


def raises(*_: Any) -> Code:
    raise ValueError("no such\nunit")


WRONG = {
    "raises": (raises, "its back end raised ValueError: no such unit$"),
    "no code": (lambda *_: None, "its back end returned NoneType, expected Code"),
    "text": (lambda *_: "int x;", "its back end returned str, expected Code"),
    "no source": (changed(source=b"int x;"), "its source must be a PrimFunc, CSource or ObjectCode, got bytes"),
    "no text": (changed(source=CSource(text=b"", symbol="f")), "text of its CSource must be str, got bytes"),  # pyright: ignore
    "no symbol": (changed(source=CSource(text="", symbol="")), "its function's symbol must be text, got ''"),
    "does not compile": (
        rewritten(lambda text, _: text.replace("conv2d(x, weight", "conv_2d(x, weight").replace("saturate", "saturated(", 1)),
        r"its C does not compile: npu\w*\.c:\d+:\d+: error: ",
    ),
    "other symbol": (
        rewritten(lambda text, name: text.replace(f" {name}(", " f(")),
        r"its code defines no function 'npu\w+'; it defines f",
    ),
    "data": (
        changed(source=CSource(text="int f;", symbol="f"), constants=()),
        "its function 'f' is called with .*: called object 'f' is not a function",
    ),
    "data in an object": (
        lambda *_: Code(source=ObjectCode(data=object_of("int f = 1; void g(void) {}"), symbol="f")),
        "its code defines no function 'f'; it defines g",
    ),
    "junk": (
        changed(source=ObjectCode(data=b"junk", symbol="f")),
        "its object file cannot be read: .*file format not recognized",
    ),
    "constant missing": (
        lambda _, code: replace(code, constants=code.constants[:-1]),
        r"its function 'npu\w+' is called with \(int8_t \*, int8_t \*, int32_t \*, void \*, int8_t \*\): too few arguments",
    ),
    "constant too many": (
        lambda _, code: replace(code, constants=(*code.constants, b"x")),
        "its function .*: too many arguments to function",
    ),
    "constant of another dtype": (
        lambda _, code: replace(code, constants=(code.constants[0].astype(np.float32), *code.constants[1:])),
        r"its function .* float \*, .* incompatible pointer type",
    ),
    "constant of objects": (
        lambda _, code: replace(code, constants=(np.array([None]), *code.constants[1:])),
        r"its constant 0 must be an array of numbers or bytes, got array\(\[None\]",
    ),
    "list as a constant": (changed(constants=([1, 2],)), r"its constant 0 must be an array of numbers or bytes, got \[1, 2\]"),
    "array as constants": (changed(constants=np.zeros(3)), "its constants must be a tuple of arrays and bytes, got ndarray"),
    "layout": (changed(layout="NCHWc"), "its layout must be one of 'source', 'NHWC', 'any' or None, got 'NCHWc'"),
    "workspace": (changed(workspace=-1), "its workspace must be a number of bytes, got -1"),
    "too much workspace": (
        changed(workspace=1 << 20),
        "its code asks for a workspace of 1048576 bytes; target npu has scratch_bytes",
    ),
    "crashes at load": (
        rewritten(lambda text, _: f"{text}\n__attribute__((constructor)) static void die(void) {{ *(volatile int *)8 = 1; }}"),
        "its code crashes as it is loaded, by signal 11",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_both_flows_say_in_one_line_which_op(quantized, name, tmp_path) -> None:
    make, said = WRONG[name]
    vendor = with_code("npu", "nn.conv2d", code=make)
    wanted = rf"npu\.conv2d of \w+: {said}"
    path = tmp_path / "net.so"
    with pytest.raises(CompileError, match=wanted) as own:
        octavo.compile(quantized, target=vendor).save(path)
    with pytest.raises(CompileError, match=wanted) as through:
        machine_of(through_tvm(quantized.bound(), vendor), path)
    assert "\n" not in str(own.value)
    assert "\n" not in str(through.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_there_stays_where_compiling_fails(quantized, tmp_path) -> None:
    path = tmp_path / "net.so"
    path.write_bytes(b"before")
    with pytest.raises(OctavoError):
        octavo.compile(quantized, target=with_code("npu", code=raises)).save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["net.so"]
    assert path.read_bytes() == b"before"


def test_what_nothing_defines_is_said_with_the_op(quantized) -> None:
    def waits(text: str, name: str) -> str:
        return text.replace(f"void {name}(", f"void runtime_wait(void);\nvoid {name}(").replace(
            "{\n  conv2d(", "{\n  runtime_wait(); conv2d("
        )

    make = rewritten(waits)
    with pytest.raises(CompileError, match=r"npu\.conv2d of \w+: its code calls runtime_wait, which nothing defines"):
        octavo.compile(quantized, target=with_code("npu", "nn.conv2d", code=make))
