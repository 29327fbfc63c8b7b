"""The flagship: strong mismatch without correction, with TIS, under GSPO, and the BF16 control."""

from typing import Any

import numpy as np

from experiments.papers.hacking import H4, H7
from experiments.papers.lr import L3
from experiments.regimes import BASE, RUNS_PER_BATCH, STEPS, TRAINED
from experiments.studies.flagship_sweep import CHUNK, SMOKE, record
from simlab.core.experiment import Experiment, Run
from simlab.core.paths import checkout_root
from simlab.core.results import Results
from simlab.studies import Evidence, Interval, decide, paired_effect
from simlab.sweeps import grid, sweep
from simlab.sweeps.file import read_file
from simlab.sweeps.grids import Grid

NONE, TIS, GSPO, CONTROL = "no correction", "TIS", "GSPO", "BF16 control"
EARLY, LATE = (0.1, 0.3), (0.8, 1.0)
MARGIN = 0.05
RARE = 0.01
POLICIES, FIRST_SEED = 8, 6
SCREEN_STEPS, MIN_REWARD, MIN_MISMATCH = 10, 0.05, 0.4
HISTORY = (
    "Earlier runs had four other initial policies: 600 steps and differences for ratios (seeds 0, 1), then "
    "this rule and 400 steps (seeds 2, 3; decline -0.42 [-0.87, 0.03]). Rule and steps were kept; initial "
    "policies and runs are new."
)

RULE = (
    f"Initial policies are trained from seed {FIRST_SEED} on; the first {POLICIES} pass whose frozen "
    f"rollouts have a reward of at least {MIN_REWARD} and an RMS log rho of at least {MIN_MISMATCH} "
    f"({SCREEN_STEPS} steps). Per run: early is the mean over the second and third tenth of the steps, late "
    "that over the last fifth. Runs are paired by initial policy and seed; intervals are over policies. "
    "Decline: the reward's late / early, without correction minus BF16 control, is below zero, and without "
    "correction it is below 1. Growth: log of late / early of RMS log rho, above zero. No effect: an "
    f"interval within {MARGIN}. Survival bias: mean rho at pi_train < {RARE} falls without correction."
)


def run(run: Run) -> None:
    described = read_file(checkout_root() / "examples" / "flagship.toml")
    if run.smoke:
        base = {**described.base, **SMOKE, "steps": CHUNK}
        return record(run, base, Grid(described.grid.points[::4]), described.runs_per_batch)
    policies = grid({"warm_start": [{"seed": seed, **TRAINED} for seed in screen_policies(run)]})
    record(
        run, {**described.base, "steps": STEPS}, described.grid * policies, RUNS_PER_BATCH, "warm_start.seed"
    )
    return None


def screen_policies(run: Run) -> list[int]:
    """Return the seeds of the initial policies that pass; write the table `initial_policies` of all."""
    rows: list[dict[str, Any]] = []
    frozen = {**BASE, "objective": "grpo", "optimizer": {"learning_rate": 0.0}, "steps": SCREEN_STEPS}
    while sum(row["passed_screen"] for row in rows) < POLICIES:
        seeds = range(FIRST_SEED + len(rows), FIRST_SEED + len(rows) + RUNS_PER_BATCH)
        points = grid({"warm_start": [{"seed": seed, **TRAINED} for seed in seeds]})
        result = sweep(
            frozen, points, run.out / "sweep", name="screen", runs_per_batch=RUNS_PER_BATCH, yes=True
        )
        first: Any = result.frame(["warm_start.seed"]).groupby("warm_start.seed", as_index=False)
        for values in first[["reward", "rms_log_rho"]].mean().to_dict("records"):
            passed = values["reward"] >= MIN_REWARD and values["rms_log_rho"] >= MIN_MISMATCH
            rows.append({**values, "passed_screen": passed})
    run.table("initial_policies", rows)
    return [int(row["warm_start.seed"]) for row in rows if row["passed_screen"]][:POLICIES]


def collect_evidence(results: Results) -> list[Evidence]:
    """Return the evidence on survival bias and on corrections."""
    steps: Any = results.table("steps")
    reward, mismatch = _late_over_early(steps, "reward"), np.log(_late_over_early(steps, "rms_log_rho"))
    early, late = _windows(_rare(results.table("bins")), "mean_rho")
    decline = _less(reward, NONE, CONTROL)
    kept = _less(reward, TIS, NONE)
    slowed = _less(mismatch, TIS, NONE)
    falls = _less(late - early, NONE)
    note = f"Decline itself: {_written(decline)}; of the arm alone: {_written(_less(reward - 1, NONE))}."
    return [
        Evidence.of(
            H4.id,
            decide(falls, expected="negative", margin=0.02),
            falls,
            unit=f"mean rho at pi_train < {RARE}, late minus early, no correction",
            rule=RULE,
        ),
        Evidence.of(
            H7.id,
            decide(slowed, expected="negative", margin=MARGIN),
            slowed,
            unit="growth of log RMS log rho, TIS minus no correction",
            rule=RULE,
            note=f"Growth of the mismatch only. {HISTORY}",
        ),
        Evidence.of(
            L3.id,
            decide(kept, expected="positive", margin=MARGIN),
            kept,
            unit="reward, late / early, TIS minus no correction",
            rule=RULE,
            note=f"Token TIS only. {note} {HISTORY}",
        ),
    ]


def _windows(table: Any, column: str) -> tuple[Any, Any]:
    """Means of a column early and late, by arm, warm start and seed."""
    done = table["step"] / (table["step"].max() + 1)
    by = ["arm", "warm_start", "seed"]
    early, late = (
        table[(done >= low) & (done < high)].groupby(by)[column].mean() for low, high in (EARLY, LATE)
    )
    return early, late


def _late_over_early(table: Any, column: str) -> Any:
    early, late = _windows(table, column)
    return late / early


def _less(values: Any, arm: str, other: str | None = None) -> Interval:
    """Mean over runs of an arm's value, less that of another at the same warm start and seed."""
    ours = values[arm].sort_index()
    theirs = 0.0 if other is None else values[other].sort_index()
    return paired_effect(ours, theirs, ours.index.get_level_values("warm_start"))


def _rare(bins: Any) -> Any:
    """Mean rho of all rare tokens of a chunk, each counted once."""
    rare = bins[bins["high"] <= RARE].assign(total=lambda x: x["mean_rho"].fillna(0.0) * x["tokens"])
    sums = rare.groupby(["arm", "warm_start", "seed", "step"], as_index=False)[["total", "tokens"]].sum()
    return sums.assign(mean_rho=sums["total"] / sums["tokens"].where(sums["tokens"] > 0))


def _written(interval: Interval) -> str:
    return f"{interval.effect:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


EXPERIMENT = Experiment(
    name="flagship",
    question="Does mismatch alone make a healthy run decline, and do TIS and sequence ratios prevent it?",
    decision_rule=RULE,
    minutes=30.0,
    claims=(H4.id, H7.id, L3.id),
    figures=("flagship",),
    run=run,
    collect_evidence=collect_evidence,
)
