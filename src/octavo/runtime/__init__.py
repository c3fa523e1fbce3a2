"""Runtime: what a saved executable needs to run, and nothing of the compiler."""
