"""Weights: where a graph keeps them, and the parameters of their integers."""
