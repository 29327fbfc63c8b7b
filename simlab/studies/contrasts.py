"""Contrasts of arms over initial policies: differences, shares of a loss, collapse as proportion and as time.

A contrast measures an estimand on stored runs and returns a `Sample` with one value per initial policy; runs
of equal policy and seed are paired, and the seeds of a policy averaged first.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd

from simlab.studies.arms import Arm
from simlab.studies.estimands import Estimand, Frame, View, Views
from simlab.studies.samples import Proportion, RatioOfMeans, Sample, mean_of_policies

COLLAPSED = 0.5
"""A run has collapsed whose reward is below this fraction of the control's from the same policy."""
WINDOW = 5  # chunks
ROLES = ("remedy", "arm", "other", "untreated", "control")
EMPTY = pd.MultiIndex.from_arrays([[], []], names=["initial_policy", "seed"])


class Compares(ABC):
    """A contrast of arms, which are the fields named in `ROLES`."""

    unit: str
    """The unit of the contrast, if it differs from that of the estimand."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms, each once."""
        return tuple(dict.fromkeys(self._by_role().values()))

    @property
    @abstractmethod
    def text(self) -> str:
        """The contrast in words."""

    def with_arms(self, others: Mapping[Arm, Arm]) -> Self:
        """Return the contrast with other arms: `others` maps an arm to the one in its place."""
        record: Any = self
        return replace(record, **{role: others.get(arm, arm) for role, arm in self._by_role().items()})

    @abstractmethod
    def measure(self, views: Views, estimand: Estimand) -> Sample | None:
        """Return the sample; None with fewer than two initial policies."""

    def _by_role(self) -> dict[str, Arm]:
        return {role: getattr(self, role) for role in ROLES if hasattr(self, role)}


@dataclass(frozen=True)
class Contrast(Compares):
    """Weights of arms, and a sentence with one numbered field per arm."""

    weights: Mapping[Arm, float]
    form: str
    unit: str = ""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms, each once."""
        return tuple(self.weights)

    @property
    def text(self) -> str:
        """The contrast in words."""
        return self.form.format(*self.weights)

    def with_arms(self, others: Mapping[Arm, Arm]) -> Self:
        """Return the contrast with other arms."""
        return replace(self, weights={others.get(arm, arm): by for arm, by in self.weights.items()})

    def by_run(self, views: Views, estimand: Estimand) -> Frame:
        """Return the contrast by initial policy and seed, of the runs that all arms have."""
        measured = by_run(views, estimand, self.arms)
        weights = pd.Series({arm.id: by for arm, by in self.weights.items()}, dtype=float)
        return measured.mul(weights, axis=1).sum(axis=1, skipna=False)

    def measure(self, views: Views, estimand: Estimand) -> Sample | None:
        """Return the mean over initial policies."""
        values = by_policy(self.by_run(views, estimand))
        return mean_of_policies(np.asarray(values, float)) if len(values) > 1 else None


@dataclass(frozen=True)
class Share(Compares):
    """The fraction of the control's lead over the untreated arm that a remedy recovers: 0 none, 1 all."""

    remedy: Arm
    untreated: Arm
    control: Arm
    unit: str = "share of the loss recovered"

    @property
    def text(self) -> str:
        """The contrast in words."""
        return f"({self.remedy} minus {self.untreated}) / ({self.control} minus {self.untreated})"

    def measure(self, views: Views, estimand: Estimand) -> Sample | None:
        """Return the ratio of the means over initial policies."""
        return _ratio(views, estimand, self, self.remedy, self.untreated)


@dataclass(frozen=True)
class ShareDifference(Compares):
    """The difference of the shares of the loss that two remedies recover."""

    remedy: Arm
    other: Arm
    untreated: Arm
    control: Arm
    unit: str = "share of the loss"

    @property
    def text(self) -> str:
        """The contrast in words."""
        return f"({self.remedy} minus {self.other}) / ({self.control} minus {self.untreated})"

    def measure(self, views: Views, estimand: Estimand) -> Sample | None:
        """Return the ratio of the means over initial policies."""
        return _ratio(views, estimand, self, self.remedy, self.other)


@dataclass(frozen=True)
class CollapseRate(Compares):
    """The fraction of initial policies from which an arm collapses."""

    arm: Arm
    control: Arm
    unit: str = "fraction of initial policies"

    @property
    def text(self) -> str:
        """The contrast in words."""
        return f"{self.arm} below half of {self.control}"

    def measure(self, views: Views, estimand: Estimand) -> Sample | None:
        """Return the proportion, with the exact binomial interval."""
        rewards = by_policy(by_run(views, estimand, self.arms))
        return _proportion(rewards[self.arm.id] < COLLAPSED * rewards[self.control.id])


@dataclass(frozen=True)
class LeavesBand(Compares):
    """The fraction of initial policies from which an arm leaves the band around the control.

    The band is a factor of `width` wide on both sides; `side` 1 counts runs above it, -1 below, 0 both.
    """

    arm: Arm
    control: Arm
    width: float
    side: int = 0
    unit: str = "fraction of initial policies"

    @property
    def text(self) -> str:
        """The contrast in words."""
        where = {1: "above", -1: "below", 0: "outside"}[self.side]
        return f"{self.arm} {where} a factor {self.width:g} of {self.control}"

    def measure(self, views: Views, estimand: Estimand) -> Sample | None:
        """Return the proportion, with the exact binomial interval."""
        values = by_policy(by_run(views, estimand, self.arms))
        ratio = values[self.arm.id] / values[self.control.id]
        above, below = ratio > self.width, ratio < 1 / self.width
        return _proportion({1: above, -1: below, 0: above | below}[self.side])


