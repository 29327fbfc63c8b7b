"""Store the exact checks of claims: the rows of `simlab theory` with a manifest."""

from typing import Any

from experiments.papers import CLAIMS
from simlab.core.json_value import Json
from simlab.core.results import Results
from simlab.studies.exact import compute_row, exact_checks
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.studies.records import ExactCheck, Measured, Trial, trials_of
from simlab.studies.samples import Exact
from simlab.theory.residual import EXACT, SINGLE


def run(run: ExperimentContext) -> None:
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


def collect_evidence(results: Results) -> list[Measured]:
    """Return each claim with the residuals of its checks; the first check is the printed statement."""
    table: Any = results.table("rows")
    rows = {claim: group.to_dict("records") for claim, group in table.groupby("claim", sort=False)}
    return [
        measure_checks(trial, rows[trial.claim])
        for trial in trials_of(list(CLAIMS.values()), "theory")
        if trial.claim in rows
    ]


def measure_checks(trial: Trial, rows: list[dict[str, Json]]) -> Measured:
    """Return the residuals of the checks of a trial, by statement."""
    known = {row["statement"]: row for row in rows}
    samples, notes = [], []
    for criterion in trial.criteria:
        assert isinstance(criterion.estimand, ExactCheck)
        row = known.get(criterion.estimand.text)
        samples.append(None if row is None else Exact(float(row["residual"])))
        if row is not None and criterion.role == "primary":
            notes.append(row["found"])
        elif row is not None and row["verdict"] != "holds":
            notes.append(f"false as printed: {row['equation']}: {row['statement']}")
    return Measured(trial, tuple(samples), "; ".join(notes))


EXPERIMENT = Experiment(
    name="theory",
    question="Which identities and bounds of the papers hold exactly, on policies small enough to enumerate?",
    decision_rule=(
        "the residual of each row is within its tolerance; the first check of a claim states it as printed "
        "and is primary"
    ),
    run=run,
    minutes=1.5,
    claims=tuple(dict.fromkeys(claim for claim, _ in exact_checks(CLAIMS))),
    kind="identity",
    collect_evidence=collect_evidence,
)
