"""Compare one training step with exact sums and with ordinary sums."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from experiments.regimes import WARM_STARTS
from experiments.studies.runs import start_run
from simlab.engines import find_pair
from simlab.objectives import rollout_terms
from simlab.training.optimizer import global_norm
from simlab.training.step import policy_gradient, rollout, score_rollout, token_batch

SIDES = (("bf16", "bf16-exact"), ("fp8-e4m3", "fp8-e4m3-exact"))


def compare(smoke: bool) -> list[dict[str, str | float]]:
    """Return the fraction of equal tokens and the difference of the gradients, per engine pair and policy.

    The rollouts have the same random numbers. Both gradients use the rollout of the ordinary engine and
    treat it as on-policy, so only the forward and backward pass differ.
    """
    rows = []
    # Exact sums take a minute to compile; one engine on both sides is one program.
    for ordinary, exact in (("f32", "f32"),) if smoke else SIDES:
        for start in WARM_STARTS[: 1 if smoke else None]:
            rows.append(
                {"ordinary": ordinary, "exact": exact, "initial_policy": start}
                | _step(ordinary, exact, start, smoke)
            )
    return rows


def _step(ordinary: str, exact: str, start: str, smoke: bool) -> dict[str, float]:
    recipe, state = start_run("grpo", start, smoke)
    one, other = (replace(recipe, engines=find_pair(f"{side}/{side}")) for side in (ordinary, exact))
    sampled = [jax.jit(rollout)(side, state) for side in (one, other)]
    first, second = (_gradient(side, state, sampled[0]) for side in (one, other))
    difference = global_norm(jax.tree.map(jnp.subtract, first, second)) / global_norm(first)
    same = (sampled[0].responses == sampled[1].responses) | ~sampled[0].mask
    return {"same_tokens": float(jnp.mean(same)), "gradient_difference": float(difference)}


@jax.jit
def _gradient(recipe, state, trajectory):
    scores, replayed = score_rollout(recipe, state.params, trajectory)
    # The log-probs that this engine would have reported as the inference engine.
    reported = replace(replayed, logp_infer=jnp.where(replayed.mask, scores.logp, 0.0))
    batch = replace(token_batch(recipe, state, reported, scores), key=None)
    return policy_gradient(recipe, state.params, reported, batch, rollout_terms(recipe.objective, batch))[0]
