"""The choice of boxes."""
