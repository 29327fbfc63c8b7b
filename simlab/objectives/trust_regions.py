"""Surrogates that drop tokens outside a trust region around an anchor policy, instead of clipping a ratio.

Let p be the current policy, a the anchor, mu the inference engine at theta_old, w = p / mu. A dropped token
gets no gradient and stays in the denominator.
"""

import jax
import jax.numpy as jnp

from simlab.core.pytree import Scalar, pytree, static
from simlab.objectives.batch import PerToken, TokenBatch, TokenMask, clamp
from simlab.objectives.divergences import (
    Anchor,
    probability,
    rollout_logp,
    smallest_with_mean,
    symmetric_binary_kl,
    top_k_kl,
    top_k_tv,
)
from simlab.objectives.override_ranges import AtLeastOne, NotNegative, Positive
from simlab.objectives.ratios import TOKEN_LIMIT, Surrogate, score_through

# Added to 1 - p before the logarithm in DPPO, as in verl.
DPPO_EPSILON = 1e-8
# prime-rl clamps probabilities to [1e-6, 1 - 1e-6] before the binary KL.
PRIME_RL_FLOOR = 1e-6
TOP_K_COLUMNS = ("tokens", "logp_vocabulary", "logp_infer_vocabulary")


def ratio_to_anchor(batch: TokenBatch, anchor: Anchor) -> PerToken:
    """Return p / a, the log clamped to +-20 with zero gradient beyond."""
    return jnp.exp(clamp(batch.logp - anchor(batch), -TOKEN_LIMIT, TOKEN_LIMIT))


class Anchored(Surrogate):
    """Base of the surrogates whose coefficient depends on p and a of the token alone."""

    def elementwise(self) -> bool:
        """Return True."""
        return True


