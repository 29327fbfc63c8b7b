"""Identities and bounds of the claims, computed: what `simlab theory` prints."""

import time
from collections.abc import Mapping

from simlab.core.json_value import Json
from simlab.studies.records import Claim, Criterion, ExactCheck

Checks = list[tuple[str, Criterion]]
"""Ids of claims with one exact criterion each."""


def exact_checks(claims: Mapping[str, Claim]) -> Checks:
    """Return the exact criteria of `claims`, in their order."""
    return [
        (claim.id, criterion)
        for claim in claims.values()
        for trial in claim.trials
        for criterion in trial.criteria
        if isinstance(criterion.estimand, ExactCheck)
    ]


def compute_row(claim: str, criterion: Criterion) -> dict[str, Json]:
    """Return claim, equation, residual, tightness, verdict, seconds, note, statement, rule of one check."""
    assert isinstance(criterion.estimand, ExactCheck)
    start = time.perf_counter()
    computed = criterion.estimand.compute()
    return {
        "claim": claim,
        "equation": criterion.estimand.reference,
        "residual": float(computed.residual),
        "tightness": None if computed.tightness is None else float(computed.tightness),
        "verdict": "holds" if computed.holds else "false as printed",
        "seconds": round(time.perf_counter() - start, 3),
        "found": computed.note,
        "statement": criterion.estimand.text,
        "rule": criterion.because,
    }
