"""Run engines that differ only in the accumulator, in BF16, on-policy over thousands of steps."""

from dataclasses import replace
from typing import Any

import pandas as pd

from experiments.arms.tensor_cores import GPUS, NARROWED, NOISY, PLAIN, SAME
from experiments.papers.tensor_cores import CONTROLS, T5
from experiments.regimes import BASE
from experiments.studies.observed_runs import observe_runs
from experiments.studies.runs import SMOKE as TRAINING_SMOKE
from experiments.studies.runs import RunSpec, count_per_batch, run_sweep
from simlab.core.json_value import Json
from simlab.core.results import Results
from simlab.studies import Measured
from simlab.studies.arms import Arm
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.studies.verdicts import measure_trials

CHUNK = 20
POLICIES = 16
VALIDATED_EVERY = 100
# 1 ulp of a log-probability: float32 sums of the softmax may depend on the size of the batch.
ROUND_OFF = 1e-6
COLUMNS = ("reward", "rms_log_rho", "std_rho", "discrepancy", "entropy", "grad_norm")


ARMS = (SAME, GPUS, NARROWED, PLAIN, NOISY)
"""In the first three all sites round equally and only the accumulators differ."""

DRIFT_BASE: dict[str, Json] = {
    **BASE,
    "objective": {"name": "grpo", "clip_low": 1.0, "clip_high": 1e9},
    "optimizer": {**BASE["optimizer"], "max_grad_norm": 1e9},
    "model": {
        "name": "tiny-llama",
        "hidden_size": 32,
        "num_attention_heads": 1,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
    },
    "task": {"name": "add", "difficulty": 1, "scratch": 4, "train_size": 80, "held_out_size": 20},
    "prompts_per_step": 4,
    "group_size": 8,
    "minibatches": 1,
    "steps": 4000,
}
"""The regime of the flagship without its stabilizers, and small enough for so many steps."""
# A program that the smoke modes of other experiments compile as well.
SMOKE = {**TRAINING_SMOKE, "minibatches": BASE["minibatches"]}


def run(run: ExperimentContext) -> None:
    """Run the arms from each initial policy, with validations every `VALIDATED_EVERY` steps."""
    arms, seeds = ([NOISY], run.seeds(range(2))) if run.smoke else (ARMS, run.seeds(range(POLICIES)))
    run.configure(arms=[arm.id for arm in arms], base=DRIFT_BASE, chunk=CHUNK)
    run.configure(runs_per_batch=count_per_batch(run))
    specs = [make_spec(arm, seed, run.smoke) for arm in arms for seed in seeds]
    with run.phase("diagnostics"):
        validations = observe_runs(run, [(("both engines",), specs)], VALIDATED_EVERY, DRIFT_BASE)
    frames = run_sweep(run, specs, DRIFT_BASE)  # these runs are in the cache now
    runs, steps = frames["runs"], frames["steps"]
    _check_control(run, steps["rms_log_rho"][steps["run"].isin(runs["run"][runs["arm"] == SAME.id])])
    run.table("runs", runs)
    run.table("chunks", chunks(steps))
    run.table("diagnostics", validations)


def _check_control(run: ExperimentContext, mismatch: Any) -> None:
    largest = float(max(mismatch, default=0.0))
    run.configure(control_steps_with_mismatch=int((mismatch != 0).sum()), control_largest=largest)
    if not largest <= ROUND_OFF:
        raise ArithmeticError(f"{SAME}: the control has a mismatch of {largest:.2g}")


def make_spec(arm: Arm, seed: int, smoke: bool = False) -> RunSpec:
    """Return a run: the arm's engines, from the warm start of that seed."""
    start = {"seed": seed, "steps": 1000, "demo_error_rate": 0.15, "min_lr_ratio": 1.0}
    changes = {**arm.changes, "seed": seed, "warm_start": start}
    return RunSpec(arm, f"start {seed}", seed, {**changes, **(SMOKE if smoke else {})})


def chunks(steps: pd.DataFrame) -> pd.DataFrame:
    """Means over chunks of steps."""
    by: Any = steps.assign(step=steps["step"] // CHUNK * CHUNK).groupby(["run", "step"], sort=False)
    return by[list(COLUMNS)].mean().reset_index()


TRIAL = T5.trial("accumulator_drift")
CONTROL_TRIALS = {arm: TRIAL.with_arms({GPUS: arm}) for arm in CONTROLS}
RULE = (
    f"{POLICIES} runs per arm, each from another initial policy, paired. {TRIAL.text} The same for "
    f"{' and '.join(arm.id for arm in CONTROLS)}, which decide nothing."
)


def collect_evidence(results: Results) -> list[Measured]:
    """Return T5 from the pair of real GPUs; the note has the primary estimates of the other arms."""
    others = {arm: measure_trials(results, [trial]) for arm, trial in CONTROL_TRIALS.items()}
    notes = [
        f"{arm}: {each.primary.estimate:.3g}"
        for arm, measured in others.items()
        for each in measured
        if each.primary
    ]
    return [replace(each, note="; ".join([each.note, *notes])) for each in measure_trials(results, [TRIAL])]


EXPERIMENT = Experiment(
    name="accumulator_drift",
    question="Does the accumulator alone, at BF16 on both sides, make a run drift over thousands of steps?",
    decision_rule=RULE,
    run=run,
    minutes=35.0,
    claims=(T5.id,),
    collect_evidence=collect_evidence,
    on_one_thread=True,
)
