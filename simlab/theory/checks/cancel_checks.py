"""cancel: C1-C8, C14, C15, the caveat of D.3, and the toy of Appendix A."""

import numpy as np
from jaxtyping import Float

from simlab.theory.bounds import log_slope
from simlab.theory.cancellation import (
    clip_leftover,
    coefficient_of_shared_token,
    constraint,
    group_batch,
    length_counterexample,
    min_replace_bias,
    near_zero_exponent,
    objective_clip_leftover,
    objective_leftover,
    pair_leftover,
    rebalance_as_printed,
    remaining_gradient,
    sequence_coupled,
    transform_weights,
)
from simlab.theory.drift import (
    kl_after_step,
    log_odds_drift,
    pair_entropy_path,
    template_drift,
    three_trajectories,
    toy_space,
)
from simlab.theory.groups import normalize_rewards
from simlab.theory.residual import EXACT, SINGLE, Residual

PROJECTIONS = ("dfpo_min", "dfpo_orth", "dfpo_posorth", "dfpo_rebalance")
ETAS = np.geomspace(1e-3, 1e-1, 7)


def random_groups(
    count: int = 20, size: int = 8, length: int = 5
) -> tuple[Float[np.ndarray, "N G T"], Float[np.ndarray, "N G"]]:
    """Return log PPO ratios `[N, G, T]` with equal first tokens, and unequal 0/1 rewards `[N, G]`."""
    rng = np.random.default_rng(0)
    log_ratio = 0.3 * rng.normal(size=(count, size, length))
    log_ratio[:, :, 0] = rng.uniform(-0.15, 0.15, size=(count, 1))
    rewards = rng.permuted(np.arange(size) < rng.integers(1, size, size=(count, 1)), axis=1)
    return log_ratio, rewards.astype(np.float64)


def random_weights(count: int, size: int) -> tuple[Float[np.ndarray, "N G"], Float[np.ndarray, "N G"]]:
    """Draw log-normal sequence weights and centered advantages, `[N, G]` each."""
    rng = np.random.default_rng(1)
    advantages = rng.normal(size=(count, size))
    return np.exp(0.3 * rng.normal(size=(count, size))), advantages - advantages.mean(1, keepdims=True)


def largest_leftover(
    name: str, log_ratio: Float[np.ndarray, "N G T"], rewards: Float[np.ndarray, "N G"], **overrides
) -> float:
    """Return the largest relative leftover of a preset on the shared token; 0 without any update."""
    total, size = objective_leftover(name, group_batch(log_ratio, rewards), **overrides)
    return float((np.abs(total) / np.where(size > 0, size, 1)).max())


def check_factorized() -> Residual:
    """Check that the token objectives cancel on the shared token inside the clip range."""
    residual = {
        name: largest_leftover(name, *random_groups()) for name in ("grpo", "dr_grpo", "dapo", "cispo")
    }
    return Residual(
        max(residual.values()),
        max(residual.values()) < SINGLE,
        f"relative leftover over 20 groups: {', '.join(f'{n} {r:.1e}' for n, r in residual.items())}",
    )


def check_coupled() -> Residual:
    """Check that sequence weights leave A rho (u_2 - u_1) / 2, zero on a set of codimension one."""
    rng = np.random.default_rng(0)
    residual, leftovers = 0.0, []
    for _ in range(20_000):
        log_ratio = 0.3 * rng.normal(size=(2, 4))
        log_ratio[1, 0] = log_ratio[0, 0]
        left, right = pair_leftover(log_ratio, 1.0)
        residual = max(residual, abs(left - right))
        leftovers.append(left)
    values = np.asarray(leftovers)
    exponent = near_zero_exponent(values, np.geomspace(3e-3, 1e-1, 6))
    gspo = largest_leftover("gspo", *random_groups(), clip_low=1.0, clip_high=10.0)
    return Residual(
        residual,
        residual < EXACT and bool((values != 0).all()) and abs(exponent - 1) < 0.1 and gspo > 0.01,
        f"exact zeros in 20000 groups: {(values == 0).sum()}; P(|leftover| < e) ~ e^{exponent:.2f}; "
        f"GSPO leaves up to {gspo:.2f} of its size",
    )


