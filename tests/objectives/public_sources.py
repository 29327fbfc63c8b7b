"""Losses of frameworks that are not on PyPI, token by token in float64, as gradients.

Each function restates the rule of one public file, named with the commit that was read. It maps `Columns` to
minus d loss / d log p [B, T]; advantages are given, one per sequence.
"""

import math
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Columns:
    """Log-probabilities p (current), q (theta_old), mu (rollout), ref and mask [B, T]; advantages a [B]."""

    p: Array
    q: Array
    mu: Array
    ref: Array
    a: Array
    mask: Array

    def tokens(self) -> list[tuple[int, int]]:
        """Positions in the loss."""
        return [(i, t) for i, t in np.ndindex(*self.mask.shape) if self.mask[i, t]]

    def row(self, i: int) -> list[tuple[int, int]]:
        """Positions of one sequence."""
        return [(j, t) for j, t in self.tokens() if j == i]


def filled(columns: Columns, rule) -> Array:
    """Apply `rule(i, t)` at every token in the loss."""
    found = np.zeros(columns.mask.shape)
    for at in columns.tokens():
        found[at] = rule(*at)
    return found


# prime-rl 559b44772 (2026-08-21), src/prime_rl/trainer/rl/loss.py; a term per token over all loss tokens.


def prime_rl_default(c: Columns, low: float = 0.2, high: float = 0.2, kl_tau: float = 1e-3) -> Array:
    """`default_loss_fn`: DPPO-Binary-TV around the rollout and the squared log ratio."""

    def rule(i: int, t: int) -> float:
        ratio = math.exp(c.p[i, t] - c.mu[i, t])
        moved = math.exp(c.p[i, t]) - math.exp(c.mu[i, t])
        outside = moved > high if c.a[i] > 0 else moved < -low
        gain = 0.0 if outside else c.a[i] * ratio
        return (gain - 2 * kl_tau * (c.p[i, t] - c.mu[i, t])) / len(c.tokens())

    return filled(c, rule)


def prime_rl_ipo(c: Columns, threshold: float = 0.1, kl_tau: float = 1e-3) -> Array:
    """`ipo_loss_fn`: both signs of the advantage have one trust region."""

    def rule(i: int, t: int) -> float:
        ratio = math.exp(c.p[i, t] - c.mu[i, t])
        outside = abs(math.exp(c.p[i, t]) - math.exp(c.mu[i, t])) > threshold
        gain = 0.0 if outside else c.a[i] * ratio
        return (gain - 2 * kl_tau * (c.p[i, t] - c.mu[i, t])) / len(c.tokens())

    return filled(c, rule)


# AReaL 4aef98d8 (2026-05-21), areal/utils/functional/functional.py `ppo_actor_loss_fn` and
# areal/trainer/ppo/actor.py; `metric: binary_kl` is younger: pull requests 1405 and 1424.


def dual_clipped(ratio: float, a: float, low: float, high: float, c_clip: float | None) -> float:
    """Slope factor of min(A r, A clip(r)), bounded by `c_clip` for A < 0: r or zero."""
    stopped = (a > 0 and ratio > 1 + high) or (a < 0 and ratio < 1 - low)
    stopped = stopped or (c_clip is not None and a < 0 and ratio > c_clip)
    return 0.0 if stopped else ratio


