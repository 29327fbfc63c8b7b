"""Divergences of two policies at one token, in nats: binary (the sampled token against all others) or over K
tokens and the rest; the anchor policies; and selections of tokens by rank.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from simlab.core.pytree import Scalar
from simlab.objectives.batch import Array, PerToken, TokenBatch, TokenMask, clamp

Anchor = Callable[[TokenBatch], PerToken]

# Stable-RL's floor of the masses of merged tokens.
MERGED_FLOOR = 1e-12


def old_logp(batch: TokenBatch) -> PerToken:
    """Return log-probabilities of theta_old under the training engine [B, T]."""
    return batch.logp_train


def rollout_logp(batch: TokenBatch) -> PerToken:
    """Return log-probabilities of theta_old under the inference engine [B, T]."""
    return batch.logp_infer


# The policy that a ratio and a divergence are taken against.
ANCHORS: dict[str, Anchor] = {"old": old_logp, "rollout": rollout_logp}


def probability(logp: PerToken) -> PerToken:
    """Return exp(logp), at most one: a log-probability above zero is an error of the caller."""
    return jnp.exp(jnp.minimum(logp, 0))


def binary_kl(log_p: PerToken, log_q: PerToken, floor: float) -> PerToken:
    """Return KL between the distributions (p, 1 - p) and (q, 1 - q) of each token.

    Args:
        log_p: log-probability of the sampled token [B, T].
        log_q: the same under the other policy [B, T].
        floor: p, q, 1 - p and 1 - q are at least this.

    Returns:
        Divergences [B, T], in nats.

    Reference: AReaL functional.py metric binary_kl.
    Deviation: 1 - p is computed as -expm1(log p). AReaL subtracts, and its clamp 1 - 1e-8 is 1 in float32.
    """
    (p, rest_p), (q, rest_q) = (
        (clamp(jnp.exp(x), floor, 1.0), clamp(-jnp.expm1(x), floor, 1.0)) for x in (log_p, log_q)
    )
    return p * jnp.log(p / q) + rest_p * jnp.log(rest_p / rest_q)


def symmetric_binary_kl(log_p: PerToken, log_q: PerToken, floor: float) -> PerToken:
    """Return the larger of the two binary KL divergences of each token [B, T]; arguments as in `binary_kl`.

    Reference: KPop, Ring blog of 2026-05-26; AReaL functional.py metric binary_kl.
    """
    return jnp.maximum(binary_kl(log_p, log_q, floor), binary_kl(log_q, log_p, floor))


def most_probable(logp: Float[Array, "*B V"], top_k: Scalar) -> Bool[Array, "*B V"]:
    """Return which of the tokens [..., V] are the `top_k` most probable ones; of equal ones the first."""
    size = logp.shape[-1]
    if isinstance(top_k, int | float):
        _, ids = jax.lax.top_k(logp, math.ceil(min(top_k, size)))
        return jnp.put_along_axis(jnp.zeros(logp.shape, bool), ids, True, axis=-1, inplace=False)
    # A traced number has no shape to select by.
    return jnp.argsort(jnp.argsort(-logp, axis=-1), axis=-1).astype(jnp.float32) < top_k


def head_and_rest(
    batch: TokenBatch, top_k: Scalar
) -> tuple[Bool[Array, "B T V"], Float[Array, "B T V"], Float[Array, "B T V"], PerToken, PerToken]:
    """Merge all tokens but the sampler's `top_k` most probable ones and the sampled one.

    Args:
        batch: with `tokens` and both vocabulary columns.
        top_k: number of tokens kept apart in addition to the sampled one; may be traced.

    Returns:
        Which tokens are kept apart [B, T, V]; log p and log mu [B, T, V]; the logs of the merged masses
        [B, T], at least log 1e-12.

    Reference: DPPO arXiv 2602.04879 Top-K; Stable-RL compute_topk_kl.
    """
    assert batch.tokens is not None
    assert batch.logp_vocabulary is not None
    assert batch.logp_infer_vocabulary is not None
    log_p, log_mu = jax.lax.stop_gradient(batch.logp_vocabulary), batch.logp_infer_vocabulary
    sampled = jnp.asarray(batch.tokens)[..., None] == jnp.arange(log_mu.shape[-1])[None, None]
    head = most_probable(log_mu, top_k) | sampled
    rest_p, rest_mu = (
        jnp.log(jnp.maximum(1 - jnp.sum(jnp.where(head, jnp.exp(x), 0), axis=-1), MERGED_FLOOR))
        for x in (log_p, log_mu)
    )
    return head, log_p, log_mu, rest_p, rest_mu


def top_k_tv(batch: TokenBatch, top_k: Scalar) -> PerToken:
    """Return the total variation of p and mu over the kept tokens and the rest [B, T].

    Reference: DPPO arXiv 2602.04879 Top-K; Stable-RL compute_topk_kl.
    """
    head, log_p, log_mu, rest_p, rest_mu = head_and_rest(batch, top_k)
    apart = jnp.sum(jnp.where(head, jnp.abs(jnp.exp(log_p) - jnp.exp(log_mu)), 0), axis=-1)
    return (apart + jnp.abs(jnp.exp(rest_p) - jnp.exp(rest_mu))) / 2


def top_k_kl(batch: TokenBatch, top_k: Scalar) -> PerToken:
    """Return KL(mu, p) over the kept tokens and the rest [B, T], in nats.

    Reference: DPPO arXiv 2602.04879 Top-K; Stable-RL compute_topk_kl.
    """
    head, log_p, log_mu, rest_p, rest_mu = head_and_rest(batch, top_k)
    drawn = head & jnp.isfinite(log_mu)
    apart = jnp.sum(jnp.where(drawn, jnp.exp(log_mu) * (log_mu - log_p), 0), axis=-1)
    return apart + jnp.exp(rest_mu) * (rest_mu - rest_p)


def rank_ascending(x: Float[Array, "*S"], chosen: Bool[Array, "*S"]) -> Int[Array, "*S"]:
    """Return the rank (0 is the smallest) of each entry among those `chosen`, which come first."""
    flat = jnp.where(chosen, x, jnp.inf).reshape(-1)
    # Entries that are not chosen sort behind chosen ones, also behind infinite ones.
    order = jnp.lexsort((flat, ~chosen.reshape(-1)))
    ranks = jnp.zeros(flat.shape, jnp.int32).at[order].set(jnp.arange(flat.size, dtype=jnp.int32))
    return ranks.reshape(x.shape)


def smallest_with_mean(squares: PerToken, chosen: TokenMask, bound: Scalar, *, strict: bool) -> TokenMask:
    """Keep the smallest of the `chosen` squares whose running mean stays within `bound`.

    Args:
        squares: [B, T], not negative.
        chosen: entries to select from, bool [B, T].
        bound: of the mean of the entries that stay.
        strict: whether the mean must be below the bound instead of at most equal.

    Returns:
        Entries that stay, bool [B, T].
    """
    ranks = rank_ascending(squares, chosen)
    ordered = jnp.sort(jnp.where(chosen, squares, jnp.inf).reshape(-1))
    count = jnp.sum(chosen)
    position = jnp.arange(ordered.size)
    mean = jnp.cumsum(jnp.where(position < count, ordered, 0)) / (position + 1).astype(jnp.float32)
    within = (mean < bound) if strict else (mean <= bound)
    return chosen & (ranks < jnp.sum(within & (position < count)))
