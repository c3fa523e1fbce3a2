"""Changes of what a number is stored as: to integers and back, to other parameters, to 16-bit floats."""
