"""Products of matrices by tiles, which convolutions are made of, too: tiles, what sums become, what follows in the kernel."""
