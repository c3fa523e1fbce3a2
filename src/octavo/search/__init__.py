"""Mixed precision by search: which activations to keep float, or to range anew, for an accuracy that is asked for."""

from .folder import read_search
from .result import Candidate, SearchResult
from .search import search

__all__ = ["Candidate", "SearchResult", "read_search", "search"]
