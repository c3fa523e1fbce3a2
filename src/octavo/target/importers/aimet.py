"""AIMET's quantsim configuration as a target description: which ops and tensors its hardware quantizes, and how.

The file says where AIMET puts quantizers. An op whose output it quantizes is one that runs in integers; one whose output it does
not quantize either moves data and keeps parameters, or stays float.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import TargetError, brief
from ..description import OpSupport
from ..tensor_support import TensorSupport
from ..vocabulary import Scheme
from .reading import KEEPS_PARAMS, MANY, OP_NAMES, WEIGHTED, Draft, Imported, a_list, an_object, ops_named, read_object

_SECTIONS = ("defaults", "params", "op_type", "supergroups", "supergroup_pass_list", "model_input", "model_output")
_FLAGS = ("strict_symmetric", "unsigned_symmetric", "per_channel_quantization")
_OF_OP = ("is_input_quantized", "is_output_quantized", "is_symmetric")
_OF_PARAM = ("is_quantized", "is_symmetric")
_WIDTHS = {8: ("uint8", "int8"), 16: ("uint16", "int16")}
_WEIGHTS = {4: "int4", 8: "int8", 16: "int16"}


def aimet(path: str | Path) -> Imported:
    """Read a quantsim configuration of AIMET (JSON).

    Raises
    ------
    TargetError
        No such file, or a field that the format does not have, or holds what it does not allow.
    """
    try:
        return _Config(read_object(path, "a quantsim configuration"), Path(path).stem).imported()
    except TargetError as error:
        text = str(error)
        raise TargetError(text if text.startswith(str(path)) else f"{path}: {text}") from error


class _Config:
    def __init__(self, data: dict[str, Any], stem: str) -> None:
        self.data = an_object("the configuration", data, _SECTIONS)
        self.draft = Draft()
        known = ("ops", "params", "hw_version", "supported_kernels", *_FLAGS)
        self.defaults = an_object("defaults", self.section("defaults"), known)
        self.name = f"{stem}_{self.defaults['hw_version']}" if "hw_version" in self.defaults else stem

    def section(self, name: str) -> dict[str, Any]:
        return an_object(name, self.data.get(name, {}))

    def imported(self) -> Imported:
        draft, types = self.draft, self.section("op_type")
        for source, entry in types.items():
            names = ops_named(source)
            if not names:
                draft.note(f"op_type.{source}", "no op of ours has this name")
            for name in names:
                support = self.support(name, f"op_type.{source}", entry)
                if name not in MANY:
                    draft.put(f"op_type.{source}", support, name)
                elif support != self.support(name, "defaults", {}):
                    draft.note(f"op_type.{source}", f"one among the functions that are {name}, which has the defaults")
        for name in dict.fromkeys(name for names in OP_NAMES.values() for name in names):
            if name not in draft.sources:
                draft.put("defaults", self.support(name, "defaults", {}), name)
        for index, group in enumerate(a_list("supergroups", self.data.get("supergroups", []))):
            where = f"supergroups[{index}]"
            listed = [str(each) for each in a_list(where, an_object(where, group, ("op_list",)).get("op_list"))]
            if len(listed) < 2:
                raise TargetError(f"{where}: op_list: expected two ops or more, got {brief(listed)}")
            draft.fuse(where, listed[0], listed[1:])
        for name in a_list("supergroup_pass_list", self.data.get("supergroup_pass_list", [])):
            draft.note("supergroup_pass_list", f"{name} is a pattern of AIMET's own code")
        self.edges()
        self.params(self.section("params"), "params")
        return draft.finished(self.name)

    def edges(self) -> None:
        """Take what the model's inputs and outputs are: a boundary that is quantized is an op of the hardware."""
        for section, flag, op in (
            ("model_input", "is_input_quantized", "quantize"),
            ("model_output", "is_output_quantized", "dequantize"),
        ):
            if self.flag(section, an_object(section, self.section(section), (flag,)), flag, default=False):
                support = self.support(op, section, {})
                self.draft.put(section, support, op)

    def flag(self, where: str, entry: dict[str, Any], name: str, *, default: bool) -> bool:
        value = entry.get(name, default)
        if isinstance(value, str) and value in ("True", "False"):
            return value == "True"
        if isinstance(value, bool):
            return value
        raise TargetError(f"{where}: {name}: expected True or False, got {brief(value)}")

    def support(self, name: str, where: str, entry: Any) -> OpSupport | None:
        """Return what the file says of an op, None where it stays float."""
        known = (*_OF_OP, "params", "supported_kernels", "per_channel_quantization", "encoding_constraints")
        own = an_object(where, entry, known)
        general = an_object("defaults.ops", self.defaults.get("ops", {}), _OF_OP)
        if not self.flag(where, {**general, **own}, "is_input_quantized", default=True):
            self.draft.note(f"{where}.is_input_quantized", "an op of integers reads integers")
        is_quantized = self.flag(where, {**general, **own}, "is_output_quantized", default=False)
        if not is_quantized and name not in KEEPS_PARAMS:
            return None
        is_symmetric = self.flag(where, {**general, **own}, "is_symmetric", default=False)
        per_axis = self.flag(where, {**self.defaults, **own}, "per_channel_quantization", default=False)
        source, kernels = (where, own) if "supported_kernels" in own else ("defaults", self.defaults)
        activations, weights = self.kernels(source, kernels.get("supported_kernels"))
        schemes: tuple[Scheme, ...] = ("symmetric",) if is_symmetric else ("symmetric", "asymmetric")
        if is_symmetric:
            unsigned = self.flag("defaults", self.defaults, "unsigned_symmetric", default=False)
            signed = tuple(dtype for dtype in activations if not dtype.startswith("u"))
            activations = (*signed, *(each for each in activations if each.startswith("u"))) if unsigned else signed
        strict = self.flag("defaults", self.defaults, "strict_symmetric", default=False)
        is_weighted = name in WEIGHTED
        if is_weighted and not self.weight_flag(where, own, "is_quantized"):
            return None
        symmetric_weight = is_weighted and self.weight_flag(where, own, "is_symmetric")
        return OpSupport(
            op=name,
            activations=activations,
            activation_schemes=schemes,
            weights=weights if is_weighted else (),
            weight_schemes=("symmetric",) if symmetric_weight else ("symmetric", "asymmetric"),
            weight_granularity=("per_axis", "per_tensor") if per_axis else ("per_tensor",),
            weight_range="narrow" if strict else "full",
            fusions=("bias",) if is_weighted else (),
            same_params=not is_quantized,
            tensors=self.constraints(where, name, own, activations[0]),
        )

    def weight_flag(self, where: str, own: dict[str, Any], name: str) -> bool:
        """Return what is said of an op's weight: its own entry, else that of all weights, else of all parameters."""
        of_type = an_object(f"{where}.params", own.get("params", {}))
        self.params(of_type, f"{where}.params")
        levels = (of_type.get("weight", {}), self.section("params").get("weight", {}), self.defaults.get("params", {}))
        for level in levels:
            if name in an_object("params", level, _OF_PARAM):
                return self.flag(f"{where}.params", level, name, default=False)
        return False

    def params(self, entries: dict[str, Any], where: str) -> None:
        """Note what is said of parameters other than the weight."""
        for name, entry in entries.items():
            an_object(f"{where}.{name}", entry, _OF_PARAM)
            if name == "bias":
                self.draft.note(f"{where}.bias", "a bias is held in 32 bits, in units of the accumulator")
            elif name != "weight":
                self.draft.note(f"{where}.{name}", "only weight and bias are parameters of an op here")

    def kernels(self, where: str, listed: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the dtypes of activations and weights of the kernels that the hardware has."""
        if listed is None:
            return _WIDTHS[8], ("int8",)
        where = f"{where}.supported_kernels"
        pairs: dict[tuple[int, int], None] = {}
        for entry in a_list(where, listed):
            sides = an_object(where, entry, ("activation", "param"))
            found = [an_object(where, sides.get(side), ("bitwidth", "dtype")) for side in ("activation", "param")]
            bits: tuple[Any, Any] = found[0].get("bitwidth"), found[1].get("bitwidth")
            if any(side.get("dtype") != "int" for side in found):
                self.draft.note(where, f"a kernel of {bits} bits in float: what no integer kernel takes is float here anyway")
            elif bits[0] not in _WIDTHS or bits[1] not in _WEIGHTS:
                self.draft.note(where, f"no integers of {bits} bits; activations have 8 or 16, weights 4, 8 or 16")
            else:
                pairs[bits] = None
        if not pairs:
            raise TargetError(f"{where}: no kernel of integers that can be described: activations have 8 or 16 bits")
        wide, weights = dict.fromkeys(a for a, _ in pairs), dict.fromkeys(w for _, w in pairs)
        if len(pairs) < len(wide) * len(weights):
            self.draft.note(where, "some pairs of widths only; a description allows each activation with each weight")
        return tuple(dtype for bits in wide for dtype in _WIDTHS[bits]), tuple(_WEIGHTS[bits] for bits in weights)

    def constraints(self, where: str, name: str, own: dict[str, Any], dtype: str) -> dict[str, TensorSupport]:
        """Return the fixed parameters of the result that a fixed range makes."""
        if "encoding_constraints" not in own:
            return {}
        bounds = an_object(f"{where}.encoding_constraints", own["encoding_constraints"], ("min", "max"))
        low: Any = bounds.get("min")
        high: Any = bounds.get("max")
        if not all(type(each) in (int, float) for each in (low, high)) or low >= high or not low <= 0 <= high:
            raise TargetError(f"{where}.encoding_constraints: expected min <= 0 <= max, min below max, got {brief(bounds)}")
        if name in MANY:
            self.draft.note(f"{where}.encoding_constraints", f"of one function among those that are {name}")
            return {}
        bits = 16 if "16" in dtype else 8
        scale = (high - low) / (2**bits - 1)
        lowest = 0 if dtype.startswith("u") else -(2 ** (bits - 1))
        return {"output": TensorSupport(dtypes=(dtype,), scale=scale, zero_point=round(-low / scale) + lowest)}
