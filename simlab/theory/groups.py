"""Groups of G independent samples with finitely many reward values: exact expectations over all groups.

An advantage depends on the sample's own reward and on how many samples of the group have each reward. So
expectations over all groups, S^G of them, are sums over the own reward and a multinomial count.
"""

from collections.abc import Callable
from functools import cache
from math import comb

import numpy as np
from jaxtyping import Float, Int
from scipy.special import binom

from simlab.theory.expectation import PolicyPair

MOST_COMPOSITIONS = 50_000
PerComposition = Float[np.ndarray, "*M"] | np.float64
# Advantage of one sample: own reward, the group's counts of each reward, and the rewards.
Advantage = Callable[[float, Int[np.ndarray, "*M R"], Float[np.ndarray, " R"]], PerComposition]


def center_rewards(
    own: float, counts: Int[np.ndarray, "*M R"], values: Float[np.ndarray, " R"]
) -> PerComposition:
    """Return reward minus group mean.

    Reference: cancel Eq. 29.
    """
    return own - counts @ values / counts.sum(-1)


def leave_one_out(
    own: float, counts: Int[np.ndarray, "*M R"], values: Float[np.ndarray, " R"]
) -> PerComposition:
    """Return reward minus the mean of the others (RLOO); zero for a single sample.

    Reference: lr App. C.
    """
    others = counts.sum(-1) - 1
    return np.where(others > 0, own - (counts @ values - own) / np.maximum(others, 1), 0.0)


def normalize_rewards(
    own: float, counts: Int[np.ndarray, "*M R"], values: Float[np.ndarray, " R"]
) -> PerComposition:
    """Return reward minus group mean over the unbiased std; zero in groups of equal rewards.

    Reference: hacking Eq. 3; acrl Eq. 1; cancel Eq. 43.
    """
    size = counts.sum(-1)
    mean = counts @ values / size
    squares = (counts * (values - mean[..., None]) ** 2).sum(-1)
    std = np.sqrt(squares / np.maximum(size - 1, 1))
    return np.where((counts > 0).sum(-1) > 1, (own - mean) / (std + 1e-6), 0.0)


ADVANTAGES: dict[str, Advantage] = {
    "centered": center_rewards,
    "rloo": leave_one_out,
    "grpo": normalize_rewards,
}


@cache
def compositions(total: int, parts: int) -> Int[np.ndarray, "M R"]:
    """Return all ways `[M, parts]`, at most 50,000, to split `total` samples over `parts` kinds.

    `ValueError` beyond: rewards of too many values for groups this large.
    """
    if comb(total + parts - 1, parts - 1) > MOST_COMPOSITIONS:
        raise ValueError(
            f"{parts} kinds of samples in groups of {total} have {comb(total + parts - 1, parts - 1)} "
            f"compositions; at most {MOST_COMPOSITIONS}: use fewer reward values or smaller groups"
        )
    if parts == 1:
        return np.array([[total]])
    rows = []
    for first in range(total + 1):
        rest = compositions(total - first, parts - 1)
        rows.append(np.column_stack([np.full(len(rest), first), rest]))
    return np.concatenate(rows)


def multinomial_ways(counts: Int[np.ndarray, "M R"]) -> Float[np.ndarray, " M"]:
    """Return the number of orders of a group with `counts` `[M, R]` of each kind, `[M]`."""
    return binom(np.cumsum(counts, -1), counts).prod(-1)


def reward_levels(
    rewards: Float[np.ndarray, " S"], probs: Float[np.ndarray, " S"]
) -> tuple[Float[np.ndarray, " R"], Int[np.ndarray, " S"], Float[np.ndarray, " R"]]:
    """Return reward values `[R]`, value of each sequence `[S]`, and probability of each value `[R]`."""
    values, index = np.unique(rewards, return_inverse=True)
    return values, index, np.bincount(index, probs)


def _mean_given_others(
    rule: Advantage, level_probs: np.ndarray, values: np.ndarray, others: int, present: np.ndarray
) -> np.ndarray:
    """Return E of A for each own value `[R]`, in groups of `present` `[R]` and `others` independent ones."""
    counts = compositions(others, len(values))
    chance = multinomial_ways(counts) * (level_probs**counts).prod(-1)
    kinds = np.eye(len(values), dtype=int)
    return np.array(
        [chance @ rule(own, counts + kind + present, values) for own, kind in zip(values, kinds, strict=True)]
    )


def mean_advantage(
    rule: Advantage, level_probs: Float[np.ndarray, " R"], values: Float[np.ndarray, " R"], size: int
) -> Float[np.ndarray, " R"]:
    """Return E of A given the own reward; the others have `values` with `level_probs`; `[R]` each."""
    return _mean_given_others(rule, level_probs, values, size - 1, np.zeros(len(values), int))


def _slope_in_probs(rule: Advantage, level_probs: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Return d/d level_probs of `mean_advantage`, `[R, R]`: G - 1 times the mean with one other given."""
    kinds = np.eye(len(values), dtype=int)
    columns = [_mean_given_others(rule, level_probs, values, size - 2, kind) for kind in kinds]
    return (size - 1) * np.stack(columns, axis=1)


def group_value(
    probs: Float[np.ndarray, " S"],
    others: Float[np.ndarray, " S"],
    u: Float[np.ndarray, " S *D"],
    rewards: Float[np.ndarray, " S"],
    rule: Advantage,
    size: int,
) -> Float[np.ndarray, "*D"]:
    """Return E of (1/G) sum_i A_i u(o_i): own sample from `probs`, the others from `others`; all `[S]`.

    `u` may be `[S]` or `[S, ...]`. `ValueError` for rewards of too many values, see `compositions`.
    """
    values, index, level_probs = reward_levels(rewards, others)
    return np.tensordot(probs * mean_advantage(rule, level_probs, values, size)[index], u, 1)


def group_gap(
    pair: PolicyPair,
    u: Float[np.ndarray, " S *D"],
    rewards: Float[np.ndarray, " S"],
    rule: Advantage,
    size: int,
) -> dict[str, Float[np.ndarray, "*D"] | np.float64]:
    """Return J' - J of a group objective J = E (1/G) sum_i A_i u(o_i): exact, in parts, to first order.

    own: only the sample's policy changes. others: only that of the G - 1 others, through A_i. To first
    order these are double_sum, the covariances of X_i with its own 1/rho, and cross_samples, with the
    1/rho of the other samples. printed: double_sum with each token's own 1/rho alone, for u spread
    evenly over the tokens. `u` is `[S]`, or `[S, ...]` for a gradient.

    Reference: hacking Eq. 3, 6-10, 28-31.
    Deviation: the paper's footnote mentions that advantages couple the samples; the size is ours.
    """
    p, q = pair.probs_train, pair.probs_infer
    excess = np.where(pair.space.mask, np.expm1(-pair.log_rho), 0.0)
    sequence = excess.sum(1)
    values, index, level_probs = reward_levels(rewards, p)
    shift = np.bincount(index, p * sequence)
    slope = _slope_in_probs(rule, level_probs, values, size) @ shift
    base = mean_advantage(rule, level_probs, values, size)[index]
    start = group_value(p, p, u, rewards, rule, size)
    return {
        "exact": group_value(q, q, u, rewards, rule, size) - start,
        "own": group_value(q, p, u, rewards, rule, size) - start,
        "others": group_value(p, q, u, rewards, rule, size) - start,
        "double_sum": np.tensordot(p * sequence * base, u, 1),
        "printed": np.tensordot(p * sequence / pair.space.lengths * base, u, 1),
        "cross_samples": np.tensordot(p * slope[index], u, 1),
    }
