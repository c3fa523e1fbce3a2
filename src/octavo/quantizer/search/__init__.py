"""Mixed precision by search: which activations to keep float, or to range anew, for an accuracy that is asked for."""

from .folder import read_search
from .on_ray import search_on_ray
from .result import Candidate, SearchResult
from .search import search

__all__ = ["Candidate", "SearchResult", "read_search", "search", "search_on_ray"]
