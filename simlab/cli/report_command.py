"""`simlab report`: write the claims board as a web page."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.claims import Folder
from simlab.cli.output import check_out_file, one_clear_error, print_problem

EPILOG = "Example: `simlab report --out report.html`, then open it in a browser. The page needs no network."


def report(
    out: Annotated[Path, typer.Option(help="HTML file.")] = Path("report.html"),
    results: Folder = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Directory of drawn figures (default: the figures shipped with simlab).",
        ),
    ] = None,
) -> None:
    """Write the claims board as an HTML page, and its pictures to the directory NAME_files next to it."""
    from simlab.studies.board import counts
    from simlab.studies.report import write_report

    with one_clear_error():
        try:
            check_out_file(out)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(
                f"--out must be a file in a writable directory, got {out} ({reason})."
            ) from error
        board = write_report(out, results, figures)
    for problem in board.problems:
        print_problem(problem)
    listed = ", ".join(f"{number} {word}" for word, number in counts(board.rows).items() if number)
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB; {listed}")
