"""Quantizer: a float model and its profile become a model in QDQ form, with the plan that made it."""
