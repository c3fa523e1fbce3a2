"""The observer, which collects the statistics of float32 tensors."""
