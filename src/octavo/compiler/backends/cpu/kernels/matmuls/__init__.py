"""Products of two activations, batch by batch. A product by constant weights is a convolution."""
