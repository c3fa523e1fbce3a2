"""Rules of ops that move values: they say where each element comes from."""
