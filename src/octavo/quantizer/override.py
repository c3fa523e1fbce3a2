"""Override: what a recipe says anew of the ops and tensors that a name stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, cast

from ..errors import QuantizationError, brief
from ..target.tensor_support import TensorSupport
from ..target.vocabulary import SCHEMES


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """Fields of a recipe for some ops and tensors; what is None is as the recipe says.

    Parameters
    ----------
    exclude
        True: the op stays float. False: it is integer where the target has it, whatever `exclude` and `float_ops` say.
    activation_dtype
        "uint8", "int8" or "int16" of the tensor, or of the op's result.
    activation_scheme
        "symmetric" or "asymmetric", of the same.
    range_estimator
        Of the same; any but "auto", which is a choice for all tensors together.
    weight_bits
        2 to 8, of the op's weight.
    weight_granularity
        "per_axis" or "per_tensor", of the op's weight.

    Raises
    ------
    QuantizationError
        If `exclude` or `activation_scheme` holds what it does not allow; of the others the recipe says so.
    """

    exclude: bool | None = None
    activation_dtype: str | None = None
    activation_scheme: str | None = None
    range_estimator: str | None = None
    weight_bits: int | None = None
    weight_granularity: str | None = None

    def __post_init__(self) -> None:
        """Check the fields that a recipe does not have."""
        if self.exclude is not None and not isinstance(cast("Any", self.exclude), bool):
            raise QuantizationError(f"override: exclude must be True or False, got {self.exclude!r}")
        if self.activation_scheme not in (None, *SCHEMES):
            known = ", ".join(SCHEMES)
            raise QuantizationError(f"override: activation_scheme must be one of {known}, got {self.activation_scheme!r}")

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

    @property
    def activation(self) -> TensorSupport | None:
        """What the tensor must be; None where nothing is said of its integers."""
        if self.activation_dtype is None and self.activation_scheme is None:
            return None
        return TensorSupport(
            dtypes=None if self.activation_dtype is None else (self.activation_dtype,),
            schemes=None if self.activation_scheme is None else (self.activation_scheme,),
        )

    def with_later(self, later: Override) -> Override:
        """Return both; where both say something the later one counts."""
        return replace(self, **later.given)

    @staticmethod
    def of(where: str, value: Any) -> Override:
        """Return an Override, or the one that a mapping of its fields says; QuantizationError for anything else."""
        if isinstance(value, Override):
            return value
        if not isinstance(value, Mapping):
            known = ", ".join(each.name for each in fields(Override))
            raise QuantizationError(f"{where}: expected an Override or a mapping of {known}, got {brief(value)}")
        said = {str(key): each for key, each in cast("Mapping[Any, Any]", value).items()}
        check_fields(where, said, Override)
        try:
            return Override(**said)
        except QuantizationError as error:
            raise QuantizationError(f"{where}: {error}") from error


def check_fields(where: str, said: Iterable[str], kind: Any) -> None:
    """Raise QuantizationError for the name of a field that a dataclass does not have."""
    known = [each.name for each in fields(kind)]
    unknown = next((name for name in said if name not in known), None)
    if unknown is not None:
        near = get_close_matches(unknown, known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise QuantizationError(f"{where}: there is no field {unknown!r}; {advice}")
