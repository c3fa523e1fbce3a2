"""x86's instructions as TIR expressions."""
