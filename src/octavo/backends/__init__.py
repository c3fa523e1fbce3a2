"""Back ends: each reads composites and emits code for one kind of hardware; none knows QDQ, or another back end."""
