"""Whether a torch program computes each sample of its batch by itself. Builds no Relax, imports no PyTorch.

Where it does, a module of one sample serves any batch. What a node gives then has the batch as one axis, of K values for each
sample. An op that reads several samples to make one value may keep this axis: its name and the axes it works along tell. Of an op
that is not known here, such as one of another library, the module is one of all samples.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BY_PLACE = frozenset(
    {"alias", "broadcast_to", "chunk", "clone", "contiguous", "copy", "detach", "diagonal", "expand", "expand_as"}
    | {"lift_fresh_copy", "meshgrid", "movedim", "narrow", "numpy_T", "permute", "repeat", "select", "slice"}
    | {"split", "split_with_sizes", "squeeze", "stack", "swapaxes", "swapdims", "t", "tile", "transpose", "unbind"}
    | {"unfold", "unsafe_chunk", "unsafe_split", "unsqueeze", "_conj", "_to_copy", "conj", "imag", "real"}
    | {"resolve_conj", "resolve_neg", "to", "type_as", "view_as_complex", "view_as_real"}
    | {"adjoint", "mH", "mT", "tensor_split"}
    | {"all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "kthvalue", "linalg_norm"}
    | {"linalg_vector_norm", "logsumexp", "max", "mean", "median", "min", "mode", "nanmean", "nanmedian", "nansum"}
    | {"norm", "prod", "std", "std_mean", "sum", "var", "var_mean", "cosine_similarity", "cross_entropy_loss"}
    | {"pairwise_distance"}
    | {"_cdist_forward", "addmm", "baddbmm", "bilinear", "bmm", "cdist", "dot", "inner", "linear", "matmul", "mm"}
    | {"mv", "outer"}
    | {"arange", "empty", "empty_like", "empty_permuted", "full", "full_like", "linspace", "new_empty", "new_full"}
    | {"new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "zeros", "zeros_like"}
    | {"__and__", "__or__", "__xor__", "_prelu_kernel", "absolute", "alpha_dropout", "complex", "dropout"}
    | {"feature_dropout", "fill", "floor_divide", "glu", "hardswish", "isclose", "log_sigmoid", "native_dropout"}
    | {"negative", "one_hot", "polar", "prelu", "zero", "affine_grid_generator"}
    | {"abs", "eq", "ge", "gelu", "gt", "le", "lt", "masked_fill", "mish", "ne", "threshold"}  # whose forms in place have no tag
    | {f"quantized_decomposed.{name}" for name in ("choose_qparams", "choose_qparams_symmetric", "convert_element_type")}
    | {f"quantized_decomposed.{kind}quantize_per_{each}" for kind in ("", "de") for each in ("tensor", "channel")}
    | {f"torchao.{name}_affine" for name in ("choose_qparams", "quantize", "dequantize")}
)
"""Ops whose result has no axis of the batch where they work along it; others whose tag is `pointwise` are like them."""
_ALONG = frozenset(
    {
        "_softmax",
        "_log_softmax",
        "_safe_softmax",
        "softmax",
        "log_softmax",
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "cummax",
        "cummin",
    }
    | {"flip", "flipud", "rot90", "roll", "sort", "msort", "argsort", "topk", "cat", "gather", "take_along_dim", "index_select"}
    | {"scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill", "index_reduce", "select_scatter"}
    | {"slice_scatter", "gradient", "_fft_c2c", "_fft_r2c", "_fft_c2r", "fft_fftshift", "fft_ifftshift"}
    | {f"fft_{kind}fft{axes}" for kind in ("", "i", "r", "ir", "h", "ih") for axes in ("", "2", "n")}
)
"""Ops whose result has the axes along which they work: `dim` or `dims`; all where that is None, 0 where there is none."""
_BY_BATCH = frozenset({"batch_norm", "_native_batch_norm_legit"})
"""Ops that normalize by statistics of all samples, where they are given no others."""
_LAST = {
    "tril": 2,
    "triu": 2,
    "pixel_shuffle": 3,
    "pixel_unshuffle": 3,
    "im2col": 2,
    "col2im": 2,
    "stft": 1,
    "istft": 1,
    "fliplr": 1,
}
"""Op -> how many axes at the end of its first tensor it works along."""
_WINDOWS = re.compile(r"(?:conv|pool|upsample|pad|grid_sampler).*?([123])d")
"""Names of ops that work along as many axes at the end as the number in them says."""
_BEHIND_FIRST = frozenset(
    {"grid_sampler", "group_norm", "native_group_norm", "instance_norm", "channel_shuffle", "native_channel_shuffle"}
)
"""Ops that keep apart what lies along the first axis only."""
_ROW_NORMS = frozenset({"layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"})
_RECURRENT = frozenset({"gru", "lstm", "rnn_relu", "rnn_tanh"})
_TABLES = {"embedding": "weight", "searchsorted": "sorted_sequence", "bucketize": "boundaries", "isin": "test_elements"}
"""Op -> its argument of which any value is read for each place."""
_VIEWS = frozenset(
    {"view", "view_as", "view_copy", "reshape", "reshape_as", "_reshape_alias", "_unsafe_view", "flatten", "unflatten", "ravel"}
)
_PADS = frozenset({"constant_pad_nd", "pad"})
_KNOWN = (
    _BY_PLACE | _ALONG | _BY_BATCH | _BEHIND_FIRST | _ROW_NORMS | _RECURRENT | _VIEWS | _PADS | _LAST.keys() | _TABLES.keys()
) | {"convolution", "einsum", "index", "repeat_interleave"}


def leaves_batch_open(graph: Any, inputs: Mapping[str, Any], outputs: tuple[str, ...]) -> bool:
    """Whether one symbol is the first dimension of all inputs and outputs, and a dimension of all that is computed of inputs.

    A value without it, such as a mean over the batch or the scale of a whole tensor, is one for all samples; so is one that is
    computed of the size of the batch, and what an op along the batch gives.
    """
    values = {str(node.name): node.meta.get("val") for node in graph.nodes}
    ends: list[list[Any]] = [list(getattr(values.get(name), "shape", ()))[:1] for name in (*inputs, *outputs)]
    firsts: set[Any] = {None if not first or isinstance(first[0], int) else first[0].node.expr for first in ends}
    others = [dim for value in inputs.values() for dim in value.shape[1:] if not isinstance(dim, int)]
    if len(firsts) != 1 or None in firsts or others:
        return False
    [batch] = firsts
    ahead: dict[str, int] = dict.fromkeys(inputs, 1)
    for node in graph.nodes:
        if node.op == "output" or not any(str(source.name) in ahead for source in node.all_input_nodes):
            continue
        place = _ahead(node, batch, ahead)
        if place is None:
            return False
        ahead[str(node.name)] = place
    return batch.is_Symbol


def _ahead(node: Any, batch: Any, ahead: Mapping[str, int]) -> int | None:
    """Return how many values of each sample lie ahead of the samples along the axis of the batch; None: samples are mixed.

    An axis of 6 values for each of N samples may be (6, N), (2, N, 3) or (N, 6): what a view makes of it depends on that.
    """
    results = _tensors(node.meta.get("val"))
    if not results:
        return 1
    sources = [(source, tensor) for source in node.all_input_nodes for tensor in _tensors(source.meta.get("val"))]
    found = {(ahead[str(source.name)], _batch(tensor, batch)) for source, tensor in sources if str(source.name) in ahead}
    axes = [_batch(result, batch) for result in results]
    if None in axes or _mixes(node, batch):
        return None
    name, counts = _name(node), {where[1] for where in axes if where is not None}
    if name in _VIEWS:
        return _viewed(node, batch, ahead)
    sizes = {(place, where[1]) for place, where in found if where is not None}
    if name == "repeat_interleave":
        return sizes.pop()[0] if len(sizes) == 1 else None
    if not sizes:  # computed of the size of the batch alone: the same for all samples
        return 1
    places = {place for place, count in sizes if count in counts}
    return places.pop() if len(places) == 1 and counts <= {count for _, count in sizes} else None


def _viewed(node: Any, batch: Any, ahead: Mapping[str, int]) -> int | None:
    """Return what is ahead of the samples in another view of the same values in order, None where a row has parts of several."""
    source = node.args[0]
    before, after = _tensors(source.meta.get("val"))[0], _tensors(node.meta.get("val"))[0]
    was, now = _batch(before, batch), _batch(after, batch)
    if was is None or now is None:
        return None
    place, rest = divmod(math.prod(before.shape[: was[0]]) * ahead.get(str(source.name), 1), math.prod(after.shape[: now[0]]))
    return place if not rest and place and now[1] % place == 0 else None


def _tensors(value: Any) -> list[Any]:
    return [each for each in (value if isinstance(value, tuple | list) else (value,)) if hasattr(each, "shape")]


def _name(node: Any) -> str:
    """Return the name of an operator, such as softmax or LIBRARY.NAME; "" of what takes one of several results."""
    if node.target is operator.getitem:
        return ""
    name = str(node.target)
    if not hasattr(node.target, "_schema"):
        return name
    name = name.rpartition(".")[0].removeprefix("aten.")
    return name if name.startswith("__") else name.removesuffix("_")  # in place


def _is_known(node: Any) -> bool:
    """Whether an op keeps samples apart, or it is known along which axes it does not."""
    name = _name(node)
    of_kind = "." not in name and ("scaled_dot_product" in name or _WINDOWS.search(name) is not None)
    return name in _KNOWN or of_kind or any(tag.name == "pointwise" for tag in getattr(node.target, "tags", ()))


def _batch(value: Any, batch: Any) -> tuple[int, int] | None:
    """Return the one axis whose size is the batch times a number, and this number; None where there is none."""
    axes = [axis for axis, dim in enumerate(value.shape) if not isinstance(dim, int) and batch in dim.node.expr.free_symbols]
    if len(axes) != 1 or not (count := value.shape[axes[0]].node.expr / batch).is_Integer:
        return None
    return axes[0], int(count)


def _axis(value: Any, batch: Any) -> int | None:
    """Return the axis of the batch of an argument, None where it has none or is no tensor."""
    tensors = _tensors(getattr(value, "meta", {}).get("val"))
    found = _batch(tensors[0], batch) if tensors else None
    return None if found is None else found[0]


def _mixes(node: Any, batch: Any) -> bool:
    """Whether an op works along the axis of the batch, or on its size as a number."""
    name = _name(node)
    if not name:
        return False
    if not _is_known(node):
        return True
    given: dict[str, Any] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name, default)
        given[argument.name] = value
        is_size = type(getattr(value, "meta", {}).get("val")).__name__.startswith("Sym")
        if is_size and "SymInt" not in str(argument.real_type):
            return True
    if name in _BY_BATCH:
        return given.get("running_mean") is None
    if name in _TABLES:
        return _axis(given[_TABLES[name]], batch) is not None
    if name == "index":
        axis = _axis(given["self"], batch)
        return axis is not None and axis < len(given["indices"]) and given["indices"][axis] is not None
    if name == "einsum":
        return _is_summed(str(given["equation"]), given["tensors"], batch)
    if "scaled_dot_product" in name:
        return any(_is_last(given.get(each), 2, batch) for each in ("query", "key", "value", "attn_mask", "attn_bias"))
    first: Any = given.get("self", given.get("tensors", given.get("input")))
    first = first[0] if isinstance(first, list | tuple) else first
    return _works_along(name, given, first, batch)


def _works_along(name: str, given: Mapping[str, Any], first: Any, batch: Any) -> bool:
    """Whether an op works along the axis of the batch of its first tensor."""
    axis = _axis(first, batch)
    if name in _ALONG:
        rank = len(_tensors(getattr(first, "meta", {}).get("val"))[0].shape) if axis is not None else 0
        dims = given.get("dim", given.get("dims", 0))
        along = [dims] if isinstance(dims, int) else list(dims or ())
        return axis is None or not along or any(int(each) % rank == axis for each in along)
    if axis is None:
        return False
    if name in _BEHIND_FIRST:
        return axis != 0
    if name in _RECURRENT:
        rank = len(_tensors(first.meta["val"])[0].shape)
        return rank != 3 or axis != (0 if given.get("batch_first") else 1)
    if name in _ROW_NORMS:
        return _is_last(first, len(given["normalized_shape"]), batch)
    if name == "convolution" or name in _PADS:
        return _is_last(first, len(given["stride"]) if name == "convolution" else len(given["pad"]) // 2, batch)
    windows = _WINDOWS.search(name)
    return _is_last(first, int(windows[1]) if windows else _LAST.get(name, 0), batch)


def _is_last(value: Any, count: int, batch: Any) -> bool:
    """Whether the batch is one of the last axes of an argument."""
    axis = _axis(value, batch)
    return axis is not None and axis >= len(_tensors(value.meta["val"])[0].shape) - count


def _is_summed(equation: str, tensors: Sequence[Any], batch: Any) -> bool:
    """Whether an einsum has the batch under several letters, or under one that its result has not."""
    terms, _, result = equation.replace(" ", "").partition("->")
    letters: set[str] = set()
    for term, tensor in zip(terms.split(","), tensors, strict=True):
        axis = _axis(tensor, batch)
        if axis is None:
            continue
        ahead, dots, behind = term.partition("...")
        rank = len(_tensors(tensor.meta["val"])[0].shape)
        if axis < len(ahead):
            letters.add(ahead[axis])
        elif axis >= rank - len(behind):
            letters.add(behind[axis - rank])
        else:
            letters.add(f"{dots}{rank - len(behind) - axis}")
    return len(letters) > 1 or any(len(each) == 1 and each not in result for each in letters)
