"""TVM's packages without their types: its stubs claim narrower arguments than its functions take, shapes as 1-tuples, say.

For calls alone; annotations take their types from TVM.
"""

from __future__ import annotations

from typing import Any

from tvm import relax as _relax
from tvm import s_tir as _s_tir
from tvm import te as _te
from tvm import tirx as _tirx

relax: Any = _relax
ops: Any = relax.op
tirx: Any = _tirx
s_tir: Any = _s_tir
te: Any = _te
