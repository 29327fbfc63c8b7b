"""Groups of G independent samples with 0/1 rewards: exact moments of the group's gradient.

An advantage of sample i depends on its own reward and on how many of the others succeed. So
expectations over all groups, S^G of them, are sums over own reward and a binomial count.
"""

from collections.abc import Callable

import numpy as np
from scipy.stats import binom

from simlab.models.tabular import squared_score_norms
from simlab.theory.expectation import PolicyPair

# Advantage of one sample from its own reward, the group's number of successes, and the group size.
Advantage = Callable[[float, np.ndarray, int], np.ndarray]


def centered(own: float, successes: np.ndarray, size: int) -> np.ndarray:
    """Reward minus group mean.

    Source: cancel Eq. 29.
    """
    return own - successes / size


def leave_one_out(own: float, successes: np.ndarray, size: int) -> np.ndarray:
    """Reward minus the mean of the others (RLOO).

    Source: lr App. C.
    """
    return own - (successes - own) / (size - 1)


def normalized(own: float, successes: np.ndarray, size: int) -> np.ndarray:
    """Reward minus group mean over the unbiased std; zero in groups of equal rewards.

    Source: hacking Eq. 3; acrl Eq. 1; cancel Eq. 43.
    """
    rate = successes / size
    std = np.sqrt(rate * (1 - rate) * size / (size - 1))
    return np.where(std > 0, (own - rate) / (std + 1e-6), 0.0)


ADVANTAGES: dict[str, Advantage] = {"centered": centered, "rloo": leave_one_out, "grpo": normalized}


def mean_advantage(rule: Advantage, success: float, size: int) -> np.ndarray:
    """E of A given the own reward 0 or 1, the others succeeding with probability `success`; `[2]`."""
    others = np.arange(size)
    chance = binom.pmf(others, size - 1, success)
    return np.array([chance @ rule(own, others + own, size) for own in (0, 1)])


def mean_squared_advantage(rule: Advantage, success: float, size: int) -> np.ndarray:
    """E of A^2 given the own reward; `[2]`."""
    return mean_advantage(lambda *arguments: rule(*arguments) ** 2, success, size)


def mean_product(rule: Advantage, success: float, size: int) -> np.ndarray:
    """E of A_1 A_2 given the rewards of samples 1 and 2; `[2, 2]`."""
    others = np.arange(size - 1)
    chance = binom.pmf(others, size - 2, success)
    return np.array(
        [
            [chance @ (rule(a, others + a + b, size) * rule(b, others + a + b, size)) for b in (0, 1)]
            for a in (0, 1)
        ]
    )


def group_value(
    law: np.ndarray, others: np.ndarray, u: np.ndarray, rewards: np.ndarray, rule: Advantage, size: int
) -> np.ndarray:
    """E of (1/G) sum_i A_i u(o_i): own sample from `law`, the others from `others`; all `[S]`.

    `u` may be `[S]` or `[S, ...]`.
    """
    advantage = mean_advantage(rule, float(others @ rewards), size)[rewards.astype(int)]
    return np.tensordot(law * advantage, u, 1)


def group_gap(
    pair: PolicyPair, u: np.ndarray, rewards: np.ndarray, rule: Advantage, size: int
) -> dict[str, np.ndarray]:
    """J' - J of a group objective, J = E (1/G) sum_i A_i u(o_i): exact, in parts, and to first order.

    own: only the sample's law changes. others: only the law of the G - 1 others, through A_i. To first
    order these are double_sum, the covariances of X_i with its own 1/rho, and cross_samples, with the
    1/rho of the other samples. printed: double_sum with each token's own 1/rho alone, for u spread
    evenly over the tokens. `u` is `[S]`, or `[S, ...]` for a gradient.

    Source: hacking Eq. 3, 6-10, 28-31.
    Deviation: the paper's footnote mentions that advantages couple the samples; the size is ours.
    """
    p, q = pair.law_train, pair.law_infer
    excess = np.where(pair.space.mask, np.expm1(-pair.log_rho), 0.0)
    sequence = excess.sum(1)
    success, shift = float(p @ rewards), float((p * sequence) @ rewards)
    slope = _slope_in_success(rule, success, size)
    indices = rewards.astype(int)
    base = mean_advantage(rule, success, size)[indices]
    start = group_value(p, p, u, rewards, rule, size)
    return {
        "exact": group_value(q, q, u, rewards, rule, size) - start,
        "own": group_value(q, p, u, rewards, rule, size) - start,
        "others": group_value(p, q, u, rewards, rule, size) - start,
        "double_sum": np.tensordot(p * sequence * base, u, 1),
        "printed": np.tensordot(p * sequence / pair.space.lengths * base, u, 1),
        "cross_samples": np.tensordot(p * shift * slope[indices], u, 1),
    }


def _slope_in_success(rule: Advantage, success: float, size: int) -> np.ndarray:
    """d/dp of `mean_advantage`, `[2]`: G - 1 times the effect of turning one of the others into a success."""
    others = np.arange(size - 1)
    chance = binom.pmf(others, size - 2, success)
    return np.array(
        [
            (size - 1) * (chance @ (rule(own, others + 1 + own, size) - rule(own, others + own, size)))
            for own in (0, 1)
        ]
    )


def group_gradient_moments(
    pair: PolicyPair, weights: np.ndarray, rewards: np.ndarray, rule: Advantage, size: int
) -> tuple[np.ndarray, float]:
    """Mean `[K, V]` and total variance of one group's gradient (1/G) sum_i A_i sum_t w_t grad log pi_train.

    Sampled from pi_infer; `weights` `[S, T]` may not depend on the group.

    Source: lr Eq. 3-6, 11; acrl Eq. 1-3.
    """
    law, indices = pair.law_infer, rewards.astype(int)
    success = float(law @ rewards)
    # E[w s ; reward = r], r = 0, 1.
    parts = [pair.gradient((law * (indices == r))[:, None] * weights) for r in (0, 1)]
    mean = np.tensordot(mean_advantage(rule, success, size), np.stack(parts), 1)
    squares = squared_score_norms(pair.space, pair.train, weights)
    own = float(law @ (mean_squared_advantage(rule, success, size)[indices] * squares))
    inner = np.array([[np.vdot(a, b) for b in parts] for a in parts])
    crossed = float((mean_product(rule, success, size) * inner).sum())
    return mean, own / size + (1 - 1 / size) * crossed - float(np.vdot(mean, mean))
