"""One step: `learn(rollout(state))`, two functions joined by the trajectory."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int, PyTree

from simlab.core.arrays import AnyArray
from simlab.core.streams import stream
from simlab.engines import Engine
from simlab.engines.constant import release_constants
from simlab.engines.site import Site, prepare_sites, store
from simlab.metrics import METRICS
from simlab.models.parameters import Params
from simlab.models.transformer import Scores, response_logps
from simlab.objectives import (
    Objective,
    RolloutTerms,
    TokenBatch,
    columns_needed,
    entropy_bonus,
    kl_penalty,
    prepare_batch,
    regularization,
    rollout_terms,
    surrogate_value,
)
from simlab.rollout.generate import generate
from simlab.rollout.trajectory import Trajectory
from simlab.tasks import EOS_TOKEN_ID, PAD_TOKEN_ID
from simlab.training.critic import token_values, update_critic
from simlab.training.measure import choose_metrics, clip_fractions, step_metrics
from simlab.training.optimizer import global_norm
from simlab.training.recipe import Recipe, SamplingRecipe, TrainState
from simlab.training.staleness import rollout_params, update_past_params

Metrics = dict[str, Array]

UPDATE_METRICS = ("grad_norm", "clip_fraction", "clip_fraction_positive", "clip_fraction_negative")
"""The metrics of one minibatch update, from `policy_gradient`."""
VOCABULARY_COLUMNS = frozenset(("logp_vocabulary", "logp_infer_vocabulary", "sum_squared_probabilities"))


def train_step(recipe: Recipe, state: TrainState) -> tuple[TrainState, Metrics]:
    """Sample, score, update; return the next state and the metrics of this step."""
    return learn(recipe, state, rollout(recipe, state))


def rollout(recipe: Recipe, state: TrainState) -> Trajectory:
    """Sample responses to training prompts with the inference engine at theta_rollout, and reward them."""
    return sample(sampling_recipe(recipe), state.params, state.past_params, state.key, state.step)


def sampling_recipe(recipe: Recipe) -> SamplingRecipe:
    """Return the part of a recipe that `sample` reads."""
    return SamplingRecipe(
        engine=recipe.engines.infer,
        sampling=recipe.sampling,
        task=recipe.task,
        model=recipe.model,
        prompts_per_step=recipe.prompts_per_step,
        group_size=recipe.group_size,
        vocabulary=reads_vocabulary(recipe),
    )


def learning_recipe(recipe: Recipe) -> Recipe:
    """Return a recipe that `learn` takes for `recipe`: it has another inference engine, of no numbers."""
    return replace(recipe, engines=replace(recipe.engines, infer=Engine()))


def sample(
    recipe: SamplingRecipe, params: Params, past_params: Params | None, key: Array, step: Int[Array, ""]
) -> Trajectory:
    """Return the rollout of one step; arguments after `recipe` are parts of a `TrainState`."""
    recipe, key = prepare_sites(release_constants(recipe)), jax.random.fold_in(stream(key, "rollout"), step)
    prompts = recipe.task.prompts(stream(key, "prompts"), recipe.prompts_per_step)
    return sample_responses(recipe, rollout_params(past_params, params, step), key, prompts)


def sample_responses(
    recipe: SamplingRecipe, params: Params, key: Array, prompts: Int[AnyArray, "N P"]
) -> Trajectory:
    """Return `recipe.group_size` responses to each of the `prompts` [N, P], with their rewards."""
    return generate(
        params,
        recipe.model,
        recipe.engine,
        recipe.sampling,
        key,
        prompts,
        recipe.task.check,
        group_size=recipe.group_size,
        length=recipe.task.response_length,
        end=EOS_TOKEN_ID,
        pad=PAD_TOKEN_ID,
        vocabulary=recipe.vocabulary,
    )


def swap_time(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory with the axes of sequences and tokens swapped; two swaps restore it.

    Decoding makes tokens by time. A trajectory that goes from one compiled function to another in that order
    has its sums over tokens in the order of one function.
    """
    arrays = {
        name: None if value is None else jnp.swapaxes(value, 0, 1)
        for name in ("responses", "mask", "logp_infer", "routed_experts", "logp_infer_vocabulary")
        for value in [getattr(trajectory, name)]
    }
    return replace(trajectory, **arrays)


def reads_vocabulary(recipe: Recipe) -> bool:
    """Return whether the objective reads columns that take the log-probabilities of all tokens to fill."""
    return not VOCABULARY_COLUMNS.isdisjoint(columns_needed(recipe.objective))


