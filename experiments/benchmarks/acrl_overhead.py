"""Measure ACRL's overhead per training step."""

from typing import Any

import jax

from experiments.benchmarks.timing import compile_call, least_seconds, train_call
from experiments.regimes import BASE, WARM_STARTS
from experiments.studies.runs import SMOKE
from simlab.core.paths import checkout_root
from simlab.objectives import get_objective
from simlab.sweeps import recipe_of, run_config
from simlab.sweeps.start import load_initial_params
from simlab.training.recipe import initial_state
from simlab.training.step import rollout, score_rollout, token_batch

REPEATS = 30


def acrl_share(smoke: bool) -> list[dict[str, float]]:
    """Return one row: least seconds of the weights of ACRL, and of a training step with them."""
    changes = {"warm_start": WARM_STARTS[0], "objective": "grpo+acrl"} | (SMOKE if smoke else {})
    config = run_config(BASE, changes)
    recipe = recipe_of(config)
    params = load_initial_params(config.warm_start, recipe.task, recipe.model, 0, checkout_root())
    state = initial_state(recipe, params, jax.random.key(0))

    @jax.jit
    def score(state):
        scores, replayed = score_rollout(recipe, state.params, rollout(recipe, state))
        return token_batch(recipe, state, replayed, scores)

    batch = score(state)
    correction: Any = get_objective("grpo+acrl").correction
    calls = {
        "weights_seconds": compile_call(lambda batch: correction(batch, batch.logp), batch),
        "step_seconds": train_call(recipe, state, 1),
    }
    repeats = 3 if smoke else REPEATS
    return [{name: least_seconds(call, at_least=repeats) for name, call in calls.items()}]
