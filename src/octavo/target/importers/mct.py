"""MCT's target platform capabilities (TPC) as a target description: operator sets, their quantization options, fusing patterns.

An operator set without options, and an op that is in none, has the file's default. Of several options the base one counts, and
the bit widths of the others are allowed, too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import TargetError, brief
from ..description import OpSupport
from ..tensor_support import TensorSupport
from ..vocabulary import Scheme
from .reading import KEEPS_PARAMS, MANY, OP_NAMES, WEIGHTED, Draft, Imported, a_list, an_object, ops_named, read_object

_SAYS_NOTHING = ("tpc_minor_version", "tpc_patch_version", "tpc_platform_type", "add_metadata", "insert_preserving_quantizers")
_TOP = ("default_qco", "operator_set", "fusing_patterns", "name", "is_simd_padding", "SCHEMA_VERSION", *_SAYS_NOTHING)
_OPTIONS = ("quantization_configurations", "base_config")
_OF_WEIGHT = (
    *("weights_quantization_method", "weights_n_bits", "weights_per_channel_threshold"),
    *("enable_weights_quantization", "lut_values_bitwidth"),
)
_OF_OP = (
    *("default_weight_attr_config", "attr_weights_configs_mapping", "activation_quantization_method", "activation_n_bits"),
    *("supported_input_activation_n_bits", "enable_activation_quantization", "quantization_preserving"),
    *("fixed_scale", "fixed_zero_point", "simd_size", "signedness"),
)
_METHODS = ("POWER_OF_TWO", "LUT_POT_QUANTIZER", "SYMMETRIC", "UNIFORM", "LUT_SYM_QUANTIZER")
_SIGNEDNESS = ("AUTO", "SIGNED", "UNSIGNED")
_WEIGHTS = {4: "int4", 8: "int8", 16: "int16"}


def mct(path: str | Path) -> Imported:
    """Read target platform capabilities of MCT (JSON, schema versions 1 and 2).

    Raises
    ------
    TargetError
        No such file, or a field that the format does not have, or holds what it does not allow.
    """
    try:
        return _imported(read_object(path, "target platform capabilities"))
    except TargetError as error:
        text = str(error)
        raise TargetError(text if text.startswith(str(path)) else f"{path}: {text}") from error


def _imported(data: dict[str, Any]) -> Imported:
    draft = Draft()
    an_object("the capabilities", data, _TOP)
    if data.get("SCHEMA_VERSION", 2) not in (1, 2):
        raise TargetError(f"SCHEMA_VERSION: expected 1 or 2, got {brief(data['SCHEMA_VERSION'])}")
    for name in (*_SAYS_NOTHING, "is_simd_padding"):
        if data.get(name) not in (None, False):
            draft.note(name, "says nothing that a description holds")
    default = an_object("default_qco", data.get("default_qco"), _OPTIONS)
    for entry in a_list("operator_set", data.get("operator_set") or []):
        own = an_object("operator_set", entry, ("name", "qc_options", "type"))
        source = str(own.get("name"))
        where, options = f"operator_set {source}", own.get("qc_options") or default
        if not ops_named(source):
            draft.note(where, "no op of ours has this name")
        for name in ops_named(source):
            support = _support(draft, where, options, name)
            if name not in MANY:
                draft.put(where, support, name)
            elif support != _support(draft, "default_qco", default, name):
                draft.note(where, f"one among the functions that are {name}, which has the default")
    for name in dict.fromkeys(name for names in OP_NAMES.values() for name in names):
        if name not in draft.sources:
            draft.put("default_qco", _support(draft, "default_qco", default, name), name)
    for index, pattern in enumerate(a_list("fusing_patterns", data.get("fusing_patterns") or [])):
        _fuse(draft, f"fusing_patterns[{index}]", pattern)
    return draft.finished(str(data.get("name") or "default_tpc"))


def _fuse(draft: Draft, where: str, pattern: Any) -> None:
    entry = an_object(where, pattern, ("operator_groups", "fuse_op_quantization_config", "name"))
    if entry.get("fuse_op_quantization_config") is not None:
        draft.note(f"{where}.fuse_op_quantization_config", "an op with what follows it has the parameters of the op")
    groups: list[list[str]] = []
    for group in a_list(f"{where}.operator_groups", entry.get("operator_groups")):
        found = an_object(where, group, ("name", "qc_options", "type", "operators_set"))
        several = found.get("operators_set") or [found]
        groups.append([str(an_object(where, each).get("name")) for each in a_list(where, several)])
    if len(groups) < 2:
        raise TargetError(f"{where}: operator_groups: expected two or more, got {len(groups)}")
    for first in groups[0]:
        for last in groups[-1]:
            draft.fuse(where, first, [*(group[0] for group in groups[1:-1]), last])


def _support(draft: Draft, where: str, options: Any, name: str) -> OpSupport | None:
    """Return what quantization options say of an op, None where it stays float."""
    fields = an_object(where, options, _OPTIONS)
    listed = [an_object(where, each, _OF_OP) for each in a_list(where, fields.get("quantization_configurations"))]
    base = an_object(where, fields.get("base_config") or (listed or [None])[0], _OF_OP)
    first = _of_config(draft, where, base, name)
    others = [found for each in listed if each != base and (found := _of_config(draft, where, each, name)) is not None]
    if first is None:
        return None
    for other in others:
        if replace(other, activations=first.activations, weights=first.weights) != first:
            draft.note(where, f"an option beside the base one differs in more than bit widths for {name}")
    return replace(
        first,
        activations=tuple(dict.fromkeys(dtype for each in (first, *others) for dtype in each.activations)),
        weights=tuple(dict.fromkeys(dtype for each in (first, *others) for dtype in each.weights)),
    )


def _of_config(draft: Draft, where: str, config: dict[str, Any], name: str) -> OpSupport | None:
    preserves = _is(where, config, "quantization_preserving")
    if not (_is(where, config, "enable_activation_quantization") or (preserves and name in KEEPS_PARAMS)):
        return None
    method = _named(where, config, "activation_quantization_method", _METHODS)
    dtypes = _dtypes(where, config, method, config.get("activation_n_bits"))
    if method.startswith("LUT") or not dtypes:
        draft.note(where, f"activations by {method} of {config.get('activation_n_bits')} bits: {name} stays float")
        return None
    if config.get("simd_size") is not None:
        draft.note(f"{where}.simd_size", "no field: say limits of channels (multiple_of) where the hardware needs them")
    weight = _weight(draft, where, config, name)
    if weight is None:
        return None
    tensors = _inputs(draft, where, config, method, dtypes)
    scale, zero_point = config.get("fixed_scale"), config.get("fixed_zero_point")
    if name in MANY and (scale, zero_point) != (None, None):
        draft.note(where, f"fixed_scale and fixed_zero_point of one function among those that are {name}")
    elif scale is not None or zero_point is not None:
        tensors["output"] = TensorSupport(scale=scale, zero_point=zero_point)
    is_pot, symmetric = method == "POWER_OF_TWO", method != "UNIFORM"
    schemes: tuple[Scheme, ...] = ("symmetric",) if symmetric else ("symmetric", "asymmetric")
    found = OpSupport(
        op=name,
        activations=dtypes,
        activation_schemes=schemes,
        scales="power_of_two" if is_pot and weight.scales in (None, "power_of_two") else "any",
        weights=weight.dtypes or (),
        weight_schemes=("symmetric",) if weight.schemes == ("symmetric",) else ("symmetric", "asymmetric"),
        weight_granularity=("per_axis", "per_tensor") if weight.granularity is None else ("per_tensor",),
        weight_range="full",
        fusions=("bias",) if name in WEIGHTED else (),
        same_params=preserves,
    )
    if weight.scales is not None and weight.scales != found.scales:
        tensors["weight"] = TensorSupport(scales=weight.scales)
    if is_pot and found.scales != "power_of_two":
        tensors |= {role: replace(tensors.get(role, TensorSupport()), scales="power_of_two") for role in ("input", "output")}
    return replace(found, tensors=tensors)


def _inputs(draft: Draft, where: str, config: dict[str, Any], method: str, dtypes: tuple[str, ...]) -> dict[str, TensorSupport]:
    """Return what is said of the tensors that an op reads where that differs from its result."""
    said = config.get("supported_input_activation_n_bits")
    widths: list[Any] = said if isinstance(said, list) else [] if said is None else [said]
    for bits in widths:
        if not _dtypes(where, config, method, bits):
            draft.note(f"{where}.supported_input_activation_n_bits", f"no activations of {brief(bits)} bits; they have 8 or 16")
    found = tuple(dict.fromkeys(dtype for bits in widths for dtype in _dtypes(where, config, method, bits)))
    return {"input": TensorSupport(dtypes=found)} if found and set(found) != set(dtypes) else {}


def _weight(draft: Draft, where: str, config: dict[str, Any], name: str) -> TensorSupport | None:
    """Return what an op's weight may be, all of it None for an op without one; None where the op stays float."""
    mapped = an_object(f"{where}.attr_weights_configs_mapping", config.get("attr_weights_configs_mapping") or {})
    default = config.get("default_weight_attr_config")
    chosen: Any = default
    for attribute, entry in mapped.items():
        if "bias" in attribute:
            if _is(where, an_object(where, entry, _OF_WEIGHT), "enable_weights_quantization"):
                draft.note(f"{where}.{attribute}", "a bias is held in 32 bits, in units of the accumulator")
        elif "kernel" in attribute or "weight" in attribute:
            chosen = entry
        else:
            draft.note(f"{where}.{attribute}", "only weight and bias are parameters of an op here")
    if name not in WEIGHTED:
        return TensorSupport()
    found = an_object(f"{where}: weights", chosen, _OF_WEIGHT)
    method = _named(where, found, "weights_quantization_method", _METHODS)
    bits: Any = found.get("weights_n_bits")
    if not _is(where, found, "enable_weights_quantization") or method.startswith("LUT") or bits not in _WEIGHTS:
        draft.note(f"{where}: weights", f"by {method} of {bits} bits, or not quantized: {name} stays float")
        return None
    return TensorSupport(
        dtypes=(_WEIGHTS[bits],),
        schemes=("symmetric",) if method != "UNIFORM" else None,
        granularity=None if _is(where, found, "weights_per_channel_threshold") else ("per_tensor",),
        scales="power_of_two" if method == "POWER_OF_TWO" else "any",
    )


def _dtypes(where: str, config: dict[str, Any], method: str, bits: Any) -> tuple[str, ...]:
    """Return the dtypes of activations of so many bits; MCT chooses by itself whether symmetric ones are signed."""
    if bits not in (8, 16):
        return ()
    sign = _named(where, config, "signedness", _SIGNEDNESS) if "signedness" in config else "AUTO"
    both = (f"int{bits}", f"uint{bits}") if method != "UNIFORM" else (f"uint{bits}", f"int{bits}")
    return {"AUTO": both, "SIGNED": (f"int{bits}",), "UNSIGNED": (f"uint{bits}",)}[sign]


def _named(where: str, entry: dict[str, Any], name: str, names: tuple[str, ...]) -> str:
    """Return the name of a choice that the file has by name or by number."""
    value = entry.get(name)
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    text = str(value).rsplit(".", 1)[-1]
    if text not in names:
        raise TargetError(f"{where}: {name}: expected one of {', '.join(names)}, or its number, got {brief(value)}")
    return text


def _is(where: str, entry: dict[str, Any], name: str) -> bool:
    value = entry.get(name, False)
    if not isinstance(value, bool):
        raise TargetError(f"{where}: {name}: expected true or false, got {brief(value)}")
    return value
