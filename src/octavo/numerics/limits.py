"""How many integers a kernel may sum at once: bounds that follow from the width of accumulators alone."""

REDUCE_MAX_EXTENT = 1 << 23
"""Elements whose sum of 8-bit differences is sure to fit int32, and whose index fits beside a byte in int32."""

HALF_AWAY_MAX_WINDOW = 1 << 12
"""Pixels of a window up to which a mean of 8-bit integers, ties away from 0, is decided by one float32 factor (`pool2d`)."""

INT16_MAX_COUNT = 65535
"""int16 values whose sum is sure to fit int32."""
