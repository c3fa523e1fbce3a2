"""Strassen's product of matrices of 2 x 2 blocks, with 7 products of blocks in place of 8, in Winograd's form: the fewest sums.

    a11 a12   b11 b12   c11 c12
    a21 a22 * b21 b22 = c21 c22       each level halves rows, inner size and columns

V. Strassen, Gaussian Elimination is not Optimal (1969); Winograd's form as in P. D'Alberto and A. Nicolau, Adaptive
Winograd's Matrix Multiplications (2009). There is no division: it holds for integers, and so modulo 2**32 as well, always.
The functions take whatever can be added and subtracted: numbers, arrays, vectors of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BLOCKS = 4
"""Of a matrix at one level."""

POINTS = 7
"""Products of one level."""


LEFT_SUMS, RIGHT_SUMS, PRODUCT_SUMS = 4, 4, 7
"""How many sums `left`, `right` and `products` take."""

REACH = 4
"""How many blocks of either operand a sum has at most."""


def left(a11: Any, a12: Any, a21: Any, a22: Any) -> list[Any]:
    """Return what the seven products take of the first operand's blocks."""
    s1 = a21 + a22
    s2 = s1 - a11
    return [a11, a12, a12 - s2, a22, s1, s2, a11 - a21]


def right(b11: Any, b12: Any, b21: Any, b22: Any) -> list[Any]:
    """Return what they take of the second operand's."""
    t1 = b12 - b11
    t2 = b22 - t1
    return [b11, b21, b22, t2 - b21, t1, t2, b22 - b12]


def products(p1: Any, p2: Any, p3: Any, p4: Any, p5: Any, p6: Any, p7: Any) -> list[Any]:
    """Return the four blocks of the result."""
    u2 = p1 + p6
    u3 = u2 + p7
    return [p1 + p2, u2 + p5 + p3, u3 - p4, u3 + p5]


def places(levels: int) -> Sequence[tuple[int, int]]:
    """Return (row, column) of the blocks of so many levels in the order of the sums: by levels, the largest blocks first."""
    if not levels:
        return [(0, 0)]
    half, inner = 1 << levels - 1, places(levels - 1)
    return [(half * r + row, half * c + column) for r, c in ((0, 0), (0, 1), (1, 0), (1, 1)) for row, column in inner]