def check_clipped() -> Residual:
    """Check values and gradients of the clipped pair, and of the preset `grpo`."""
    residual, rows = 0.0, []
    for weight in (0.5, 0.9, 1.1, 1.7):
        own, preset = clip_leftover(weight, 0.5, 0.2), objective_clip_leftover(weight, 0.2)
        residual = max(residual, *(abs(own[key] - preset[key]) for key in own))
        rows.append(f"w = {weight}: value {own['value']:+.2f}, gradient {own['gradient']:+.2f}")
    inside = max(abs(clip_leftover(w, 0.5, 0.2)[k]) for w in (0.9, 1.1) for k in ("value", "gradient"))
    return Residual(residual, residual < SINGLE and inside == 0, "; ".join(rows) + " (A = 1/2)")


def sign_free() -> Residual:
    """Check that the sign-free clip also cancels far outside the range; the sign-dependent one does not."""
    log_ratio, rewards = random_groups()
    log_ratio[:, :, 0] = np.where(np.arange(len(rewards)) % 2, -0.6, 0.6)[:, None]
    names = ("grpo_fix", "grpo_fix_weight", "grpo")
    residual = {name: largest_leftover(name, log_ratio, rewards) for name in names}
    worst = max(residual["grpo_fix"], residual["grpo_fix_weight"])
    return Residual(
        worst,
        worst < SINGLE < residual["grpo"],
        f"leftover beyond the clip: {', '.join(f'{n} {r:.1e}' for n, r in residual.items())}",
    )


