"""The records of a study: claim, trial, criterion, regime, and what a trial measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from simlab.core.json_value import Json
from simlab.studies.arms import Arm
from simlab.studies.contrasts import Compares
from simlab.studies.estimands import REWARD, Estimand
from simlab.studies.samples import Sample
from simlab.theory.residual import Residual

Kind = Literal["identity", "measurement", "dynamics"]
Role = Literal["primary", "secondary", "manipulation"]
Direction = Literal["positive", "negative", "zero", "at most"]
"""Beyond the margin on one side, inside it, or, for `at most`, not above it."""

COLLAPSE = Estimand("collapse, reward of the last quarter", REWARD.of)
COLLAPSE_TIME = Estimand("time to collapse", REWARD.of)


@dataclass(frozen=True)
class Regime:
    """The conditions under which a verdict holds.

    Args:
        name: short, unique.
        formats: number formats of training and inference, and how inference rounds.
        model: the kind of model and its size.
        task: the task and its response length in tokens.
        learning_rate: the rate, and how it lies to the largest rate at which the control is stable.
        steps: the length of a run.
        untreated: the arm whose runs measure the mismatch of the regime at the start.
    """

    name: str
    formats: str = ""
    model: str = ""
    task: str = ""
    learning_rate: str = ""
    steps: int = 0
    untreated: str = ""

    def describe(self, rms_log_rho: float | None = None) -> str:
        """Return the regime on one line, with the RMS log rho (nats) that its runs start with."""
        conditions = self.list_conditions(rms_log_rho)
        return f"{self.name}: {conditions}" if conditions else self.name

    def list_conditions(self, rms_log_rho: float | None = None) -> str:
        """Return the conditions on one line, without the name; empty without training runs."""
        noise = "" if rms_log_rho is None else f"RMS log rho {rms_log_rho:.2g} nats at the start"
        steps = f"{self.steps} steps" if self.steps else ""
        parts = (self.formats, noise, self.model, self.task, self.learning_rate, steps)
        return "; ".join(filter(None, parts))


EXACT_SUMS = Regime("exact sums")
NO_TRAINING = Regime("no training")


@dataclass(frozen=True)
class ExactCheck:
    """A computation without sampling error: what it states, where that is printed, and how it is computed."""

    text: str
    reference: str
    compute: Callable[[], Residual]
    slow: bool = False


@dataclass(frozen=True)
class StoredRow:
    """A number that an experiment stores with its interval, the row `id`, minus a printed `reference`.

    `is_point` where no sampling error is known: the interval is a point, and the row is not tested.
    """

    id: str
    text: str = ""
    reference: float = 0.0
    is_point: bool = False


@dataclass(frozen=True)
class Criterion:
    """One rule: an estimand, a contrast with a control, the claimed direction, a margin and its reason.

    Args:
        estimand: the number of a run, an exact check, or a stored row.
        contrast: of arms; None of an exact check and a stored row.
        direction: the claimed sign; `zero` claims that the effect lies within the margin.
        margin: the smallest effect that counts, above zero; of an exact check its tolerance.
        because: the reason for the margin.
        role: `primary` is the printed headline. A `manipulation` check must be supported first.
    """

    estimand: Estimand | ExactCheck | StoredRow
    contrast: Compares | None
    direction: Direction
    margin: float
    because: str
    role: Role = "primary"

    @property
    def text(self) -> str:
        """The quantity in words."""
        return f"{self.estimand.text}: {self.contrast.text}" if self.contrast else self.estimand.text

    @property
    def unit(self) -> str:
        """The unit of the margin, if it differs from that of the estimand."""
        return self.contrast.unit if self.contrast else ""

    @property
    def measured_in(self) -> str:
        """The unit of margin and estimate; a slope is per unit of what its contrast names."""
        own = self.estimand.unit if isinstance(self.estimand, Estimand) else ""
        return self.unit or own or "dimensionless"

    @property
    def reference(self) -> str:
        """The comparison in words: of arms, or of a computed number with what it must be."""
        if self.contrast:
            return self.contrast.text
        if isinstance(self.estimand, StoredRow):
            return f"minus the printed {self.estimand.reference:g}" if self.estimand.reference else "minus 0"
        return "residual of the statement, minus 0"

    @property
    def rule(self) -> str:
        """The criterion as a sentence."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.text}, expected {self.direction}, margin {self.margin:.3g}{unit}"

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms in the contrast, each once."""
        return self.contrast.arms if self.contrast else ()

    @property
    def arm_ids(self) -> frozenset[str]:
        """The ids of the arms in the contrast."""
        return frozenset(arm.id for arm in self.arms)

    @property
    def is_sampled(self) -> bool:
        """True if the criterion has a sampling error: a contrast of training runs, or a measured row."""
        if isinstance(self.estimand, StoredRow):
            return not self.estimand.is_point
        return self.contrast is not None


primary = partial(Criterion, role="primary")
"""A criterion about the printed headline."""
secondary = partial(Criterion, role="secondary")
"""A criterion about a further part of the statement."""
manipulation = partial(Criterion, role="manipulation")
"""A premise: a criterion that must be supported before the others mean anything."""


def exact(
    reference: str,
    text: str,
    compute: Callable[[], Residual],
    *,
    because: str,
    tolerance: float = 1e-12,
    slow: bool = False,
) -> Criterion:
    """Return the criterion of an identity or a bound; `because` is its rule, smoke runs skip slow ones."""
    check = ExactCheck(text, reference, compute, slow)
    return Criterion(check, None, "zero", tolerance, because, "secondary")


def stored_row(
    id: str,
    text: str,
    direction: Direction,
    margin: float,
    *,
    because: str,
    reference: float = 0.0,
    role: Role = "primary",
    is_point: bool = False,
) -> Criterion:
    """Return the criterion of a row that an experiment stores."""
    return Criterion(StoredRow(id, text, reference, is_point), None, direction, margin, because, role)


@dataclass(frozen=True)
class Trial:
    """The test of one claim by one experiment in one regime.

    Args:
        experiment: its name.
        criteria: exactly one of them is primary.
        regime: where the verdict holds.
        note: what the trial leaves out.
        is_exploratory: whether the rule was found on the runs that it is applied to.
        rule_sha256: of a rule in words that states the same, which a manifest may record instead.
        claim: the id of the `Claim` that holds the trial, which sets it.
    """

    experiment: str
    criteria: tuple[Criterion, ...] = ()
    regime: Regime = NO_TRAINING
    note: str = ""
    is_exploratory: bool = False
    rule_sha256: str = ""
    claim: str = ""

    @property
    def primary(self) -> Criterion:
        """The criterion that decides the claim."""
        return next(each for each in self.criteria if each.role == "primary")

    @property
    def text(self) -> str:
        """The rule in words."""
        listed = "; ".join(f"({i}) {each.role}: {each.rule}" for i, each in enumerate(self.criteria, 1))
        return f"{self.claim}: {listed}."

    def with_arms(self, others: Mapping[Arm, Arm]) -> "Trial":
        """Return the trial of other arms: `others` maps an arm to the one in its place."""
        moved = [
            replace(each, contrast=each.contrast.with_arms(others)) if each.contrast else each
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
        """Return the first trial of `experiment`; `LookupError` if there is none."""
        for trial in self.trials:
            if trial.experiment == experiment:
                return trial
        raise LookupError(f"{self.id} has no trial in {experiment}")


@dataclass(frozen=True)
class Measured:
    """The measurements of one result for one trial: a sample per criterion, None without a number.

    `note` states what else was found, `conflict` how processor families disagree, `rms_log_rho` the mismatch
    (nats) at the start of the untreated runs of the regime. `manifest` is that of the result.
    """

    trial: Trial
    samples: tuple[Sample | None, ...]
    note: str = ""
    manifest: Mapping[str, Json] = field(default_factory=dict)
    conflict: str = ""
    rms_log_rho: float | None = None

    def __post_init__(self) -> None:
        """Reject samples that do not fit the criteria."""
        if len(self.samples) != len(self.trial.criteria):
            raise ValueError(
                f"{self.trial.claim}: {len(self.samples)} samples for {len(self.trial.criteria)} criteria."
            )

    @property
    def primary(self) -> Sample | None:
        """The sample of the primary criterion."""
        return self.samples[self.trial.criteria.index(self.trial.primary)]


def trials_of(claims: Sequence[Claim], experiment: str) -> tuple[Trial, ...]:
    """Return the trials of `experiment` among `claims`, in their order."""
    return tuple(trial for claim in claims for trial in claim.trials if trial.experiment == experiment)


def arms_of(trials: Sequence[Trial]) -> tuple[Arm, ...]:
    """Return the arms that trials read, each once, in their order."""
    return tuple(
        dict.fromkeys(arm for trial in trials for criterion in trial.criteria for arm in criterion.arms)
    )
