"""Mixed precision by search: which activations to keep float, or to range anew, for an accuracy that is asked for."""

from .result import Candidate, SearchResult
from .search import search

__all__ = ["Candidate", "SearchResult", "search"]
