"""Coefficients of the objectives of 2026, written out token by token in float64 numpy.

Each function maps `Columns` to d objective / d log p [B, T]. Nothing of `simlab` is used, and nothing is
shared with it but the published rule. `Columns.at_most` records how close a comparison was, so that a test
can leave out batches on which float32 decides otherwise.
"""

from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


@dataclass
class Columns:
    """Log-probabilities p (current), q (old) and mu (rollout) [B, T], rewards [B], and overrides."""

    p: Array
    q: Array
    mu: Array
    rewards: Array
    mask: Array
    group_size: int
    numbers: dict = field(default_factory=dict)
    margin: float = np.inf

    def at_most(self, x: Array, bound: float) -> Array:
        """Return x <= bound, and keep the smallest relative distance from it at real tokens."""
        distance = np.abs(x - bound) / max(abs(bound), 1e-3)
        self.margin = min(self.margin, np.broadcast_to(distance, self.mask.shape)[self.mask].min(initial=1))
        return x <= bound

    def anchor(self) -> Array:
        """log a."""
        return self.q if self.numbers.get("anchor", "rollout") == "old" else self.mu

    def get(self, name: str, default: float) -> float:
        """Return an override, or the documented default."""
        return self.numbers.get(name, default)

    def grpo(self) -> Array:
        """GRPO's advantage at every token."""
        groups = self.rewards.reshape(-1, self.group_size)
        centered = groups - groups.mean(1, keepdims=True)
        spread = groups.std(1, ddof=1, keepdims=True) + 1e-6
        return np.broadcast_to((centered / spread).reshape(-1, 1), self.mask.shape)

    def token_mean(self, per_token: Array, kept: Array | None = None) -> Array:
        """Divide by the number of tokens in the loss; zero elsewhere."""
        kept = self.mask if kept is None else kept & self.mask
        return np.where(kept, per_token, 0) / max(kept.sum(), 1)


def limited(log_ratio: Array, limit: float = 20.0) -> Array:
    return np.exp(np.clip(log_ratio, -limit, limit))


def inside(log_ratio: Array, limit: float = 20.0) -> Array:
    """One where a clamped log ratio has a gradient."""
    return np.abs(log_ratio) <= limit


def binary(x: Array, y: Array, floor: float) -> Array:
    """D(x, y) of log-probabilities x, y."""
    (x, rest_x), (y, rest_y) = (
        (np.maximum(np.exp(z), floor), np.maximum(-np.expm1(z), floor)) for z in (x, y)
    )
    return x * np.log(x / y) + rest_x * np.log(rest_x / rest_y)


def symmetric(x: Array, y: Array, floor: float) -> Array:
    return np.maximum(binary(x, y, floor), binary(y, x, floor))


def dppo_tv(c: Columns) -> Array:
    a, gap = c.grpo(), np.exp(c.p) - np.exp(c.anchor())
    above, below = (
        c.at_most(gap, c.get("divergence_high", 0.2)),
        c.at_most(-gap, c.get("divergence_low", 0.2)),
    )
    weight = np.minimum(limited(c.p - c.anchor()), c.get("ratio_cap", 20))
    return c.token_mean(a * weight * np.where(a > 0, above, below))


def dppo_kl(c: Columns) -> Array:
    a, p, base = c.grpo(), np.exp(c.p), np.exp(c.anchor())
    kl = base * (c.anchor() - c.p) + (1 - base) * np.log((1 - base + 1e-8) / (1 - p + 1e-8))
    dropped = ~c.at_most(kl, c.get("divergence_high", 0.05)) & (p > base) & (a > 0)
    dropped |= ~c.at_most(kl, c.get("divergence_low", 0.05)) & (p < base) & (a <= 0)
    weight = np.minimum(limited(c.p - c.anchor()), c.get("ratio_cap", 20))
    return c.token_mean(np.where(dropped, 0, a * weight))


def ipo(c: Columns) -> Array:
    keep = c.at_most(np.abs(np.exp(c.p) - np.exp(c.anchor())), c.get("divergence_bound", 0.3))
    return c.token_mean(c.grpo() * np.minimum(limited(c.p - c.anchor()), c.get("ratio_cap", 1e4)) * keep)


