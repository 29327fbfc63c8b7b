"""RL with rollouts from vLLM, weights synced at every step, beside the twin whose sampler is emulated.

The same recipe, warm start, prompts and learner; only the sampler differs: vLLM on a CPU in BF16 with
keys and values in FP8, or the lab's `bf16-fp8kv`. A killed run goes on where it was saved. The smoke
version takes engines of the lab on both sides.
"""

import shutil
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from simlab.core.experiment import Experiment, Run
from simlab.engines import ENGINES, EnginePair
from simlab.harness.jax_engine import JaxEngine
from simlab.harness.open_engine import interpreter
from simlab.harness.protocol import RealEngine
from simlab.harness.real_training import emulated_step, real_step, train_with
from simlab.harness.tree import shapes_of
from simlab.harness.vllm_engine import VllmEngine
from simlab.models import MODELS, init_params
from simlab.objectives import named
from simlab.tasks import TASKS
from simlab.training.checkpoints import load_tree
from simlab.training.recipe import Recipe, TrainState, initial_state

REAL, TWIN = "vllm:bfloat16+fp8", "bf16-fp8kv"
ARMS = {"none": "none", "R3": "R3"}
STEPS = 200
NUMBERS = ("reward", "rms_log_rho", "std_rho", "discrepancy", "response_length", "entropy", "grad_norm")
WARM_START = Path(__file__).parent / "warm_starts" / "add-tiny-moe-0.npz"


def recipe(replay: str, smoke: bool) -> Recipe:
    """GRPO on `add` with a float32 learner."""
    sizes = {"prompts": 2, "group_size": 2, "minibatches": 1} if smoke else {}
    twin = ENGINES["bf16" if smoke else TWIN]
    return Recipe(
        engines=EnginePair(ENGINES["f32"], twin, replay),
        objective=named("grpo"),
        task=TASKS["add"](),
        model=MODELS["tiny-moe"],
        **sizes,
    )


def first_state(of: Recipe, smoke: bool) -> TrainState:
    """The warm start; in smoke mode fresh parameters."""
    shapes = shapes_of(of.model)
    params = init_params(jax.random.key(0), of.model) if smoke else load_tree(WARM_START, shapes)
    return initial_state(of, params, jax.random.key(0))


def sampling_engine(smoke: bool) -> RealEngine:
    """vLLM, allowed to be as far from float32 as an FP8 cache makes a policy that training sharpens.

    That was up to 0.8 nats on the probe's random tokens, most of which the policy all but excludes; experts
    that were not packed again are off by 2 to 4.
    """
    if smoke:
        return JaxEngine("bf16", parity=1.0)
    return VllmEngine(interpreter("vllm"), dtype="bfloat16", kv_cache="fp8", parity=2.0)


def record(run: Run, sampler: str, replay: str, rows: list[dict]) -> None:
    """Make the steps of one arm and add their rows."""
    steps = 2 if run.smoke else STEPS
    learner = recipe(replay, run.smoke)
    state, folder = (
        first_state(learner, run.smoke),
        run.out / "states" / f"{sampler} {replay}".replace(":", " "),
    )
    real = sampler == REAL
    engine = sampling_engine(run.smoke) if real else None
    step = emulated_step if engine is None else real_step(engine)
    try:
        found = train_with(step, learner, state, steps, folder)
        for number, metrics in enumerate(run.track(found, f"{sampler} {replay}", steps)):
            row = {"sampler": sampler, "real": real, "replay": replay, "step": number}
            row |= {name: float(metrics[name]) for name in NUMBERS}
            row["router_flips"] = float(np.mean(metrics["router_flips"]))
            row["sync_apart"] = float(metrics["sync_apart"]) if real else float("nan")
            rows.append(row)
    finally:
        if engine is not None and hasattr(engine, "close"):
            engine.close()  # pyright: ignore[reportAttributeAccessIssue]
        run.table("steps", rows)


def run(run: Run) -> None:
    """Write the tables `steps` and `agreement`."""
    run.seeds([0])
    run.configure(real=REAL, twin=TWIN, steps=2 if run.smoke else STEPS, task="add", model="tiny-moe")
    rows: list[dict] = []
    for replay in ARMS:
        for sampler in (REAL, TWIN):
            with run.phase(f"{sampler} {replay}"):
                record(run, sampler, replay, rows)
    run.table("agreement", agreement(pd.DataFrame(rows)))
    shutil.rmtree(run.out / "states")


def agreement(steps: pd.DataFrame) -> list[dict]:
    """First and last quarter of each arm: means, and the growth between them."""
    quarter = max(1, (int(steps.step.max()) + 1) // 4)
    rows = []
    for (replay, sampler), arm in steps.groupby(["replay", "sampler"], sort=False):
        for number in ("reward", "rms_log_rho", "router_flips"):
            values = arm.sort_values("step")[number].to_numpy()
            first, last = float(values[:quarter].mean()), float(values[-quarter:].mean())
            rows.append(
                {"replay": replay, "sampler": sampler, "number": number, "first": first, "last": last}
            )
    return rows


EXPERIMENT = Experiment(
    name="real_rl",
    question="Do mismatch and reward under vLLM go as under its emulated twin, and does replay act alike?",
    decision_rule=(
        "agreement: the ratio of RMS log rho between last and first quarter of the steps is on the same side "
        "of 1 for both samplers, and so is that of R3 to no replay in the last quarter; one seed: no interval"
    ),
    run=run,
    minutes=20.0,
    figures=("real_rl",),
)
