"""When the updates of a token that all samples of a group share cancel, and what restores it.

A group is `advantages` `[G]` with sum zero and log PPO ratios `[G, T]`. The coefficient of the shared
token is the sum over the group of what multiplies its score.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from simlab.objectives import OBJECTIVES, TokenBatch, objective_value, token_coefficients
from simlab.theory.bounds import log_slope


def coefficient_of_shared_token(
    weights: Float[np.ndarray, " G"], advantages: Float[np.ndarray, " G"]
) -> float:
    """Return (1/G) sum_i A_i w_i, the factor of the shared token's score if sample i has weight w_i.

    Reference: cancel Eq. 2, 9, 13, 38.
    """
    return float(advantages @ weights) / len(advantages)


def sequence_coupled(
    log_ratio: Float[np.ndarray, "G T"],
) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, " G"]]:
    """Return the ratio of the shared (first) token, and the product u_i of all others, `[G]` each.

    Reference: cancel Eq. 11, 12, 31, 35-37.
    Deviation: this is the plain product of Eq. 11; Eq. 44 takes its length-th root.
    """
    return np.exp(log_ratio[:, 0]), np.exp(log_ratio[:, 1:].sum(1))


def pair_leftover(log_ratio: Float[np.ndarray, "2 T"], advantage: float) -> tuple[float, float]:
    """Return the shared coefficient of samples with advantages -A, +A under products; A rho (u_2 - u_1) / 2.

    Reference: cancel Eq. 6, 12, 13, 32-38.
    """
    rho, u = sequence_coupled(log_ratio)
    signed = np.array([-advantage, advantage])
    return coefficient_of_shared_token(rho * u, signed), advantage * rho[0] * (u[1] - u[0]) / 2


def near_zero_exponent(leftover: Float[np.ndarray, " N"], scales: Float[np.ndarray, " E"]) -> float:
    """Return the slope of log P(|leftover| < e) in log e: 1 if the cancelling set has codimension one.

    Reference: cancel Cor. 3.3.
    Deviation: the paper says measure zero; the exponent also says how fast one leaves that set.
    """
    return log_slope(scales, (np.abs(leftover)[:, None] < scales).mean(0))


def clip_leftover(weight: float, advantage: float, clip: float) -> dict[str, float]:
    """Return the sums over samples of advantage -A and +A with equal ratio w, with the sign-dependent clip.

    `value`: of A times the post-clip weight. `gradient`: of the factor that multiplies the score, where
    a clipped branch counts zero: -A w above the range, +A w below it.

    Reference: cancel Eq. 10, 75-78.
    Deviation: Eq. 75 and 76 are sums of values; what cancels or not in an update is the gradient.
    """
    clipped = float(np.clip(weight, 1 - clip, 1 + clip))
    value = advantage * (min(weight, clipped) - max(weight, clipped))
    gradient = advantage * weight * (float(weight <= 1 + clip) - float(weight >= 1 - clip))
    return {"value": value, "gradient": gradient}


def group_batch(
    log_ratio: Float[np.ndarray, "N G T"],
    rewards: Float[np.ndarray, "N G"],
    mask: Bool[np.ndarray, "N G T"] | None = None,
) -> TokenBatch:
    """Return a batch of groups with given log PPO ratios `[N, G, T]` and rewards `[N, G]`, at zero mismatch.

    logp_train is -1 at every token, so that position t is the same token of the same context in all
    samples of a group wherever their log-ratios there agree.
    """
    size, length = log_ratio.shape[1:]
    train = np.full((log_ratio.shape[0] * size, length), -1.0, np.float32)
    return TokenBatch(
        logp=jnp.asarray(train + log_ratio.reshape(train.shape), jnp.float32),
        logp_train=jnp.asarray(train),
        logp_infer=jnp.asarray(train),
        rewards=jnp.asarray(rewards.ravel(), jnp.float32),
        mask=jnp.asarray(np.ones(train.shape, bool) if mask is None else mask.reshape(train.shape)),
        group_size=size,
    )


def objective_leftover(
    name: str, batch: TokenBatch, **overrides
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the sum over each group of an objective's first-token coefficients, and of their sizes.

    Reference: cancel Eq. 2, 9, 82.
    """
    column = np.asarray(token_coefficients(name, batch, **overrides), np.float64)[:, 0]
    groups = column.reshape(-1, batch.group_size)
    return groups.sum(1), np.abs(groups).sum(1)


