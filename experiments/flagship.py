"""The flagship: the middle dose of mismatch, uncorrected, with TIS, under GSPO, and the BF16 control."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from simlab.core.experiment import Experiment, Run
from simlab.core.paths import shop_root
from simlab.engines import find_pair
from simlab.metrics import PROBABILITY_EDGES
from simlab.models.config import MODELS, TransformerConfig
from simlab.models.parameters import init_params
from simlab.objectives import resolve
from simlab.tasks import TASKS
from simlab.training.checkpoints import load_tree
from simlab.training.loop import train
from simlab.training.recipe import Recipe, TrainState, initial_state

CHUNK = 20
BINNED = ("tokens_by_pi_train", "mean_rho_by_pi_train", "rms_log_rho_by_pi_train")


@dataclass(frozen=True)
class Arm:
    """One curve: its objective, its engine pair, and what it changes of the objective."""

    objective: str
    engines: str
    overrides: tuple[tuple[str, float], ...] = ()


GSPO_CLIP = (("clip_low", 0.03), ("clip_high", 0.03))
ARMS = {
    "no correction": Arm("grpo", "f32/fp8-s4-truncated"),
    "TIS": Arm("grpo+tis", "f32/fp8-s4-truncated", (("correction_clip", 5.0),)),
    "GSPO": Arm("gspo", "f32/fp8-s4-truncated", GSPO_CLIP),
    "BF16 control": Arm("grpo", "f32/bf16"),
}


@dataclass(frozen=True)
class Size:
    """How large a run is: seeds x warm starts side by side, and what each of them does."""

    steps: int
    seeds: int
    warm_starts: int
    prompts: int
    group_size: int
    model: TransformerConfig


FULL = Size(steps=400, seeds=4, warm_starts=1, prompts=8, group_size=16, model=MODELS["tiny-dense"])
SMOKE = Size(
    steps=CHUNK,
    seeds=2,
    warm_starts=0,
    prompts=4,
    group_size=4,
    model=TransformerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1),
)


def run(run: Run) -> None:
    size = SMOKE if run.smoke else FULL
    seeds = run.seeds(range(size.seeds))
    run.configure(
        arms={
            name: [arm.objective, arm.engines, [list(pair) for pair in arm.overrides]]
            for name, arm in ARMS.items()
        },
        task="add",
        steps=size.steps,
        prompts=size.prompts,
        group_size=size.group_size,
        warm_starts=size.warm_starts,
    )
    steps, bins = [], []
    for name, arm in ARMS.items():
        with run.phase(name):
            metrics = _run_arm(run, name, arm, size, seeds)
        steps.extend(_step_rows(name, metrics))
        bins.extend(_bin_rows(name, metrics))
    run.table("steps", steps)
    run.table("bins", bins)


def recipe_of(arm: Arm, size: Size) -> Recipe:
    """Return the recipe of an arm."""
    return Recipe(
        engines=find_pair(arm.engines),
        objective=resolve(arm.objective, **dict(arm.overrides)),
        task=TASKS["add"](),
        model=size.model,
        prompts=size.prompts,
        group_size=size.group_size,
    )


def _run_arm(run: Run, name: str, arm: Arm, size: Size, seeds: list[int]) -> dict[str, np.ndarray]:
    """Return the metrics of all runs of an arm, [run, step, ...], the seeds of one warm start together."""
    recipe = recipe_of(arm, size)
    states = [
        initial_state(recipe, params, jax.random.key(seed))
        for params in _first_params(size)
        for seed in seeds
    ]
    state: TrainState = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    chunks = train(recipe, state, size.steps, chunk=CHUNK, axes=(None, 0))
    collected = [jax.device_get(metrics) for _, metrics in run.track(chunks, name, total=size.steps // CHUNK)]
    return {key: np.concatenate([part[key] for part in collected], axis=1) for key in collected[0]}


def _first_params(size: Size) -> list:
    like = init_params(jax.random.key(0), size.model)
    folder = shop_root() / "experiments" / "warm_starts"
    if not size.warm_starts:
        return [like]
    return [load_tree(folder / f"add-tiny-dense-{i}.npz", like) for i in range(size.warm_starts)]


def _step_rows(arm: str, metrics: dict[str, np.ndarray]) -> list[dict]:
    scalars = {key: values for key, values in metrics.items() if key not in BINNED}
    runs, steps = scalars["reward"].shape
    return [
        {"arm": arm, "run": run, "step": step, **{key: float(v[run, step]) for key, v in scalars.items()}}
        for run in range(runs)
        for step in range(steps)
    ]


def _bin_rows(arm: str, metrics: dict[str, np.ndarray]) -> list[dict]:
    """Chunk averages by bin, each token counted once."""
    tokens, rho = metrics["tokens_by_pi_train"], metrics["mean_rho_by_pi_train"]
    rows = []
    for run, first, which in np.ndindex(tokens.shape[0], tokens.shape[1] // CHUNK, tokens.shape[2]):
        part = slice(first * CHUNK, (first + 1) * CHUNK)
        count = tokens[run, part, which]
        total = float(np.nansum(np.where(count > 0, rho[run, part, which], 0.0) * count))
        rows.append(
            {
                "arm": arm,
                "run": run,
                "step": first * CHUNK,
                "low": PROBABILITY_EDGES[which],
                "high": PROBABILITY_EDGES[which + 1],
                "tokens": float(count.sum()),
                "mean_rho": total / float(count.sum()) if count.sum() else float("nan"),
            }
        )
    return rows


EXPERIMENT = Experiment(
    name="flagship",
    question="Does mismatch alone make a healthy run decline, and do TIS and sequence ratios prevent it?",
    decision_rule=(
        "Rise and decline: without correction the mean reward of the last 40 steps lies below that of the "
        "best 40 in a row by more than twice the standard error over runs, and for TIS, GSPO and the BF16 "
        "control it does not. Survival bias: without correction mean rho at pi_train < 0.01 is below 1 in "
        "every run and lower in the last 100 steps than in the first 100."
    ),
    minutes=25.0,
    claims=("H4", "H7", "L3", "V3"),
    figures=("flagship",),
    run=run,
)
