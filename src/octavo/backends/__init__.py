"""Back ends: what hardware computes, as data, and the code of its composites."""

from ..composites.attributes import Composite
from . import toolkit
from .protocol import Backend, Code, CodeGenerator, CSource, ObjectCode

__all__ = ["Backend", "CSource", "Code", "CodeGenerator", "Composite", "ObjectCode", "toolkit"]
