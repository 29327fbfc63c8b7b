"""Measure ACRL's overhead per training step."""

from typing import Any

import jax

from experiments.benchmarks.timing import compile_call, least_seconds, train_call
from experiments.regimes import WARM_STARTS
from experiments.studies.runs import start_run
from simlab.objectives import get_objective
from simlab.training.step import rollout, score_rollout, token_batch

REPEATS = 30


def acrl_share(smoke: bool) -> list[dict[str, float]]:
    """Return one row: least seconds of the weights of ACRL, and of a training step with them."""
    recipe, state = start_run("grpo+acrl", WARM_STARTS[0], smoke)

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
