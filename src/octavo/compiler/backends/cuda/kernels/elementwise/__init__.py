"""Functions of single elements, of one tensor or of two that broadcast."""
