"""Simplify: what can be computed before quantizing is folded into weights, and ops written in steps become one."""

from .simplify import simplify, with_main

__all__ = ["simplify", "with_main"]
