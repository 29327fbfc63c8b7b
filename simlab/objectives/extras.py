"""Terms besides the policy objective, to be added to it with a coefficient each; all are to be maximized.

Only `kl_penalty` is a function of logp; the others reach the parameters through the entropy and the critic.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from simlab.core.catalog import lookup
from simlab.core.pytree import Scalar
from simlab.objectives.advantages import Gae
from simlab.objectives.aggregation import token_mean
from simlab.objectives.batch import Array, PerToken, TokenBatch, clamp, magnitude, prepare_batch
from simlab.objectives.ratios import token_ratio
from simlab.objectives.rejection import k1, k2, k3


def entropy_bonus(entropy: PerToken, mask: Shaped[Array, "B T"]) -> Float[Array, ""]:
    """Return the mean entropy of the policy, in nats.

    Args:
        entropy: of the policy at theta, from the logits, [B, T] in nats.
        mask: nonzero at real tokens [B, T].

    Reference: acrl App. A entropy_coeff; verl core_algos.compute_entropy_loss.
    """
    real = mask.astype(bool)
    return token_mean(jnp.where(real, entropy, 0), real)


def _safe_k3(log_ratio: Float[Array, "*S"]) -> Float[Array, "*S"]:
    return k3(clamp(log_ratio, -20.0, 20.0))


def _capped_k3(log_ratio: Float[Array, "*S"]) -> Float[Array, "*S"]:
    return clamp(_safe_k3(log_ratio), -10.0, 10.0)


# Of log(reference / policy), the sample drawn from the policy.
KL_ESTIMATORS: dict[str, Callable[[PerToken], PerToken]] = {
    "k1": k1,
    "abs": magnitude,
    "k2": k2,
    "k3": _capped_k3,
}


def kl_penalty(batch: TokenBatch, estimator: str = "k3", *, bias_corrected: bool = False) -> Float[Array, ""]:
    """Return minus the estimated KL(policy, reference), in nats.

    The derivative is that of the estimator itself (verl without the straight-through `+`). With
    `bias_corrected` each token's estimate is multiplied by r = pi(theta) / pi_train, also differentiated: the
    coefficient of k3 becomes -r log(policy / reference), that of the KL itself.

    Args:
        batch: with `logp_reference`.
        estimator: a name of `KL_ESTIMATORS`.
        bias_corrected: whether to multiply by r.

    Raises:
        ValueError: For an unknown estimator, or a batch without `logp_reference`.

    Reference: verl core_algos.kl_penalty_forward; DeepSeek-V3.2 arXiv 2512.02556; TRL use_bias_correction_kl.
    Deviation: the corrected k3 has no bound of 10, as in TRL; log ratios are clamped to +-20.
    """
    estimate = lookup(KL_ESTIMATORS, estimator, kind="KL estimator")
    if bias_corrected and estimate is _capped_k3:
        estimate = _safe_k3
    if batch.logp_reference is None:
        raise ValueError("kl_penalty needs TokenBatch.logp_reference, which is None")
    batch = prepare_batch(batch)
    assert batch.logp_reference is not None
    divergence = estimate(jax.lax.stop_gradient(batch.logp_reference) - batch.logp)
    if bias_corrected:
        divergence = token_ratio(batch) * divergence
    return -token_mean(jnp.where(batch.mask, divergence, 0), batch.mask)


def critic_penalty(
    values: PerToken,
    batch: TokenBatch,
    value_clip: Scalar = 0.5,
    gae: Gae = Gae(),  # noqa: B008 - frozen
) -> Float[Array, ""]:
    """Return minus half the squared error of the critic against the GAE returns, value-clipped.

    Args:
        values: of the critic at theta [B, T].
        batch: with `values` of the critic at theta_old.
        value_clip: how far from its old value a new one still counts.
        gae: gamma and lam of the returns.

    Raises:
        ValueError: For a batch without `values`.

    Reference: verl core_algos.compute_value_loss.
    """
    if batch.values is None:
        raise ValueError("critic_penalty needs TokenBatch.values, which is None")
    batch = prepare_batch(batch)
    assert batch.values is not None
    old = jax.lax.stop_gradient(batch.values)
    returns = jax.lax.stop_gradient(gae.compute_unwhitened(batch) + old)
    values = jnp.where(batch.mask, values, 0)
    clipped = clamp(values, old - value_clip, old + value_clip)
    error = jnp.maximum((values - returns) ** 2, (clipped - returns) ** 2)
    return -0.5 * token_mean(jnp.where(batch.mask, error, 0), batch.mask)