@dataclass(frozen=True)
class CollapsesSooner(Compares):
    """Of the initial policies from which one of two arms collapses first: how many, of `arm`, above 1/2.

    A run has collapsed at the first step at which the mean reward of five chunks is below half of the
    control's. Runs that never do are censored at their end: the log-rank test stratified by policy, exact.
    """

    arm: Arm
    other: Arm
    control: Arm
    unit: str = "probability above 1/2 that the first arm collapses first"

    @property
    def text(self) -> str:
        """The contrast in words."""
        return f"{self.arm} against {self.other}, each below half of {self.control}"

    def measure(self, views: Views, estimand: Estimand) -> Sample | None:  # noqa: ARG002
        """Return the sample of the policies in which the order of the two is known."""
        curves = {arm: _reward_curves(views, arm) for arm in self.arms}
        shared = sorted(set.intersection(*(set(curve) for curve in curves.values())))
        times = [
            tuple(collapse_step(curves[arm][p], curves[self.control][p]) for arm in (self.arm, self.other))
            for p in shared
        ]
        sooner, later = (sum(times[i] < times[1 - i] for times in times) for i in (0, 1))
        return Proportion(sooner, sooner + later, 0.5, len(shared)) if len(shared) > 1 else None


def mean_of(arm: Arm) -> Contrast:
    """Return the contrast of one arm with zero."""
    return Contrast({arm: 1.0}, "{0}")


def minus(one: Arm, other: Arm) -> Contrast:
    """Return one arm minus another."""
    return Contrast({one: 1.0, other: -1.0}, "{0} minus {1}")


def excess(one: Arm, its_control: Arm, other: Arm, other_control: Arm) -> Contrast:
    """Return the difference of two differences from a control each."""
    weights = {one: 1.0, its_control: -1.0, other: -1.0, other_control: 1.0}
    return Contrast(weights, "({0} minus {1}) minus ({2} minus {3})")


def slope(arms: Mapping[float, Arm], over: str) -> Contrast:
    """Return the least-squares slope over the number of each arm."""
    x = np.array(list(arms)) - np.mean(list(arms))
    weights = dict(zip(arms.values(), (x / (x @ x)).tolist(), strict=True))
    fields = ", ".join(f"{{{index}}}" for index in range(len(weights)))
    return Contrast(weights, f"slope over {over}: {fields}")


def by_run(views: Views, estimand: Estimand, arms: Sequence[Arm]) -> Frame:
    """Return the estimand [runs, arms] of the runs that all `arms` have.

    Rows are initial policies and seeds, columns the ids of the arms.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # a run without a number is left out
        measured = {
            arm.id: {key: estimand(view) for key, view in views.arms.get(arm.id, {}).items()} for arm in arms
        }
    shared = sorted(set.intersection(*(set(values) for values in measured.values())))
    index = pd.MultiIndex.from_tuples(shared, names=["initial_policy", "seed"]) if shared else EMPTY
    columns = {arm: [values[key] for key in shared] for arm, values in measured.items()}
    return pd.DataFrame(columns, index=index, dtype=float)


def by_policy(values: Frame) -> Frame:
    """Return the means over the seeds of each initial policy, without runs that have no number."""
    finite = values[np.isfinite(values)] if values.ndim == 1 else values[np.isfinite(values).all(axis=1)]
    return finite.groupby(level="initial_policy").mean()


def collapse_step(rewards: np.ndarray, control: np.ndarray) -> float:
    """Return the first chunk at which a run has collapsed; infinite if never.

    A run collapses when its trailing mean over five chunks falls below half of the control's.

    Args:
        rewards: reward by chunk [N] of the run.
        control: reward by chunk [M] of the control; the common length is compared.
    """
    ours, theirs = (_trailing_mean(curve) for curve in (rewards, control))
    length = min(len(ours), len(theirs))
    low = np.flatnonzero(ours[:length] < COLLAPSED * theirs[:length])
    return float(low[0]) if len(low) else np.inf


def _trailing_mean(curve: np.ndarray) -> np.ndarray:
    sums = np.concatenate([[0.0], np.cumsum(curve)])
    stop = np.arange(1, len(curve) + 1)
    start = np.maximum(stop - WINDOW, 0)
    return (sums[stop] - sums[start]) / (stop - start)


def _reward_curves(views: Views, arm: Arm) -> dict[str, np.ndarray]:
    """Return the reward by chunk of each initial policy, averaged over its seeds."""
    curves: dict[str, list[np.ndarray]] = {}
    for (policy, _), view in views.arms.get(arm.id, {}).items():
        curves.setdefault(policy, []).append(_pad_curve(view))
    return {
        policy: np.mean([curve[: min(map(len, each))] for curve in each], axis=0)
        for policy, each in curves.items()
    }


def _pad_curve(view: View) -> np.ndarray:
    """Return the reward by chunk; a run that diverged has reward zero from then on."""
    curve = view.curve("reward")
    if not view.diverged or len(curve) < 2:
        return curve
    width = int(view.chunk_steps[1] - view.chunk_steps[0])
    return np.concatenate([curve, np.zeros(max(view.steps // width - len(curve), 0))])


def _ratio(
    views: Views, estimand: Estimand, share: Share | ShareDifference, one: Arm, other: Arm
) -> Sample | None:
    policies = by_policy(by_run(views, estimand, share.arms))
    if len(policies) < 2:
        return None
    lead = policies[share.control.id] - policies[share.untreated.id]
    return RatioOfMeans(np.asarray(policies[one.id] - policies[other.id], float), np.asarray(lead, float))


def _proportion(hits: Frame) -> Sample | None:
    """Return the fraction of initial policies that are hits."""
    return Proportion(int(hits.sum()), len(hits), 0.0, len(hits)) if len(hits) > 1 else None
