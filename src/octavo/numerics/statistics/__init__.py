"""Statistics of tensors and what follows from them: histograms, ranges, parameters, convergence, error metrics."""
