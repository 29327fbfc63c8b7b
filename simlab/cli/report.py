"""`simlab report`: the board as a web page."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.claims import Folder
from simlab.cli.output import check_out_file, one_clear_error, print_problem

EPILOG = "Example: `simlab report --out report.html`, then open it in a browser. The page needs no network."


def report(
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
    results: Folder = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Folder of drawn figures; default those with the code."
        ),
    ] = None,
) -> None:
    """Write the claims board as an HTML page, and its pictures into the folder NAME_files next to it."""
    from simlab.studies.board import counts
    from simlab.studies.report import write_report

    with one_clear_error():
        try:
            check_out_file(out)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"--out must be a file in a writable folder, got {out} ({reason}).") from error
        board = write_report(out, results, figures)
    for problem in board.problems:
        print_problem(problem)
    listed = ", ".join(f"{number} {word}" for word, number in counts(board.rows).items() if number)
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB; {listed}")
