"""Reductions over axes, and the greatest or least elements."""
