"""hacking: H3, survival bias, H5, H6, H19."""

from functools import cache

import numpy as np
from jaxtyping import Float

from simlab.models.tabular import enumerate_sequences, sequence_scores
from simlab.theory.expectation import PolicyPair, noisy_pair, random_logits, random_rewards, relative, softmax
from simlab.theory.groups import group_gap, leave_one_out, normalize_rewards
from simlab.theory.hacking import (
    ObjectiveGap,
    clip_weights,
    mean_inverse_rho_given_prefix,
    objective_gap,
    objective_gap_gradient,
    reweighting_gap,
    weight_noise,
)
from simlab.theory.importance import inverse_rho_mean, mean_rho_in_bins, rho_mean, rho_variance, survival_bias
from simlab.theory.residual import EXACT, Residual
from simlab.theory.rounding_error import measure_rho_std, normalize_rows, predict_rho_std, round_softmax

BINS = np.array([0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0])
"""Edges of the probability bins of the survival curves."""
MODES = ("nearest_even", "toward_zero")


@cache
def pair(length: int, noise_std: float = 0.1, vocabulary: int = 4) -> PolicyPair:
    """Return the standard pair of these checks: N(0, 1.5^2) logits, engine noise of std `noise_std`."""
    space = enumerate_sequences(vocabulary, length)
    return noisy_pair(space, random_logits(space, 0), noise_std)


@cache
def softmax_logits() -> Float[np.ndarray, "K V"]:
    """Return the logits of the paper's softmax study."""
    return np.random.default_rng(0).normal(scale=1.5, size=(100, 2048))


def inverse_rho() -> Residual:
    """Check E over pi_infer of 1/rho: at least one, one if the policies are equal, and 1 + chi2."""
    policies = pair(3, noise_std=0.3)
    left, right = inverse_rho_mean(policies.train, policies.infer)
    same, _ = inverse_rho_mean(policies.train, policies.train)
    residual = float(np.abs(left - right).max())
    return Residual(
        residual,
        residual < EXACT and left.min() > 1 and np.abs(same - 1).max() < EXACT,
        f"mean of E[1/rho] {left.mean():.6g} = 1 + chi2; equal policies {same.max():.15g}",
    )


def plain_rho() -> Residual:
    """Check E over pi_infer of rho: one on full support, less by the mass that the engine cannot sample."""
    policies = pair(3, noise_std=0.3)
    full, _ = rho_mean(policies.train, policies.infer)
    train = softmax(softmax_logits())
    short = normalize_rows(round_softmax(softmax_logits(), "e4m3fn"))
    left, right = rho_mean(train, short)
    variance = np.abs(
        (policies.train**2 / policies.infer).sum(1) - 1 - rho_variance(policies.train, policies.infer)
    ).max()
    residual = max(np.abs(full - 1).max(), np.abs(left - right).max(), variance)
    return Residual(
        residual,
        residual < EXACT,
        f"mean rho is 1 on full support; with E4M3 probabilities (rare tokens underflow) {left.mean():.4f}",
    )


def survival_curves() -> Residual:
    """Check mean rho of rare tokens: below one sorted by pi_train, above one sorted by pi_infer."""
    half = np.random.default_rng(0).normal(scale=1.5, size=(8000, 64))
    noise = 0.2 * np.random.default_rng(1).normal(size=half.shape)
    # Each noise with its negative: the odd orders, which average to zero, vanish at once.
    train, infer = softmax(np.tile(half, (2, 1))), softmax(np.concatenate([half + noise, half - noise]))
    first, gaps = {}, []
    for by, sorting in (("train", train), ("infer", infer)):
        measured, mass = mean_rho_in_bins(train, infer, BINS, by)
        bias = survival_bias(sorting, 0.04, by, logit_variance=1.5**2)
        predicted, _ = mean_rho_in_bins(sorting * (1 + bias), sorting, BINS, by)
        used = mass > 1e-3
        gaps.append(relative((measured - predicted)[used], (measured - 1)[used]))
        first[by] = measured[used][0]
    return Residual(
        max(gaps),
        first["train"] < 1 < first["infer"] and max(gaps) < 0.25,
        f"rarest bin: {first['train']:.4f} sorted by pi_train, {first['infer']:.4f} sorted by pi_infer; "
        "sorted by pi_train the bias is -s^2 (sum p^2 - p)",
    )


