"""Look up names in catalogs; errors name the allowed ones."""

import difflib
import reprlib
from collections.abc import Mapping
from typing import TypeVar

Record = TypeVar("Record")
MOST_NAMES = 8
"""Names that an error lists after a suggestion."""
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxlong = _SHOWN.maxother = 80


def shorten(value: object) -> str:
    """Return `repr(value)` for a message, shortened in the middle."""
    return _SHOWN.repr(value)


def lookup(catalog: Mapping[str, Record], name: str, kind: str) -> Record:
    """Return `catalog[name]`.

    Raises `ValueError` naming `name`, the closest match and what is allowed (after a suggestion,
    only the start of a long list); `kind` is the word used for an entry ("format", "engine", ...).
    """
    if isinstance(name, str) and name in catalog:
        return catalog[name]
    close = difflib.get_close_matches(str(name)[:80], list(catalog), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    names = list(catalog)
    if close and len(names) > MOST_NAMES:
        names = [*names[:MOST_NAMES], f"... ({len(names)} in all)"]
    raise ValueError(f"unknown {kind} {shorten(name)}; {hint}allowed: {', '.join(names)}")
