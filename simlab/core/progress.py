"""Progress on a terminal, quiet lines elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
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
LINE_SECONDS = 20.0

# Progress goes to stderr, so that `--json` on stdout stays clean.
console = Console(stderr=True)


@contextlib.contextmanager
def show_progress(description: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yield a function to call after each of `total` steps; whatever it is given, it returns None.

    It advances a progress bar on a terminal. Elsewhere a line is printed at the start, and at most one every
    `LINE_SECONDS` after that.
    """
    if not console.is_terminal:
        console.print(f"{description}: {'' if total is None else total} steps", highlight=False)
        yield _Lines(description, total)
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


@dataclass
class _Lines:
    """Count calls and print the count at most every `LINE_SECONDS`."""

    description: str
    total: int | None
    done: int = 0
    printed: float = field(default_factory=time.monotonic)

    def __call__(self, *_: object) -> None:
        self.done += 1
        if time.monotonic() - self.printed >= LINE_SECONDS:
            self.printed = time.monotonic()
            of = "" if self.total is None else f" of {self.total}"
            console.print(f"{self.description}: {self.done}{of} steps", highlight=False)


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield `items` and show progress."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with show_progress(description, total) as advance:
        for item in items:
            yield item
            advance()
