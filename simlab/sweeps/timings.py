"""Timings that forecasts learn from: small files next to the compiled functions."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from simlab.core.atomic import write_atomically
from simlab.core.backend import compile_cache_folder

Timing = dict[str, float]


def timing_path(name: str) -> Path:
    """Return the file of the timing `name`."""
    return Path(compile_cache_folder() or "") / "timings" / f"{name}.json"


def write_timing(path: Path, timing: Timing) -> None:
    """Write a timing if there is a cache folder that can be written."""
    if compile_cache_folder() is not None:
        with contextlib.suppress(OSError):
            write_atomically(path, lambda file: file.write(json.dumps(timing).encode()))


def read_timing(path: Path) -> Timing:
    """Return a timing, empty if there is none."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}


def read_timings(pattern: str) -> Iterator[Timing]:
    """Return all timings whose names match, of any version of the code."""
    if compile_cache_folder() is not None:
        yield from map(read_timing, timing_path(pattern).parent.glob(f"{pattern}.json"))
