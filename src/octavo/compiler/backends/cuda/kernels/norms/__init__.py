"""Softmaxes, and normalizations by layer, by group and by length."""
