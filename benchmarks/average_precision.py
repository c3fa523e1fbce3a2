"""Average precision of YOLOX's raw output against labelled boxes, at 50% overlap, as `octavo evaluate` computes it.

It must not depend on where the output comes from: a float model, or an integer one.
"""

from __future__ import annotations

import numpy as np

from octavo.evaluation.boxes import decode_yolox
from octavo.numerics.statistics.detection import average_precision as of_detections
from octavo.numerics.statistics.detection import detections


def average_precision(raw: np.ndarray, truth: list[np.ndarray], *, size: int) -> float:
    """Return the mean over the classes that `truth` has of the area below the precision-recall curve.

    Parameters
    ----------
    raw
        [images, anchors, 5 + classes] as the network gives it.
    truth
        For each image rows of class, left, top, right and bottom, in pixels.
    """
    return of_detections([detections(*decode_yolox(image, (size, size))) for image in raw], truth)