def kpop(c: Columns) -> Array:
    keep = c.at_most(symmetric(c.p, c.anchor(), 1e-6), c.get("kpop_bound", 0.1))
    return c.token_mean(c.grpo() * limited(c.p - c.anchor()) * keep)


def drpo(c: Columns) -> Array:
    a, w = c.grpo(), limited(c.p - c.anchor())
    gap = np.exp(c.anchor()) * (w - 1)
    return c.token_mean(w * (a - np.abs(a) * gap / c.get("drpo_delta", 12.5)) * inside(c.p - c.anchor()))


def vespo(c: Columns) -> Array:
    a = c.grpo()
    log_weight = np.clip(c.p - c.q, -20, 20)
    if c.anchor() is c.mu:
        rho = np.minimum(np.exp(c.q - c.mu), c.get("ratio_cap", 3.0))
        log_weight = log_weight + np.log(np.maximum(rho, 1e-8))
    total = np.clip(np.where(c.mask, log_weight, 0).sum(1, keepdims=True), np.log(1e-8), 20)
    k = np.where(a >= 0, c.get("vespo_k_positive", 2.0), c.get("vespo_k_negative", 3.0))
    scale = np.where(a >= 0, c.get("vespo_lambda_positive", 3.0), c.get("vespo_lambda_negative", 2.0))
    return c.token_mean(a * np.exp(scale + k * total - scale * np.exp(total)))


def luspo(c: Columns) -> Array:
    a = c.grpo()
    lengths = c.mask.sum(1, keepdims=True)
    s = np.exp(np.minimum(np.where(c.mask, c.p - c.q, 0).sum(1, keepdims=True) / np.maximum(lengths, 1), 10))
    below, above = c.at_most(1 - s, c.get("clip_low", 2e-3)), c.at_most(s - 1, c.get("clip_high", 2.5e-3))
    live = np.where(a < 0, below, above)
    return np.where(c.mask, s * a * live, 0) / (lengths > 0).sum()


def smallest(c: Columns, squares: Array, chosen: Array, threshold: float, least: int) -> Array:
    """Which of `chosen` stay when the largest go until the mean is small enough; one by one."""
    left = sorted(zip(squares[chosen].tolist(), np.argwhere(chosen).tolist(), strict=True))
    while len(left) > least:
        mean = np.mean([square for square, _ in left])
        if c.at_most(np.float64(mean), threshold):
            break
        left.pop()
    stays = np.zeros(chosen.shape, bool)
    for _, (row, column) in left:
        stays[row, column] = True
    return stays


def m2po(c: Columns) -> Array:
    a, log_w = c.grpo(), c.p - c.mu
    outward = c.mask & (((a > 0) & (log_w > 0)) | ((a < 0) & (log_w < 0)))
    stays = smallest(c, log_w**2, outward, c.get("m2_threshold", 0.04), least=0)
    return c.token_mean(a * limited(log_w) * (stays | ~outward))


def gpg(c: Columns) -> Array:
    groups = c.rewards.reshape(-1, c.group_size)
    centered = (groups - groups.mean(1, keepdims=True)).reshape(-1, 1)
    return c.token_mean(centered * len(c.rewards) / max((c.rewards != 0).sum(), 1) * np.ones(c.mask.shape))


def dro(c: Columns) -> Array:
    return c.token_mean(c.grpo() - c.get("dro_beta", 0.1) * (c.p - c.q))


def covariance(c: Columns) -> Array:
    a = c.grpo()
    return (a - a[c.mask].mean()) * (c.p - c.p[c.mask].mean())


def clip_cov(c: Columns) -> Array:
    """All candidates are dropped: `cov_ratio` must be large enough."""
    a, cov = c.grpo(), covariance(c)
    ratio = np.exp(np.clip(c.p - c.q, -60, 60)) * inside(c.p - c.q, 60)
    low, high = c.at_most(1 - ratio, c.get("clip_low", 0.2)), c.at_most(ratio - 1, c.get("clip_high", 0.2))
    live = np.where(a < 0, low, high)
    chosen = live & ~c.at_most(cov, c.get("cov_low", 1.0)) & c.at_most(cov, c.get("cov_high", 5.0))
    assert max(1, int(c.get("cov_ratio", 2e-4) * c.mask.sum())) >= (chosen & c.mask).sum()
    return c.token_mean(a * ratio * live * ~chosen)


