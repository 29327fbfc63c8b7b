"""Terms over the vocabulary: score centering, and renormalization over the sampler's support.

Both read the columns `logp_vocabulary` and `logp_infer_vocabulary` [B, T, V] of a batch.
"""

from dataclasses import replace
from math import inf
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from simlab.core.arrays import AnyArray
from simlab.core.pytree import pytree
from simlab.objectives.batch import Array, PerToken, TokenBatch
from simlab.objectives.divergences import most_probable, rollout_logp
from simlab.objectives.override_ranges import AtLeastOne
from simlab.objectives.ratios import Surrogate

# torchtitan's floor of both tail masses.
TAIL_FLOOR = 1e-6


@pytree
class ScoreCentering:
    """Subtract the mean over the sampler of A f(p / mu) times the score, f the coefficient of u.

    The coefficient of log p(v) is A (1[v = y] f_y - mu(v) f_v) in the exact form, with all f detached. With
    `top_k` below V, H holds the sampler's `top_k` most probable tokens, and the tail is modeled as g p with
    g = (1 - sum_H mu) / (1 - sum_H p): v in H has -A (mu f(p / mu) - a p) and a = g f(1 / g).

    Reference: score centering arXiv 2609.20807; torchtitan rl/losses/score_centering.py; prime-rl ipo.
    Deviation: a surrogate that reads probabilities sees the masses of the tail as those of one token.
    """

    top_k: AtLeastOne = inf
    needs: ClassVar[tuple[str, ...]] = ("logp_vocabulary", "logp_infer_vocabulary")

    def __call__(self, surrogate: Surrogate, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return the term to subtract from that of the sampled token [B, T], without correction weights."""
        check_surrogate(surrogate)
        assert batch.logp_vocabulary is not None
        assert batch.logp_infer_vocabulary is not None
        logp, logp_infer = batch.logp_vocabulary, batch.logp_infer_vocabulary
        weights = jax.lax.stop_gradient(self.weights(surrogate, batch, advantages, logp, logp_infer))
        # An excluded token has weight zero and a log-probability that may be infinite.
        return jnp.sum(jnp.where(weights == 0, 0, weights * jnp.where(weights == 0, 0, logp)), axis=-1)

    def weights(
        self,
        surrogate: Surrogate,
        batch: TokenBatch,
        advantages: PerToken,
        logp: Float[Array, "B T V"],
        logp_infer: Float[Array, "B T V"],
    ) -> Float[Array, "B T V"]:
        """Return the factor of log p(v) in the subtracted term [B, T, V]."""
        slopes = jax.vmap(
            lambda x, y: _slope(surrogate, batch, advantages, x, y), in_axes=(-1, -1), out_axes=-1
        )
        p, mu = jnp.exp(logp), jnp.exp(logp_infer)
        every = mu * jnp.where(mu > 0, slopes(logp, jnp.maximum(logp_infer, -1e4)), 0)
        if isinstance(self.top_k, int | float) and self.top_k >= mu.shape[-1]:
            return advantages[..., None] * every
        head = most_probable(logp_infer, self.top_k)
        tail_p, tail_mu = (
            jnp.maximum(1 - jnp.sum(jnp.where(head, x, 0), axis=-1, keepdims=True), TAIL_FLOOR)
            for x in (p, mu)
        )
        modeled = tail_mu / tail_p * slopes(jnp.log(tail_p), jnp.log(tail_mu))
        top = jnp.where(head, every - modeled * p, 0)
        return advantages[..., None] * jnp.where(self.top_k >= mu.shape[-1], every, top)


def check_surrogate(surrogate: Surrogate) -> None:
    """Raise `ValueError` unless the coefficient of `surrogate` depends on p and mu alone."""
    if not surrogate.elementwise() or getattr(surrogate, "anchor", rollout_logp) is not rollout_logp:
        raise ValueError(
            "surrogate must be a log-likelihood or per-token with anchor 'rollout' for score_centering, "
            f"got {type(surrogate).__name__}."
        )


def _slope(
    surrogate: Surrogate, batch: TokenBatch, advantages: PerToken, logp: PerToken, infer: PerToken
) -> PerToken:
    """Return d u / d log p [B, T] of a token with these log-probabilities."""

    def total(x: Array) -> Array:
        return jnp.sum(surrogate(replace(batch, logp=x, logp_infer=infer), advantages))

    return jax.grad(total)(jax.lax.stop_gradient(logp))


def with_top_k_report(
    batch: TokenBatch, ids: Int[AnyArray, "B T K"], logp: Float[AnyArray, "B T K"], vocabulary: int
) -> TokenBatch:
    """Return `batch` with `logp_infer_vocabulary` from an engine that reports its K most probable tokens.

    Tokens that were neither reported nor sampled get minus infinity. `score_centering` with `top_k` = K and
    DPPO with `divergence_top_k` = K then have the coefficients that the full column gives.

    Args:
        batch: with `tokens`.
        ids: reported tokens, int [B, T, K].
        logp: their log-probabilities [B, T, K].
        vocabulary: number of tokens V.

    Raises:
        ValueError: For a batch without `tokens`.

    Reference: vLLM SamplingParams.logprobs; torchtitan rl/losses/score_centering.py.
    """
    if batch.tokens is None:
        raise ValueError("tokens must be an array, got None.")
    column = jnp.full((*batch.logp.shape, vocabulary), -jnp.inf, jnp.float32)
    column = jnp.put_along_axis(column, ids, jnp.asarray(logp, jnp.float32), axis=-1, inplace=False)
    own = jnp.asarray(batch.logp_infer, jnp.float32)[..., None]
    sampled = jnp.asarray(batch.tokens)[..., None]
    return replace(
        batch, logp_infer_vocabulary=jnp.put_along_axis(column, sampled, own, axis=-1, inplace=False)
    )


def restrict_to_sampled_support(batch: TokenBatch) -> TokenBatch:
    """Return `batch` with the current policy renormalized over the tokens that sampling could draw.

    The support holds the tokens whose `logp_infer_vocabulary` is not minus infinity, as top-p and top-k
    sampling report it. `logp` and `logp_vocabulary` lose the log of the policy's mass on the support.

    Raises:
        ValueError: For a batch without the two vocabulary columns.

    Reference: keep-sampling-mask of DeepSeek-V3.2 arXiv 2512.02556; prime-rl sampling_mask.
    Deviation: the mask is the sampler's (replay); NeMo-RL takes the trainer's own top-p set.
    """
    if batch.logp_vocabulary is None or batch.logp_infer_vocabulary is None:
        raise ValueError("logp_vocabulary and logp_infer_vocabulary must be arrays, got None.")
    support = jnp.isfinite(batch.logp_infer_vocabulary)
    inside = jnp.where(support, batch.logp_vocabulary, -jnp.inf)
    mass = jax.nn.logsumexp(jnp.where(batch.mask[..., None] != 0, inside, 0.0), axis=-1)
    return replace(
        batch, logp=batch.logp - mass, logp_vocabulary=jnp.where(support, inside - mass[..., None], -jnp.inf)
    )
