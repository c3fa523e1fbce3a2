"""IR: the model, the identity of its tensors, composites, quantized forms in a graph, and what rewrites graphs."""
