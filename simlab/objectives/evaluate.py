"""Value of an objective, and its coefficient at every token."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Float

from simlab.objectives.batch import Array, PerToken, TokenBatch, prepare_batch
from simlab.objectives.catalog import get_objective
from simlab.objectives.objective import Objective, rollout_terms, value_from_terms, with_overrides
from simlab.objectives.override_ranges import Override


def resolve(objective: str | Objective, **overrides: Override) -> Objective:
    """Return the preset of a name ("grpo", "grpo+tis"), or a record as it is, with overrides applied.

    Raises:
        ValueError: As `get_objective` and `with_overrides` do.
    """
    if isinstance(objective, str):
        return with_overrides(get_objective(objective), objective, **overrides)
    return with_overrides(objective, overrides)


def objective_value(objective: str | Objective, batch: TokenBatch, **overrides: Override) -> Float[Array, ""]:
    """Compute the objective, which training maximizes; the loss of the frameworks is its negative.

    Args:
        objective: a name such as `grpo+tis`, or a record.
        batch: the rollout; see `TokenBatch` for the shapes.
        overrides: numbers (`clip_high=0.28`; may be traced) or named choices (`advantage="rloo"`; static).

    Returns:
        A float32 scalar.

    Raises:
        ValueError: for a name that the objective does not use, listing those it does, and for a batch that
            does not fit.

    Example:
        >>> old = jnp.zeros((2, 1))
        >>> batch = TokenBatch(
        ...     logp=jnp.array([[0.5], [0.0]]),
        ...     logp_train=old,
        ...     logp_infer=old,
        ...     rewards=jnp.array([1.0, 0.0]),
        ...     mask=jnp.ones((2, 1)),
        ...     group_size=2,
        ... )
        >>> round(float(objective_value("grpo", batch, advantage="rloo", clip_high=0.28)), 3)
        0.14
    """
    resolved = resolve(objective, **overrides)
    batch = prepare_batch(batch)
    return value_from_terms(resolved, batch, rollout_terms(resolved, batch))


def token_coefficients(objective: str | Objective, batch: TokenBatch, **overrides: Override) -> PerToken:
    """Compute c[i, t] = d objective / d log p[i, t].

    A model trained on `sum(stop_gradient(c) * logp)` takes the same step as on the objective itself.

    Args:
        objective: a name or a record.
        batch: the rollout.
        overrides: as in `objective_value`.

    Returns:
        Float32 [B, T], zero at padding.

    Raises:
        ValueError: as `objective_value` does.

    Example:
        >>> old = jnp.zeros((2, 1))
        >>> batch = TokenBatch(
        ...     logp=jnp.array([[0.5], [0.0]]),
        ...     logp_train=old,
        ...     logp_infer=old,
        ...     rewards=jnp.array([1.0, 0.0]),
        ...     mask=jnp.ones((2, 1)),
        ...     group_size=2,
        ... )
        >>> token_coefficients("grpo", batch, advantage="rloo").tolist()  # the first token is clipped
        [[0.0], [-0.5]]

    Reference: cancel Eq. 9, 13, 15, 16, 66-70; hacking Eq. 7, 26.
    """
    resolved = resolve(objective, **overrides)
    logp = jnp.asarray(batch.logp, jnp.float32)
    return jax.grad(lambda x: objective_value(resolved, replace(batch, logp=x)))(logp)


def vocabulary_coefficients(
    objective: str | Objective, batch: TokenBatch, **overrides: Override
) -> Float[Array, "B T V"]:
    """Return d objective / d log p(v) for every token v of the vocabulary.

    A model trained on the sum of these constants times log p(v) takes the same step as on the objective.

    Args:
        objective: name or record; without `score_centering` only sampled tokens have a coefficient.
        batch: with `tokens` and the two vocabulary columns.
        overrides: as in `objective_value`.

    Returns:
        Coefficients [B, T, V], zero at padding.

    Raises:
        ValueError: if a column is missing, or the objective cannot be centered.

    Reference: score centering arXiv 2609.20807.
    """
    if batch.tokens is None or batch.logp_vocabulary is None:
        raise ValueError("tokens and logp_vocabulary must be arrays, got None.")
    resolved = resolve(objective, **overrides)

    def value(logp: Array, logp_vocabulary: Array) -> Array:
        return objective_value(resolved, replace(batch, logp=logp, logp_vocabulary=logp_vocabulary))

    columns = (jnp.asarray(x, jnp.float32) for x in (batch.logp, batch.logp_vocabulary))
    sampled, every = jax.grad(value, argnums=(0, 1))(*columns)
    chosen = jnp.asarray(batch.tokens)[..., None] == jnp.arange(every.shape[-1])[None, None]
    return every + jnp.where(chosen, sampled[..., None], 0)
