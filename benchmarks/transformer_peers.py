"""ONNX Runtime, OpenVINO and PyTorch, quantized as each does by itself, for the table of transformers.

What they make of a model is written once to a folder, and read from there by whoever asks for it later, until the model's file is
newer.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization as ort_quantization

from octavo.evaluation.bench.peers import openvino_core
from open_sizes import Arrays

Run = Callable[[Arrays], list[np.ndarray]]
BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class Peers:
    """What runs a model's file with so many threads.

    Parameters
    ----------
    folder
        Where what is made of the file stays.
    bits
        Of the weights.
    samples
        By which ranges are chosen.
    in_torch
        Returns PyTorch's own int8 form of the network; None where only the file is known.
    """

    path: Path
    folder: Path
    threads: int
    bits: int
    samples: Sequence[Arrays]
    in_torch: Callable[[int], Run] | None = None

    def all(self) -> dict[str, Run]:
        """Return those that can load the model; why another one can't goes to stderr."""
        makers: dict[str, Callable[[], Run]] = {
            "onnxruntime": lambda: self._onnx_runtime(self.path),
            "openvino": lambda: self._openvino(self.path),
            f"openvino int{self.bits}": self._openvino_quantized,
        }
        if self.bits == 4:
            makers["onnxruntime 4 bits"] = lambda: self._onnx_runtime(self._kept("blocks", self._write_blocks))
        else:
            makers["onnxruntime dynamic"] = lambda: self._onnx_runtime(self._kept("dynamic", self._write_dynamic))
            makers["onnxruntime static"] = lambda: self._onnx_runtime(self._kept("static", self._write_static))
        if self.in_torch is not None:
            makers["pytorch int8"] = lambda: self.in_torch(self.threads)
        made: dict[str, Run] = {}
        for name, make in makers.items():
            try:
                made[name] = make()
            except Exception as error:  # it may fail in any way
                print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
        return made

    def _kept(self, name: str, write: Callable[[Path], None], file: str = "model.onnx") -> Path:
        """Return a file that `write` makes, unless it was made of this model before."""
        place = self.folder / f"{self.path.stem}.{name}"
        if not place.exists() or place.stat().st_mtime < self.path.stat().st_mtime:
            with tempfile.TemporaryDirectory(dir=self.folder) as made:
                inner = Path(made) / name
                inner.mkdir()
                write(inner / file)
                shutil.rmtree(place, ignore_errors=True)
                inner.rename(place)
        return place / file

    def _onnx_runtime(self, path: Path) -> Run:
        """Return a session with everything that it optimizes by default."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, inputs)

    def _write_dynamic(self, path: Path) -> None:
        ort_quantization.quantize_dynamic(self.path, path, per_channel=True, weight_type=ort_quantization.QuantType.QInt8)

    def _write_static(self, path: Path) -> None:
        class Reader(ort_quantization.CalibrationDataReader):
            def __init__(self, samples: Sequence[Arrays]) -> None:
                self._left = iter(samples)

            def get_next(self) -> Any:
                return next(self._left, None)

        int8 = ort_quantization.QuantType.QInt8
        with tempfile.TemporaryDirectory() as folder:
            prepared = Path(folder) / "prepared.onnx"
            ort_quantization.shape_inference.quant_pre_process(self.path, prepared, skip_symbolic_shape=True)
            ort_quantization.quantize_static(prepared, path, Reader(self.samples), per_channel=True, weight_type=int8)

    def _write_blocks(self, path: Path) -> None:
        """Write weights of 4 bits in blocks, with which ONNX Runtime computes in integers."""
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        made = MatMulNBitsQuantizer(onnx.load(self.path), bits=4, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
        made.process()
        made.model.save_model_to_file(str(path), use_external_data_format=True)

    def _openvino_quantized(self) -> Run:
        """Return OpenVINO's model with weights of 8 or 4 bits and activations quantized at run time."""
        group = str(BLOCK if self.bits == 4 else 64)
        path = self._kept(f"openvino{self.bits}", self._write_openvino, "model.xml")
        return self._openvino(path, DYNAMIC_QUANTIZATION_GROUP_SIZE=group)

    def _write_openvino(self, path: Path) -> None:
        import nncf
        from openvino import Core, save_model

        modes = nncf.CompressWeightsMode
        how: dict[str, Any] = {"mode": modes.INT4_SYM, "group_size": BLOCK, "ratio": 1.0, "all_layers": True}
        made = nncf.compress_weights(Core().read_model(self.path), **(how if self.bits == 4 else {"mode": modes.INT8_SYM}))
        save_model(made, path, compress_to_fp16=False)

    def _openvino(self, path: Path, **more: str) -> Run:
        config: dict[str, Any] = {"INFERENCE_NUM_THREADS": self.threads, "INFERENCE_PRECISION_HINT": "f32", **more}
        request = openvino_core().compile_model(str(path), "CPU", config).create_infer_request()
        return lambda inputs: [np.array(each) for each in request.infer(inputs).values()]
