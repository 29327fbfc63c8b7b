"""One step: `learn(rollout(state))`, two functions joined by the trajectory."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from simlab.core.streams import stream
from simlab.models.parameters import Params
from simlab.models.transformer import Scores, response_logps
from simlab.objectives import (
    RolloutTerms,
    TokenBatch,
    entropy_bonus,
    kl_penalty,
    prepared,
    rollout_terms,
    value_from_terms,
)
from simlab.rollout.generate import generate
from simlab.rollout.trajectory import Trajectory
from simlab.tasks import END, PAD
from simlab.training.measure import step_metrics
from simlab.training.recipe import Recipe, TrainState

Metrics = dict[str, Array]


def train_step(recipe: Recipe, state: TrainState) -> tuple[TrainState, Metrics]:
    """Sample, score, update; return the next state and the metrics of this step."""
    return learn(recipe, state, rollout(recipe, state))


def rollout(recipe: Recipe, state: TrainState) -> Trajectory:
    """Sample responses to training prompts with the inference engine, and reward them."""
    key = jax.random.fold_in(stream(state.key, "rollout"), state.step)
    prompts = recipe.task.prompts(stream(key, "prompts"), recipe.prompts)
    return generate(
        state.params,
        recipe.model,
        recipe.engines.infer,
        recipe.sampler,
        key,
        prompts,
        recipe.task.check,
        group_size=recipe.group_size,
        length=recipe.task.response_length,
        end=END,
        pad=PAD,
    )


def learn(recipe: Recipe, state: TrainState, trajectory: Trajectory) -> tuple[TrainState, Metrics]:
    """Score a trajectory with the training engine, make the minibatch updates, and measure.

    Advantages, corrections and rho are fixed here, once per rollout; ratios are recomputed per minibatch.
    """
    replay = recipe.engines.replay
    sampled = trajectory.experts if replay == "R3" else None
    scores = score(recipe, state.params, replace(trajectory, experts=sampled))
    replayed = replace(trajectory, experts=scores.experts if replay == "R2" else sampled)
    batch = prepared(
        TokenBatch(
            logp=scores.logp,
            logp_train=scores.logp,
            logp_infer=trajectory.logp_infer,
            rewards=trajectory.rewards,
            mask=trajectory.mask,
            group_size=recipe.group_size,
            key=jax.random.fold_in(stream(state.key, "objective"), state.step),
            logp_reference=None if state.reference is None else score(recipe, state.reference, replayed).logp,
        )
    )
    terms = rollout_terms(recipe.objective, batch)
    factor = recipe.schedule(state.step)

    def update(carry: tuple[Params, Any], part: tuple) -> tuple[tuple[Params, Any], Array]:
        params, moments = carry
        grads, norm = policy_gradient(recipe, params, *part)
        return recipe.optimizer.update(grads, moments, params, factor), norm

    parts = _in_minibatches((replayed, replace(batch, key=None), terms), recipe.minibatches)
    (params, moments), norms = lax.scan(update, (state.params, state.moments), parts)
    metrics = step_metrics(batch, scores, trajectory)
    metrics |= {"grad_norm": jnp.mean(norms), "learning_rate_factor": factor}
    return replace(state, params=params, moments=moments, step=state.step + 1), metrics


def score(recipe: Recipe, params: Params, trajectory: Trajectory) -> Scores:
    """Score a trajectory with the training engine, replaying the experts that it carries."""
    return response_logps(
        params,
        recipe.model,
        recipe.engines.train,
        trajectory.prompts,
        trajectory.responses,
        trajectory.experts,
    )


def policy_gradient(
    recipe: Recipe, params: Params, trajectory: Trajectory, batch: TokenBatch, terms: RolloutTerms
) -> tuple[Params, Array]:
    """Return the gradient of the loss on one minibatch, and its norm.

    The loss is -sum(stop_gradient(c) * logp), with c the objective's gradient in logp, minus the extra terms.
    """

    def loss(params: Params) -> Array:
        logp, entropy, _ = score(recipe, params, trajectory)
        logp = jnp.where(batch.mask, logp, 0.0)
        coefficients = jax.grad(
            lambda logp: value_from_terms(recipe.objective, replace(batch, logp=logp), terms)
        )(lax.stop_gradient(logp))
        total = jnp.sum(coefficients * logp)
        if "entropy" in recipe.extra_terms:
            total += recipe.extra_terms["entropy"] * entropy_bonus(entropy, batch.mask)
        if "kl" in recipe.extra_terms:
            total += recipe.extra_terms["kl"] * kl_penalty(replace(batch, logp=logp))
        return -total

    grads = jax.grad(loss)(params)
    norm = jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(grads)))
    return grads, norm


def _in_minibatches(rows: Any, count: int) -> Any:
    """View the rows of every array [B, ...] as [count, B / count, ...]; groups stay whole."""
    return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), rows)
