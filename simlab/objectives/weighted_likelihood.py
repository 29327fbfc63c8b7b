"""Surrogates on log pi itself: a detached weight of the sequence, or a quadratic penalty."""

import math

import jax
import jax.numpy as jnp

from simlab.core.pytree import pytree, static
from simlab.objectives.batch import PerToken, TokenBatch, TokenMask, clamp, masked_sum
from simlab.objectives.divergences import Anchor, rollout_logp
from simlab.objectives.override_ranges import NotNegative
from simlab.objectives.ratios import TOKEN_LIMIT, LogLikelihood, Surrogate

# TRL's floor of the sequence weight, and of each token's truncated rho.
VESPO_LOG_FLOOR = math.log(1e-8)


@pytree
class Vespo(Surrogate):
    """VESPO: u = sg(phi(W)) log pi, phi(W) = exp(lambda + k log W - lambda W), W the weight of the sequence.

    log W is the sum of log r, plus that of log min(rho, ratio_cap) with the anchor "rollout", clamped to
    [log 1e-8, 20]. k and lambda, at least 1e-4, depend on the sign of the advantage. phi(1) = 1 and phi has
    its maximum at k / lambda.

    Reference: VESPO arXiv 2602.10693; TRL loss_type vespo.
    Deviation: the correction is TRL's `token_truncate` (anchor "rollout") or none (anchor "old"); a token
        that TRL's `token_mask` drops would empty its sequence.
    """

    vespo_k_positive: NotNegative = 2.0
    vespo_lambda_positive: NotNegative = 3.0
    vespo_k_negative: NotNegative = 3.0
    vespo_lambda_negative: NotNegative = 2.0
    ratio_cap: NotNegative = 3.0
    anchor: Anchor = static(default=rollout_logp)

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        log_ratio = jax.lax.stop_gradient(batch.logp) - batch.logp_train
        log_weight = masked_sum(clamp(log_ratio, -TOKEN_LIMIT, TOKEN_LIMIT), batch.mask, axis=1)
        if self.anchor is rollout_logp:
            log_rho = jnp.minimum(batch.logp_train - batch.logp_infer, jnp.log(jnp.float32(self.ratio_cap)))
            log_weight += masked_sum(clamp(log_rho, VESPO_LOG_FLOOR, TOKEN_LIMIT), batch.mask, axis=1)
        log_weight = clamp(log_weight, VESPO_LOG_FLOOR, TOKEN_LIMIT)[:, None]
        k, scale = self._shape(advantages >= 0)
        phi = jnp.exp(scale + k * log_weight - scale * jnp.exp(log_weight))
        return jax.lax.stop_gradient(jnp.broadcast_to(phi, batch.mask.shape)) * batch.logp

    def _shape(self, positive: TokenMask) -> tuple[PerToken, PerToken]:
        """Return k and lambda [B, T] by the sign of the advantage."""
        k = jnp.where(positive, jnp.float32(self.vespo_k_positive), self.vespo_k_negative)
        scale = jnp.where(positive, jnp.float32(self.vespo_lambda_positive), self.vespo_lambda_negative)
        return k, jnp.maximum(scale, 1e-4)


@pytree
class Dro(Surrogate):
    """DRO: A log pi - dro_beta (log r)^2 / 2 per token.

    Reference: DRO arXiv 2405.19107; verl core_algos.compute_policy_loss_dro.
    Deviation: verl has no default for `dro_beta`.
    """

    dro_beta: NotNegative = 0.1

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        return LogLikelihood()(batch, advantages)

    def penalty(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return the quadratic penalty [B, T]."""
        del advantages
        return 0.5 * self.dro_beta * (batch.logp - batch.logp_train) ** 2
