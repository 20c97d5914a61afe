"""What every model of a request body has in common. Knows none of the fields."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, FailFast, model_validator
from pydantic_core import PydanticCustomError


class FirstFault(FailFast):
    """A list is read up to its first bad entry, so that a million of them give one error. Hashable, as members of a
    union have to be."""

    __hash__ = object.__hash__


class Body(BaseModel):
    """Strict types, finite numbers, no unknown fields."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def null_is_left_out(cls, value: Any) -> Any:
        """Also where a field is required, or has a default of its own."""
        if not isinstance(value, dict) or None not in value.values():
            return value
        return {name: given for name, given in value.items() if given is not None or name not in _without_null(cls)}


@cache
def _without_null(kind: type[Body]) -> frozenset[str]:
    """Fields that are not null when they are left out."""
    return frozenset(field.alias or name for name, field in kind.model_fields.items() if field.default is not None)


@cache
def body_names(kind: type[Body] = Body) -> frozenset[str]:
    """The names of all models of bodies: ours, and nothing that a caller is told."""
    return frozenset({kind.__name__}.union(*map(body_names, kind.__subclasses__())))


def only_kinds(value: Any, what: str, known: tuple[str, ...]) -> Any:
    """`value` as it is; refuses an object whose `type` is another than those known, and says which they are."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in known:
        raise PydanticCustomError(
            "kind",
            "{what} of type '{kind}' are not supported, only {known}",
            {"what": what, "kind": kind[:64], "known": " and ".join(known)},
        )
    return value