def kl_cov(c: Columns) -> Array:
    a, cov = c.grpo(), np.where(c.mask, covariance(c), -np.inf)
    count = max(1, int(c.get("kl_cov_ratio", 2e-4) * c.mask.sum()))
    order = np.sort(cov[c.mask])[::-1]
    if count < len(order):
        c.margin = min(c.margin, float(order[count - 1] - order[count]))
    chosen = cov >= order[count - 1]
    ratio = np.exp(np.clip(c.p - c.q, -60, 60)) * inside(c.p - c.q, 60)
    return c.token_mean(a * ratio - chosen * c.get("kl_cov_coefficient", 0.1) * np.sign(c.p - c.q))


PRESETS = {
    f.__name__: f for f in (dppo_tv, dppo_kl, ipo, kpop, drpo, vespo, luspo, m2po, gpg, dro, clip_cov, kl_cov)
}


def likelihood(c: Columns, weights: Array, kept: Array) -> Array:
    """GRPO's advantage of the sequences that `kept` leaves, times log p, weighed: on `gpg`, token-mean."""
    kept = kept & c.mask
    present = kept.any(1) | ~c.mask.any(1)
    a = np.zeros(len(c.rewards))
    for start in range(0, len(c.rewards), c.group_size):
        rows = np.arange(start, start + c.group_size)[present[start : start + c.group_size]]
        rewards = c.rewards[rows]
        if len(set(rewards.tolist())) > 1:
            a[rows] = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    return c.token_mean(a[:, None] * weights, kept)


def weighed_by(c: Columns, weights: Array) -> Array:
    return likelihood(c, weights, c.mask)


def masked_by(c: Columns, kept: Array) -> Array:
    return likelihood(c, np.ones(c.mask.shape), kept)


def with_kpop(c: Columns) -> Array:
    keep = c.at_most(symmetric(c.q, c.mu, 1e-8), c.get("kpop_bound", 0.1))
    return weighed_by(c, limited(c.q - c.mu) * keep)


def with_vaco(c: Columns) -> Array:
    log_rho = c.q - c.mu
    distance = np.where(c.mask, np.abs(limited(log_rho, 10) - 1), 0).sum(1) / np.maximum(c.mask.sum(1), 1)
    near = c.at_most(distance[:, None], c.get("vaco_bound", 0.3))
    keep = near | (np.sign(log_rho) * c.grpo() <= 0)
    return weighed_by(c, np.minimum(limited(log_rho), c.get("correction_clip", 2.0)) * keep)


def with_kpop_mask(c: Columns) -> Array:
    return masked_by(c, c.at_most(symmetric(c.q, c.mu, 1e-8), c.get("kpop_bound", 0.1)))


def with_m2_mask(c: Columns) -> Array:
    squares = np.clip(c.q - c.mu, -20, 20) ** 2
    return masked_by(c, smallest(c, squares, c.mask, c.get("m2_threshold", 0.04), least=1))


def with_prob_diff(c: Columns) -> Array:
    low, high = c.get("prob_diff_bounds", (-0.2, 0.2))
    gap = np.exp(c.q) - np.exp(c.mu)
    return masked_by(c, c.at_most(gap, high) & c.at_most(-gap, -low))


def with_trm(c: Columns) -> Array:
    squares = np.where(c.mask, np.clip(c.q - c.mu, -20, 20) ** 2 / 2, 0)
    worst = squares.max(1, keepdims=True)
    return masked_by(c, np.broadcast_to(c.at_most(worst, c.get("rejection_bounds", 0.05)), c.mask.shape))


def with_rollout_kl(c: Columns) -> Array:
    penalty = 2 * c.get("rollout_kl_coefficient", 1e-3) * (c.p - c.mu)
    return weighed_by(c, np.ones(c.mask.shape)) - c.token_mean(penalty)


MODIFIERS = {name.removeprefix("with_"): f for name, f in list(globals().items()) if name.startswith("with_")}
