"""Partition: a QDQ graph becomes calls of composites that are complete in their attributes. Knows no kernel."""
