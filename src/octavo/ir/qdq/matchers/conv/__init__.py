"""Rules of the ops with constant weights: convolutions and matmuls, with what they take in around them."""
