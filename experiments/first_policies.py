"""First policies over long responses: taught by seed, kept as files if they have learned the task.

Another processor adds in another order, and 4,000 updates make another policy of it, so a seed that learns
here need not learn there. Files travel: the runs of `campaign` begin from those in `experiments/warm_starts`,
copies of `policies/` in the folder of a run of this experiment.
"""

from itertools import count
from typing import Any

import jax
import jax.numpy as jnp

from experiments import campaign
from experiments.campaign import ARMS, experts, long
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
ROLLOUTS = 4
TEACHING: dict[str, Any] = {
    "steps": 4000,
    "batch": 16,
    "mistakes": 0.02,
    "optimizer": {"learning_rate": 2e-3},
}
"""At four times the rate half of the dense models and most experts learn nothing."""
MODELS = {"dense": long, "experts": experts}
"""How arms of each model are named."""
RULE = (
    f"Of the seeds from {FIRST_SEED} on, the first {POLICIES} count whose first {ROLLOUTS} rollouts under "
    f"BF16 earn {LEAST_REWARD} or more, before any run is looked at; by model."
)


def run(run: Run) -> None:
    run.configure(teaching=TEACHING)
    rows: list[dict[str, Any]] = []
    for model in MODELS:
        wanted = 1 if run.smoke else POLICIES
        for seed in count(FIRST_SEED):
            rows.append(_taught(run, model, seed))
            run.say(f"{model}, seed {seed}: reward {rows[-1]['reward_bf16']:.3f} under BF16")
            if sum(row["counts"] for row in rows if row["model"] == model) == wanted:
                break
    run.seeds(row["seed"] for row in rows)
    run.table("starts", rows)


def _taught(run: Run, model: str, seed: int) -> dict[str, Any]:
    """Teach one policy, look at its first rollouts and keep it if it counts; return its row."""
    named, start = MODELS[model], {"seed": seed, **TEACHING}
    small = {**SMOKE, "warm_start": {**start, "steps": 2}} if run.smoke else {"warm_start": start}
    configs = {
        name: run_config(BASE, {**ARMS[named(name)].changes, **small})
        for name in (campaign.NONE, campaign.BF16)
    }
    recipes = {name: recipe_of(config) for name, config in configs.items()}
    recipe, config = recipes[campaign.NONE], configs[campaign.NONE]
    params = first_params(config.warm_start, recipe.task, recipe.model, seed, taught(run))
    dosed, control = (_look(recipes[name], params) for name in (campaign.NONE, campaign.BF16))
    counts = run.smoke or control["reward"] >= LEAST_REWARD
    if counts:
        save_tree(run.out / "policies" / f"chain-{model}-{seed}.npz", params)
    return {"model": model, "seed": seed, "reward_bf16": control["reward"], **dosed, "counts": counts}


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
