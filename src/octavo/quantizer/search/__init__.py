"""Mixed precision by search: which activations to keep float, or to range anew, for an accuracy that is asked for."""

from .on_ray import search_on_ray
from .result import Candidate, SearchResult, read_search
from .search import search

__all__ = ["Candidate", "SearchResult", "read_search", "search", "search_on_ray"]
