"""ARM64's instructions as TIR expressions."""
