"""Oracle of the greatest elements along an axis. No TVM here."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def top_places(x: npt.NDArray[np.integer[Any]], count: int, *, axis: int = -1, largest: bool = True) -> npt.NDArray[np.int64]:
    """Return where the `count` greatest (or least) elements along `axis` are, the greatest (least) first.

    Of equal elements the first comes first, as in TFLite's TOPK_V2 and ONNX's TopK.
    """
    wide = x.astype(np.int64)
    order = np.argsort(-wide if largest else wide, axis=axis, kind="stable")
    return np.take(order, np.arange(count), axis=axis)
