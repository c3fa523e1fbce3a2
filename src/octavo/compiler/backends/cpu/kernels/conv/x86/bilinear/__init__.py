"""Convolutions for AVX2 by fewer products, which are of sums of operands: those of Strassen and of Winograd."""
