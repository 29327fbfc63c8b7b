"""RL with rollouts from vLLM, weights synced at every step, compared with the emulated run.

The same recipe, warm start, prompts and objective; only the inference engine differs: vLLM on a CPU in BF16
with keys and values in FP8, or the emulation of it that fits best in `real_pairs`. vLLM runs once per arm,
the emulation with several seeds, whose spread is that of repeated runs. A killed run resumes from its
checkpoint. Needs `scripts/make_env.py vllm`; the smoke version uses emulated engines for both.
"""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from scipy.stats import t as student

from simlab.engines import ENGINES, EnginePair
from simlab.models import MODELS, init_params
from simlab.models.parameters import shapes_of
from simlab.objectives import get_objective
from simlab.serving.emulations import get_vllm_cpu_emulations
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.open_engine import find_interpreter
from simlab.serving.protocol import RealEngine
from simlab.serving.real_training import engine_rollout
from simlab.serving.vllm_engine import VllmEngine
from simlab.studies.estimands import Frame
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.tasks import TASKS
from simlab.training.checkpoints import load_tree
from simlab.training.loop import Advance, CheckpointWriter, learn_from, resume, train
from simlab.training.recipe import Recipe, TrainState, initial_state

REAL, EMULATION = "vllm:bfloat16+fp8", "bf16-fp8kv truncated"
ARMS = {
    "none": ("grpo", "none"),
    "TIS": ("grpo+tis", "none"),
    "R2": ("grpo", "R2"),
    "R3": ("grpo", "R3"),
}
"""Arm -> objective, replay."""
SEEDS = (0, 1, 2, 3)
STEPS = 200
NUMBERS = ("reward", "rms_log_rho", "std_rho", "discrepancy", "response_length", "entropy", "grad_norm")
WARM_START = Path(__file__).parents[1] / "warm_starts" / "add-tiny-moe-0.npz"


def recipe(arm: str, smoke: bool) -> Recipe:
    """GRPO on `add` with a float32 recipe_of_arm."""
    objective, replay = ARMS[arm]
    emulation = ENGINES["bf16"] if smoke else get_vllm_cpu_emulations()[EMULATION].engine
    sizes: dict[str, Any] = {"prompts_per_step": 2, "group_size": 2, "minibatches": 1} if smoke else {}
    return Recipe(
        engines=EnginePair(ENGINES["f32"], emulation, replay),
        objective=get_objective(objective),
        task=TASKS["add"](),
        model=replace(MODELS["tiny-moe"], num_hidden_layers=1) if smoke else MODELS["tiny-moe"],
        **sizes,
    )


def first_state(of: Recipe, seed: int, smoke: bool) -> TrainState:
    """The warm start; in smoke mode fresh parameters."""
    shapes = shapes_of(of.model)
    params = init_params(jax.random.key(0), of.model) if smoke else load_tree(WARM_START, shapes)
    return initial_state(of, params, jax.random.key(seed))


def sampling_engine(smoke: bool, stack: contextlib.ExitStack) -> RealEngine:
    """vLLM, allowed to be as far from float32 as an FP8 cache makes a policy that training sharpens.

    That was up to 0.8 nats on the probe's random tokens, most of which the policy all but excludes; experts
    that were not packed again are off by 2 to 4.
    """
    if smoke:
        return JaxEngine("bf16", parity=1.0)
    python = find_interpreter("vllm")
    return stack.enter_context(VllmEngine(python, dtype="bfloat16", kv_cache="fp8", parity=2.0))