def areal(
    c: Columns,
    *,
    metric: str | None = "ratio",
    action: str = "mask",
    level: str = "token",
    lower: float = 0.0,
    upper: float = 5.0,
    sequence: bool = False,
    c_clip: float | None = 3.0,
) -> Array:
    """The decoupled loss with one rejection rule or none; the denominator counts the tokens before it."""

    def geometric(x: Array, i: int) -> float:
        return sum(x[at] for at in c.row(i)) / len(c.row(i))

    def weight(i: int, t: int) -> float:
        if metric is None:
            return 1.0
        log_rho = geometric(c.q - c.mu, i) if level == "sequence" else c.q[i, t] - c.mu[i, t]
        rho = math.exp(log_rho)
        if action == "clamp":
            return min(max(rho, lower), upper)
        measure = binary_kl(c.q[i, t], c.mu[i, t]) if metric == "binary_kl" else rho
        return rho if lower <= measure <= upper else 0.0

    def rule(i: int, t: int) -> float:
        log_ratio = geometric(c.p - c.q, i) if sequence else c.p[i, t] - c.q[i, t]
        ratio = dual_clipped(math.exp(log_ratio), c.a[i], 0.2, 0.2, c_clip)
        return c.a[i] * ratio * weight(i, t) / len(c.tokens())

    return filled(c, rule)


def binary_kl(x: float, y: float) -> float:
    """The larger divergence of the laws (exp x, rest) and (exp y, rest)."""
    p, q = math.exp(x), math.exp(y)
    forth = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    back = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    return max(forth, back)


def areal_m2(c: Columns, threshold: float = 0.04) -> Array:
    """`m2_threshold`: the largest (log q / mu)^2 leave the loss and the denominator of PPO."""
    left = sorted(c.tokens(), key=lambda at: (c.q[at] - c.mu[at]) ** 2)
    while len(left) > 1 and sum((c.q[at] - c.mu[at]) ** 2 for at in left) / len(left) >= threshold:
        left.pop()

    def rule(i: int, t: int) -> float:
        ratio = dual_clipped(math.exp(c.p[i, t] - c.q[i, t]), c.a[i], 0.2, 0.2, 3.0)
        return c.a[i] * ratio / len(left) if (i, t) in left else 0.0

    return filled(c, rule)


# NeMo-RL 7ea279abf (2026-08-22), nemo_rl/algorithms/loss/loss_functions.py `ClippedPGLossFn`.


def nemo_rl(
    c: Columns,
    *,
    kind: str | None = None,
    low: float = 0.0,
    high: float = 2.0,
    c_clip: float | None = None,
    cispo: bool = False,
) -> Array:
    """The loss of each token over all tokens, weighed by `truncated_importance_sampling_type`."""

    def weight(i: int, t: int) -> float:
        rho = math.exp(c.q[i, t] - c.mu[i, t])
        if kind == "tis":
            return min(max(rho, low), high)
        if kind == "icepop":
            return rho if low <= rho <= high else 0.0
        return 1.0

    def rule(i: int, t: int) -> float:
        ratio = math.exp(c.p[i, t] - c.q[i, t])
        slope = min(max(ratio, 0.8), 1.2) if cispo else dual_clipped(ratio, c.a[i], 0.2, 0.2, c_clip)
        return c.a[i] * slope * weight(i, t) / len(c.tokens())

    return filled(c, rule)


def nemo_rl_gspo(c: Columns) -> Array:
    """`sequence_level_importance_ratios`: the geometric ratio, times the product of rho over the sequence."""
    rows = [i for i in range(len(c.a)) if c.row(i)]

    def rule(i: int, t: int) -> float:
        del t
        ratio = math.exp(sum(c.p[at] - c.q[at] for at in c.row(i)) / len(c.row(i)))
        rho = math.exp(sum(c.q[at] - c.mu[at] for at in c.row(i)))
        return c.a[i] * dual_clipped(ratio, c.a[i], 0.2, 0.2, None) * rho / len(c.row(i)) / len(rows)

    return filled(c, rule)


def nemo_rl_kl(c: Columns, *, on_policy: bool) -> Array:
    """The k3 penalty, its sampling weight w = p / mu or, without `on_policy`, one; both differentiated."""

    def rule(i: int, t: int) -> float:
        d = c.ref[i, t] - c.p[i, t]
        weight = math.exp(c.p[i, t] - c.mu[i, t]) if on_policy else 1.0
        slope = weight * (math.exp(d) - 1 - d) + weight * (1 - math.exp(d))
        return -slope / len(c.tokens())

    return filled(c, rule)
