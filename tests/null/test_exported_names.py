"""The public API is what `__all__` says: sorted, complete, documented."""

from __future__ import annotations

import types

import bosquet


def test_all_is_sorted_and_real() -> None:
    assert bosquet.__all__ == sorted(bosquet.__all__)
    assert all(getattr(bosquet, name) is not None for name in bosquet.__all__)


def test_nothing_public_is_left_out() -> None:
    found = {
        name
        for name, value in vars(bosquet).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert found - {"annotations", "Any", "TYPE_CHECKING"} <= set(bosquet.__all__)


def test_every_public_name_is_documented() -> None:
    for name in bosquet.__all__:
        if name != "__version__":
            assert (getattr(bosquet, name).__doc__ or "").strip(), f"{name} has no docstring"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(bosquet, "no_such_name")
