"""What ACRL costs: its weights beside a whole step."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import jax

from experiments.regimes import BASE, WARM_STARTS
from experiments.studies.runs import SMOKE
from simlab.core.paths import shop_root
from simlab.objectives import named
from simlab.sweeps import recipe_of, run_config
from simlab.sweeps.start import first_params
from simlab.training.recipe import initial_state
from simlab.training.step import rollout, score_rollout, token_batch, train_step

REPEATS = 30


def acrl_share(smoke: bool) -> list[dict[str, float]]:
    """Return one row: least seconds of the weights of ACRL, and of the step around them."""
    changes = {"warm_start": WARM_STARTS[0], "objective": "grpo+acrl"} | (SMOKE if smoke else {})
    config = run_config(BASE, changes)
    recipe = recipe_of(config)
    params = first_params(config.warm_start, recipe.task, recipe.model, 0, shop_root())
    state = initial_state(recipe, params, jax.random.key(0))

    @jax.jit
    def scored(state):
        scores, replayed = score_rollout(recipe, state.params, rollout(recipe, state))
        return token_batch(recipe, state, replayed, scores)

    batch = scored(state)
    correction: Any = named("grpo+acrl").correction
    weights = jax.jit(lambda batch: correction(batch, batch.logp))
    repeats = 3 if smoke else REPEATS
    step = jax.jit(train_step)
    return [
        {
            "weights_seconds": _least(lambda: weights(batch), repeats),
            "step_seconds": _least(lambda: step(recipe, state), repeats),
        }
    ]


def _least(call: Callable[[], Any], repeats: int) -> float:
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = perf_counter()
        jax.block_until_ready(call())
        times.append(perf_counter() - start)
    return min(times)
