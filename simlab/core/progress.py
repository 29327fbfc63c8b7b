"""Progress on a terminal, quiet lines elsewhere."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized
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


@contextlib.contextmanager
def show_progress(description: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yield a function to call after each of `total` steps; whatever it is given, it returns None.

    It advances a progress bar on a terminal. Elsewhere one line is printed at the start.
    """
    if not console.is_terminal:
        console.print(f"{description}: {'' if total is None else total} steps", highlight=False)
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(description, total=total)
        yield lambda *_: progress.advance(task)


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield `items` and show progress."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with show_progress(description, total) as advance:
        for item in items:
            yield item
            advance()
