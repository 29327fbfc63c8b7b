"""`simlab claims`: print the claims board."""

from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import Json, Yes, one_clear_error, print_problem, show

EPILOG = (
    "Example: `simlab claims --paper hacking`, or `simlab claims V3 L2`, or "
    "`simlab claims --json > claims.json`, or `simlab claims --recompute H3`."
)
Folder = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Directory of results, one per experiment (default: the results shipped with simlab).",
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Ids of the claims to print with all their criteria."),
]
Paper = Annotated[str | None, typer.Option(help="Paper whose claims to print.")]
Verdict = Annotated[str | None, typer.Option(help="Verdict whose claims to print.")]
Recompute = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Claim whose experiment to run again, to compare the verdicts."),
]
Out = Annotated[Path | None, typer.Option(help="Result directory of --recompute (default runs/EXPERIMENT).")]
Check = Annotated[
    bool,
    typer.Option("--check", help="Check of commits and processors of stored results, instead of the board."),
]


def claims(
    ids: Ids = None,
    paper: Paper = None,
    verdict: Verdict = None,
    recompute: Recompute = None,
    results: Folder = None,
    out: Out = None,
    check: Check = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Print every claim of the papers with the verdict that the stored results give in each regime.

    Each call computes the verdicts from the stored tables. The power is that of the primary criterion, for
    an effect of twice its margin. With ids or --json, the command also prints all criteria with
    margin, interval, p-value and verdict.
    """
    from simlab.studies.board import board

    with one_clear_error():
        if check and (ids or paper or verdict or recompute):
            raise ValueError("--check must be given without ids, --paper, --verdict and --recompute.")
        _check_names(ids or [], paper, verdict, recompute)
        if recompute is not None:
            _recompute(recompute, results, out, yes)
            return
        if check:
            _check(results, json)
            return
        claims_board = board(results)
    rows = [
        row
        for row in claims_board.rows
        if paper in (None, row.claim.paper) and verdict in (None, row.verdict) and row.id in (ids or [row.id])
    ]
    for problem in claims_board.problems:
        print_problem(problem)
    if json:
        show([row.as_dict() for row in rows], True)
    elif rows:
        _show_rows(rows, has_criteria=bool(ids))
    else:
        _report_no_claim({"ids": " ".join(ids or ()), "--paper": paper, "--verdict": verdict})


def _check_names(ids: list[str], paper: str | None, verdict: str | None, recompute: str | None) -> None:
    from simlab.core.catalog import lookup
    from simlab.studies.loading import load_claims, load_papers
    from simlab.studies.verdicts import VERDICTS

    for each in ids:
        lookup(load_claims(), each, "claim")
    if paper is not None:
        lookup(dict.fromkeys(load_papers()), paper, "paper")
    if verdict is not None:
        lookup(dict.fromkeys(VERDICTS), verdict, "verdict")
    if recompute is not None:
        lookup(load_claims(), recompute, "claim")


def _report_no_claim(filters: dict[str, str | None]) -> None:
    listed = ", ".join(f"{name} {value}" for name, value in filters.items() if value)
    print_problem(f"no claim matches all filters: {listed}. Remove one of them.")
    raise typer.Exit(1)


def _show_rows(rows: list, has_criteria: bool) -> None:
    from simlab.studies.board import counts

    if has_criteria:
        for row in rows:
            _show_criteria(row)
        return
    for claim, regimes in groupby(rows, attrgetter("claim")):
        typer.secho(f"{claim.id} {claim.statement} ({claim.paper} {claim.reference})", bold=True)
        for row in regimes:
            typer.echo("\n".join(_lines(row)))
    listed = ", ".join(f"{n} {word}" for word, n in counts(rows).items() if n)
    typer.echo(f"{len({row.id for row in rows})} claims in {len(rows)} regimes: {listed}")


def _lines(row) -> list[str]:
    """Return the lines on a claim in one regime: verdict, experiment, estimate and power."""
    from simlab.studies.board import estimate_text, power_text

    p = _p_text(row.primary.adjusted_p) if row.primary else ""
    numbers = {"": estimate_text(row.primary), "adjusted p ": p, "power ": power_text(row)}
    below = [
        f"{row.experiment}; rule set: {row.registration}" if row.evidence else row.note,
        row.primary.criterion.text if row.primary else "",
        ", ".join(f"{name}{number}" for name, number in numbers.items() if number),
        row.verdicts,
    ]
    mismatch = f"; RMS log rho {row.mismatch}" if row.mismatch else ""
    regime = f": {row.regime_name}{mismatch}" if row.regime_name else ""
    return [f"  {row.verdict}{regime}", *(f"    {line}" for line in below if line)]


def _p_text(p: float | None) -> str:
    return "" if p is None else f"{p:.2g}"


def _show_criteria(row) -> None:
    """Print a claim in one regime with a row per criterion."""
    from simlab.studies.board import estimate_text, margin_text, power_text

    facts = {
        "regime": row.regime,
        "experiment": f"{row.experiment}, commit {row.commit}" if row.commit else row.experiment,
        "rule set": row.registration,
        "power": power_text(row),
        "note": row.note,
    }
    typer.secho(f"{row.id} {row.verdict}: {row.claim.statement}", bold=True)
    for name, text in facts.items():
        if text:
            typer.echo(f"  {name}: {text}")
    criteria = [
        {
            "criterion": each.criterion.role,
            "quantity": each.criterion.text,
            "expected": each.criterion.direction,
            "margin": margin_text(each.criterion),
            "estimate": estimate_text(each),
            "p": _p_text(each.p),
            "adjusted p": _p_text(each.adjusted_p),
            "verdict": each.verdict if each.estimate is not None else "",
        }
        for each in row.criteria
    ]
    show(criteria, False)
    typer.echo()


def _check(results: Path | None, json: bool) -> None:
    """Print the problems in the provenance of stored results; exit with 1 if there is one."""
    from simlab.studies.provenance import check_results, list_migrations

    problems = check_results(results)
    if json:
        show([{"problem": problem} for problem in problems], True)
    for problem in problems:
        print_problem(problem)
    if problems:
        raise typer.Exit(1)
    if not json:
        typer.echo(
            "Every stored result names a clean commit of this history and one processor family per policy."
        )
        for experiment, change in list_migrations(results).items():
            typer.echo(f"changed after the run: {experiment}: {change}")


def _recompute(claim: str, results: Path | None, out: Path | None, yes: bool) -> None:
    """Run the experiment behind `claim`, and print its verdicts before and now."""
    from simlab.core.paths import default_out
    from simlab.studies.board import (
        decide_board,
        estimate_text,
        find_deciding_experiment,
        list_results,
        measure_result,
        measurements,
    )
    from simlab.studies.experiment import execute

    measured, _ = measurements(results)
    before = decide_board(measured)
    experiment = find_deciding_experiment(claim, before)
    folder = out or default_out(experiment.name, smoke=False)
    typer.echo(f"{claim}: {experiment.name}, about {experiment.minutes:g} min on two cores, into {folder}")
    if experiment.minutes > 5 and not yes:
        typer.confirm("Run it?", abort=True)
    others = [each for each in measured if each.trial.experiment != experiment.name]
    stored = {each.name: result.manifest["config"] for each, result in list_results(results)}
    stops = stored.get(experiment.name, {}).get("stops_for_futility", True)
    rerun = execute(experiment, folder, stops_for_futility=stops)
    now = decide_board([*others, *measure_result(experiment, rerun)])
    shown = [
        {
            "when": when,
            "regime": row.regime_name,
            "verdict": row.verdict,
            "estimate": estimate_text(row.primary),
        }
        for when, rows in (("stored", before), ("now", now))
        for row in rows
        if row.id == claim and row.experiment == experiment.name
    ]
    show(shown, False, claim)
