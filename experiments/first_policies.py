"""First policies over long responses: taught by seed, kept as files if they have learned the task.

Another processor adds in another order, and 4,000 updates make another policy of it, so a seed that learns
here need not learn there. Files travel: the runs of `campaign` begin from those in `experiments/warm_starts`,
copies of `policies/` in the folder of a run of this experiment.
"""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.campaign import ARMS, BF16, NONE, long
from experiments.dynamics_study.looks import mismatch
from experiments.dynamics_study.runs import SMOKE
from experiments.dynamics_study.studies import taught
from experiments.regime import BASE
from simlab.core.experiment import Experiment, Run
from simlab.models.parameters import Params
from simlab.sweeps import recipe_of, run_config
from simlab.sweeps.start import first_params
from simlab.training.checkpoints import save_tree
from simlab.training.probes import Subject
from simlab.training.recipe import Recipe, TrainState, initial_state

FIRST_SEED, POLICIES, LEAST_REWARD = 4, 8, 0.2
MOST_SEEDS = 64
ROLLOUTS = 4
ARMS_SEEN = (long(NONE), long(BF16))
TEACHING: dict[str, Any] = {
    "steps": 4000,
    "batch": 16,
    "mistakes": 0.02,
    "optimizer": {"learning_rate": 8e-3},
}
"""Half of the seeds learn nothing at this rate. At a quarter of it most learn, but their runs collapse
without any mismatch (`LOG.md`)."""
RULE = (
    f"Of the seeds from {FIRST_SEED} on, the first {POLICIES} count whose first {ROLLOUTS} rollouts under "
    f"BF16 earn {LEAST_REWARD} or more, before any run is looked at."
)


def run(run: Run) -> None:
    run.configure(teaching=TEACHING)
    rows: list[dict[str, Any]] = []
    for seed in range(FIRST_SEED, FIRST_SEED + MOST_SEEDS):
        rows.append(_taught(run, seed))
        run.say(f"seed {seed}: reward {rows[-1]['reward_bf16']:.3f} under BF16")
        if sum(row["counts"] for row in rows) == (1 if run.smoke else POLICIES):
            break
    else:
        raise ValueError(f"{MOST_SEEDS} seeds taught, and fewer than {POLICIES} of them learned: {rows}")
    run.seeds(row["seed"] for row in rows)
    run.table("starts", rows)


def _taught(run: Run, seed: int) -> dict[str, Any]:
    """Teach one policy, look at its first rollouts and keep it if it counts; return its row."""
    start = {"seed": seed, **TEACHING}
    small = {**SMOKE, "warm_start": {**start, "steps": 2}} if run.smoke else {"warm_start": start}
    dosed, control = (run_config(BASE, {**ARMS[arm].changes, **small}) for arm in ARMS_SEEN)
    recipe = recipe_of(dosed)
    params = first_params(dosed.warm_start, recipe.task, recipe.model, seed, taught(run))
    found, under_bf16 = _look(recipe, params), _look(recipe_of(control), params)["reward"]
    counts = run.smoke or under_bf16 >= LEAST_REWARD
    if counts:
        save_tree(run.out / "policies" / f"chain-{seed}.npz", params)
    return {"seed": seed, "reward_bf16": under_bf16, **found, "counts": counts}


def _look(recipe: Recipe, params: Params) -> dict[str, float]:
    states = [initial_state(recipe, params, jax.random.key(seed)) for seed in range(ROLLOUTS)]
    looks = _rollouts(recipe, jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))
    return {name: float(values.mean()) for name, values in looks.items()}


@jax.jit
def _rollouts(recipe: Recipe, states: TrainState) -> dict[str, jax.Array]:
    """`reward`, `rms_log_rho` and `discrepancy` of the next rollout of every state, [states]."""

    def of_state(state: TrainState) -> dict[str, jax.Array]:
        subject = Subject(recipe, state)
        return {"reward": jnp.mean(subject.batch.rewards), **mismatch(subject)}

    return jax.lax.map(of_state, states)


EXPERIMENT = Experiment(
    name="first_policies",
    question="Which first policies over long responses have learned their task?",
    decision_rule=RULE,
    run=run,
    minutes=20.0,
)
