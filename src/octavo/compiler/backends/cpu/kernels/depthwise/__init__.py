"""Depthwise convolutions: strips of neighbouring outputs, vectors of channels. The entrance is that of `conv`."""
