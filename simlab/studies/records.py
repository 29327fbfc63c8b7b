"""The records of a study: claim, trial, criterion, contrast, and the evidence that a trial gives."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from simlab.core.json_value import Json
from simlab.studies.estimands import Estimand
from simlab.studies.statistics import Direction, Interval
from simlab.theory.residual import Residual

Kind = Literal["identity", "measurement", "dynamics"]
Role = Literal["primary", "secondary", "manipulation"]
VERDICTS = ("reproduced", "opposite", "no effect", "inconclusive")
"""The verdicts of a claim; a claim without evidence is `not yet tested`."""


@dataclass(frozen=True)
class Contrast:
    """Weights of arms by id, and a sentence with one numbered field per arm."""

    weights: Mapping[str, float]
    form: str

    @property
    def text(self) -> str:
        """The contrast in words."""
        return self.form.format(*self.weights)

    def with_arms(self, names: Mapping[str, str]) -> "Contrast":
        """Return the contrast with other arms: `names` maps an id to the one in its place."""
        return replace(self, weights={names.get(arm, arm): by for arm, by in self.weights.items()})


def mean_of(arm: str) -> Contrast:
    """Return the contrast of one arm with zero."""
    return Contrast({arm: 1.0}, "{0}")


def minus(one: str, other: str) -> Contrast:
    """Return one arm minus another."""
    return Contrast({one: 1.0, other: -1.0}, "{0} minus {1}")


def slope(arms: Mapping[float, str], over: str) -> Contrast:
    """Return the least-squares slope over the number of each arm."""
    x = np.array(list(arms)) - np.mean(list(arms))
    weights = dict(zip(arms.values(), (x / (x @ x)).tolist(), strict=True))
    fields = ", ".join(f"{{{index}}}" for index in range(len(weights)))
    return Contrast(weights, f"slope over {over}: {fields}")


@dataclass(frozen=True)
class ExactCheck:
    """A computation without sampling error: what it states, where that is printed, and how it is computed."""

    text: str
    reference: str
    compute: Callable[[], Residual]
    slow: bool = False


@dataclass(frozen=True)
class StoredRow:
    """A number that an experiment stores with its interval: the row `id` of its table `verdicts`."""

    id: str

    @property
    def text(self) -> str:
        """The row in words."""
        return f"row {self.id} of the table verdicts"


@dataclass(frozen=True)
class Criterion:
    """One rule: an estimand, a contrast of arms, the claimed direction, and a margin with its reason.

    An exact check and a stored row have no contrast; their `because` is the rule that they apply themselves.
    Today's verdict treats primary and secondary criteria equally; a failed manipulation check makes a claim
    inconclusive.
    """

    estimand: Estimand | ExactCheck | StoredRow
    contrast: Contrast | None
    direction: Direction
    margin: float
    because: str
    role: Role = "primary"

    @property
    def text(self) -> str:
        """The quantity in words."""
        return f"{self.estimand.text}: {self.contrast.text}" if self.contrast else self.estimand.text

    @property
    def rule(self) -> str:
        """The criterion as a sentence."""
        return f"{self.text}, expected {self.direction}, margin {self.margin:g}"

    @property
    def arms(self) -> tuple[str, ...]:
        """The ids of the arms in the contrast."""
        return tuple(self.contrast.weights) if self.contrast else ()


def primary(
    estimand: Estimand, contrast: Contrast, direction: Direction, margin: float, *, because: str
) -> Criterion:
    """Return the criterion about the printed headline."""
    return Criterion(estimand, contrast, direction, margin, because)


def secondary(
    estimand: Estimand, contrast: Contrast, direction: Direction, margin: float, *, because: str
) -> Criterion:
    """Return a criterion about a further part of the statement."""
    return Criterion(estimand, contrast, direction, margin, because, "secondary")


def manipulation(
    estimand: Estimand, contrast: Contrast, direction: Direction, margin: float, *, because: str
) -> Criterion:
    """Return a criterion that must be reproduced before the others mean anything."""
    return Criterion(estimand, contrast, direction, margin, because, "manipulation")


def exact(
    reference: str, text: str, compute: Callable[[], Residual], *, because: str, slow: bool = False
) -> Criterion:
    """Return the criterion of an identity or a bound; `because` is its rule, smoke runs skip slow ones."""
    return Criterion(ExactCheck(text, reference, compute, slow), None, "zero", 0.0, because)


def stored_row(id: str, *, because: str) -> Criterion:
    """Return the criterion of a row that an experiment stores; `because` is its rule."""
    return Criterion(StoredRow(id), None, "zero", 0.0, because)


@dataclass(frozen=True)
class Trial:
    """How one experiment tests one claim.

    `rule` replaces the criteria in words where an experiment decides from its own tables. `note` states what
    the trial leaves out. `claim` is set by the `Claim` that holds the trial.
    """

    experiment: str
    criteria: tuple[Criterion, ...] = ()
    note: str = ""
    rule: str = ""
    claim: str = ""

    @property
    def tests(self) -> tuple[Criterion, ...]:
        """The criteria that are not manipulation checks."""
        return tuple(each for each in self.criteria if each.role != "manipulation")

    @property
    def premise(self) -> Criterion | None:
        """The manipulation check, if there is one."""
        return next((each for each in self.criteria if each.role == "manipulation"), None)

    @property
    def text(self) -> str:
        """The rule in words."""
        if self.rule:
            return f"{self.claim}: {self.rule}"
        listed = "; ".join(f"({i}) {each.rule}" for i, each in enumerate(self.tests, 1))
        premise = f" Only if {self.premise.rule} is reproduced, else inconclusive." if self.premise else ""
        return f"{self.claim}: {listed}.{premise}"

    def with_arms(self, names: Mapping[str, str]) -> "Trial":
        """Return the trial of other arms: `names` maps an id to the one in its place."""
        moved = [
            replace(each, contrast=each.contrast.with_arms(names)) if each.contrast else each
            for each in self.criteria
        ]
        return replace(self, criteria=tuple(moved))


@dataclass(frozen=True)
class Claim:
    """A claim of a paper: `statement` in our words, where it is printed, its kind, and its trials.

    Exact sums decide an identity, a static computation a measurement, paired training runs dynamics.
    """

    id: str
    paper: str
    statement: str
    reference: str
    kind: Kind
    trials: tuple[Trial, ...] = ()

    def __post_init__(self) -> None:
        """Name the claim in its trials."""
        object.__setattr__(self, "trials", tuple(replace(trial, claim=self.id) for trial in self.trials))

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """The criteria of all trials."""
        return tuple(criterion for trial in self.trials for criterion in trial.criteria)

    def trial(self, experiment: str) -> Trial:
        """Return the trial of `experiment`; `LookupError` if there is none."""
        for trial in self.trials:
            if trial.experiment == experiment:
                return trial
        raise LookupError(f"{self.id} has no trial in {experiment}")


@dataclass(frozen=True)
class Evidence:
    """A number, its interval, and the verdict that a rule written before the run gives.

    `low` and `high` bound the interval of confidence `level`; both equal `effect` for exact results. `unit`
    states the quantity in words, `note` what is left out and what else was found. `experiment` and
    `manifest` tell which stored result it comes from. Raises `ValueError` for an unknown verdict, an infinite
    number, or an interval without its effect.
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
    experiment: str = ""
    manifest: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject what no board could show."""
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
    ) -> "Evidence":
        """Return the evidence of an interval."""
        return cls(claim, verdict, interval.effect, interval.low, interval.high, unit, rule, note, level)


def trials_of(claims: Sequence[Claim], experiment: str) -> tuple[Trial, ...]:
    """Return the trials of `experiment` among `claims`, in their order."""
    return tuple(trial for claim in claims for trial in claim.trials if trial.experiment == experiment)


def arms_of(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the ids of the arms that trials read, each once, in their order."""
    return tuple(
        dict.fromkeys(arm for trial in trials for criterion in trial.criteria for arm in criterion.arms)
    )