def objective_clip_leftover(weight: float, clip: float) -> dict[str, float]:
    """Return `clip_leftover` with A = 1/2 of the `grpo` preset: its value, and its token coefficients.

    Reference: cancel Eq. 75-78.
    """
    batch = group_batch(np.full((1, 2, 1), np.log(weight)), np.array([[0.0, 1.0]]))
    settings = {"advantage": "grpo_no_std", "clip_low": clip, "clip_high": clip}
    total, _ = objective_leftover("grpo", batch, **settings)
    # The objective is a mean over the two samples.
    return {"value": 2 * float(objective_value("grpo", batch, **settings)), "gradient": 2 * float(total[0])}


def transform_weights(
    preset: str, weights: Float[np.ndarray, "N G"], advantages: Float[np.ndarray, "N G"]
) -> Float[np.ndarray, "N G"]:
    """Apply the group transform of `preset` to groups of `weights` `[N, G]`.

    Reference: cancel Eq. 17, 18, 50-55, 63.
    """
    real = jnp.ones(weights.shape, bool)
    single = (jnp.asarray(weights, jnp.float32), jnp.asarray(advantages, jnp.float32), real)
    return np.asarray(_transform_batch(preset)(*single), np.float64)


@cache
def _transform_batch(preset: str):
    transform = OBJECTIVES[preset].transform
    if transform is None:
        raise ValueError(f"{preset!r} has no group transform")
    return jax.jit(jax.vmap(transform))


def constraint(
    weights: Float[np.ndarray, "N G"], advantages: Float[np.ndarray, "N G"], before: Float[np.ndarray, "N G"]
) -> Float[np.ndarray, " N"]:
    """Return sum A w relative to sum |A| |w before|, per group of `[N, G]`.

    Reference: cancel Eq. 63, 73.
    """
    return (advantages * weights).sum(1) / (np.abs(advantages) * np.abs(before)).sum(1)


def rebalance_as_printed(
    weights: Float[np.ndarray, " G"], advantages: Float[np.ndarray, " G"]
) -> Float[np.ndarray, " G"]:
    """Truncate and rebalance with beta exactly as printed: the wrong sign makes the weights negative.

    Reference: cancel Eq. 52-55.
    Deviation: kept to show that it fails; `objectives.transforms.TruncateAndRebalance` is the right one.
    """
    positive, negative = advantages > 0, advantages < 0
    up, down = advantages[positive] @ weights[positive], -advantages[negative] @ weights[negative]
    out = weights.copy()
    if up > down:
        out[positive] *= down / up
    else:
        out[negative] *= -up / down
    return out


def min_replace_bias(
    weights: Float[np.ndarray, " G"], advantages: Float[np.ndarray, " G"], scores: Float[np.ndarray, "G D"]
) -> tuple[float, float, float]:
    """Return |g_min - g_base|, its bound by the weights, and its bound by delta = max |log w|.

    Reference: cancel Eq. 90-96.
    """
    gap = weights - weights.min()
    bias = np.linalg.norm((advantages * gap) @ scores) / len(weights)
    sizes = np.abs(advantages) * np.linalg.norm(scores, axis=1)
    delta = np.abs(np.log(weights)).max()
    return float(bias), float(sizes @ gap) / len(weights), float(sizes.mean() * 2 * np.sinh(delta))


def remaining_gradient(
    weights: Float[np.ndarray, " G"], advantages: Float[np.ndarray, " G"], scores: Float[np.ndarray, "G D"]
) -> float:
    """Return |(1/G) sum A_i w_i g_i|, the remaining update after a transform; scores `[G, D]`.

    Reference: cancel Cor. 3.4, Eq. 68, 74, 90, 91.
    """
    return float(np.linalg.norm((advantages * weights) @ scores)) / len(weights)


def length_counterexample(tolerance: float = 1e-9) -> dict:
    """Search small groups for weights with sum A w = 0 whose shared-token sum over lengths is not zero.

    Length normalization divides by |y_i| after the weights were balanced. Groups are tried from the
    smallest: G, then lengths, then rewards; weights all one (Min-Replace).

    Reference: cancel Eq. 70-73.
    Deviation: App. D.3 says lengths must be nearly equal; the search shows the smallest failure.
    """
    for size in (2, 3):
        for lengths in np.ndindex(*(3,) * size):
            for rewards in np.ndindex(*(2,) * size):
                advantages = np.asarray(rewards) - np.mean(rewards)
                per_token = advantages / (np.asarray(lengths) + 1)
                if abs(advantages.sum()) < tolerance < abs(per_token.sum()):
                    return {
                        "advantages": advantages,
                        "lengths": np.asarray(lengths) + 1,
                        "constraint": float(advantages.sum()),
                        "shared": float(per_token.sum()) / size,
                    }
    raise AssertionError("no counterexample among groups of 2 and 3")
