"""Where tensors lie that are asked for in another layout."""

from __future__ import annotations

from dataclasses import replace

from octavo.compiler.backends.cuda.emission import Emission
from octavo.compiler.backends.cuda.isa import ISAS


def test_a_tensor_is_converted_once() -> None:
    emission = Emission(isa=ISAS["cuda.sm_80"])
    x = emission.new((1, 4, 8, 2), "int8")
    assert emission.lying(x, is_nhwc=True) is emission.lying(x, is_nhwc=True)
    assert len(emission.steps) == 1
    assert emission.lying(x, is_nhwc=False) is x


def test_the_same_memory_under_another_shape_is_another_tensor() -> None:
    emission = Emission(isa=ISAS["cuda.sm_80"])
    x = emission.new((1, 4, 8, 2), "int8")
    seen = replace(x, shape=(1, 8, 4, 2))
    converted = [emission.lying(each, is_nhwc=True) for each in (x, seen)]
    assert [each.lying_shape for each in converted] == [(1, 8, 2, 4), (1, 4, 2, 8)]
    assert converted[0].buffer is not converted[1].buffer
