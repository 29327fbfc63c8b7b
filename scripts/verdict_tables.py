"""The tables of docs/results.md: claims, replication on fresh initial policies, the decision rule itself."""

from collections.abc import Mapping
from functools import cache
from statistics import median
from typing import Any, NamedTuple

from scipy.optimize import brentq

from experiments.papers import cancel
from scripts.tables import load_stored, table
from simlab.studies.board import Row, board, estimate_text, power_text
from simlab.studies.contrasts import Compares, minus
from simlab.studies.loading import load_claims, load_papers
from simlab.studies.power import ENOUGH_POWER, power_of_mean, primary_family
from simlab.studies.registration import LOOKS
from simlab.studies.replication import replications as measure_replications
from simlab.studies.samples import Sample
from simlab.studies.sequential import Looks
from simlab.studies.verdicts import ALPHA, CriterionEvidence


@cache
def stored_rows() -> list[Row]:
    """Return the rows of the board of the stored results, computed once."""
    return board().rows


def find_row(claim: str, experiment: str) -> Row:
    """Return the row of the board of a claim that an experiment decides."""
    return next(row for row in stored_rows() if (row.id, row.experiment) == (claim, experiment))


def find_criterion(row: Row, contrast: Compares | None = None) -> CriterionEvidence:
    """Return the evidence of a row on the first criterion with a contrast; by default on the primary one."""
    if contrast is None:
        assert row.primary is not None
        return row.primary
    return next(each for each in row.criteria if each.criterion.contrast == contrast)


def claims() -> str:
    """Return every claim as a row of a table, one per regime."""
    rows = []
    for row in stored_rows():
        primary = row.primary
        statement = f"{row.claim.statement} ({row.claim.paper} {row.claim.reference})"
        adjusted = "" if primary is None or primary.adjusted_p is None else f"{primary.adjusted_p:.2g}"
        cells = (row.id, row.verdict, statement, row.regime_name, estimate_text(primary), adjusted)
        rows.append(f"{' | '.join(cells)} | {power_text(row)} | {row.verdicts} | {row.registration}")
    return table(
        "id | verdict | statement | regime | estimate (primary criterion) | adjusted p: | power | criteria "
        "| rule set",
        rows,
    )


def regimes() -> str:
    """Return the regimes of the claims, a row each; a row of the board adds its initial mismatch."""
    described = {
        row.regime_name: row.trial.regime.list_conditions() for row in stored_rows() if row.trial is not None
    }
    mismatch: dict[str, list[str]] = {}
    for row in stored_rows():
        if row.mismatch and row.mismatch not in mismatch.setdefault(row.regime_name, []):
            mismatch[row.regime_name].append(row.mismatch)
    rows = (
        f"{name} | {' or '.join(mismatch.get(name, []))} | {text or 'no training runs'}"
        for name, text in described.items()
    )
    head = (
        "regime | RMS log rho at the start, nats "
        "| formats (training / inference); model; task; learning rate; steps"
    )
    return table(head, rows)


def decision_rule() -> str:
    """Return how often families of criteria have a false support, and their power, from `decision_rule`."""
    rates: Any = load_stored("decision_rule").table("rates").to_dict("records")
    rows = []
    for row in rates:
        power, claimed = (
            "" if row[name] != row[name] else f"{row[name]:.0%}" for name in ("power", "claimed_power")
        )
        design = row["design"].replace("one look", "one analysis")
        rows.append(
            f"{row['paper']} | {row['criteria']} | {row['distribution']} | {design} | {row['truth']} "
            f"| {row['false_support']:.1%} ({row['false_support_high']:.1%}) | {power} | {claimed}"
        )
    return table(
        "paper | criteria: | distribution | design | true effect | false support (limit): | power: "
        "| claimed power:",
        rows,
    )


def largest_error() -> str:
    """Return the largest rate of false support of a family with 16 and 24 initial policies."""
    rates: Any = load_stored("decision_rule").table("rates")
    return f"{rates['false_support'][rates['design'] == '16 and 24 policies'].max():.1%}"


