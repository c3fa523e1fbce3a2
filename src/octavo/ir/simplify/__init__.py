"""Simplify: what can be computed before a model is compiled is folded into weights, and ops written in steps become one."""

from .fold import Fold
from .simplify import rows_as_images, simplify

__all__ = ["Fold", "rows_as_images", "simplify"]
