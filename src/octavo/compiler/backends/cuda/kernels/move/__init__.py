"""Movement of elements: concatenation, transposition, copies, and reads by index."""
