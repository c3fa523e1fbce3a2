"""Property tests: the same examples on every run, and no deadline, which a busy machine would miss."""

from hypothesis import settings

settings.register_profile("octavo", deadline=None, derandomize=True)
settings.load_profile("octavo")