def record(
    run: ExperimentContext, arm: str, advance: Advance | None, sampling_engine_name: str, seed: int
) -> list[dict]:
    """Make the steps of one run, by default with the emulated engine, and return their rows."""
    recipe_of_arm, steps = recipe(arm, run.smoke), 2 if run.smoke else STEPS
    path = run.out / "states" / f"{sampling_engine_name} {arm} {seed}.npz".replace(":", " ")
    state, history = resume(path, first_state(recipe_of_arm, seed, run.smoke))
    with run.progress(f"{sampling_engine_name} {arm} {seed}", steps) as progress:
        callbacks = [CheckpointWriter(path), progress]
        _, metrics = train(recipe_of_arm, state, steps, callbacks, chunk=1, advance=advance, history=history)
    metrics.setdefault("sync_apart", np.full(steps, np.nan))
    metrics["router_flips"] = metrics["router_flips"].mean(axis=1)
    return [
        {"arm": arm, "sampling_engine": sampling_engine_name, "seed": seed, "step": step}
        | {name: float(metrics[name][step]) for name in (*NUMBERS, "router_flips", "sync_apart")}
        for step in range(steps)
    ]


def run(run: ExperimentContext) -> None:
    """Write the tables `steps` and `agreement`."""
    arms, seeds = (("none",), SEEDS[:2]) if run.smoke else (tuple(ARMS), SEEDS)
    run.seeds(seeds)
    run.configure(
        real=REAL, emulation=EMULATION, arms=arms, task="add", model="tiny-moe", warm_start=WARM_START.stem
    )
    rows: list[dict] = []
    with contextlib.ExitStack() as stack:
        advance = learn_from(engine_rollout(sampling_engine(run.smoke, stack)))
        for arm in arms:
            with run.phase(f"{REAL} {arm}"):
                rows += record(run, arm, advance, REAL, seeds[0])
            run.table("steps", rows)
    for arm in arms:
        with run.phase(f"{EMULATION} {arm}"):
            for seed in seeds:
                rows += record(run, arm, None, EMULATION, seed)
        run.table("steps", rows)
    run.table("agreement", agreement(pd.DataFrame(rows)))
    shutil.rmtree(run.out / "states")


def numbers(steps: Frame) -> dict[str, float]:
    """Return the compared numbers of one run per arm: growth, level, reward, effects of the remedies."""
    quarter = max(1, (int(steps["step"].max()) + 1) // 4)
    values = {}
    for arm, rows in steps.groupby("arm", sort=False):
        rows = rows.sort_values("step")
        mismatch = np.log(rows["rms_log_rho"].to_numpy())
        first, last = mismatch[:quarter].mean(), mismatch[-quarter:].mean()
        values[f"{arm}: log of last quarter's mismatch over the first's"] = last - first
        values[f"{arm}: log mismatch, last quarter"] = last
        values[f"{arm}: reward, last quarter"] = rows["reward"].to_numpy()[-quarter:].mean()
    for arm in set(steps["arm"]) - {"none"}:
        for number in ("log mismatch, last quarter", "reward, last quarter"):
            values[f"{arm} minus none: {number}"] = values[f"{arm}: {number}"] - values[f"none: {number}"]
    return {name: float(value) for name, value in sorted(values.items())}


def agreement(steps: Frame) -> list[dict]:
    """Compare each number of vLLM with the 95% prediction interval of one more emulated run."""
    real = numbers(steps[steps["sampling_engine"] == REAL])
    emulated = [numbers(rows) for _, rows in steps[steps["sampling_engine"] == EMULATION].groupby("seed")]
    rows = []
    for name, value in real.items():
        theirs = np.asarray([run[name] for run in emulated])
        half = student.ppf(0.975, len(theirs) - 1) * theirs.std(ddof=1) * np.sqrt(1 + 1 / len(theirs))
        low, high = float(theirs.mean() - half), float(theirs.mean() + half)
        row = {"number": name, "real": value, "emulated": float(theirs.mean()), "low": low, "high": high}
        rows.append(row | {"agrees": low <= value <= high})
    return rows


EXPERIMENT = Experiment(
    name="real_rl",
    question="Do emulated runs predict mismatch and reward of RL on vLLM, also with TIS, R2 and R3?",
    decision_rule=(
        "each number (growth and last quarter's level of log RMS log rho, last quarter's reward, and what "
        "TIS, R2 and R3 change in the last two) agrees if vLLM's run lies in the 95% prediction interval for "
        "one more run of the emulation, Student's over its seeds"
    ),
    run=run,
    minutes=27.0,
    on_one_thread=True,
)
