"""The claims that can be decided exactly, as a stored result: `simlab theory` with a manifest."""

from typing import Any

from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results
from simlab.theory.exact_board import claims
from simlab.theory.exact_claim import EXACT, SINGLE
from simlab.theory.exact_claim import run as compute

# Claims with rows that compile programs or score all pairs of engines; a smoke run leaves these out.
LONG = ("L8", "V4", "C1", "C2", "C3", "C4", "C7", "C8", "C14")
ALL_PAIRS = "for every pair of engines"


def run(run: Run) -> None:
    """Write the table `rows`."""
    chosen = [
        claim
        for claim in claims()
        if not (run.smoke and (claim.id in LONG or claim.statement.endswith(ALL_PAIRS)))
    ]
    run.configure(exact=EXACT, single=SINGLE, rows=len(chosen))
    rows = [compute(claim) for claim in run.track(chosen, "theory", len(chosen))]
    for row in rows:
        run.timings[f"{row['claim']}, {row['statement']}"] = row.pop("seconds")
    run.table("rows", rows)


def decide(results: Results) -> list[Finding]:
    """Judge each claim by its first row, which states it as printed; the others are beside it."""
    table: Any = results.table("rows")
    return [_finding(claim, rows.to_dict("records")) for claim, rows in table.groupby("claim", sort=False)]


def _finding(claim: str, rows: list[dict]) -> Finding:
    first, *others = rows
    bounded = first["tightness"] == first["tightness"]  # NaN where there is no bound
    refuted = [f"{row['equation']}: {row['statement']}" for row in others if row["verdict"] != "holds"]
    note = first["found"] + (f". False beside it: {'; '.join(refuted)}" if refuted else "")
    return Finding.exact(
        claim,
        "reproduced" if first["verdict"] == "holds" else "opposite",
        first["tightness"] if bounded else first["residual"],
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
    claims=(
        *("H1", "H3", "H4", "H5", "H6", "H19", "L8", "L9", "L10", "V4", "A11", "A15"),
        *("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C14", "C15"),
    ),
    figures=("board_exact",),
    decide=decide,
)
