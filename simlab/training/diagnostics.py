"""Diagnostics too expensive for every step. They run between chunks and never change the training state.

They measure the rollout that the next step trains on: the same prompts and random numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from simlab.core.streams import stream
from simlab.engines import Engine
from simlab.metrics import energy_by_frequency, exact_kl, gradient_noise
from simlab.models.parameters import Params
from simlab.models.transformer import Scores, logits, response_logps, token_logps
from simlab.objectives import (
    Objective,
    RolloutTerms,
    TokenBatch,
    rollout_terms,
    token_coefficients,
    value_from_terms,
)
from simlab.objectives.batch import by_group, masked_mean
from simlab.objectives.extras import KL_ESTIMATORS
from simlab.rollout.trajectory import Trajectory
from simlab.training.curvature import hessian_ends
from simlab.training.evaluation import evaluate
from simlab.training.optimizer import global_norm
from simlab.training.recipe import Recipe, TrainState
from simlab.training.step import Metrics, policy_gradient, rollout, score, score_rollout, token_batch


@dataclass(frozen=True)
class DiagnosticContext:
    """A run between two steps, for its diagnostics. `base`: reference parameters of `kl_to_base`."""

    recipe: Recipe
    state: TrainState
    base: Params | None = None

    @property
    def params(self) -> Params:
        """The current parameters."""
        return self.state.params

    @property
    def key(self) -> Array:
        """The key of the diagnostics of this step."""
        return jax.random.fold_in(stream(self.state.key, "probe"), self.state.step)

    @cached_property
    def sampled(self) -> Trajectory:
        """The rollout of the next step."""
        return rollout(self.recipe, self.state)

    @cached_property
    def scored(self) -> tuple[Scores, Trajectory]:
        """Scores of that rollout, and the rollout with the routed experts that the updates replay."""
        return score_rollout(self.recipe, self.params, self.sampled)

    @property
    def trajectory(self) -> Trajectory:
        """The rollout that the updates read."""
        return self.scored[1]

    @cached_property
    def batch(self) -> TokenBatch:
        """The token batch of that rollout at theta_old."""
        scores, trajectory = self.scored
        return token_batch(self.recipe, self.state, trajectory, scores)

    @cached_property
    def objective(self) -> Objective:
        """The objective, with the advantage of the critic if there is one."""
        objective, critic = self.recipe.objective, self.recipe.critic
        return objective if critic is None else replace(objective, advantage=critic.gae)

    @cached_property
    def terms(self) -> RolloutTerms:
        """The rollout terms of that batch."""
        return rollout_terms(self.objective, self.batch)


Diagnostic = Callable[[DiagnosticContext], Metrics]


def compare_rewards(context: DiagnosticContext) -> Metrics:
    """Return `reward_train`, `reward_infer`: mean reward if either engine samples the next step's prompts.

    Both get the same random numbers, so they differ only where the engines' distributions do; a quantized
    engine starts lower. Bitwise equal for an exact pair. Under staleness the inference engine has old
    parameters, the training engine those of now.
    """
    trained = rollout(_sample_with_train(context.recipe), replace(context.state, past_params=None))
    return {
        "reward_train": jnp.mean(trained.rewards),
        "reward_infer": jnp.mean(context.sampled.rewards),
    }


def evaluate_held_out(context: DiagnosticContext) -> Metrics:
    """Return `held_out_avg_at_k`, `held_out_pass_at_1`, `held_out_pass_at_k` of the inference engine."""
    measured = evaluate(context.recipe, context.params, context.recipe.engines.infer, context.key)
    return {f"held_out_{name}": value for name, value in measured.items()}


def evaluate_held_out_train(context: DiagnosticContext) -> Metrics:
    """Return `held_out_train_...`: the same numbers of the training engine, on the same prompts.

    Reference: acrl Tab. 12, 13.
    """
    recipe = _sample_with_train(context.recipe)
    measured = evaluate(recipe, context.params, recipe.engines.infer, context.key)
    return {f"held_out_train_{name}": value for name, value in measured.items()}


def _sample_with_train(recipe: Recipe) -> Recipe:
    """Return the recipe in which the training engine samples, without injected noise."""
    engines = replace(recipe.engines, infer=recipe.engines.train)
    return replace(recipe, engines=engines, sampling=replace(recipe.sampling, noise=None))


def noise_scale(context: DiagnosticContext) -> Metrics:
    """Return `noise_scale`, `gradient_signal` |G|^2 and `gradient_noise` tr Sigma, at theta_old.

    One prompt's group is the small batch and all groups are the big one, so the scale counts prompts: as many
    as a step needs for its gradient to be half signal. Advantages are those of the full rollout. NaN for a
    single prompt.

    Unit: prompts; squared gradient.
    Reference: arXiv 1812.06162 Eq. 2.9, App. A.1.
    Deviation: the big gradient is the mean of the groups', also where the objective averages over tokens.
    """
    recipe, params = context.recipe, context.params
    rows = (context.trajectory, replace(context.batch, key=None), context.terms)
    groups = jax.tree.map(lambda x: by_group(x, recipe.group_size), rows)

    def add(total: tuple[Params, Array], group: tuple) -> tuple[tuple[Params, Array], None]:
        gradient, metrics = policy_gradient(recipe, params, *group)
        return (jax.tree.map(jnp.add, total[0], gradient), total[1] + metrics["grad_norm"] ** 2), None

    nothing = (jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.float32))
    (total, squares), _ = lax.scan(add, nothing, groups)
    big_square = global_norm(total) ** 2 / recipe.prompts_per_step**2
    signal, noise, scale = gradient_noise(
        squares / recipe.prompts_per_step, big_square, 1, recipe.prompts_per_step
    )
    return {"gradient_signal": signal, "gradient_noise": noise, "noise_scale": scale}


def energy(context: DiagnosticContext) -> Metrics:
    """Return `energy_by_frequency` [4]: fractions of token gradient norms by frequency, frequent first.

    A token's norm is |c| times the norm of grad log pi, exactly: T backward passes for each sequence.

    Reference: cancel Eq. 24.
    """
    recipe, trajectory = context.recipe, context.trajectory
    return {
        "energy_by_frequency": energy_by_frequency(
            token_coefficients(context.objective, context.batch),
            trajectory.responses,
            trajectory.mask,
            recipe.model.vocab_size,
            score_norms=score_norms(recipe, context.params, trajectory),
        )
    }


def score_norms(recipe: Recipe, params: Params, trajectory: Trajectory) -> Float[Array, "B T"]:
    """Return the norm of grad log pi of every response token under the training engine, [B, T]."""
    alone = replace(recipe, group_size=1)

    def of_sequence(row: Trajectory) -> Array:
        logp, backward = jax.vjp(lambda params: score(alone, params, row).logp, params)
        one_hot = jnp.eye(logp.shape[1], dtype=logp.dtype)[:, None]
        return jax.vmap(lambda cotangent: global_norm(backward(cotangent)))(one_hot)

    return lax.map(of_sequence, jax.tree.map(lambda x: x[:, None], trajectory))


def curvature(context: DiagnosticContext) -> Metrics:
    """Return `hessian_top`, `hessian_bottom`: extreme Hessian eigenvalues of the policy loss at theta_old.

    The loss is minus the objective on the next step's rollout, without entropy and KL terms, differentiated
    in full: what an objective stops the gradient of stays constant. `hessian_residual` bounds the distance of
    the top one to an eigenvalue. The forward pass is float32 whatever the training engine: rounding has no
    second derivative. So logp_train is the float32 one here, while rho keeps the engines' values.

    Unit: loss per squared weight.
    Reference: lr Sec. 3.1.
    """
    recipe, trajectory = context.recipe, context.trajectory

    def logp(params: Params) -> Array:
        sampled = trajectory.prompts, trajectory.responses, trajectory.routed_experts
        scored = response_logps(params, recipe.model, Engine(), *sampled).logp
        return jnp.where(trajectory.mask, scored, 0.0)

    batch = replace(context.batch, logp_train=lax.stop_gradient(logp(context.params)))

    def loss(params: Params) -> Array:
        return -value_from_terms(context.objective, replace(batch, logp=logp(params)), context.terms)

    top, bottom, residual = hessian_ends(loss, context.params, stream(context.key, "hessian"))
    return {"hessian_top": top, "hessian_bottom": bottom, "hessian_residual": residual}


def kl_to_base(context: DiagnosticContext) -> Metrics:
    """Return `kl_to_base`: KL(policy, base) at response positions of the next rollout, mean over tokens.

    Exact over the vocabulary, under the training engine; `kl_to_base_k1` and `kl_to_base_k3` are the
    estimators from the sampled tokens alone, biased where the sampler is not the training engine.

    Unit: nats per token.
    Reference: verl core_algos.kl_penalty_forward.
    """
    if context.base is None:
        raise ValueError("base must be parameters for the diagnostic kl_to_base, got None. Pass base=.")
    recipe, trajectory = context.recipe, context.trajectory

    def logps(params: Params) -> Array:
        z = logits(params, recipe.model, trajectory.tokens, recipe.engines.train)
        return token_logps(z, recipe.engines.train)[:, trajectory.prompts.shape[1] - 1 : -1]

    ours, theirs = logps(context.params), logps(context.base)
    log_ratio = jnp.take_along_axis(theirs - ours, trajectory.responses[..., None], axis=-1)[..., 0]
    log_ratio = jnp.where(trajectory.mask, log_ratio, 0.0)
    divergences = {"kl_to_base": exact_kl(ours, theirs)}
    divergences |= {f"kl_to_base_{name}": KL_ESTIMATORS[name](log_ratio) for name in ("k1", "k3")}
    return {name: masked_mean(x, trajectory.mask) for name, x in divergences.items()}


DIAGNOSTICS: dict[str, Diagnostic] = {
    "rewards": compare_rewards,
    "held_out": evaluate_held_out,
    "held_out_train": evaluate_held_out_train,
    "noise_scale": noise_scale,
    "energy": energy,
    "curvature": curvature,
    "kl_to_base": kl_to_base,
}
"""Diagnostics by name, of a `DiagnosticContext`; pure, so `jax.jit` and `jax.vmap` apply."""