def softmax_rho_std() -> Residual:
    """Check the std of rho under BF16 from first principles: 0.0048."""
    logits = softmax_logits()
    predicted = predict_rho_std(logits, 7)
    measured = measure_rho_std(logits, round_softmax(logits, "bf16"))
    return Residual(
        abs(predicted / measured - 1),
        abs(measured - 0.0048) < 1e-4 and abs(predicted / measured - 1) < 0.05,
        f"predicted {predicted:.5f}, computed {measured:.5f}, printed 0.0048",
    )


def survival_of_formats() -> Residual:
    """Check mean rho of the rarest bin per format: truncation lowers it, rounding to nearest does not."""
    train = softmax(softmax_logits())
    rarest = {}
    for fmt in ("bf16", "e4m3fn"):
        for mode in MODES:
            infer = round_softmax(softmax_logits(), fmt, mode, ("logits",))
            curves = [mean_rho_in_bins(train, infer, BINS, by) for by in ("train", "infer")]
            rarest[fmt, mode] = np.array([rho[mass > 1e-3][0] - 1 for rho, mass in curves])
    near, truncated = (np.stack([rarest[fmt, mode] for fmt in ("bf16", "e4m3fn")]) for mode in MODES)
    # How much of the truncated deviation rounding to nearest has.
    ratio = float((np.abs(near).max(1) / np.abs(truncated).min(1)).max())
    listed = "; ".join(f"{fmt} {mode} {a:+.4f}, {b:+.4f}" for (fmt, mode), (a, b) in rarest.items())
    return Residual(
        ratio,
        bool((truncated < 0).all()) and ratio < 1 / 3,
        f"mean rho - 1 of the rarest bin, sorted by pi_train, by pi_infer: {listed}",
    )


def rho_std_against_bits() -> Residual:
    """Check the std of rho from mantissa bits alone: round to nearest and truncation, four formats."""
    gaps, rows = [], []
    for fmt, bits in (("fp16", 10), ("bf16", 7), ("e4m3fn", 3), ("e5m2", 2)):
        for mode in MODES:
            logits = softmax_logits()
            measured = measure_rho_std(logits, round_softmax(logits, fmt, mode, ("logits",)))
            gaps.append(abs(predict_rho_std(logits, bits, mode, ("logits",)) / measured - 1))
            rows.append(measured)
    listed = ", ".join(
        f"{bits} bits {near:.2g} / {truncated:.2g}"
        for bits, near, truncated in zip((10, 7, 3, 2), rows[::2], rows[1::2], strict=True)
    )
    return Residual(
        max(gaps), max(gaps) < 0.1, f"std of rho to nearest / truncated: {listed}; within {max(gaps):.1%}"
    )


def gap_of_sequences(length: int) -> ObjectiveGap:
    """Return the gap of an objective whose terms are equal over the tokens of a sequence."""
    policies = pair(length, noise_std=0.01)
    values = np.random.default_rng(1).normal(size=len(policies.space.tokens))
    return objective_gap(policies, np.repeat(values[:, None] / length, length, 1))


def objective_gap_printed() -> Residual:
    """Compare the printed form with the exact one, T = 1 and T = 3."""
    one, three = gap_of_sequences(1), gap_of_sequences(3)
    residual = float(abs(1 - three.printed / three.exact))
    return Residual(
        residual,
        residual < 0.05,
        f"printed / exact: T = 1 {one.printed / one.exact:.6f}, T = 3 {three.printed / three.exact:.4f}; "
        f"double sum / exact at T = 3 {three.double_sum / three.exact:.4f}",
    )


