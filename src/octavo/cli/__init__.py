"""The command line: it parses, calls the public functions and prints. No logic of its own."""
