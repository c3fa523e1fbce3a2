"""QDQ: the quantized forms of a Relax graph that lie between stages; they are written by one and read by another.

What `ir/graph/` must not know (scales and zero points) and no stage owns. It decides nothing and computes nothing.
"""
