"""Octavo: the int8 quantization flow for Apache TVM."""
