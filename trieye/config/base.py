"""The two kinds of config model: strict and frozen, or as tolerant as trieye 0.1.5."""

import difflib
import warnings
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

STRICT = {"strict_keys": True}
"""Validation context that makes the tolerant models refuse unknown keys; Hydra configs are validated with it."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` most likely meant, or None."""
    candidates = sorted(known)
    folded = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known word, or an empty string."""
    match = nearest(word, known)
    return f"; did you mean {match!r}?" if match else ""


class StrictModel(BaseModel):
    """A frozen config model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TolerantModel(BaseModel):
    """A config model that stays mutable and takes the upper-case names of trieye 0.1.5.

    Upper-case names work as keyword arguments and as attributes. Unknown keys are ignored with a warning that names the
    nearest match, or refused where the validation context is `STRICT`.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _accept_old_names(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        accepted = {_lowered(cls, key): value for key, value in data.items()}
        known = set(cls.model_fields)
        unknown = sorted(str(key) for key in accepted if key not in known)
        if unknown and (info.context or {}).get("strict_keys"):
            raise PydanticCustomError(
                "unknown_key", "unknown key {key}", {"key": unknown[0], "known": ", ".join(sorted(known))}
            )
        for key in unknown:
            warnings.warn(f"{cls.__name__}: unknown key {key!r} is ignored{did_you_mean(key, known)}", stacklevel=4)
        return accepted

    def __getattr__(self, name: str) -> Any:
        lowered = _lowered(type(self), name)
        if lowered != name:
            return getattr(self, lowered)
        return super().__getattr__(name)  # type: ignore[misc]  # pydantic defines it at run time only

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(_lowered(type(self), name), value)


def _lowered(model: type[BaseModel], name: Any) -> Any:
    if isinstance(name, str) and name.isupper() and name.lower() in model.model_fields:
        return name.lower()
    return name
