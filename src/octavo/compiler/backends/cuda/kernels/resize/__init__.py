"""Bilinear resizing."""
