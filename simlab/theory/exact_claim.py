"""Claims that can be decided exactly, and how one is computed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

EXACT = 1e-12
"""Largest relative residual of an identity in float64."""
SINGLE = 2e-6
"""The same for what runs through the objectives, which are float32."""


@dataclass(frozen=True)
class Finding:
    """What a check found.

    residual: what must vanish, relative to the size of its terms (0 for a bound that is kept, else the
    excess). tightness: measured over bound, or None. holds: as printed. note: the numbers.
    """

    residual: float
    holds: bool
    note: str
    tightness: float | None = None


@dataclass(frozen=True)
class Claim:
    """One row: which claim, where it is printed, what is computed, and the rule of the verdict."""

    id: str
    equation: str
    statement: str
    rule: str
    check: Callable[[], Finding]


def run(claim: Claim) -> dict:
    """Compute one row: claim, equation, residual, tightness, verdict, seconds, note, statement, rule."""
    start = time.perf_counter()
    found = claim.check()
    return {
        "claim": claim.id,
        "equation": claim.equation,
        "residual": float(found.residual),
        "tightness": None if found.tightness is None else float(found.tightness),
        "verdict": "holds" if found.holds else "false as printed",
        "seconds": round(time.perf_counter() - start, 3),
        "found": found.note,
        "statement": claim.statement,
        "rule": claim.rule,
    }
