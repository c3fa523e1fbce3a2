"""What kernels are written in: ISAs, vectors, schedules, `numerics` in TIR. It knows no family of kernels."""
