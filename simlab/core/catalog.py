"""Looking a name up in a catalog, with an error that helps."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

Record = TypeVar("Record")


def lookup(catalog: Mapping[str, Record], name: str, kind: str) -> Record:
    """Return `catalog[name]`.

    Raises `ValueError` naming `name`, the closest match and everything that is allowed;
    `kind` is the word used for an entry ("format", "engine", ...).
    """
    if isinstance(name, str) and name in catalog:
        return catalog[name]
    close = difflib.get_close_matches(str(name), list(catalog), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown {kind} {name!r}; {hint}allowed: {', '.join(catalog)}")
