"""Matchers: which part of a QDQ graph is one integer op, or one float op with a kernel; each gives a Region or a Rejection."""