def learn(recipe: Recipe, state: TrainState, trajectory: Trajectory) -> tuple[TrainState, Metrics]:
    """Score a trajectory with the training engine, make the minibatch updates, and measure.

    Advantages, corrections and rho are fixed here, once per rollout; ratios are recomputed per minibatch.
    """
    recipe = prepare_sites(release_constants(recipe))
    scores, replayed = score_rollout(recipe, state.params, trajectory)
    batch = token_batch(recipe, state, replayed, scores)
    objective, factor = recipe.objective, recipe.schedule(state.step, state.schedule_state)
    if recipe.critic is not None:
        objective = replace(objective, advantage=recipe.critic.gae)
    rows = replayed, replace(batch, key=None), rollout_terms(objective, batch)
    parts = _in_minibatches(rows, recipe.minibatches)
    params, opt_state, updates = _update_policy(recipe, state, factor, parts)
    metrics = {
        **step_metrics(batch, scores, trajectory, choose_metrics(recipe.metrics)),
        **_hidden_mismatch(recipe, state, batch, scores, replayed),
        **{name: jnp.mean(values) for name, values in updates.items()},
        "learning_rate_factor": factor,
    }
    critic = state.critic
    if critic is not None and recipe.critic is not None:
        critic, measured = update_critic(recipe.critic, critic, recipe.model, recipe.engines.train, parts[:2])
        metrics |= measured
    after = replace(
        state,
        params=params,
        opt_state=opt_state,
        step=state.step + 1,
        schedule_state=recipe.schedule.observe(state.schedule_state, state.step, metrics),
        critic=critic,
        past_params=update_past_params(state.past_params, state.params, state.step),
    )
    return after, metrics


def score_rollout(recipe: Recipe, params: Params, trajectory: Trajectory) -> tuple[Scores, Trajectory]:
    """Return the scores of the training engine, and the trajectory with the experts that it has to replay."""
    replay = recipe.engines.replay
    sampled = trajectory.routed_experts if replay == "R3" else None
    scores = score(recipe, params, replace(trajectory, routed_experts=sampled))
    return scores, replace(trajectory, routed_experts=scores.routed_experts if replay == "R2" else sampled)


def token_batch(recipe: Recipe, state: TrainState, replayed: Trajectory, scores: Scores) -> TokenBatch:
    """Return the token batch of a scored rollout, prepared; `scores` are at theta_old."""
    values = None
    if state.critic is not None:
        values = token_values(state.critic.params, recipe.model, recipe.engines.train, replayed)
    return prepare_batch(
        TokenBatch(
            logp=scores.logp,
            logp_train=replayed.logp_infer if recipe.old_log_probs == "rollout" else scores.logp,
            logp_infer=replayed.logp_infer,
            rewards=replayed.rewards,
            mask=replayed.mask,
            group_size=recipe.group_size,
            key=jax.random.fold_in(stream(state.key, "objective"), state.step),
            logp_reference=None if state.reference is None else score(recipe, state.reference, replayed).logp,
            values=values,
            **_vocabulary_columns(replayed, scores),
        )
    )


def _vocabulary_columns(replayed: Trajectory, scores: Scores) -> dict[str, Array]:
    if scores.logp_vocabulary is None or replayed.logp_infer_vocabulary is None:
        return {}
    return {
        "tokens": replayed.responses,
        "logp_vocabulary": scores.logp_vocabulary,
        "logp_infer_vocabulary": replayed.logp_infer_vocabulary,
        "sum_squared_probabilities": jnp.sum(jnp.exp(2 * scores.logp_vocabulary), axis=-1),
    }


def _update_policy(
    recipe: Recipe, state: TrainState, factor: Float[Array, ""], parts: tuple
) -> tuple[Params, PyTree, Metrics]:
    """Return parameters and opt_state after one update per minibatch, and the metrics of each."""
    key = jax.random.fold_in(stream(state.key, "gradient"), state.step)
    draws = jax.random.fold_in(stream(state.key, "objective"), state.step)

    def update(carry: tuple[Params, PyTree], part: tuple) -> tuple[tuple[Params, PyTree], Array]:
        params, opt_state = carry
        number, (trajectory, batch, terms) = part
        batch = replace(batch, key=jax.random.fold_in(draws, number))
        grads, metrics = policy_gradient(recipe, params, trajectory, batch, terms)
        grads = round_gradient(grads, recipe.gradient_site, jax.random.fold_in(key, number))
        # In one array: XLA writes each output of a scan by a GPU kernel of its own.
        measured = jnp.stack([metrics[name] for name in UPDATE_METRICS])
        return recipe.optimizer.update(grads, opt_state, params, factor), measured

    numbered = jnp.arange(recipe.minibatches), parts
    (params, opt_state), measured = lax.scan(update, (state.params, state.opt_state), numbered)
    return params, opt_state, dict(zip(UPDATE_METRICS, measured.T, strict=True))


