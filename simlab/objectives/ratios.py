"""PPO ratios r = pi(theta) / pi(theta_old) and their clips.

A surrogate maps `(batch, advantages [B, T])` to u [B, T]; the token's part of the objective is advantage
times u. Writing min(r A, clip(r) A) as A times a sign-aware weight is cancel Eq. 47-49, 78. `batch.mask`
holds the tokens that are still in the loss.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import jax
import jax.numpy as jnp

from simlab.core.pytree import pytree, static
from simlab.objectives.batch import PerToken, TokenBatch, TokenMask, clamp, masked_mean
from simlab.objectives.override_ranges import AtLeastOne, NotNegative, Positive

Ratio = Callable[[TokenBatch], PerToken]
Clip = Callable[[PerToken, PerToken], PerToken]

# verl's bounds on log ratios, beyond which the gradient is zero: 20 per token, 10 above for the
# length-normalized sequence ratio. exp(20) is 4.9e8, so products with advantages stay finite in float32.
TOKEN_LIMIT = 20.0
SEQUENCE_LIMIT = 10.0


def score_through(weights: PerToken, logp: PerToken) -> PerToken:
    """Return `weights` [B, T] as value, with `weights` times the score as gradient: constant coefficients.

    Reference: cancel Eq. 68, 81, 85; verl core_algos.compute_policy_loss_gspo.
    """
    return jax.lax.stop_gradient(weights) * (1 + logp - jax.lax.stop_gradient(logp))


def token_ratio(batch: TokenBatch) -> PerToken:
    """Return r[i, t] = exp(logp - logp_train) [B, T], the log clamped to +-20 with zero gradient beyond.

    Reference: hacking Eq. 2, 25; acrl Eq. 1; cancel Eq. 7; verl core_algos.compute_policy_loss_vanilla.
    """
    return jnp.exp(clamp(batch.logp - batch.logp_train, -TOKEN_LIMIT, TOKEN_LIMIT))


def geometric_ratio(batch: TokenBatch) -> PerToken:
    """Return s[i] = exp(mean_t log r[i, t]) [B, T], with the token's own score as gradient (GSPO).

    The token form has the gradient of the sequence form where all tokens of a sequence weigh the same, and
    lets a distortion weigh them differently. The log of s is clamped to at most 10.

    Reference: hacking Eq. 16; cancel Eq. 44, 56-58, 65; GSPO arXiv 2507.18071; verl
        core_algos.compute_policy_loss_gspo.
    """
    log_ratio = masked_mean(batch.logp - batch.logp_train, batch.mask, axis=1)
    score = batch.logp - jax.lax.stop_gradient(batch.logp)
    return jnp.exp(clamp(score + jax.lax.stop_gradient(log_ratio)[:, None], -jnp.inf, SEQUENCE_LIMIT))


@pytree
class SignAwareClip:
    """PPO's clip: bounded above where the advantage is positive, below where it is negative.

    The bounds are 1 - `clip_low` and 1 + `clip_high`; unequal distances are DAPO's decoupled clip. The
    gradient is zero beyond a bound.

    Reference: hacking Eq. 2, 12, 16, 24; acrl Eq. 1; cancel Eq. 42, 46-49, 75-78; PPO arXiv 1707.06347.
    Deviation: hacking Eq. 12 clips by the ratio alone; its loss (Eq. 2) clips by ratio and sign, as here.
    """

    clip_low: NotNegative = 0.2
    clip_high: NotNegative = 0.2

    def __call__(self, ratio: PerToken, advantages: PerToken) -> PerToken:
        """Return the post-clip weight [B, T]."""
        low = jnp.where(advantages < 0, 1 - self.clip_low, -jnp.inf)
        high = jnp.where(advantages < 0, jnp.inf, 1 + self.clip_high)
        return clamp(ratio, low, high)


@pytree
class DualClip:
    """`SignAwareClip`, and for negative advantages also bounded above by `dual_clip` (inf: off).

    Reference: dual-clip PPO arXiv 1912.09729; verl core_algos.compute_policy_loss_vanilla clip_ratio_c.
    """

    clip_low: NotNegative = 0.2
    clip_high: NotNegative = 0.2
    dual_clip: AtLeastOne = 3.0

    def __call__(self, ratio: PerToken, advantages: PerToken) -> PerToken:
        """Return the post-clip weight [B, T]."""
        weights = SignAwareClip(self.clip_low, self.clip_high)(ratio, advantages)
        return jnp.where((advantages < 0) & (weights > self.dual_clip), self.dual_clip, weights)


@pytree
class SignFreeClip:
    """Clip to [0, 1 + `clip_high`] whatever the sign of the advantage; zero gradient beyond.

    Reference: cancel Eq. 79, 80.
    """

    clip_high: NotNegative = 0.2

    def __call__(self, ratio: PerToken, advantages: PerToken) -> PerToken:
        """Return the post-clip weight [B, T]."""
        del advantages
        return jnp.where(ratio > 1 + self.clip_high, 1 + self.clip_high, ratio)


class Surrogate(ABC):
    """Base of the surrogates: u, its properties, and how per-token weights multiply it."""

    @abstractmethod
    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""

    def one_weight_per_sequence(self) -> bool:
        """Return whether u is the same at all tokens of a sequence, as group transforms need."""
        return False

    def elementwise(self) -> bool:
        """Return whether u at a token is a function of its log p, log mu and advantage alone.

        Score centering evaluates such a u at every token of the vocabulary. A ratio to theta_old does not
        qualify: `logp_train` is known for the sampled token only.
        """
        return False

    def penalty(self, batch: TokenBatch, advantages: PerToken) -> PerToken | None:
        """Return what to subtract from the advantage times u [B, T], or None for nothing."""
        del batch, advantages

    def pool(self, weights: PerToken, mask: TokenMask) -> PerToken:
        """Return the correction weights [B, T] as they multiply u."""
        del mask
        return weights


@pytree
class Clipped(Surrogate):
    """A clipped PPO ratio: PPO, GRPO or GSPO, depending on `ratio` and `clip`."""

    ratio: Ratio = static()
    clip: Clip

    def one_weight_per_sequence(self) -> bool:
        """Return whether the ratio is that of the sequence."""
        return self.ratio is not token_ratio

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        return self.clip(self.ratio(batch), advantages)


@pytree
class LogLikelihood(Surrogate):
    """u = log pi(theta): the policy gradient itself, no ratio.

    Reference: lr Eq. 2-4; verl core_algos.compute_policy_loss_gpg.
    """

    def elementwise(self) -> bool:
        """Return True."""
        return True

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        del advantages
        return batch.logp


@pytree
class SignFreeWeight(Surrogate):
    """Constant weight clip(r, 0, 1 + `clip_high`) on the score: clipped tokens keep a gradient.

    Reference: cancel Eq. 81, 82.
    Deviation: the value is that of Eq. 80; only the gradient differs from `SignFreeClip`, beyond 1 +
        clip_high.
    """

    clip_high: NotNegative = 0.2

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        return score_through(SignFreeClip(self.clip_high)(token_ratio(batch), advantages), batch.logp)


@pytree
class ClippedWeight(Surrogate):
    """CISPO: u = sg(clip(r, 1 - `clip_low`, 1 + `clip_high`)) log pi(theta).

    TRL bounds from above only, at an absolute value: `clip_low=1, clip_high=bound - 1`.

    Reference: CISPO arXiv 2506.13585; verl core_algos.compute_policy_loss_cispo; TRL loss_type cispo.
    """

    clip_low: NotNegative = 0.2
    clip_high: NotNegative = 0.2

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        del advantages
        weights = clamp(token_ratio(batch), 1 - self.clip_low, 1 + self.clip_high)
        return jax.lax.stop_gradient(weights) * batch.logp


@pytree
class SoftGate(Surrogate):
    """SAPO: u = (4 / tau) sigmoid(tau (r - 1)), tau by the sign of the advantage.

    Reference: SAPO arXiv 2511.20347; verl core_algos.compute_policy_loss_sapo; TRL loss_type sapo.
    """

    sapo_tau_positive: Positive = 1.0
    sapo_tau_negative: Positive = 1.05

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        positive, negative = jnp.float32(self.sapo_tau_positive), jnp.float32(self.sapo_tau_negative)
        tau = jnp.where(advantages > 0, positive, negative)
        return jax.nn.sigmoid(tau * (token_ratio(batch) - 1)) * (4 / tau)


@pytree
class GeometricMean(Surrogate):
    """GMPO: sign-aware clip of each log ratio to [-`clip_low`, `clip_high`], then exp of the sequence's mean.

    Correction weights join the geometric mean, as in verl.

    Reference: GMPO arXiv 2507.20673; verl core_algos.compute_policy_loss_geo_mean.
    Deviation: the mean log ratio is capped at 20 (verl overflows beyond 88); sequences without tokens leave
        the mean over sequences.
    """

    clip_low: NotNegative = 0.4
    clip_high: NotNegative = 0.4

    def one_weight_per_sequence(self) -> bool:
        """Return True: u is the sequence's geometric mean."""
        return True

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        log_ratio = batch.logp - batch.logp_train
        low = jnp.where(advantages < 0, -self.clip_low, -jnp.inf)
        high = jnp.where(advantages > 0, self.clip_high, jnp.inf)
        mean = masked_mean(clamp(log_ratio, low, high), batch.mask, axis=1)
        ratio = jnp.exp(clamp(mean, -jnp.inf, TOKEN_LIMIT))
        return jnp.broadcast_to(ratio[:, None], batch.mask.shape)

    def pool(self, weights: PerToken, mask: TokenMask) -> PerToken:
        """Return the geometric mean of the weights + 1e-10 over each sequence [B, T], as verl does."""
        log_mean = masked_mean(jnp.log(weights + 1e-10), mask, axis=1)
        return jnp.broadcast_to(jnp.exp(log_mean)[:, None], mask.shape)
