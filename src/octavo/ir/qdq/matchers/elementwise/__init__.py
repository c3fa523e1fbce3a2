"""Rules of functions of single elements, of one tensor or of several."""
