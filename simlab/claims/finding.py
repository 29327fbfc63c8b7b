"""What one experiment says about one claim."""

import math
from dataclasses import dataclass

from simlab.claims.statistics import Interval

VERDICTS = ("reproduced", "opposite", "no effect", "inconclusive")
"""What a finding may say; a claim without one is `not yet tested`."""


@dataclass(frozen=True)
class Finding:
    """A measured number, its interval, and the verdict that a rule written before the run gives.

    claim: an id of the board ("H7"). effect: the number. low, high: its interval of confidence `level`; equal
    to the effect for exact residuals. unit: what the number is, in words ("reward, TIS minus none, last 100
    steps"). rule: fixed in the file of the experiment. note: what is left out, what was tried.
    Raises `ValueError` for an unknown verdict, an infinite number, or an interval without its effect.
    """

    claim: str
    verdict: str
    effect: float
    low: float
    high: float
    unit: str
    rule: str
    note: str = ""
    level: float = 0.95

    def __post_init__(self) -> None:
        """Refuse what no board could show."""
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.claim}: verdict {self.verdict!r}; allowed: {', '.join(VERDICTS)}")
        numbers = (self.low, self.effect, self.high)
        if not all(map(math.isfinite, numbers)) or sorted(numbers) != list(numbers):
            raise ValueError(f"{self.claim}: low, effect, high must be finite and in order, got {numbers}")

    @classmethod
    def of(
        cls,
        claim: str,
        verdict: str,
        interval: Interval,
        *,
        unit: str,
        rule: str,
        note: str = "",
        level: float = 0.95,
    ) -> "Finding":
        """The finding of a measured interval."""
        return cls(claim, verdict, interval.effect, interval.low, interval.high, unit, rule, note, level)

    @classmethod
    def exact(
        cls, claim: str, verdict: str, number: float, *, unit: str, rule: str, note: str = ""
    ) -> "Finding":
        """The finding of a number without sampling error."""
        return cls(claim, verdict, float(number), float(number), float(number), unit, rule, note)
