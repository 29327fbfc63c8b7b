"""Print tables, JSON and errors."""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="No confirmation of long runs.")]

WIDE = 160


def show(rows: Sequence[Mapping[str, object]], as_json: bool, title: str | None = None) -> None:
    """Print `rows` (equal keys) as a table, or as a JSON list with full precision."""
    if as_json:
        print_json([dict(row) for row in rows])
        return
    table = Table(title=title, title_justify="left", header_style="bold")
    for key in rows[0] if rows else ():
        table.add_column(key.replace("_", " "), overflow="fold")
    for row in rows:
        # Square brackets in a value are text, not rich's markup.
        table.add_row(*(escape(_cell(value)) for value in row.values()))
    console = Console()
    # A pipe has no width; 80 columns would fold every cell.
    (console if console.is_terminal else Console(width=WIDE)).print(table)


def print_json(value: object) -> None:
    """Print a value as JSON with full precision; NaN and infinity, which JSON lacks, as null."""
    typer.echo(json.dumps(_without_nonfinite(value), indent=2, allow_nan=False))


def print_problem(problem: object) -> None:
    """Print a problem in red on stderr."""
    typer.secho(f"simlab: {problem}", err=True, fg=typer.colors.RED)


def print_lines(title: str, lines: Iterable[str]) -> None:
    """Print a blank line, a title and indented lines."""
    typer.echo("\n".join((f"\n{title}", *(f"  {line}" for line in lines))))


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_cell(part) or 'none'}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _without_nonfinite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def one_clear_error() -> Iterator[None]:
    """Turn bad input into one line on stderr and exit status 2; bugs keep their traceback."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader, such as `head`, has ended: Typer exits without a message
    except (ValueError, OSError) as error:
        print_problem(error)
        raise typer.Exit(2) from error


def check_out_folder(folder: Path) -> Path:
    """Return `folder`; raise `ValueError` for a file, before the work whose results go there."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out must be a directory, got the file {folder}.")
    return folder


def check_writable(folder: Path) -> Path:
    """Create `folder` and write a file into it: so a full disk fails before the runs."""
    from simlab.core.atomic import write_atomically

    probe = check_out_folder(folder) / ".probe"
    write_atomically(probe, lambda file: file.write(b"simlab"))
    probe.unlink()
    return folder


def check_out_file(path: Path) -> Path:
    """Return `path`; raise an error for a folder, or where no file can be written, before the work."""
    if path.is_dir():
        raise ValueError(f"--out must be a file, got the directory {path}.")
    check_writable(path.parent)
    return path


def count(number: int, word: str) -> str:
    """Return `1 token`, `2,000 tokens`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
