"""The networks that `quantization_quality` quantizes: a float ONNX model of each, samples to calibrate on, others to evaluate on.

It must not know who quantizes. Whatever is calibrated on is never evaluated on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter

import datasets
import float_onnx
import llama_onnx
import onnx_quantizers
from average_precision import average_precision
from reference_sessions import reference_session

CALIBRATION = 100
SECONDS, RATE = 29, 16000
"""Of the minute of speech, what is for calibration; evaluation starts a second later."""
FIRST_PER_AXIS_OPSET = 13
WINDOW, WINDOWS_TO_CALIBRATE, WINDOWS_TO_EVALUATE = 64, 48, 32
"""Tokens that a language model reads at once, as it wrote them itself: its most likely text is what it is used for."""
TOKENS_TO_CALIBRATE, TOKENS_TO_EVALUATE = 32, 24
"""Samples of a transformer, each of as many tokens as it takes."""
SMALLEST_VOCABULARY = 256
Feed = dict[str, np.ndarray]
Run = Callable[[Feed], list[np.ndarray]]
"""A model: its inputs by name to its outputs, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Inputs to calibrate on and to evaluate on, and what is known of the latter: a class each, or boxes."""

    calibration: list[np.ndarray]
    evaluation: list[np.ndarray]
    truth: np.ndarray | list[np.ndarray] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A float network.

    Parameters
    ----------
    file
        Below shared/models.
    samples
        Its data.
    metric
        Name of what its outputs are worth; None where nothing is known of the samples.
    is_transformer
        Quantizers that ask are told so.
    constants, state
        Inputs besides the first: those that are always the same, and those that are an output of the call before, by its place.
    """

    file: str
    samples: Callable[[], Samples]
    metric: str | None = "top-1 %"
    is_transformer: bool = False
    constants: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    state: Mapping[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict[str, "tuple[int, tuple[int, ...]]"])

    @property
    def path(self) -> Path:
        """The shared file."""
        return datasets.shared_folder() / "models" / self.file

    def float_onnx(self) -> onnx.ModelProto:
        """Return the float model with static shapes and an opset that has per-axis scales."""
        if self.path.suffix == ".tflite":
            return float_onnx.of_tflite(self.path)
        if self.path.stem.endswith("qoperator"):
            return float_onnx.dequantized(self.path)
        model = onnx.load(self.path)
        if max(opset.version for opset in model.opset_import if not opset.domain) < FIRST_PER_AXIS_OPSET:
            model = onnx.version_converter.convert_version(model, FIRST_PER_AXIS_OPSET)
        if self.state:
            shapes = {"input": self.samples().calibration[0].shape, **{name: shape for name, (_, shape) in self.state.items()}}
            for value in model.graph.input:
                for axis, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
                    axis.dim_value = size
        return model

    def calibration(self, source: onnx.ModelProto) -> list[Feed]:
        """Return the samples to calibrate on, spread evenly; a network with state runs through what lies between, too."""
        feeds = self._feeds(source, self.samples().calibration)
        if self.state:
            session = reference_session(source, threads=1)
            seen: list[Feed] = []
            self.outputs(lambda feed: [seen.append(feed), *session.run(None, feed)][1:], feeds)
            feeds = seen
        count = min(CALIBRATION, len(feeds))
        return [feeds[index * len(feeds) // count] for index in range(count)]

    def evaluation(self, source: onnx.ModelProto, limit: int | None) -> list[Feed]:
        """Return the samples to evaluate on, in order; the first `limit` of them."""
        return self._feeds(source, self.samples().evaluation[:limit])

    def _feeds(self, source: onnx.ModelProto, samples: list[np.ndarray]) -> list[Feed]:
        start = {name: np.zeros(shape, np.float32) for name, (_, shape) in self.state.items()}
        return [{source.graph.input[0].name: sample, **start, **self.constants} for sample in samples]

    def outputs(self, run: Run, feeds: list[Feed]) -> np.ndarray:
        """Return the first output of all feeds, run one after the other."""
        kept: list[np.ndarray] = []
        carried: Feed = {}
        for feed in feeds:
            results = run({**feed, **carried})
            carried = {name: results[place] for name, (place, _) in self.state.items()}
            kept.append(np.array(results[0]))
        return np.concatenate(kept)

    def worth(self, outputs: np.ndarray) -> float | None:
        """Return the metric, in percent."""
        if self.metric is None:
            return None
        truth = self.samples().truth
        assert truth is not None
        if outputs.ndim == 3:
            assert isinstance(truth, list)
            return 100 * average_precision(outputs, truth[: len(outputs)], size=SCENE)
        return 100 * float(np.mean(outputs.argmax(axis=1) == truth[: len(outputs)]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Transformer(Network):
    """A file with static shapes, of which random inputs are what it takes: integers are tokens, places, or a mask of ones.

    Its first output has a row a token.
    """

    samples: Callable[[], Samples] = lambda: Samples(calibration=[], evaluation=[])
    metric: str | None = None
    is_transformer: bool = True

    def calibration(self, source: onnx.ModelProto) -> list[Feed]:
        """Return some, always the same."""
        return self._drawn(source, np.random.default_rng(0), TOKENS_TO_CALIBRATE)

    def evaluation(self, source: onnx.ModelProto, limit: int | None) -> list[Feed]:
        """Return others."""
        return self._drawn(source, np.random.default_rng(1), limit or TOKENS_TO_EVALUATE)

    def outputs(self, run: Run, feeds: list[Feed]) -> np.ndarray:
        """Return the first output of all feeds, a row a token."""
        found = [run(feed)[0] for feed in feeds]
        return np.concatenate([each.reshape(-1, each.shape[-1]) for each in found])

    @staticmethod
    def _drawn(source: onnx.ModelProto, rng: np.random.Generator, count: int) -> list[Feed]:
        embeddings = [init.dims[0] for init in source.graph.initializer if len(init.dims) == 2]
        vocabulary = min((size for size in embeddings if size >= SMALLEST_VOCABULARY), default=SMALLEST_VOCABULARY)

        def drawn(value: onnx.ValueInfoProto) -> np.ndarray:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
                return rng.standard_normal(shape).astype(np.float32)
            if "mask" in value.name:
                return np.ones(shape, np.int64)
            if "pos" in value.name:
                return np.broadcast_to(np.arange(shape[-1]), shape).astype(np.int64)
            return rng.integers(0, vocabulary, shape)

        return [{value.name: drawn(value) for value in source.graph.input} for _ in range(count)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModel(Network):
    """A decoder whose logits say what comes next, over windows of its own text."""

    samples: Callable[[], Samples] = lambda: Samples(calibration=[], evaluation=[])
    metric: str | None = "KL"
    is_transformer: bool = True

    def float_onnx(self) -> onnx.ModelProto:
        """Return it for one window."""
        return llama_onnx.decoder(self.path, WINDOW)

    def calibration(self, source: onnx.ModelProto) -> list[Feed]:
        """Return windows drawn from the model."""
        return [{"ids": each} for each in _windows(self.path)[:WINDOWS_TO_CALIBRATE]]

    def evaluation(self, source: onnx.ModelProto, limit: int | None) -> list[Feed]:
        """Return others."""
        return [{"ids": each} for each in _windows(self.path)[WINDOWS_TO_CALIBRATE:][:limit]]

    def outputs(self, run: Run, feeds: list[Feed]) -> np.ndarray:
        """Return the logits of all feeds, a row a token."""
        return np.concatenate([run(feed)[0][0] for feed in feeds])

    def worth(self, outputs: np.ndarray) -> float | None:
        """Return the divergence of what comes next from the float model's, in nats a token."""
        windows = self.evaluation(self.float_onnx(), len(outputs) // WINDOW)
        session = reference_session(self.float_onnx(), threads=1)
        exact = _log_shares(self.outputs(lambda feed: session.run(None, feed), windows))
        return float(np.mean(np.sum(np.exp(exact) * (exact - _log_shares(outputs)), axis=1)))


def _log_shares(logits: np.ndarray) -> np.ndarray:
    """Return the logarithms of a softmax, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@cache
def _windows(file: Path) -> list[np.ndarray]:
    """Return text that a decoder writes, int64 [1, WINDOW] each, always the same."""
    session, rng = reference_session(llama_onnx.decoder(file, WINDOW), threads=1), np.random.default_rng(5)
    windows: list[np.ndarray] = []
    for _ in range(WINDOWS_TO_CALIBRATE + WINDOWS_TO_EVALUATE):
        ids = np.full((1, WINDOW), llama_onnx.FIRST_TOKEN)
        for place in range(WINDOW - 1):
            shares = np.exp(_log_shares(session.run(None, {"ids": ids})[0][0, place]))
            ids[0, place + 1] = rng.choice(len(shares), p=shares)
        windows.append(ids)
    return windows


def network_of(name: str) -> Network:
    """Return a network by its name, or of an ONNX file of a transformer."""
    return NETWORKS[name] if name in NETWORKS else Transformer(file=name)


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """Return how often two outputs decide the same: a class, an anchor's class, or whether a probability is above a half."""
    if a.shape[1:] == (1,):
        return float(np.mean((a > 0.5) == (b > 0.5)))
    return onnx_quantizers.agreement(a, b)


# -------------------------------------------------------------------------------------------------------------------- data

SCENE = 416
SCENES_TO_CALIBRATE = 20


def _images(preprocess: datasets.Preprocess, *, first_class: int | None = 0, size: int = 224) -> Callable[[], Samples]:
    @cache
    def load() -> Samples:
        calibration, _ = datasets.images(preprocess, calibration=True, size=size)
        evaluation, classes = datasets.images(preprocess, calibration=False, size=size)
        truth = None if first_class is None else classes + first_class
        return Samples(calibration=calibration, evaluation=evaluation, truth=truth)

    return load


def _labelled(load: Callable[[], datasets.Samples]) -> Callable[[], Samples]:
    @cache
    def split() -> Samples:
        x, y = load()
        return Samples(calibration=x[:CALIBRATION], evaluation=x[CALIBRATION:], truth=y[CALIBRATION:])

    return split


@cache
def _scenes() -> Samples:
    scenes, boxes = datasets.scenes(datasets.blue_first, size=SCENE), datasets.scene_boxes(size=SCENE)
    return Samples(
        calibration=scenes[:SCENES_TO_CALIBRATE], evaluation=scenes[SCENES_TO_CALIBRATE:], truth=boxes[SCENES_TO_CALIBRATE:]
    )


def _speech(*, window: int, hop: int) -> Callable[[], Samples]:
    @cache
    def cut() -> Samples:
        parts = (datasets.speech(start=0, end=SECONDS), datasets.speech(start=SECONDS + 1))
        calibration, evaluation = (
            [part[None, at : at + window] for at in range(0, len(part) - window + 1, hop)] for part in parts
        )
        return Samples(calibration=calibration, evaluation=evaluation)

    return cut


def _planes(sample: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(datasets.keyword_as_float(sample).transpose(2, 0, 1))


def _unit(picture: np.ndarray) -> np.ndarray:
    return picture.astype(np.float32) / 255


NETWORKS: dict[str, Network] = {
    "mobilenet_v1_0.25": Network(file="onnx/mobilenet_v1_0.25_224_fp32.onnx", samples=_images(datasets.plus_minus_one)),
    "mobilenet_v2": Network(file="onnx/mobilenet_v2_1.0_224_fp32.onnx", samples=_images(datasets.plus_minus_one, first_class=1)),
    "squeezenet": Network(file="onnx/squeezenet1.1_224_fp32.onnx", samples=_images(datasets.imagenet_normalized)),
    "resnet8": Network(
        file="tflite/resnet8_cifar10_fp32.tflite", samples=_labelled(lambda: datasets.cifar10(lambda x: x.astype(np.float32)))
    ),
    "wake_words": Network(
        file="tflite/mobilenet_v1_vww96_fp32.tflite", samples=_images(_unit, first_class=None, size=96), metric=None
    ),
    "dscnn": Network(file="onnx/dscnn_kws_qoperator.onnx", samples=_labelled(lambda: datasets.keywords(_planes))),
    "yolox_nano": Network(file="onnx/yolox_nano_416_fp32.onnx", samples=_scenes, metric="AP50 %"),
    "kwt1": Network(
        file="onnx/kwt1_speechcommands12_fp32.onnx",
        samples=_speech(window=RATE, hop=RATE // 10),
        metric=None,
        is_transformer=True,
    ),
    "silero_vad": Network(
        file="onnx/silero_vad_16k_op15.onnx",
        # 512 new samples behind the 64 before them: without those it finds no speech.
        samples=_speech(window=576, hop=512),
        metric=None,
        constants={"sr": np.array(RATE)},
        state={"state": (1, (2, 1, 128))},
    ),
    "stories260k": LanguageModel(file="llama/stories260K.bin"),
}
