"""Convolutions, and products by constant weights as convolutions of one tap."""
