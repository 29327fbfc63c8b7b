"""The critic of PPO: a second transformer with a scalar head, trained on the returns of GAE."""

from dataclasses import field

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, PyTree

from simlab.core.pytree import Scalar, pytree
from simlab.engines import Engine
from simlab.engines.accumulate import float32_dot
from simlab.models.config import TransformerConfig
from simlab.models.kv_cache import empty_cache
from simlab.models.parameters import Params
from simlab.models.transformer import extend, prepare
from simlab.objectives import TokenBatch, critic_penalty
from simlab.objectives.advantages import Gae
from simlab.rollout.trajectory import Trajectory
from simlab.training.optimizer import AdamW, global_norm


@pytree
class CriticState:
    """Parameters of the critic, `body` (a transformer) and `head` [D, 1], and its optimizer's opt_state."""

    params: Params
    opt_state: PyTree


@pytree(kw_only=True)
class Critic:
    """A value function, its optimizer and the numbers of GAE, all of which may be traced.

    `gamma` and `lam` are those of GAE; `value_clip` is how far from its value at theta_old a value can still
    lower its error. The network is that of the policy with a scalar head in place of the logits; it shares no
    weights with the policy, starts as its copy with a head of zeros, and takes as many updates per step, on
    the same minibatches.

    Reference: acrl Tab. 4; verl core_algos.compute_value_loss, core_algos.compute_gae_advantage_return.
    Deviation: the schedule of the policy does not reach the critic's learning rate, whose default is ten
        times that of the policy, as in verl's.
    """

    optimizer: AdamW = field(default_factory=lambda: AdamW(learning_rate=2.5e-3))
    gamma: Scalar = 1.0
    lam: Scalar = 1.0
    value_clip: Scalar = 0.5

    @property
    def gae(self) -> Gae:
        """The advantage estimator with the critic's numbers."""
        return Gae(self.gamma, self.lam)

    def init(self, policy: Params) -> CriticState:
        """Return the critic before the first step of a policy."""
        head = jnp.zeros((policy["norm"].shape[0], 1), jnp.float32)
        params = {"body": jax.tree.map(jnp.copy, policy), "head": head}
        return CriticState(params, self.optimizer.init(params))


def token_values(
    params: Params, model: TransformerConfig, engine: Engine, trajectory: Trajectory
) -> Float[Array, "B T"]:
    """Return the value of the context before each response token [B, T], as `engine` computes it.

    The head is float32.
    """
    weights = prepare(params["body"], model, engine)
    tokens = trajectory.tokens[:, :-1]
    hidden, *_ = extend(weights, model, engine, empty_cache(model, *tokens.shape), tokens, 0)
    return float32_dot(hidden[:, trajectory.prompts.shape[1] - 1 :], params["head"])[..., 0]


def update_critic(
    critic: Critic, state: CriticState, model: TransformerConfig, engine: Engine, parts: tuple
) -> tuple[CriticState, dict[str, Float[Array, ""]]]:
    """Return the critic after one update per minibatch, and its metrics.

    `parts` are a trajectory and its `TokenBatch` with the values at theta_old, both [minibatches, ...]. The
    forward pass of the critic is that of `engine`, the training engine.
    """

    def update(state: CriticState, part: tuple[Trajectory, TokenBatch]) -> tuple[CriticState, tuple]:
        trajectory, batch = part

        def loss(params: Params) -> Array:
            values = token_values(params, model, engine, trajectory)
            return -critic_penalty(values, batch, critic.value_clip, critic.gae)

        error, grads = jax.value_and_grad(loss)(state.params)
        params, opt_state = critic.optimizer.update(grads, state.opt_state, state.params, 1.0)
        return CriticState(params, opt_state), (error, global_norm(grads))

    state, (losses, norms) = lax.scan(update, state, parts)
    return state, {"critic_loss": jnp.mean(losses), "critic_grad_norm": jnp.mean(norms)}
