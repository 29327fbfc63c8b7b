"""`simlab claims`: the board."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import Json, one_clear_error, show

EPILOG = (
    "Example: `simlab claims --paper hacking`, or `simlab claims --json > claims.json`, or "
    "`simlab claims --recompute H3`."
)
Folder = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Folder of results, one per experiment; default those with the code.",
    ),
]


def claims(
    paper: Annotated[str | None, typer.Option(help="Only the claims of this paper.")] = None,
    verdict: Annotated[str | None, typer.Option(help="Only the claims of this verdict.")] = None,
    recompute: Annotated[
        str | None, typer.Option(metavar="ID", help="Run the experiment behind a claim again and compare.")
    ] = None,
    results: Folder = None,
    out: Annotated[
        Path | None, typer.Option(help="Where --recompute writes; default runs/EXPERIMENT.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a long run.")] = False,
    json: Json = False,
) -> None:
    """Print every claim of the papers with the verdict that the stored results give.

    Verdicts are computed anew from the tables at each call. JSON adds statement, rule, unit and notes.
    """
    from simlab.core.catalog import lookup
    from simlab.studies.board import WORDS, board, counts
    from simlab.studies.loading import load_claims, load_papers

    with one_clear_error():
        if paper is not None:
            lookup(dict.fromkeys(load_papers()), paper, "paper")
        if verdict is not None:
            lookup(dict.fromkeys(WORDS), verdict, "verdict")
        if recompute is not None:
            lookup(load_claims(), recompute, "claim")
            _recompute(recompute, results, out, yes)
            return
        found = board(results)
    rows = [row for row in found.rows if paper in (None, row.paper) and verdict in (None, row.verdict)]
    for problem in found.problems:
        typer.secho(f"simlab: {problem}", err=True, fg=typer.colors.RED)
    if json:
        show([row.as_dict() for row in rows], True)
        return
    show([_short(row) for row in rows], False, "Claims")
    typer.echo(f"{len(rows)} claims: " + ", ".join(f"{n} {word}" for word, n in counts(rows).items() if n))


def _short(row) -> dict[str, str]:
    return {
        "id": row.id,
        "verdict": row.verdict,
        "claim": row.statement,
        "effect": "" if row.effect is None else f"{row.effect:.4g}",
        "interval": "" if row.low == row.high else f"{row.low:.3g} to {row.high:.3g}",
        "unit": row.unit,
        "experiment": row.experiment,
    }


def _recompute(claim: str, results: Path | None, out: Path | None, yes: bool) -> None:
    """Run the experiment behind `claim`, and print its verdict before and now."""
    from simlab.core.experiment import execute
    from simlab.core.paths import default_out
    from simlab.studies.board import board, decide_claims, deciding

    experiment = deciding(claim, results)
    folder = out or default_out(experiment.name, smoke=False)
    typer.echo(f"{claim}: {experiment.name}, about {experiment.minutes:g} min on two cores, into {folder}")
    if experiment.minutes > 5 and not yes:
        typer.confirm("Run it?", abort=True)
    before = next(row for row in board(results).rows if row.id == claim)
    shown = ("verdict", "effect", "low", "high")
    rows = [{"when": "stored"} | {name: getattr(before, name) for name in shown}]
    for each in decide_claims(experiment, execute(experiment, folder)):
        if each.claim == claim:
            rows.append({"when": "now"} | {name: getattr(each, name) for name in shown})
    show(rows, False, claim)
