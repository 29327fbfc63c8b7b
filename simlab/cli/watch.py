"""`simlab watch`: show a sweep while it runs."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import one_clear_error

EPILOG = "Example: `simlab watch runs/first_sweep`, while `simlab sweep` runs elsewhere."


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    every: Annotated[float, typer.Option(help="Seconds between redraws.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Draw once and end.")] = False,
    file: Annotated[Path | None, typer.Option(help="Also redraw this PNG.")] = None,
) -> None:
    """Show reward and mismatch of every arm until the sweep ends; a finished one is shown once."""
    from simlab.sweeps.watch import watch as follow

    with one_clear_error():
        follow(folder, every, once, file)
