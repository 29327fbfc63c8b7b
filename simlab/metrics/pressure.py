"""Effects of an objective on a batch: clipped and rejected tokens, and the terms that they add.

Every function maps an objective (a preset's name or a record) and a `TokenBatch` to a scalar. A token
counts as clipped when its advantage is not zero and yet its coefficient is: a clip that keeps a gradient
(CISPO, DFPO) does not count. Regularizers such as `rollout_kl` are left out: no clip removes their
coefficients.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from simlab.metrics.reductions import mean
from simlab.objectives import Objective, TokenBatch, prepare_batch, resolve, rollout_terms, token_coefficients
from simlab.objectives.aggregation import token_sum
from simlab.objectives.batch import by_group, masked_mean, masked_sum
from simlab.objectives.ratios import token_ratio

Array = jax.Array


def _advantages(objective: Objective, batch: TokenBatch) -> Array:
    return rollout_terms(objective, batch).advantages


def _bare(objective: str | Objective) -> Objective:
    """Return the objective without what, besides ratio and clip, can zero a coefficient or add one."""
    return replace(
        resolve(objective),
        correction=None,
        rejections=(),
        staleness=None,
        distortion=None,
        group_filter=False,
        regularizers=(),
    )


def clipped_tokens(objective: str | Objective, batch: TokenBatch) -> Bool[Array, "B T"]:
    """Return the tokens whose gradient the clip removes, bool [B, T].

    Reference: hacking Eq. 12.
    """
    bare, batch = _bare(objective), prepare_batch(batch)
    pushes = token_coefficients(bare, batch) != 0
    return batch.mask & (_advantages(bare, batch) != 0) & ~pushes


def _fraction(tokens: Array, mask: Array) -> Array:
    return mean(tokens.astype(jnp.float32), mask)


def clip_fraction(objective: str | Objective, batch: TokenBatch) -> Float[Array, ""]:
    """Return the fraction of all tokens that are clipped.

    Reference: hacking Tab. 1; verl core_algos.compute_policy_loss_vanilla pg_clipfrac.
    Deviation: includes what verl counts apart as pg_clipfrac_lower (dual clip).
    """
    return _fraction(clipped_tokens(objective, batch), prepare_batch(batch).mask)


def clip_fraction_positive(objective: str | Objective, batch: TokenBatch) -> Float[Array, ""]:
    """Return the fraction of all tokens that are clipped and have a positive advantage.

    Reference: TRL clip_ratio/high_mean.
    """
    bare, ready = _bare(objective), prepare_batch(batch)
    return _fraction(clipped_tokens(bare, batch) & (_advantages(bare, ready) > 0), ready.mask)


def clip_fraction_negative(objective: str | Objective, batch: TokenBatch) -> Float[Array, ""]:
    """Return the fraction of all tokens that are clipped and have a negative advantage.

    Reference: TRL clip_ratio/low_mean.
    """
    bare, ready = _bare(objective), prepare_batch(batch)
    return _fraction(clipped_tokens(bare, batch) & (_advantages(bare, ready) < 0), ready.mask)


def delta_clip_j(objective: str | Objective, batch: TokenBatch) -> Float[Array, ""]:
    """Return the term that clipping adds: mean over groups of sum X (phi - 1), phi = 0 at clipped tokens.

    X = r A / (G |o|) with the token's PPO ratio.

    Unit: advantage.
    Reference: hacking Eq. 7, 13, 14, 26.
    """
    bare, ready = _bare(objective), prepare_batch(batch)
    weighted = token_ratio(ready) * _advantages(bare, ready)
    lost = jnp.where(clipped_tokens(bare, batch), -weighted, 0)
    per_sequence = masked_mean(lost, ready.mask, axis=1)
    return jnp.mean(per_sequence)


def hacking_j(objective: str | Objective, batch: TokenBatch) -> Float[Array, ""]:
    """Return J = sum over the batch of A (phi - 1); phi: injected weights of the objective's distortion.

    The control of the paper's figure is this number with the distorted objective on the batches of the run
    that is not distorted.

    Unit: advantage.
    Reference: hacking Eq. 20, 23, Fig. 6.
    """
    resolved, ready = resolve(objective), prepare_batch(batch)
    terms = rollout_terms(resolved, ready)
    return masked_sum(terms.advantages * (terms.distortion - 1), ready.mask)


def tokens_in_loss(objective: str | Objective, batch: TokenBatch) -> Bool[Array, "B T"]:
    """Return which tokens no rejection removes from the loss, bool [B, T]; ignores dynamic sampling."""
    resolved, ready = replace(resolve(objective), group_filter=False), prepare_batch(batch)
    terms = rollout_terms(resolved, ready)
    if resolved.staleness is None:
        return terms.mask
    return terms.mask & resolved.staleness(replace(ready, mask=terms.mask), terms.advantages)


def rejected_token_fraction(objective: str | Objective, batch: TokenBatch) -> Float[Array, ""]:
    """Return the fraction of the tokens that are rejected.

    Reference: verl rollout_corr_helper rollout_rs_masked_fraction.
    """
    return _fraction(~tokens_in_loss(objective, batch), prepare_batch(batch).mask)


def rejected_sequence_fraction(objective: str | Objective, batch: TokenBatch) -> Float[Array, ""]:
    """Return the fraction of the sequences that lose at least one token.

    Reference: verl rollout_corr_helper rollout_rs_seq_masked_fraction.
    Deviation: of the sequences that have tokens; verl divides by all.
    """
    mask = prepare_batch(batch).mask
    return _fraction((mask & ~tokens_in_loss(objective, batch)).any(axis=1), mask.any(axis=1))


def asym(objective: str | Objective, batch: TokenBatch) -> Float[Array, ""]:
    """Return the variance over a group of w_i A_i, the modulation of a sequence; mean over groups.

    w_i A_i is the mean over the sequence's tokens of the coefficient before aggregation, corrections and
    distortions included; the variance divides by the number of sequences with tokens.

    Unit: squared advantage.
    Reference: cancel Eq. 23, 94.
    """
    resolved, ready = resolve(objective), prepare_batch(batch)
    coefficients = token_coefficients(replace(resolved, aggregation=token_sum), batch)
    modulation = by_group(masked_mean(coefficients, ready.mask, axis=1), batch.group_size)
    real = by_group(ready.mask.any(axis=1), batch.group_size)
    centered = modulation - masked_mean(modulation, real, axis=1)[:, None]
    return mean(masked_mean(centered**2, real, axis=1), real.any(axis=1))
