"""Products with weights in a dataflow graph, and what is added to them. It knows no quantization."""

from __future__ import annotations

from tvm.relax import Var

from ...target.op_facts import WEIGHTED
from .dataflow import DataflowView, call_to


def with_bias(view: DataflowView, product: Var) -> Var:
    """Return the variable of a product's result with what is added to it, before any clamp; of the product, where nothing is."""
    user = view.only_user(product)
    return product if user is None or call_to(view.definition(user), "add") is None else user


def products_with_bias(view: DataflowView) -> list[Var]:
    """Return the results of all products with weights, each as `with_bias` has it, in the order of the graph."""
    return [with_bias(view, binding.var) for binding in view.bindings if call_to(binding.value, *WEIGHTED) is not None]
