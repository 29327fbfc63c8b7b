"""Progress on a terminal, quiet lines elsewhere."""

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")

# Progress goes to stderr, so that `--json` on stdout stays clean.
console = Console(stderr=True)


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield `items` with a progress bar on a terminal, and with one line at start and end elsewhere."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    if not console.is_terminal:
        console.print(f"{description}: {'' if total is None else total} steps", highlight=False)
        yield from items
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield from progress.track(items, total=total, description=description)
