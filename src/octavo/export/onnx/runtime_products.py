"""Products whose activations are quantized when run, as ONNX Runtime's own ops, which it runs at its full speed. Decides nothing.

MatMulNBits holds weights in blocks as the plan has them, and quantizes each block of activations as its accuracy level says.
DynamicQuantizeMatMul has the plan's integers of a weight, and one scale for all rows of the activations, where the plan has one
for each: of several rows its results are further from the float model's. Products of two activations stay float.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...frontends.onnx.graph import MICROSOFT
from ...numerics import PerBlock, QuantParams
from ...quantizer.plan import IntegerLayer
from .onnx_graph import Node, OnnxGraph
from .products import NewNodes, operand, put_in_place

_LEVELS: Mapping[str | None, int] = {"int8": 4, "bfloat16": 3, "float32": 1, None: 1}
"""MatMulNBits's accuracy_level by what the recipe says of activations in blocks."""
_PER_ROW_LEVEL = _LEVELS["int8"]
_ZERO_POINT = 8
"""What MatMulNBits takes off integers of 4 bits, which are unsigned there, where it is given no zero points."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeProducts:
    """Writes such layers into one graph.

    Parameters
    ----------
    block_activations
        What the plan's recipe says.
    """

    graph: OnnxGraph
    block_activations: str | None

    def replace(self, layer: IntegerLayer, product: Node, weight: npt.NDArray[np.int8], params: QuantParams) -> None:
        """Put ONNX Runtime's op in the place of a product by a weight [in, out]."""
        nodes, x = NewNodes(self.graph, f"{product.name or product.output[0]}_integers"), operand(self.graph, product, 0)
        if isinstance(params.granularity, PerBlock):
            level = _PER_ROW_LEVEL if layer.per_row else _LEVELS[self.block_activations]
            self._by_blocks(nodes, x, weight, params, params.granularity.size, level)
        else:
            constants = [self._add("weight", weight), self._add("weight_scale", np.broadcast_to(params.scale, weight.shape[1:]))]
            nodes.add("DynamicQuantizeMatMul", x, *constants, domain=MICROSOFT)
        put_in_place(self.graph, product, nodes)

    def _by_blocks(
        self, nodes: NewNodes, x: str, weight: npt.NDArray[np.int8], params: QuantParams, block: int, level: int
    ) -> None:
        inputs, outputs = weight.shape
        values = (weight.T + np.int8(_ZERO_POINT)).astype(np.uint8).reshape(outputs, inputs // block, block)
        constants = [self._add("weight", _pairs(values)), self._add("weight_scale", params.scale.T)]
        if params.zero_point.any():
            constants.append(self._add("weight_zero_point", _pairs((params.zero_point.T + _ZERO_POINT).astype(np.uint8))))
        attrs: dict[str, Any] = {"K": inputs, "N": outputs, "bits": 4, "block_size": block, "accuracy_level": level}
        nodes.add("MatMulNBits", x, *constants, domain=MICROSOFT, **attrs)

    def _add(self, wish: str, value: npt.NDArray[Any]) -> str:
        return self.graph.shared_constant(wish, value)


def _pairs(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return integers of 4 bits, two of the last axis to a byte, the first in the low bits."""
    even = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, values.shape[-1] % 2)])
    return even[..., ::2] | even[..., 1::2] << np.uint8(4)