def kl_drift() -> Residual:
    """Check KL after a step along an uncancelled update: eta^2/2 g'Fg with a remainder of third order."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=6)
    probs = np.exp(logits) / np.exp(logits).sum()
    log_ratio, rewards = random_groups(1)
    rho, u = sequence_coupled(log_ratio[0])
    leftover = coefficient_of_shared_token(rho * u, rewards[0] - rewards.mean())
    # Normalized: the order does not depend on how large the leftover is.
    direction = np.sign(leftover) * (np.eye(6)[2] - probs)
    pairs = np.asarray([kl_after_step(logits, direction, eta) for eta in ETAS])
    slope = log_slope(ETAS, pairs[:, 0] - pairs[:, 1])
    return Residual(
        abs(slope - 3),
        abs(slope - 3) < 0.1 and bool((pairs[:, 0] > 0).all()),
        f"leftover {leftover:+.4f}; KL / leading term at eta = 0.1: {pairs[-1, 0] / pairs[-1, 1]:.4f}; "
        f"order of the remainder {slope:.2f}",
    )


def equivalent_answers() -> Residual:
    """Check the log-odds drift with its own constants, at unequal and equal kappa, and in the long run."""
    space = toy_space()
    logits = np.random.default_rng(0).normal(size=space.table_shape)
    equal = log_odds_drift(space, logits, (1, 2), np.ones(2), 1e-3)
    kappa = np.array([1.0, 0.7])
    rows = [log_odds_drift(space, logits, (1, 2), kappa, eta) for eta in ETAS]
    slope = log_slope(ETAS, np.asarray([row.exact - row.own_constants for row in rows]))
    path = pair_entropy_path(space, logits, (1, 2), kappa, 0.1, 3000)
    fraction = kappa[0] / kappa.sum()
    limit = -(fraction * np.log(fraction) + (1 - fraction) * np.log(1 - fraction))
    residual = abs(rows[0].exact / rows[0].one_constant - 1)
    return Residual(
        residual,
        residual < 0.05 and path[-1] < 0.01,
        f"drift {rows[0].exact:.3e}, one constant {rows[0].one_constant:.3e}, own constants "
        f"{rows[0].own_constants:.3e} (remainder of order {slope:.2f}); equal kappa still {equal.exact:.2e}; "
        f"entropy of the pair goes to {path[-1]:.3f}, not 0 (shares kappa_a : kappa_b give {limit:.3f})",
    )


def min_replace() -> Residual:
    """Check that signs stay, weights do not grow, and the bias stays below both bounds."""
    tightness, flips = [], 0
    for size in (2, 4, 16):
        weights, advantages = random_weights(200, size)
        scores = np.random.default_rng(2).normal(size=(200, size, 20))
        after = transform_weights("dfpo_min", weights, advantages)
        flips += int(((after <= 0) | (after > weights * (1 + SINGLE))).sum())
        for group in zip(weights, advantages, scores, strict=True):
            bias, by_spread, by_delta = min_replace_bias(*group)
            tightness.append([bias / by_spread, bias / by_delta])
    largest = np.max(tightness, axis=0)
    return Residual(
        max(0.0, largest.max() - 1),
        flips == 0 and bool(largest.max() <= 1 + EXACT),
        f"sign flips {flips} of 600 groups; bias / bound at most {largest[0]:.2f} (Eq. 93, at G = 2), "
        f"{largest[1]:.2f} (Eq. 96)",
        float(largest.max()),
    )


def projections() -> Residual:
    """Check sum A s = 0 for all transforms; the printed beta violates this and positivity."""
    residual, smallest, printed, lowest = 0.0, np.inf, 0.0, 0.0
    for size in (2, 5, 16):
        weights, advantages = random_weights(500, size)
        for name in PROJECTIONS:
            after = transform_weights(name, weights, advantages)
            residual = max(residual, np.abs(constraint(after, advantages, weights)).max())
            if name != "dfpo_orth":
                smallest = min(smallest, after.min())
        wrong = np.stack([rebalance_as_printed(*group) for group in zip(weights, advantages, strict=True)])
        printed = max(printed, np.abs(constraint(wrong, advantages, weights)).max())
        lowest = min(lowest, wrong.min())
    return Residual(
        float(residual),
        residual < SINGLE and smallest >= 0 and printed > 0.1 and lowest < 0,
        f"largest |sum A s| / sum |A s| {residual:.1e}, least weight {smallest:.3f}; with beta as printed "
        f"(Eq. 55) {printed:.2f} and weights down to {lowest:.1f}",
    )


def not_zero() -> Residual:
    """Measure the remaining gradient on unshared tokens after each transform."""
    weights, advantages = random_weights(200, 8)
    scores = np.random.default_rng(2).normal(size=(200, 8, 20))
    shares = {}
    for name in PROJECTIONS:
        after = transform_weights(name, weights, advantages)
        shares[name] = [
            remaining_gradient(new, a, g) / remaining_gradient(old, a, g)
            for new, old, a, g in zip(after, weights, advantages, scores, strict=True)
        ]
    least = min(min(row) for row in shares.values())
    listed = ", ".join(f"{name} {np.mean(row):.2f}" for name, row in shares.items())
    return Residual(
        max(0.0, 0.1 - least), least > 0.1, f"mean norm after / before: {listed}; least {least:.2f}"
    )


def check_correlated() -> Residual:
    """Check that a template token's expected drift is the covariance of advantage and weight."""
    drifts = template_drift(0, 0.3, normalize_rewards, 8)
    residual = max(abs(drifts.token), abs(drifts.sequence - drifts.covariance))
    return Residual(
        residual,
        residual < EXACT and abs(drifts.sequence) > 0.01,
        f"expected coefficient: token weights {drifts.token:.1e}, sequence weights {drifts.sequence:+.4f} "
        f"= Cov(A, w) {drifts.covariance:+.4f}",
    )


def lengths() -> Residual:
    """Check the smallest group in which a shared token still moves under balanced weights."""
    example = length_counterexample()
    return Residual(
        abs(example["shared"]),
        example["shared"] == 0,
        f"A = {example['advantages'].tolist()}, lengths {example['lengths'].tolist()}: sum A s = "
        f"{example['constraint']:g}, but the shared token gets {example['shared']:+.3f}",
    )


def toy() -> Residual:
    """Check the three answers to 10 + 10."""
    example = three_trajectories()
    residual = abs(example["pair_leftover"] - example["pair_predicted"])
    expected = np.abs(example["advantages"] - np.array([-2 / 3, 1 / 3, 1 / 3])).max()
    weights = ", ".join(f"{weight:.3f}" for weight in example["weights"])
    return Residual(
        max(residual, expected),
        max(residual, expected) < EXACT,
        f"s = {weights}; pair leaves {example['pair_leftover']:+.4f} A; in the group of three the template "
        f"keeps {example['group_leftover']:+.3f}, and {example['group_leftover_equal_weights']:+.3f} with "
        f"equal weights (two of three share it); log-odds of the right answers move "
        f"{example['odds_drift']:+.4f}",
    )
