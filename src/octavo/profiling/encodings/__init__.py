"""Files of ranges and parameters by tensor name, as other tools keep them: AIMET's encodings, TensorRT's calibration cache.

Texts to numbers and parameters, and back; no model, no profile and no plan is known here.
"""

from ...runtime.json_values import Malformed
from .checks import Ranges
from .records import Encoded, Encodings

__all__ = ["Encoded", "Encodings", "Malformed", "Ranges"]
