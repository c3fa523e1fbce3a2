"""Movement of elements: concatenation, transposition, and reads by index."""