def round_gradient(grads: Params, site: Site, key: Array) -> Params:
    """Round every leaf of a gradient as `site` says; each has its own stream of random bits."""
    if site.format is None:
        return grads
    leaves, tree = jax.tree.flatten(grads)
    return tree.unflatten(
        [store(leaf, site, jax.random.fold_in(key, number)) for number, leaf in enumerate(leaves)]
    )


def _hidden_mismatch(
    recipe: Recipe, state: TrainState, batch: TokenBatch, scores: Scores, replayed: Trajectory
) -> Metrics:
    """Return the mismatch that rho hides: `..._copied` in bypass mode, `..._at_rollout` without staleness."""
    metrics = {}
    if recipe.old_log_probs == "rollout":
        metrics |= _mismatch(batch, scores.logp, "copied")
    if state.past_params is not None:
        past = score(recipe, rollout_params(state.past_params, state.params, state.step), replayed).logp
        metrics |= _mismatch(batch, past, "at_rollout")
    return metrics


def _mismatch(batch: TokenBatch, logp_train: Float[Array, "B T"], where: str) -> Metrics:
    seen = replace(batch, logp_train=jnp.where(batch.mask, logp_train, 0.0))
    return {f"{name}_{where}": METRICS[name](seen) for name in ("std_rho", "rms_log_rho")}


def score(recipe: Recipe, params: Params, trajectory: Trajectory, scan_layers: bool = True) -> Scores:
    """Score a trajectory of complete groups with the training engine, replaying its experts if it has any."""
    return response_logps(
        params,
        recipe.model,
        recipe.engines.train,
        trajectory.prompts,
        trajectory.responses,
        trajectory.routed_experts,
        group_size=recipe.group_size,
        vocabulary=reads_vocabulary(recipe),
        scan_layers=scan_layers,
    )


def policy_gradient(
    recipe: Recipe, params: Params, trajectory: Trajectory, batch: TokenBatch, terms: RolloutTerms
) -> tuple[Params, Metrics]:
    """Return the gradient of the loss on one minibatch, its norm and the fractions of clipped tokens.

    The loss is -sum(stop_gradient(c) * logp), with c the objective's gradient in logp, minus the entropy and
    KL terms. An objective that reads the vocabulary also has a coefficient for each of its tokens.

    Reference: cancel Eq. 15; verl core_algos.agg_loss, dp_actor.update_policy.
    Deviation: entropy and KL terms are means over tokens whatever the aggregation of the objective, with
        tokens that a rejection has dropped; verl gives them its `loss_agg_mode`.
    """

    def loss(params: Params) -> tuple[Array, Metrics]:
        logp, entropy, _, every = score(recipe, params, trajectory, recipe.gradient_checkpointing)
        logp = jnp.where(batch.mask, logp, 0.0)

        current = replace(batch, logp=logp, logp_vocabulary=every)
        coefficients, of_every = unregularized = _gradient(surrogate_value, recipe.objective, current, terms)
        if recipe.objective.regularizers:
            # Apart, because they give clipped tokens a coefficient, too.
            penalties = _gradient(regularization, recipe.objective, current, terms)
            coefficients, of_every = jax.tree.map(jnp.subtract, unregularized, penalties)
        total = jnp.sum(coefficients * logp)
        if every is not None and of_every is not None:
            # A token that the policy excludes has the log-probability minus infinity.
            total += jnp.sum(of_every * jnp.where(of_every == 0, 0.0, every))
        if recipe.entropy_coeff is not None:
            total += recipe.entropy_coeff * entropy_bonus(entropy, batch.mask)
        if recipe.kl_loss_coef is not None:
            total += recipe.kl_loss_coef * kl_penalty(replace(batch, logp=logp))
        return -total, clip_fractions(unregularized[0], batch, terms)

    grads, fractions = jax.grad(loss, has_aux=True)(params)
    return grads, {"grad_norm": global_norm(grads), **fractions}


def _gradient(
    part: Callable[..., Array], objective: Objective, batch: TokenBatch, terms: RolloutTerms
) -> tuple[Array, Array | None]:
    """Return the gradient of a part of the objective in the log-probs of sampled and of all tokens."""

    def value(logp: Array, every: Array | None) -> Array:
        return part(objective, replace(batch, logp=logp, logp_vocabulary=every), terms)

    return jax.grad(value, argnums=(0, 1))(*lax.stop_gradient((batch.logp, batch.logp_vocabulary)))


def _in_minibatches(rows: PyTree, count: int) -> PyTree:
    """View the rows of every array [B, ...] as [count, B / count, ...]; groups stay complete."""
    return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), rows)
