"""Reward on training prompts minus reward on held-out prompts, in every stored study that measured both.

Many claims read the reward on training prompts; their runs have validations, too. This experiment measures
the difference of both rewards. A run of 200 steps on chains draws 800 prompts from 4096.
The reward of a prompt is measured before the update on it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simlab.core.results import Results
from simlab.studies.board import list_results
from simlab.studies.estimands import LATE, View, Views
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.studies.statistics import paired_effect

REWARD, HELD_OUT = "reward", ("held_out_infer", "held_out_avg_at_k")
"""All under the inference engine; a study has one of the two validations."""
INJECTED = ("fixed noise", "fresh noise", "recent noise", "fresh weight noise", "fixed weight noise")
"""Noise that rollouts have and validations have not; the two rewards are then of different policies."""
AGREE = 0.1
LEVEL = 0.95


@dataclass(frozen=True)
class Rewards:
    """Both rewards of the runs of an arm, [runs], and the initial policy of each run."""

    experiment: str
    arm: str
    policies: tuple[str, ...]
    training: tuple[float, ...]
    held_out: tuple[float, ...]


def run(run: ExperimentContext) -> None:
    """Write the table `gaps`, a row per experiment and arm."""
    run.configure(agree=AGREE, level=LEVEL)
    run.seeds([])
    measured = {}
    for _, results in run.track(list_results(), "experiments"):
        for rewards in read_rewards(results):
            # Several studies may store the same runs.
            measured.setdefault((rewards.arm, rewards.training), rewards)
    level = 1 - (1 - LEVEL) / max(1, len(measured))
    run.table("gaps", [summarize(rewards, level) for rewards in measured.values()])


def read_rewards(results: Results) -> Iterator[Rewards]:
    """Yield the rewards of every arm as the claims read them: means over the last quarter of a run.

    Arms with fewer than two validations in this quarter are omitted: one at its end is a poor estimate of its
    mean.
    """
    if not {"chunks", "diagnostics", "runs"} <= set(results.table_names):
        return
    runs = results.table("runs")
    injected = set(runs["arm"][runs["noise_kind"].isin(INJECTED)])
    for arm, views in Views(results).arms.items():
        rows = [
            (policy, view.late(REWARD), late_validation(view))
            for (policy, _), view in views.items()
            if (view.diagnostic("step") >= LATE * view.steps).sum() > 1
        ]
        rows = [row for row in rows if np.isfinite(row[1:]).all()]
        if arm not in injected and len({policy for policy, *_ in rows}) > 1:
            yield Rewards(results.manifest["name"], arm, *zip(*rows, strict=True))


def late_validation(view: View) -> float:
    """Return the reward on held-out prompts, mean over the last quarter; NaN without a validation."""
    measured = (view.late_diagnostic(name) for name in HELD_OUT)
    return next((reward for reward in measured if np.isfinite(reward)), np.nan)


def summarize(rewards: Rewards, level: float) -> dict[str, object]:
    """Return the means of an arm, and their difference with its interval over initial policies."""
    gap = paired_effect(rewards.training, rewards.held_out, rewards.policies, level=level)
    return {
        "experiment": rewards.experiment,
        "arm": rewards.arm,
        "policies": gap.num_clusters,
        "reward": float(np.mean(rewards.training)),
        "held_out": float(np.mean(rewards.held_out)),
        "gap": gap.effect,
        "gap_low": gap.low,
        "gap_high": gap.high,
    }


EXPERIMENT = Experiment(
    name="held_out_gap",
    question="Does the reward on training prompts stand for that on held-out prompts?",
    decision_rule=(
        f"It does in an arm whose interval lies inside +-{AGREE:g} (rewards are at most 1), at {LEVEL:.0%} "
        "over all arms by Bonferroni's method. Exploratory: the gaps had been seen. Not compared: arms with "
        "injected noise, which validations leave out."
    ),
    run=run,
    minutes=0.2,
    kind="measurement",
)
