"""Stored results, and tables of them in Markdown."""

from collections.abc import Iterable

from simlab.core.paths import committed_results
from simlab.core.results import Results


def load_stored(experiment: str) -> Results:
    """Return the stored results of `experiment`."""
    return Results(committed_results(experiment))


def table(head: str, rows: Iterable[str]) -> str:
    """Return a table between line breaks; `head` and each row have " | " between their cells.

    A column whose name ends in ":" is aligned right.
    """
    names = head.split(" | ")
    aligned = "|".join("---:" if name.endswith(":") else "---" for name in names)
    lines = [f"| {' | '.join(name.removesuffix(':') for name in names)} |", f"|{aligned}|"]
    return "\n" + "\n".join([*lines, *(f"| {row} |" for row in rows)]) + "\n"