def detectable() -> str:
    """Return the effects beyond the margin that the looks that decide find with a power of 80%."""
    sizes = [primary_family(list(load_claims().values()), paper) for paper in load_papers()]
    largest = max(sizes)
    effects = [f"{_detectable_effect(policies, largest):.1f} (n = {policies})" for policies in LOOKS[1:]]
    return (
        f"{' or '.join(effects)} standard deviations of the contrast, in the largest family "
        f"({largest} primary criteria)"
    )


def powers() -> str:
    """Return how much power the primary criteria about training have."""
    found = [row.power for row in stored_rows() if row.claim.kind == "dynamics" and row.power is not None]
    enough = sum(power >= ENOUGH_POWER for power in found)
    half = f"half have less than {median(found):.0%}"
    return f"{enough} of {len(found)} rows about training have this power, {half}"


def _detectable_effect(policies: int, family: int) -> float:
    alpha = Looks(LOOKS).nominal(ALPHA / family, policies)

    def missing_power(effect: float) -> float:
        return power_of_mean(effect, 1.0, policies, alpha, absent=False) - ENOUGH_POWER

    found: Any = brentq(missing_power, 0.01, 10.0)
    return float(found)


def replications() -> str:
    """Return the verdicts of the first 8 policies of a study and of the later ones, side by side."""
    found = measure_replications(stored_rows())
    same = sum(each.first_verdict == each.fresh_verdict for each in found)
    opposite = sum(
        {each.first_verdict, each.fresh_verdict} == {"supported", "contradicted"} for each in found
    )
    rows = []
    for each in found:
        row = each.row
        first, fresh = (_interval(sample) for sample in (each.first, each.fresh))
        cells = (row.id, row.regime_name, f"`{row.experiment}`", first, each.first_verdict, fresh)
        rows.append(f"{' | '.join(cells)} | {each.fresh_verdict} | {row.verdict}")
    return f"\n{same} of {len(found)} verdicts are the same, {opposite} opposite.\n" + table(
        "id | regime | experiment | first 8 policies | verdict | later policies | verdict | board", rows
    )


class Surprise(NamedTuple):
    """A result and the experiments that measured it from different initial policies or in other formats."""

    claim: str
    result: str
    experiments: tuple[str, ...]
    contrasts: Mapping[str, Compares] = {}
    """By experiment, the contrast of the criterion that shows the result; by default the primary one."""


SURPRISES = (
    Surprise(
        "V7", "Bypass mode ends far below bitwise identical engines", ("vexact_dynamics", "identical_engines")
    ),
    Surprise("V3", "Logit noise larger than truncation costs less reward", ("matched_noise", "larger_noise")),
    Surprise(
        "H8",
        "The probabilities of the engines decorrelate during training",
        ("hacking_dynamics", "identical_engines", "e4m3_dynamics", "e4m3_moe_dynamics"),
    ),
    Surprise(
        "H4",
        "Mean rho of rare tokens falls during training",
        ("hacking_dynamics", "identical_engines", "e4m3_dynamics", "e4m3_moe_dynamics"),
    ),
    Surprise(
        "C11",
        "DFPO ends with the same reward without its group transform",
        ("cancel_dynamics", "spelling_dynamics"),
        {
            "cancel_dynamics": minus(cancel.MIN, cancel.UNCHANGED),
            "spelling_dynamics": minus(cancel.SPELLED_MIN, cancel.SPELLED_UNCHANGED),
        },
    ),
)


def surprises() -> str:
    """Return the most surprising results, a row for each experiment that tested them."""
    rows = []
    for surprise in SURPRISES:
        for experiment in surprise.experiments:
            row = find_row(surprise.claim, experiment)
            tested = find_criterion(row, surprise.contrasts.get(experiment))
            result = f"{surprise.result} ({surprise.claim}) | `{experiment}` | {row.regime_name}"
            verdicts = f"{tested.criterion.role}: {tested.verdict} | {row.verdict}"
            rows.append(f"{result} | {estimate_text(tested)} | {verdicts} | {row.registration}")
    return table("result | experiment | regime | estimate | criterion | claim | rule set", rows)


def _interval(sample: Sample) -> str:
    low, high = sample.interval(ALPHA)
    estimate, low, high = (f"{round(number, 3):g}" for number in (sample.estimate, low, high))
    return f"{estimate} [{low}, {high}], n = {sample.num_policies}"
