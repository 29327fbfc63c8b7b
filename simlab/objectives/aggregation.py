"""Aggregations of per-token terms to one number: the five modes of verl, under its names.

Each maps float32 terms [B, T] and a bool mask [B, T] to a float32 scalar, zero for an empty mask.
"""

from collections.abc import Callable

from jaxtyping import Float

from simlab.objectives.batch import Array, PerToken, TokenMask, masked_mean, masked_sum

Aggregation = Callable[[PerToken, TokenMask], Float[Array, ""]]


def token_mean(terms: PerToken, mask: TokenMask) -> Float[Array, ""]:
    """Return the mean over all tokens of the batch: long sequences weigh more.

    Reference: verl core_algos.agg_loss token-mean; TRL loss_type dapo.
    """
    return masked_mean(terms, mask)


def token_sum(terms: PerToken, mask: TokenMask) -> Float[Array, ""]:
    """Return the sum over all tokens of the batch.

    Reference: verl core_algos.agg_loss token-sum.
    """
    return masked_sum(terms, mask)


def seq_mean_token_sum(terms: PerToken, mask: TokenMask) -> Float[Array, ""]:
    """Return the sum over the tokens of a sequence, averaged over the sequences that have a token.

    Reference: cancel Eq. 1, 8, 80; lr Eq. 2; verl core_algos.agg_loss seq-mean-token-sum.
    """
    return masked_mean(masked_sum(terms, mask, axis=1), mask.any(axis=1))


def seq_mean_token_sum_norm(terms: PerToken, mask: TokenMask) -> Float[Array, ""]:
    """Return `seq_mean_token_sum` divided by the padded length T, a constant (Dr. GRPO).

    Reference: Dr. GRPO arXiv 2503.20783; verl core_algos.agg_loss seq-mean-token-sum-norm; TRL
        loss_type dr_grpo.
    """
    return seq_mean_token_sum(terms, mask) / terms.shape[1]


def seq_mean_token_mean(terms: PerToken, mask: TokenMask) -> Float[Array, ""]:
    """Return the mean over the tokens of a sequence, averaged over the sequences that have a token.

    Reference: hacking Eq. 2, 16, 24; acrl Eq. 1; cancel Eq. 66, 68; verl core_algos.agg_loss
        seq-mean-token-mean.
    Deviation: sequences without a token leave the denominator (as in verl), where the papers divide by G.
    """
    return masked_mean(masked_mean(terms, mask, axis=1), mask.any(axis=1))


AGGREGATIONS: dict[str, Aggregation] = {
    "token-mean": token_mean,
    "token-sum": token_sum,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
    "seq-mean-token-mean": seq_mean_token_mean,
}
