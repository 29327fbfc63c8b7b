"""Look up names in catalogs; errors name the allowed ones."""

import difflib
import reprlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

Record = TypeVar("Record")
MOST_NAMES = 8
"""Names that an error lists after a suggestion."""
SHORTEST_START = 4
"""Letters from which on the start of a name suggests the name."""
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxlong = _SHOWN.maxother = 80


def shorten(value: object) -> str:
    """Return `repr(value)` for a message, shortened in the middle."""
    return _SHOWN.repr(value)


def lookup(catalog: Mapping[str, Record], name: str, kind: str) -> Record:
    """Return `catalog[name]`.

    Args:
        catalog: entries by name.
        name: name of the entry.
        kind: word for an entry in errors ("format", "engine", ...).

    Raises:
        ValueError: For an unknown name, with the closest match and the allowed names (after a match, only the
            first ones of a long list).
    """
    if isinstance(name, str) and name in catalog:
        return catalog[name]
    hint, names = suggest(name, list(catalog))
    raise ValueError(f"unknown {kind} {shorten(name)}; {hint}allowed: {', '.join(names)}")


def suggest(name: object, names: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the closest match as a question, and the names to list: after a match only the first ones."""
    text = str(name)[:80]
    # A name that begins with `name` is nearer than one of equal length with other letters.
    longer = [each for each in names if len(text) >= SHORTEST_START and each.startswith(text)]
    close = difflib.get_close_matches(text, longer or names, n=1, cutoff=0.0 if longer else 0.6)
    if not close:
        return "", names
    few = [*names[:MOST_NAMES], f"... ({len(names)} in all)"] if len(names) > MOST_NAMES else names
    return f"did you mean {close[0]!r}? ", few
