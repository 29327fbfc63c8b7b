"""`simlab watch`: show a sweep while it runs."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import one_clear_error
from simlab.core.ranges import Range

EPILOG = "Example: `simlab watch runs/first_sweep`, while `simlab sweep` runs elsewhere."
EVERY = Range(0.1, 86_400.0)
"""Allowed seconds between redraws: up to one day."""


def watch(
    folder: Annotated[Path, typer.Argument(help="Result directory of a sweep.")],
    every: Annotated[float, typer.Option(help="Seconds between redraws, 0.1 to 86400.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One table, then exit.")] = False,
    file: Annotated[Path | None, typer.Option(help="PNG file to redraw with the curves.")] = None,
) -> None:
    """Show reward and mismatch of every arm until the sweep ends; show a finished sweep once."""
    from simlab.sweeps.watch import watch as follow

    with one_clear_error():
        EVERY.check(every, "--every")
        if folder.exists() and not folder.is_dir():
            raise ValueError(
                f"FOLDER must be a directory, got the file {folder}. Pass the result directory of a sweep."
            )
        follow(folder, every, once, file)
