"""Look up names in catalogs; errors name the allowed ones."""

import difflib
import reprlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

Record = TypeVar("Record")
MOST_NAMES = 8
"""Names that an error lists."""
COMMANDS = {
    "engine pair": "simlab list pairs",
    "engine": "simlab list engines",
    "objective": "simlab list objectives",
    "modifier": "simlab list objectives",
    "format": "simlab list formats",
    "task": "simlab list tasks",
    "model": "simlab list models",
    "experiment": "simlab list experiments",
    "figure": "simlab list figures",
    "claim": "simlab claims",
    "diagnostic": "simlab list metrics",
    "field of the run": "help(simlab.training.recipe.Recipe)",
}
"""Where all names of a long catalog are listed, by a word in the kind of its entries."""
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
        ValueError: For an unknown name, with the closest match and the allowed names (of a long list only
            the first ones, and the command that lists all).
    """
    if isinstance(name, str) and name in catalog:
        return catalog[name]
    command = next((command for word, command in COMMANDS.items() if word in kind), "")
    hint, names = suggest(name, list(catalog), command)
    raise ValueError(f"unknown {kind} {shorten(name)}; {hint}allowed: {', '.join(names)}")


def suggest(name: object, names: Sequence[str], place: str = "") -> tuple[str, Sequence[str]]:
    """Return the closest match as a question, and the first names; `place` has all of a long list."""
    text = str(name)[:80]
    # A name that begins with `name` is nearer than one of equal length with other letters.
    longer = [each for each in names if len(text) >= SHORTEST_START and each.startswith(text)]
    close = difflib.get_close_matches(text, longer or names, n=1, cutoff=0.0 if longer else 0.6)
    if len(names) > MOST_NAMES:
        count = f"{len(names)} in all{f': {place}' if place else ''}"
        names = [*names[:MOST_NAMES], f"... ({count})"]
    return (f"did you mean {close[0]!r}? " if close else ""), names