def objective_gap_double_sum() -> Residual:
    """Check that the double sum over t and s is the exact difference up to second order."""
    errors = []
    for noise_std in (0.02, 0.01):
        policies = pair(3, noise_std=noise_std)
        values = np.random.default_rng(1).normal(size=policies.space.tokens.shape)
        gap = objective_gap_gradient(policies, values)
        errors.append(relative(gap.exact - gap.double_sum, gap.exact))
    prefix = np.abs(mean_inverse_rho_given_prefix(pair(3)) - 1).max()
    return Residual(
        errors[1],
        prefix < EXACT and errors[1] < 0.01 and 1.8 < errors[0] / errors[1] < 2.2,
        f"gradient: relative error {errors[0]:.4g} and {errors[1]:.4g} at noise_std 0.02 and 0.01 (ratio 2); "
        f"E[1/rho | prefix] = 1 within {prefix:.1e}",
    )


def objective_gap_growth() -> Residual:
    """Check that the omitted terms grow: the printed form is 1/T of the double sum if X_t = A / T."""
    shares = []
    for length in (1, 2, 4, 6):
        gap = gap_of_sequences(length)
        shares.append(length * gap.printed / gap.double_sum)
    residual = float(np.abs(np.asarray(shares) - 1).max())
    return Residual(residual, residual < EXACT, "T printed / double sum = 1 for T = 1, 2, 4, 6")


def objective_gap_groups() -> Residual:
    """Check that group advantages add covariances with the other samples' 1/rho, also to the gradient."""
    policies = pair(3, noise_std=0.01)
    rewards = random_rewards(policies.space, 0)
    scores = sequence_scores(policies.space, policies.train)
    shares, errors = [], []
    for size in (2, 4, 16, 64):
        gap = group_gap(policies, scores, rewards, normalize_rewards, size)
        first_order = gap["double_sum"] + gap["cross_samples"]
        errors.append(relative(gap["exact"] - first_order, first_order))
        shares.append(relative(gap["cross_samples"], first_order))
    rloo = group_gap(policies, scores, rewards, leave_one_out, 16)
    listed = ", ".join(f"{fraction:.3f}" for fraction in shares)
    return Residual(
        max(errors),
        max(errors) < 0.02,
        f"other samples' part of the gradient gap at G = 2, 4, 16, 64: {listed} (GRPO); "
        f"{relative(rloo['cross_samples'], rloo['exact']):.1e} (RLOO)",
    )


def unit_mean_noise() -> Residual:
    """Check unit-mean weight noise over every outcome: bias zero, variance as derived."""
    policies = pair(4, noise_std=0.1)
    x = np.random.default_rng(3).normal(size=policies.space.tokens.shape)
    effect = weight_noise(policies, x, std=0.2)
    residual = max(abs(effect.bias), abs(effect.added_variance / effect.predicted_variance - 1))
    return Residual(
        residual,
        residual < 1e-10,
        f"bias {effect.bias:.1e}; adds variance {effect.added_variance:.6f} = s^2 E sum X^2",
    )


def clipping_gap() -> Residual:
    """Check that J_clip - J is the mean of X (phi - 1); the phi of Eq. 12 is not the phi of the loss."""
    policies = pair(4, noise_std=0.0)
    moved = noisy_pair(policies.space, random_logits(policies.space, 0), 0.3, seed=5)
    ratio = np.exp(moved.logp_infer - moved.logp_train)
    values = np.random.default_rng(4).normal(size=(len(ratio), 1))
    x = ratio * values / ratio.shape[1]
    sizes, residual = [], 0.0
    for phi in clip_weights(ratio, values, 0.2, 0.2):
        left, right = reweighting_gap(policies, x, phi)
        residual = max(residual, abs(left - right))
        sizes.append(right)
    return Residual(
        residual,
        residual < EXACT,
        f"Delta_clip J {sizes[0]:+.5f} clipping by ratio (Eq. 12), {sizes[1]:+.5f} by the loss (Eq. 2)",
    )
