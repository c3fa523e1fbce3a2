"""Strassen's product of matrices of 2 x 2 blocks, with 7 products of blocks in place of 8, in two forms.

    a11 a12   b11 b12   c11 c12
    a21 a22 * b21 b22 = c21 c22       each level halves rows, inner size and columns

V. Strassen, Gaussian Elimination is not Optimal (1969); Winograd's form as in P. D'Alberto and A. Nicolau, Adaptive
Winograd's Matrix Multiplications (2009). There is no division: both hold for integers, and so modulo 2**32 as well, always.
The functions take whatever can be added and subtracted: numbers, arrays, vectors of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCKS = 4
"""Of a matrix at one level."""

POINTS = 7
"""Products of one level."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockProduct:
    """One form.

    Parameters
    ----------
    left, right
        What the seven products take of the four blocks of either operand.
    products
        The four blocks of the result, of the seven products.
    left_sums, right_sums, product_sums
        How many sums each of them takes.
    reach
        How many blocks of either operand a sum has at most.
    """

    left: Callable[..., list[Any]]
    right: Callable[..., list[Any]]
    products: Callable[..., list[Any]]
    left_sums: int
    right_sums: int
    product_sums: int
    reach: int

    @property
    def left_rows(self) -> npt.NDArray[np.int64]:
        """What each product takes of the first operand, (points, blocks)."""
        return np.stack(self.left(*np.eye(BLOCKS, dtype=np.int64)))

    @property
    def product_rows(self) -> npt.NDArray[np.int64]:
        """What each block of the result takes of the products, (blocks, points)."""
        return np.stack(self.products(*np.eye(POINTS, dtype=np.int64)))


def _few_left(a11: Any, a12: Any, a21: Any, a22: Any) -> list[Any]:
    s1 = a21 + a22
    s2 = s1 - a11
    return [a11, a12, a12 - s2, a22, s1, s2, a11 - a21]


def _few_right(b11: Any, b12: Any, b21: Any, b22: Any) -> list[Any]:
    t1 = b12 - b11
    t2 = b22 - t1
    return [b11, b21, b22, t2 - b21, t1, t2, b22 - b12]


def _few_products(p1: Any, p2: Any, p3: Any, p4: Any, p5: Any, p6: Any, p7: Any) -> list[Any]:
    u2 = p1 + p6
    u3 = u2 + p7
    return [p1 + p2, u2 + p5 + p3, u3 - p4, u3 + p5]


WINOGRAD_FORM = BlockProduct(
    left=_few_left, right=_few_right, products=_few_products, left_sums=4, right_sums=4, product_sums=7, reach=4
)
"""Winograd's form: the fewest sums, of up to four blocks."""


def _short_left(a11: Any, a12: Any, a21: Any, a22: Any) -> list[Any]:
    return [a11 + a22, a21 + a22, a11, a22, a11 + a12, a21 - a11, a12 - a22]


def _short_right(b11: Any, b12: Any, b21: Any, b22: Any) -> list[Any]:
    return [b11 + b22, b11, b12 - b22, b21 - b11, b22, b11 + b12, b21 + b22]


def _short_products(p1: Any, p2: Any, p3: Any, p4: Any, p5: Any, p6: Any, p7: Any) -> list[Any]:
    return [p1 + p4 - p5 + p7, p3 + p5, p2 + p4, p1 - p2 + p3 + p6]


STRASSEN_FORM = BlockProduct(
    left=_short_left, right=_short_right, products=_short_products, left_sums=5, right_sums=5, product_sums=8, reach=2
)
"""Strassen's own form: smaller integers, for no sum of an operand has more than two blocks."""


def places(levels: int) -> Sequence[tuple[int, int]]:
    """Return (row, column) of the blocks of so many levels in the order of the sums: by levels, the largest blocks first."""
    if not levels:
        return [(0, 0)]
    half, inner = 1 << levels - 1, places(levels - 1)
    return [(half * r + row, half * c + column) for r, c in ((0, 0), (0, 1), (1, 0), (1, 1)) for row, column in inner]
