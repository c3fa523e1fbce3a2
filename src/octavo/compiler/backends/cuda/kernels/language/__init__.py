"""What kernels of every family are described by: launches and their arguments, axes. It knows no family."""