class Dppo(Surrogate):
    """Base of DPPO's two surrogates; with `divergence_top_k` the divergence is over K tokens and the rest."""

    divergence_top_k: AtLeastOne | None
    anchor: Anchor

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns of the batch that Top-K reads."""
        return () if self.divergence_top_k is None else TOP_K_COLUMNS

    def elementwise(self) -> bool:
        """Return True if the divergence is binary."""
        return self.divergence_top_k is None

    def top_k(self) -> Scalar | None:
        """Return K, or None for a binary divergence; raises `ValueError` for K with the anchor "old"."""
        if self.divergence_top_k is not None and self.anchor is not rollout_logp:
            raise ValueError("anchor must be 'rollout' with divergence_top_k, got 'old'.")
        return self.divergence_top_k


@pytree
class DppoTv(Dppo):
    """DPPO-TV: keep a token unless |p - a| has left the bound in the direction of the update.

    u = sg(min(p / a, ratio_cap) keep) log p. With `divergence_top_k` = K the total variation over the
    sampler's K most probable tokens, the sampled one and the rest replaces |p - a|.

    Reference: DPPO arXiv 2602.04879; verl core_algos.compute_policy_loss_dppo_tv.
    Deviation: the anchor is the inference engine, as in the paper; verl's is theta_old of the trainer. verl
        writes a cap of 20, but its `clip_ratio_c` is always set, to 3 by default. TRL's Top-K gives the
        sampled token the place of the K-th.
    """

    divergence_low: NotNegative = 0.2
    divergence_high: NotNegative = 0.2
    ratio_cap: NotNegative = 20.0
    divergence_top_k: AtLeastOne | None = None
    anchor: Anchor = static(default=rollout_logp)

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        gap = jnp.exp(batch.logp) - jnp.exp(self.anchor(batch))
        top_k = self.top_k()
        if top_k is not None:
            gap = jnp.sign(gap) * top_k_tv(batch, top_k)
        keep = jnp.where(advantages > 0, gap <= self.divergence_high, gap >= -self.divergence_low)
        return _truncate_ratio(batch, self.anchor, self.ratio_cap, keep)


@pytree
class DppoKl(Dppo):
    """DPPO-KL: drop a token whose binary KL(a, p) exceeds the bound in the direction of the update.

    u = sg(min(p / a, ratio_cap) keep) log p. With `divergence_top_k` the KL is over K tokens and the rest,
    as in `DppoTv`.

    Reference: DPPO arXiv 2602.04879; verl core_algos.compute_policy_loss_dppo_kl; SkyRL ppo_utils.py dppo.
    Deviation: anchor and cap as in `DppoTv`. The bounds are those that SkyRL recommends; verl uses its
        clip ratios, 0.2.
    """

    divergence_low: NotNegative = 0.05
    divergence_high: NotNegative = 0.05
    ratio_cap: NotNegative = 20.0
    divergence_top_k: AtLeastOne | None = None
    anchor: Anchor = static(default=rollout_logp)

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        logp, anchor = jax.lax.stop_gradient(batch.logp), self.anchor(batch)
        p, a = probability(logp), probability(anchor)
        kl = a * (anchor - logp) + (1 - a) * jnp.log((1 - a + DPPO_EPSILON) / (1 - p + DPPO_EPSILON))
        top_k = self.top_k()
        if top_k is not None:
            kl = top_k_kl(batch, top_k)
        rising = (kl <= self.divergence_high) | (p <= a)
        falling = (kl <= self.divergence_low) | (p >= a)
        return _truncate_ratio(batch, self.anchor, self.ratio_cap, jnp.where(advantages > 0, rising, falling))


def _truncate_ratio(batch: TokenBatch, anchor: Anchor, cap: Scalar, keep: TokenMask) -> PerToken:
    weights = jnp.minimum(ratio_to_anchor(batch, anchor), cap)
    return jax.lax.stop_gradient(jnp.where(keep, weights, 0)) * batch.logp


@pytree
class Ipo(Anchored):
    """IPO: keep a token iff |p - a| is at most `divergence_bound`, whatever the sign of the advantage.

    u has value and coefficient min(p / a, ratio_cap) keep.

    Reference: prime-rl trainer/rl/loss.py ipo (no paper).
    Deviation: prime-rl's rollout KL is the modifier `rollout_kl`; its default has moved (2026-03 on, 2026-04
        off, 2026-08 on with bound 0.1, 2026-09 off with bound 0.3, the default here).
    """

    divergence_bound: NotNegative = 0.3
    ratio_cap: NotNegative = 1e4
    anchor: Anchor = static(default=rollout_logp)

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        del advantages
        gap = jnp.abs(jnp.exp(batch.logp) - jnp.exp(self.anchor(batch)))
        weights = jnp.minimum(ratio_to_anchor(batch, self.anchor), self.ratio_cap)
        return score_through(jnp.where(gap <= self.divergence_bound, weights, 0), batch.logp)


@pytree
class Kpop(Anchored):
    """KPop on the current policy: keep a token iff its symmetric binary KL is at most `kpop_bound`.

    u has value and coefficient (p / a) keep.

    Reference: KPop, Ring blog of 2026-05-26; prime-rl pull request 3283.
    Deviation: prime-rl adds its rollout KL, here the modifier `rollout_kl`. Its bound is 0.1, as in the blog;
        AReaL's documentation has 2, its class 5.
    """

    kpop_bound: NotNegative = 0.1
    anchor: Anchor = static(default=rollout_logp)

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        del advantages
        logp = jax.lax.stop_gradient(batch.logp)
        keep = symmetric_binary_kl(logp, self.anchor(batch), PRIME_RL_FLOOR) <= self.kpop_bound
        return score_through(jnp.where(keep, ratio_to_anchor(batch, self.anchor), 0), batch.logp)


@pytree
class Drpo(Anchored):
    """DRPO: u = w - sign(A) a (w - 1)^2 / (2 delta), w = p / a differentiated.

    The coefficient of a token is w (A - |A| (p - a) / delta). No token is dropped: since |p - a| <= 1, the
    factor at the default stays within 0.92 and 1.08.

    Reference: DRPO arXiv 2606.09821; UniRL unirl/algorithms/drpo.py.
    """

    drpo_delta: Positive = 12.5
    anchor: Anchor = static(default=rollout_logp)

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        weights = ratio_to_anchor(batch, self.anchor)
        penalty = probability(self.anchor(batch)) * (weights - 1) ** 2 / (2 * self.drpo_delta)
        return weights - jnp.sign(advantages) * penalty


@pytree
class M2po(Surrogate):
    """M2PO: drop the tokens with the largest (log w)^2 until the mean of the rest is at most `m2_threshold`.

    Only tokens that the update pushes further away count: A > 0 with w > 1, and A < 0 with w < 1. u has value
    and coefficient w keep, without a clip. The mask is that of the complete optimizer batch.

    Reference: M2PO arXiv 2510.01161 Algorithm 1; Trinity-RFT pull requests 615 and 616.
    Deviation: the authors' repository clips with bounds exp(+-t) instead; AReaL has `m2_mask`.
    """

    m2_threshold: NotNegative = 0.04

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        log_w = jax.lax.stop_gradient(batch.logp - batch.logp_infer)
        outward = batch.mask & (advantages * log_w > 0)
        within = smallest_with_mean(log_w**2, outward, self.m2_threshold, strict=False)
        weights = ratio_to_anchor(batch, rollout_logp)
        return score_through(jnp.where(within | ~outward, weights, 0), batch.logp)
