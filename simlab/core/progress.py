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


def describe_minutes(minutes: float) -> str:
    """Return a time in seconds, minutes or hours, whichever a reader grasps."""
    if minutes < 2:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


@contextlib.contextmanager
def show_progress(description: str, total: int | None = None, each: int = 1) -> Iterator[Callable[..., None]]:
    """Yield a function to call after every `each` of `total` steps; whatever it is given, it returns None.

    It advances a progress bar on a terminal. Elsewhere a line is printed at the start, and at most one every
    `LINE_SECONDS` after that, with the expected time left.
    """
    if not console.is_terminal:
        console.print(f"{description}: {'' if total is None else total} steps", highlight=False)
        yield _Lines(description, total, each)
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
        yield lambda *_: progress.advance(task, each)


@dataclass
class _Lines:
    """Count steps and print the count at most every `LINE_SECONDS`."""

    description: str
    total: int | None
    each: int
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    printed: float = field(default_factory=time.monotonic)

    def __call__(self, *_: object) -> None:
        self.done += self.each
        now = time.monotonic()
        if now - self.printed < LINE_SECONDS:
            return
        self.printed = now
        line = f"{self.description}: {self.done} steps"
        if self.total is not None:
            left = describe_minutes((now - self.began) / 60 * (self.total / self.done - 1))
            line = f"{self.description}: {self.done} of {self.total} steps, {left} left"
        console.print(line, highlight=False)


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield `items` and show progress."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with show_progress(description, total) as advance:
        for item in items:
            yield item
            advance()
