"""Composite ops: what one composite computes, as plain data that partition writes and back ends read. Knows no graph."""
