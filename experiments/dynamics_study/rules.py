"""Rules: a claim is parts, a part is a contrast between arms of one measure, with a sign and a margin.

Written before the runs; the verdict of a claim follows from those of its parts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from experiments.dynamics_study.measures import Measure, Views
from simlab.claims import Finding, Interval, decide, paired_effect
from simlab.core.results import Results

Sign = Literal["positive", "negative", "zero"]


@dataclass(frozen=True)
class Contrast:
    """Weights of arms, by name, and how to say it."""

    weights: Mapping[str, float]
    says: str


def alone(arm: str) -> Contrast:
    """The arm itself."""
    return Contrast({arm: 1.0}, arm)


def minus(one: str, other: str) -> Contrast:
    """One arm less another."""
    return Contrast({one: 1.0, other: -1.0}, f"{one} minus {other}")


def slope(arms: Mapping[float, str], over: str) -> Contrast:
    """Least-squares slope over the number of each arm."""
    x = np.array(list(arms)) - np.mean(list(arms))
    weights = dict(zip(arms.values(), (x / (x @ x)).tolist(), strict=True))
    return Contrast(weights, f"slope over {over}: {', '.join(arms.values())}")


@dataclass(frozen=True)
class Part:
    """A measure, a contrast, the claimed sign, and the largest effect that does not matter."""

    measure: Measure
    contrast: Contrast
    expected: Sign
    margin: float

    @property
    def unit(self) -> str:
        """What the number is."""
        return f"{self.measure.says}: {self.contrast.says}"

    @property
    def rule(self) -> str:
        """The part as a sentence."""
        return f"{self.unit}, expected {self.expected}, margin {self.margin:g}"

    def arms(self) -> tuple[str, ...]:
        """The arms it reads."""
        return tuple(self.contrast.weights)


@dataclass(frozen=True)
class Claim:
    """A claim's parts; `given` must hold before they mean anything."""

    id: str
    parts: tuple[Part, ...]
    given: Part | None = None
    note: str = ""

    @property
    def every(self) -> tuple[Part, ...]:
        """The parts, and what is given."""
        return (*self.parts, *((self.given,) if self.given else ()))

    @property
    def rule(self) -> str:
        """The claim's rule in words."""
        listed = "; ".join(f"({i}) {part.rule}" for i, part in enumerate(self.parts, 1))
        given = f" Only if {self.given.rule} is reproduced, else inconclusive." if self.given else ""
        return f"{self.id}: {listed}.{given}"


def with_arms(claim: Claim, names: Mapping[str, str]) -> Claim:
    """Return the claim about other arms: `names` maps an arm to the one in its place."""

    # The longest first: some names begin as others do.
    known = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))

    def moved(part: Part) -> Part:
        weights = {names.get(name, name): by for name, by in part.contrast.weights.items()}
        says = known.sub(lambda found: names[found[0]], part.contrast.says)
        return replace(part, contrast=Contrast(weights, says))

    given = claim.given and moved(claim.given)
    return replace(claim, parts=tuple(moved(part) for part in claim.parts), given=given)


def arms_of(claims: Sequence[Claim]) -> tuple[str, ...]:
    """Return the arms that claims read, each once, in their order."""
    return tuple(dict.fromkeys(arm for claim in claims for part in claim.every for arm in part.arms()))


def effect(views: Views, part: Part, level: float = 0.95) -> Interval | None:
    """Return the effect over runs, paired by start and seed; None if fewer than two starts have a number."""
    measured = {
        arm: {key: part.measure(view) for key, view in views.arms[arm].items()} for arm in part.arms()
    }
    shared = sorted(set.intersection(*(set(found) for found in measured.values())))
    ordered = [[found[key] for key in shared] for found in measured.values()]
    values = np.array(list(part.contrast.weights.values())) @ np.array(ordered)
    finite = np.isfinite(values)
    known = np.array([start for start, _ in shared])[finite]
    return paired_effect(values[finite], 0.0, known, level=level) if len(set(known)) > 1 else None


def findings(results: Results, claims: Sequence[Claim]) -> list[Finding]:
    """Return a finding, at one look, for every claim whose arms are all there and have what it measures."""
    views = Views(results)
    present = set(views.arms)
    judged = [judge(views, claim) for claim in claims if set(arms_of([claim])) <= present]
    return [finding for finding in judged if finding is not None]


def judge(views: Views, claim: Claim, level: float = 0.95, where: str = "") -> Finding | None:
    """Decide one claim; its effect is that of the part that decides, the others stand in the note."""
    found = [(part, effect(views, part, level)) for part in claim.every]
    if any(interval is None for _, interval in found):
        return None
    decided = [(p, i, decide(i, expected=p.expected, margin=p.margin)) for p, i in found if i is not None]
    verdicts = [word for _, _, word in decided[: len(claim.parts)]]
    verdict = combined(verdicts)
    notes = [f"({n}) {word}: {_spelled(i)}" for n, (_, i, word) in enumerate(decided[: len(verdicts)], 1)]
    if claim.given is not None and decided[-1][2] != "reproduced":
        verdict = "inconclusive"
        notes.append(f"its premise does not show: {claim.given.unit} {_spelled(decided[-1][1])}")
    which = verdicts.index(verdict) if verdict in verdicts else 0
    note = "; ".join(filter(None, [where, *notes, claim.note]))
    part, interval, _ = decided[which]
    return Finding.of(claim.id, verdict, interval, unit=part.unit, rule=claim.rule, note=note, level=level)


def _spelled(interval: Interval) -> str:
    return f"{interval.effect:.3g} [{interval.low:.3g}, {interval.high:.3g}]"


def combined(verdicts: Sequence[str]) -> str:
    """Return the verdict of a claim with parts of these verdicts."""
    for word in ("opposite", "no effect", "inconclusive"):
        if word in verdicts:
            return word
    return "reproduced"
