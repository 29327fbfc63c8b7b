"""Reward on training prompts minus reward on held-out prompts, in every stored study that measured both.

Some studies have no validation, and their claims read the reward on training prompts. Whether it stands for
that on held-out prompts is measured where both exist. A run of 200 steps on chains draws 800 prompts from
4096 and is rewarded for each before it learns from it.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from pandas.api.typing import SeriesGroupBy

from experiments import EXPERIMENTS
from simlab.core.experiment import Experiment, Run
from simlab.core.manifest import MANIFEST_NAME
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.studies.estimands import LATE
from simlab.studies.statistics import paired_effect

REWARD, HELD_OUT = "reward", "held_out_infer"
"""Both under the inference engine."""
INJECTED = ("fixed noise", "fresh noise", "recent noise", "fresh weight noise", "fixed weight noise")
"""Noise that rollouts have and validations have not; the two rewards are then of different policies."""
AGREE = 0.1
LEVEL = 0.95


def run(run: Run) -> None:
    """Write the table `gaps`, a row per experiment and arm."""
    run.configure(agree=AGREE, level=LEVEL)
    run.seeds([])
    stored = [Results(committed_results(name)) for name in EXPERIMENTS if is_stored(name)]
    measured = {}
    for results in stored:
        for experiment, arm, runs in last_quarters(results):
            # Several studies may store the same runs.
            measured.setdefault((arm, *runs[REWARD]), (experiment, arm, runs))
    level = 1 - (1 - LEVEL) / max(1, len(measured))
    run.table(
        "gaps", [summarize(*each, level) for each in run.track(measured.values(), "arms", len(measured))]
    )


def is_stored(experiment: str) -> bool:
    """Return whether a result of `experiment` is in this repository."""
    return (committed_results(experiment) / MANIFEST_NAME).is_file()


def last_quarters(results: Results) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield experiment, arm and a row per run with both rewards, each as the claims read it.

    A reward is a mean over the last quarter. Arms with fewer than two validations in it are left out: one
    validation at its end says little about its mean.
    """
    if not {"chunks", "diagnostics", "runs"} <= set(results.table_names):
        return
    runs, validated = results.table("runs").set_index("run"), results.table("diagnostics")
    if HELD_OUT not in validated:
        return
    late = {
        REWARD: of_last_quarter(results.table("chunks"), REWARD, runs["steps"]).mean(),
        HELD_OUT: of_last_quarter(validated, HELD_OUT, runs["steps"]).mean(),
        "validations": of_last_quarter(validated, HELD_OUT, runs["steps"]).count(),
    }
    runs = runs.assign(**late)
    runs = runs[(runs["validations"] > 1) & ~runs["noise_kind"].isin(INJECTED)].dropna(subset=list(late))
    for arm, rows in runs.groupby("arm", sort=False):
        if rows["initial_policy"].nunique() > 1:
            yield results.manifest["name"], str(arm), rows


def of_last_quarter(table: pd.DataFrame, column: str, steps: pd.Series) -> SeriesGroupBy:
    """Return the values of a column from the last quarter of each run, grouped by run."""
    late = table[table["step"] >= LATE * table["run"].map(steps)]
    return late.groupby("run")[column]


def summarize(experiment: str, arm: str, runs: pd.DataFrame, level: float) -> dict[str, object]:
    """Return the means of an arm, and their difference with its interval over initial policies."""
    gap = paired_effect(runs[REWARD], runs[HELD_OUT], runs["initial_policy"], level=level)
    return {
        "experiment": experiment,
        "arm": arm,
        "policies": gap.num_clusters,
        "reward": float(np.mean(runs[REWARD])),
        "held_out": float(np.mean(runs[HELD_OUT])),
        "gap": gap.effect,
        "gap_low": gap.low,
        "gap_high": gap.high,
    }


EXPERIMENT = Experiment(
    name="held_out_gap",
    question="Does the reward on training prompts stand for that on held-out prompts?",
    decision_rule=(
        f"It does in an arm whose interval lies inside +-{AGREE:g} (ten answers in 100), at {LEVEL:.0%} over "
        "all arms by Bonferroni's method. Exploratory: the gaps had been seen. Not compared: arms with "
        "injected noise, which validations leave out."
    ),
    run=run,
    minutes=0.2,
    kind="measurement",
)
