"""Networks of Hugging Face, exported with open sizes: they equal PyTorch at three sizes, and decode in a session.

One layer each, and of networks that are alike one: benchmarks/hugging_face_networks.py has all. docs/howto/hugging_face.md, run
here as well since it takes long to import transformers, quantizes BERT and LLaMA, and writes with the second in a session.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType

import pytest
from pages import DOCS, blocks

import octavo

NEAR = 1e-5
"""Of the largest value: sums of float32 in another order."""


@pytest.fixture(scope="module")
def networks() -> ModuleType:
    for package in ("torch", "onnxscript", "transformers"):
        pytest.importorskip(package, reason="needs PyTorch and transformers: make torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import hugging_face_networks
    return hugging_face_networks


@pytest.mark.parametrize("name", ["RoBERTa", "T5 encoder", "T5 decoder", "Whisper encoder", "CLIP", "Wav2Vec2"])
def test_float_equals_pytorch_at_any_size_and_in_a_session(networks: ModuleType, name: str, tmp_path: Path) -> None:
    [network] = [each for each in networks.networks(layers=1) if each.name == name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what transformers imports by now
        module = network.module()
    networks.export(network, module, tmp_path / "net.onnx")
    executable = octavo.compile(networks.load(network, tmp_path / "net.onnx"))
    assert networks.float_error(network, module, executable) < NEAR
    if network.carry:
        steps, calls, whole = networks.in_session(network, executable)
        assert steps.tobytes() == calls.tobytes()
        assert networks.relative_error(steps, networks.expected(module, whole)[0]) < NEAR


def test_hugging_face_md_runs(
    networks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    for block in blocks(DOCS / "howto/hugging_face.md"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's exporter tells of its own code
            exec(compile(block.text, "docs/howto/hugging_face.md", "exec"), {"__name__": "page"})
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line in ("(2, 2)", "20")] == ["(2, 2)", "20"]
