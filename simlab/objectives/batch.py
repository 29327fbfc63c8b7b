"""The record that every objective reads: one row per sampled sequence, one column per response token."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Shaped

from simlab.core.arrays import AnyArray
from simlab.core.pytree import Scalar, pytree, static

Array = jax.Array
PerToken = Float[Array, "B T"]
"""One number per response token."""
TokenMask = Bool[Array, "B T"]
"""True at the response tokens that count."""
PerSequence = Float[Array, " B"]
"""One number per response."""
SequenceMask = Bool[Array, " B"]
"""True at the responses that count."""


@pytree
class TokenBatch:
    """Log-probabilities of the sampled tokens under three policies, and the rewards.

    `B` sequences of `T` padded response tokens; sequences of one prompt are contiguous, `group_size` each.

    - `logp` [B, T]: current theta, training engine (verl: `log_prob`), natural log.
    - `logp_train` [B, T]: theta_old, training engine (verl: `old_log_prob`).
    - `logp_infer` [B, T]: theta_old, inference engine (verl: `rollout_log_probs`).
    - `rewards` [B]: one number per sequence.
    - `mask` [B, T]: nonzero at real tokens. Nothing that stands at padded positions is ever read.
    - `group_size`: static; must divide B.
    - `key`: random key, for objectives that draw noise.
    - `logp_reference` [B, T]: reference policy, for the KL term.
    - `values` [B, T]: critic values at theta_old, for `gae` and `critic_penalty`.
    - `sum_squared_probabilities` [B, T]: sum of pi_train^2 over the vocabulary, for `otb`.
    - `tokens` [B, T]: sampled tokens, to place `logp` in the vocabulary.
    - `logp_vocabulary`, `logp_infer_vocabulary` [B, T, V]: log-probabilities of all tokens under theta and
      under the inference engine, after temperature and filters. For `score_centering`.

    Reference: hacking Eq. 5, 25; verl core_algos.
    """

    logp: Float[AnyArray, "B T"]
    logp_train: Float[AnyArray, "B T"]
    logp_infer: Float[AnyArray, "B T"]
    rewards: Shaped[AnyArray, " B"]
    mask: Shaped[AnyArray, "B T"]
    group_size: int = static()
    key: Array | None = None
    logp_reference: Float[AnyArray, "B T"] | None = None
    values: Float[AnyArray, "B T"] | None = None
    sum_squared_probabilities: Float[AnyArray, "B T"] | None = None
    tokens: Int[AnyArray, "B T"] | None = None
    logp_vocabulary: Float[AnyArray, "B T V"] | None = None
    logp_infer_vocabulary: Float[AnyArray, "B T V"] | None = None


def prepare_batch(batch: TokenBatch) -> TokenBatch:
    """Return `batch` checked, in float32 and bool, with zeros at padded positions.

    The columns of theta_old (`logp_train`, `logp_infer`, `logp_infer_vocabulary`) and `rewards` lose their
    gradient; `tokens` stay as they are.

    Raises:
        ValueError: For shapes that do not fit together, or a `group_size` that does not divide B.
    """
    _check_shapes(batch)
    mask = jnp.asarray(batch.mask).astype(bool)

    def clean(x: AnyArray) -> Array:
        return jnp.where(mask, jnp.asarray(x, jnp.float32), jnp.float32(0))

    def clean_optional(x: AnyArray | None) -> Array | None:
        return None if x is None else clean(x)

    def clean_vocabulary(x: AnyArray | None) -> Array | None:
        return None if x is None else jnp.where(mask[..., None], jnp.asarray(x, jnp.float32), jnp.float32(0))

    return replace(
        batch,
        logp=clean(batch.logp),
        logp_train=jax.lax.stop_gradient(clean(batch.logp_train)),
        logp_infer=jax.lax.stop_gradient(clean(batch.logp_infer)),
        rewards=jax.lax.stop_gradient(jnp.asarray(batch.rewards, jnp.float32)),
        mask=mask,
        logp_reference=clean_optional(batch.logp_reference),
        values=clean_optional(batch.values),
        sum_squared_probabilities=clean_optional(batch.sum_squared_probabilities),
        logp_vocabulary=clean_vocabulary(batch.logp_vocabulary),
        logp_infer_vocabulary=jax.lax.stop_gradient(clean_vocabulary(batch.logp_infer_vocabulary)),
    )


COLUMNS = ("logp_train", "logp_infer", "mask", "logp_reference", "values", "sum_squared_probabilities")


def _check_shapes(batch: TokenBatch) -> None:
    shape = jnp.shape(batch.logp)
    if len(shape) != 2:
        raise ValueError(f"logp must be [B, T]; got shape {shape}")
    for name in COLUMNS:
        array = getattr(batch, name)
        if array is not None and jnp.shape(array) != shape:
            raise ValueError(f"{name} has shape {jnp.shape(array)}; logp has {shape}")
    if batch.tokens is not None and jnp.shape(batch.tokens) != shape:
        raise ValueError(f"tokens must be of shape {shape}, got {jnp.shape(batch.tokens)}.")
    sizes = {
        name: jnp.shape(getattr(batch, name))
        for name in ("logp_vocabulary", "logp_infer_vocabulary")
        if getattr(batch, name) is not None
    }
    if any(len(size) != 3 or size[:2] != shape for size in sizes.values()) or len(set(sizes.values())) > 1:
        raise ValueError(f"vocabulary columns must be of one shape {(*shape, 'V')}, got {sizes}.")
    if jnp.shape(batch.rewards) != shape[:1]:
        raise ValueError(f"rewards has shape {jnp.shape(batch.rewards)}; expected {shape[:1]}")
    if batch.group_size < 1 or shape[0] % batch.group_size:
        raise ValueError(f"group_size {batch.group_size} does not divide the {shape[0]} sequences")


def masked_sum(
    x: Float[AnyArray, "*S"], mask: Shaped[AnyArray, "*S"], axis: int | None = None
) -> Float[Array, "..."]:
    """Return the sum of `x` where `mask`; zero where nothing is left."""
    return jnp.sum(jnp.where(mask, x, jnp.float32(0)), axis=axis)


def masked_mean(
    x: Float[AnyArray, "*S"], mask: Shaped[AnyArray, "*S"], axis: int | None = None
) -> Float[Array, "..."]:
    """Return the mean of `x` where `mask`; zero where nothing is left."""
    count = jnp.sum(mask, axis=axis, dtype=jnp.float32)
    return masked_sum(x, mask, axis) / jnp.maximum(count, 1)


def clamp(x: Float[Array, "*S"], low: Scalar, high: Scalar) -> Float[Array, "*S"]:
    """Clip with gradient one inside and on the bounds, zero outside (`jnp.clip` halves it on a tie)."""
    return jnp.where(x < low, low, jnp.where(x > high, high, x))


def magnitude(x: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Return |x| with gradient sign(x), which is zero at zero as in torch (that of `jnp.abs` is one)."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


def by_group(x: Shaped[Array, "B ..."], group_size: int) -> Shaped[Array, "N G ..."]:
    """View [B, ...] as [N, G, ...]."""
    return x.reshape(-1, group_size, *x.shape[1:])
