"""Run the flagship: strong mismatch without correction, with TIS, under GSPO, and the BF16 control.

Notebook 05 reads the stored runs. Claims are decided on chains, with more policies.
"""

from typing import Any

from experiments.regimes import BASE, RUNS_PER_BATCH, STEPS, TRAINED
from experiments.studies.flagship_sweep import SMOKE, record
from simlab.core.paths import checkout_root
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.sweeps import grid, sweep
from simlab.sweeps.file import read_file
from simlab.sweeps.grids import Grid

POLICIES, FIRST_SEED = 8, 6
SCREEN_STEPS, MIN_REWARD, MIN_MISMATCH = 10, 0.05, 0.4

RULE = (
    f"Initial policies are trained from seed {FIRST_SEED} on; the first {POLICIES} pass whose frozen "
    f"rollouts have a reward of at least {MIN_REWARD} and an RMS log rho of at least {MIN_MISMATCH} "
    f"({SCREEN_STEPS} steps). It decides no claim; the experiments on chains do."
)


def run(run: ExperimentContext) -> None:
    described = read_file(checkout_root() / "examples" / "flagship.toml")
    if run.smoke:
        base = {**described.base, **SMOKE}
        return record(run, base, Grid(described.grid.points[::4]), described.runs_per_batch)
    policies = grid({"warm_start": [{"seed": seed, **TRAINED} for seed in screen_policies(run)]})
    record(
        run, {**described.base, "steps": STEPS}, described.grid * policies, RUNS_PER_BATCH, "warm_start.seed"
    )
    return None


def screen_policies(run: ExperimentContext) -> list[int]:
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


EXPERIMENT = Experiment(
    name="flagship",
    question="Does mismatch alone make a healthy run decline, and do TIS and sequence ratios prevent it?",
    decision_rule=RULE,
    minutes=30.0,
    run=run,
)
