"""Importers of other tools' descriptions of hardware: AIMET's quantsim config, MCT's target platform capabilities."""

from .aimet import aimet
from .mct import mct
from .reading import Imported

__all__ = ["Imported", "aimet", "mct"]
