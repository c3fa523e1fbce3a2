"""docs/howto/text.md: a decoder of random weights, with the names that the page has, runs its code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from pages import DOCS, run

import octavo
from example_programs import EXAMPLES


def test_text_md_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    import llama2c

    shape = llama2c.Shape(dim=16, hidden=24, layers=1, heads=2, kv_heads=1, vocabulary=32, length=512)
    sizes = {"q": (16, 16), "k": (8, 16), "v": (8, 16), "o": (16, 16), "gate": (24, 16), "down": (16, 24), "up": (24, 16)}
    weights = {f"{name}.0": rng.normal(0, 0.25, size).astype(np.float32) for name, size in sizes.items()}
    weights |= {name: np.ones(16, np.float32) for name in ("norm", "norm1.0", "norm2.0")}
    weights["embed"] = weights["head"] = rng.normal(0, 1, (32, 16)).astype(np.float32)
    decoder = llama2c.Decoder(shape, weights)
    onnx.save(decoder.model(), "decoder.onnx")
    tokens = rng.integers(0, 32, (4, 24))
    np.save("tokens.npy", tokens)
    past = {name: np.zeros((1, 1, 0, 8), np.float32) for name in decoder.states.values()}
    batches = [{"ids": row[None], "positions": np.arange(24)[None], **past} for row in tokens]
    model = octavo.load("decoder.onnx")
    octavo.export_onnx(octavo.quantize(model, octavo.profile(model, batches), preset="fast"), "decoder.int8.onnx")
    assert list(run(DOCS / "howto/text.md")) == []
