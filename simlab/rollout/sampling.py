"""Draw tokens from logits, and report their log-probabilities."""

from typing import Annotated

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from simlab.core.arrays import AnyArray
from simlab.core.pytree import Integer, Scalar, pytree, static
from simlab.core.ranges import POSITIVE, TINY, Range
from simlab.rollout.noise import InjectedNoise


@pytree
class SamplingParams:
    """Temperature, then top-k, then top-p, as in vLLM. Numbers are data; None leaves a filter out.

    Before `min_length` tokens the end token cannot be drawn. `processed` reports log-probabilities after all
    of this (vLLM's `processed_logprobs`); otherwise they are those of the raw logits (`raw_logprobs`).
    `temperature` is positive; for greedy decoding take `GREEDY`, which is top-k 1. `noise` acts on the
    weights, or on the logits before all else, raw log-probabilities included.

    Reference: vLLM SamplingParams (`min_length` is its `min_tokens`), `logprobs_mode`.
    """

    temperature: Annotated[Scalar, POSITIVE] = 1.0
    top_k: Annotated[Integer | None, Range(1, 2**31 - 1)] = None
    top_p: Annotated[Scalar | None, Range(TINY, 1.0)] = None
    min_length: Annotated[Integer, Range(0, 2**31 - 1)] = 0
    noise: InjectedNoise | None = None
    processed: bool = static(default=False)


GREEDY = SamplingParams(top_k=1)


def processed_logits(
    logits: Float[AnyArray, "*B V"], sampling: SamplingParams, position: Int[Array, ""] | int, end: int
) -> Float[Array, "*B V"]:
    """Return the logits [..., V] to sample from: over the temperature, -inf where a filter forbids a token.

    `position` is the number of tokens that the response already has. Of equal logits the one with the lowest
    index ranks first. Top-p keeps the fewest tokens whose probabilities sum to at least `top_p`.
    """
    # Less one on both sides: of the scan over tokens, XLA then reads the counter before it is incremented.
    too_early = (jnp.arange(logits.shape[-1]) == end) & (position - 1 < sampling.min_length - 1)
    logits = jnp.where(_leading(too_early, logits), -jnp.inf, logits)
    logits = logits / jnp.asarray(sampling.temperature, jnp.float32)
    if sampling.top_k is None and sampling.top_p is None:
        return logits
    order = jnp.argsort(logits, axis=-1, descending=True, stable=True)
    rank = jnp.argsort(order, axis=-1, stable=True)
    keep = jnp.ones(logits.shape, bool)
    if sampling.top_k is not None:
        keep = rank < sampling.top_k
    if sampling.top_p is not None:
        probs = jax.nn.softmax(jnp.where(keep, logits, -jnp.inf), axis=-1)
        ranked = jnp.take_along_axis(probs, order, axis=-1)
        before = jnp.cumsum(ranked, axis=-1) - ranked
        keep = keep & (jnp.take_along_axis(before, rank, axis=-1) < sampling.top_p)
    return jnp.where(keep, logits, -jnp.inf)


def draw_token(uniform: Float[AnyArray, "*B"], probs: Float[AnyArray, "*B V"]) -> Int[Array, "*B"]:
    """Return the token that `uniform` [...] in [0, 1) picks by inverting the distribution `probs` [..., V].

    One number per token, so two engines that are given the same numbers draw the same token wherever
    their distributions agree. `probs` need not sum to one exactly; a probability of 0 is never drawn.
    """
    below = jnp.cumsum(probs, axis=-1)
    return jnp.sum(below <= uniform[..., None] * below[..., -1:], axis=-1, dtype=jnp.int32)


def _leading(row: Array, like: Array) -> Array:
    return row.reshape((1,) * (like.ndim - 1) + row.shape)
