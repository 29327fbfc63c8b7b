"""Compute a mismatch budget: the cost of a mismatch per token over a response length."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from simlab.core.catalog import shorten
from simlab.theory.expectation import PolicyPair, expect

LARGEST = 1e100
"""Largest std of rho, and length, whose square and product are float64 numbers."""


def effective_fraction(pair: PolicyPair) -> float:
    """Return the expected effective sample size per sample of sequence weights, 1 / E_infer[rho^2].

    Reference: lr Eq. 4.
    """
    return 1 / expect(pair.probs_infer, np.exp(2 * pair.log_rho.sum(1)))


def effective_fraction_of_chain(pair: PolicyPair, length: int) -> float:
    """Return this fraction for `length` tokens of a Markov chain (`memory=1`), by a transfer matrix.

    E[rho^2] over a step from token a to token b is train^2 / infer, so the product over steps grows
    like the largest eigenvalue of that matrix.

    Reference: lr Eq. 4.
    """
    space = pair.space
    rows = {prefix: row for row, prefix in enumerate(space.prefixes)}
    second = pair.train**2 / pair.infer
    step = second[[rows[(token,)] for token in range(space.vocabulary)]]
    weight = second[rows[()]]
    log_scale = 0.0
    for _ in range(length - 1):
        weight = weight @ step
        log_scale += np.log(weight.sum())
        weight = weight / weight.sum()
    return float(np.exp(-log_scale) / weight.sum())


@dataclass(frozen=True)
class Budget:
    """The effect of a mismatch per token on sequences of `length` tokens.

    Args:
        length: tokens per sequence.
        rho_std: std of the IS ratio of a token.
        ess: expected effective sample size of exact sequence weights, as a fraction of the samples.
        length_at_half_ess: number of tokens at which `ess` is one half.
        abs_seq_log_ratio: mean of |sum_t log rho_t|, in nats.
        masked_above_2: fraction of sequences that sequence masking at C = 2 drops.
        median_sequence_ratio: median of the product of rho over a sequence.
        rho_std_for_half_ess: `rho_std` at which `ess` is one half at this length.
    """

    length: int
    rho_std: float
    ess: float
    length_at_half_ess: float
    abs_seq_log_ratio: float
    masked_above_2: float
    median_sequence_ratio: float
    rho_std_for_half_ess: float


def budget(rho_std: float, length: int) -> Budget:
    """Return the budget of `length` tokens whose IS ratios are independent with std `rho_std`.

    Var of rho under pi_infer is chi2(train, infer), and 1 + chi2 multiplies over independent tokens:
    ess = (1 + std^2)^-T, exact when every context has the same chi2. The sum of log rho is taken as
    normal with variance s2 = T log(1 + std^2) and mean -s2 / 2, the distribution with E[rho] = 1.

    Args:
        rho_std: std of the IS ratio of a token, at least 0.
        length: tokens per sequence, at least 1.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> round(budget(0.01, 8192).ess, 2)
        0.44

    Reference: hacking Eq. 5; lr Eq. 4, 6, 8; acrl Tab. 2.
    Deviation: a result of ours; the papers give no such relation.
    """
    if not 0 <= rho_std <= LARGEST:  # NaN, too
        raise ValueError(f"rho_std must be between 0 and {LARGEST:g}, got {rho_std}.")
    if not 1 <= length <= LARGEST:
        raise ValueError(f"length must be between 1 and {LARGEST:g}, got {shorten(length)}.")
    per_token = np.log1p(rho_std**2)
    std = np.sqrt(length * per_token)
    shift = -(std**2) / 2
    folded = (
        std * np.sqrt(2 / np.pi) * np.exp(-(std**2) / 8) + shift * (1 - 2 * norm.cdf(-shift / std))
        if std > 0
        else 0.0
    )
    return Budget(
        length=length,
        rho_std=rho_std,
        ess=float(np.exp(-length * per_token)),
        length_at_half_ess=float(np.log(2) / per_token) if per_token > 0 else float("inf"),
        abs_seq_log_ratio=float(folded),
        masked_above_2=float(norm.sf((np.log(2) - shift) / std)) if std > 0 else 0.0,
        median_sequence_ratio=float(np.exp(shift)),
        rho_std_for_half_ess=float(np.sqrt(np.expm1(np.log(2) / length))),
    )
