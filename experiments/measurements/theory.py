"""The claims that can be decided exactly, as a stored result: `simlab theory` with a manifest."""

from typing import Any

from experiments.papers import CLAIMS
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results
from simlab.studies import Evidence
from simlab.studies.exact import compute_row, exact_checks
from simlab.studies.records import ExactCheck
from simlab.studies.statistics import Interval
from simlab.theory.residual import EXACT, SINGLE


def run(run: Run) -> None:
    """Write the table `rows`."""
    chosen = [
        (claim, criterion)
        for claim, criterion in exact_checks(CLAIMS)
        if not (run.smoke and isinstance(criterion.estimand, ExactCheck) and criterion.estimand.slow)
    ]
    run.configure(exact=EXACT, single=SINGLE, rows=len(chosen))
    rows = [compute_row(*check) for check in run.track(chosen, "theory", len(chosen))]
    for row in rows:
        run.timings[f"{row['claim']}, {row['statement']}"] = row.pop("seconds")
    run.table("rows", rows)


def decide(results: Results) -> list[Evidence]:
    """Judge each claim by its first row, which states the claim as printed; the others go to the note."""
    table: Any = results.table("rows")
    return [_judge(claim, rows.to_dict("records")) for claim, rows in table.groupby("claim", sort=False)]


def _judge(claim: str, rows: list[dict]) -> Evidence:
    first, *others = rows
    bounded = first["tightness"] == first["tightness"]  # NaN where there is no bound
    refuted = [f"{row['equation']}: {row['statement']}" for row in others if row["verdict"] != "holds"]
    note = first["found"] + (f". False as printed: {'; '.join(refuted)}" if refuted else "")
    return Evidence.of(
        claim,
        "reproduced" if first["verdict"] == "holds" else "opposite",
        Interval.point(first["tightness"] if bounded else first["residual"]),
        unit="measured over bound" if bounded else "relative residual",
        rule=f"{first['equation']}: {first['rule']}",
        note=note,
    )


EXPERIMENT = Experiment(
    name="theory",
    question="Which identities and bounds of the papers hold exactly, on policies small enough to enumerate?",
    decision_rule=(
        "each row of the table `rows` states its own rule; a claim holds if its first row does, which states "
        "it as printed, and is `opposite` if that row is false as printed"
    ),
    run=run,
    minutes=1.5,
    claims=tuple(dict.fromkeys(claim for claim, _ in exact_checks(CLAIMS))),
    kind="identity",
    figures=("board_exact",),
    collect_evidence=decide,
)
