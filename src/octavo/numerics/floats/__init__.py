"""Oracles of float32, bfloat16 and float16 arithmetic, each operation rounded as a kernel rounds it."""
