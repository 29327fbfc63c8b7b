"""The example of the README: one policy under two inference precisions. It decides nothing."""

from typing import Any

from simlab.core.json_value import Json
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.sweeps import sweep

BASE: dict[str, Json] = {
    "task": "add",
    "model": "tiny-llama",
    "warm_start": "add-tiny-llama-0",
    "objective": "grpo",
    "steps": 40,
}
OVER: dict[str, Json] = {
    "engines": ["f32/fp8-e4m3-truncated-all", "f32/fp8-s2-truncated-all"],
    "seed": [0, 1],
}
LATE = 30
"""First step of the means."""
SMOKE = {
    "warm_start": None,
    "model": {"name": "tiny-dense", "hidden_size": 32, "num_hidden_layers": 1},
    "prompts_per_step": 2,
    "group_size": 2,
    "minibatches": 1,
    "steps": 4,
}


def run(run: ExperimentContext) -> None:
    """Run the sweep and write the table `means`: reward and RMS log rho of the late steps, by engine pair."""
    base, late = (BASE | SMOKE, 2) if run.smoke else (BASE, LATE)
    # The few steps of a smoke run are done before another process has started.
    workers = 0 if run.smoke else None
    result = sweep(base, OVER, run.out.parent / "cache", name=run.name, workers=workers, yes=True)
    run.seeds(OVER["seed"])
    run.configure(base=base, over=OVER, late=late)
    run.timings.update({f"sweep {phase}": seconds for phase, seconds in result.manifest["timings"].items()})
    frame: Any = result.frame()
    means = frame[frame["step"] >= late].groupby("engines")[["reward", "rms_log_rho"]].mean()
    run.table("means", means.reset_index())


EXPERIMENT = Experiment(
    name="readme_example",
    question="What does one mantissa bit less do to the policy of the README?",
    decision_rule="An illustration with one initial policy and two seeds; decides nothing.",
    minutes=1.0,
    run=run,
)
