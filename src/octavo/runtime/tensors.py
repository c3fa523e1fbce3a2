"""TVM's tensors from arrays and arrays from tensors, for where there are many small ones.

TVM's own functions take 10 to 35 us for one, however small it is; a compiler makes some hundred for a network, and reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi

_KNOWN = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
"""Dtypes that NumPy and TVM pass each other in memory; the rest goes by TVM's functions."""
_DTYPES = {np.dtype(name): tvm_ffi.dtype(name) for name in _KNOWN}
_DTYPES_BY_NAME = {name: tvm_ffi.dtype(name) for name in _KNOWN}

_allocate: Any = tvm.get_global_func("runtime.TVMTensorAllocWithScope")
_HOST = tvm.cpu()


def empty_tensor(shape: Sequence[int], dtype: str) -> Any:
    """Return a tensor of a shape and dtype whose values are what the memory held."""
    return _allocate(shape, _DTYPES_BY_NAME.get(dtype) or tvm_ffi.dtype(dtype), _HOST, None)


def tensor_from(array: npt.NDArray[Any]) -> Any:
    """Return a tensor of an array's shape, dtype and values."""
    dtype = _DTYPES.get(array.dtype)
    if dtype is None:
        return tvm.runtime.tensor(np.asarray(array, order="C"))
    made = _allocate(array.shape, dtype, _HOST, None)
    np.from_dlpack(made)[...] = array
    return made


def shares_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether NumPy and TVM pass each other arrays of this dtype in memory."""
    return dtype in _DTYPES


def values_of(tensor: Any) -> npt.NDArray[Any]:
    """Return a tensor's values, to be read: the tensor's own memory where NumPy knows the dtype."""
    return np.from_dlpack(tensor) if str(tensor.dtype) in _DTYPES_BY_NAME else tensor.numpy()


def array_of(tensor: Any) -> npt.NDArray[Any]:
    """Return an array of a tensor's values."""
    return np.from_dlpack(tensor).copy() if str(tensor.dtype) in _DTYPES_BY_NAME else tensor.numpy()
