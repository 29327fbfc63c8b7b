"""vexact: V4, what the mismatch and each correction do to the gradient."""

from functools import cache

import numpy as np
from jaxtyping import Float

from simlab.models.tabular import enumerate_sequences
from simlab.theory.budget import budget, effective_fraction, effective_fraction_of_chain
from simlab.theory.correction_moments import CORRECTIONS, Quality, acrl, best_mse, qualities, random_pair
from simlab.theory.counterparts import COUNTERPARTS, counterpart, enumerate_moments
from simlab.theory.expectation import PolicyPair, noisy_pair, random_logits, random_rewards, relative
from simlab.theory.group_moments import group_gradient_moments
from simlab.theory.groups import leave_one_out
from simlab.theory.recent_corrections import RECENT
from simlab.theory.residual import EXACT, Residual

GROUP = 16
NOISE_STDS = (0.03, 0.1, 0.3, 1.0)
SEEDS = (0, 1, 2, 3)
SINGLE_MOMENTS = 3e-6
"""Relative residual of moments whose coefficients are float32."""
ACRL_MOMENTS = 3e-4
"""The same for ACRL on 32 steps, an error of second order in 1 / 32."""
NOISE_OF_MASKS = {
    "geo_mask": 0.003, "k3_mask": 0.15, "veto": 2.0, "kpop_mask": 1.5, "prob_diff": 1.5, "trm": 0.3
}  # fmt: skip
"""Engine noise at which a mask drops some sequences and keeps some."""


@cache
def measure_corrections(
    length: int, rho_std: float, seed: int
) -> tuple[PolicyPair, Float[np.ndarray, " S"], dict[str, Quality]]:
    """Return pair, rewards and the quality of each correction for V = 3, at std of rho `rho_std`."""
    pair = random_pair(length, rho_std, seed)
    rewards = random_rewards(pair.space, seed)
    return pair, rewards, qualities(pair, rewards, GROUP)


def mean_bias(correction: str, length: int, rho_std: float) -> float:
    """Return the relative bias, averaged over seeds."""
    return float(np.mean([measure_corrections(length, rho_std, seed)[2][correction].bias for seed in SEEDS]))


def small_case(name: str) -> PolicyPair:
    """Return seven sequences of one or two tokens, at an engine noise at which counterpart `name` acts."""
    space = enumerate_sequences(3, 2, end=0)
    return noisy_pair(space, random_logits(space, 0), NOISE_OF_MASKS.get(name, 1.0))


def counterpart_residual(name: str) -> float:
    """Compare exact moments with the objective's coefficients over all 343 groups of three, relative.

    Rewards take three values. The larger of the residuals of the mean and of the variance.
    """
    pair, rewards = small_case(name), np.array([1.0, 0.5, 0.0, 1.0, 0.0, 0.5, 1.0])
    correction, objective = counterpart(name, pair)
    make = acrl(bins=32) if correction == "ACRL" else (CORRECTIONS | RECENT)[correction]
    mean, variance = group_gradient_moments(pair, make(pair), rewards, leave_one_out, 3)
    expected, expected_variance = enumerate_moments(pair, objective, rewards, 3)
    return max(relative(mean - expected, expected), abs(variance / expected_variance - 1))


def every_correction() -> Residual:
    """Check exact moments of all corrections of simlab at one mismatch with reference values."""
    residual = {name: counterpart_residual(name) for name in COUNTERPARTS}
    approximate = residual.pop("acrl")
    qualities = [measure_corrections(6, 0.1, seed)[2] for seed in SEEDS]
    listed = ", ".join(
        f"{name} {np.mean([row[name].bias for row in qualities]):.3f} / "
        f"{np.mean([row[name].std for row in qualities]):.2f}"
        for name in CORRECTIONS
    )
    return Residual(
        max(residual.values()),
        max(residual.values()) < SINGLE_MOMENTS and approximate < ACRL_MOMENTS,
        f"ACRL's residual {approximate:.1e}; bias / std of one group at T = 6, std rho 0.1: {listed}",
    )


def effective_objective() -> Residual:
    """Measure bias, norm and angle of the uncorrected gradient by noise_std."""
    rows = [
        [measure_corrections(4, noise_std, seed)[2]["none"] for seed in SEEDS] for noise_std in NOISE_STDS
    ]
    bias = [float(np.mean([q.bias for q in row])) for row in rows]
    angle = [float(np.mean([q.angle for q in row])) for row in rows]
    norm = [float(np.mean([q.norm for q in row])) for row in rows]
    slope = float(np.polyfit(np.log(NOISE_STDS[:3]), np.log(bias[:3]), 1)[0])
    listed = ", ".join(
        f"{d:g}: {b:.3f} ({a:.0f} deg, norm {n:.2f})"
        for d, b, a, n in zip(NOISE_STDS, bias, angle, norm, strict=True)
    )
    return Residual(abs(slope - 1), 0.8 < slope < 1.2, f"bias at std rho {listed}; exponent {slope:.2f}")


def check_unbiased() -> Residual:
    """Check that sequence weights have no bias; token weights keep most of the bias, more with length."""
    residual = max(
        measure_corrections(6, noise_std, seed)[2]["sequence IS"].bias
        for noise_std in NOISE_STDS
        for seed in SEEDS
    )
    remaining = [
        mean_bias("token IS", length, 0.1) / mean_bias("none", length, 0.1) for length in (1, 2, 4, 6)
    ]
    listed = ", ".join(f"{fraction:.2f}" for fraction in remaining)
    return Residual(
        residual,
        residual < 1e-10,
        f"bias of sequence IS {residual:.1e}; token IS keeps {listed} of the bias at T = 1, 2, 4, 6",
    )


def ranking() -> Residual:
    """Find the correction with the least mean squared error, by noise_std and length."""
    best, distances = [], []
    for length in (2, 6):
        for noise_std in NOISE_STDS:
            rows = [measure_corrections(length, noise_std, seed)[2] for seed in SEEDS]
            errors = {name: float(np.mean([row[name].mse(64) for row in rows])) for name in rows[0]}
            name = min(errors, key=lambda key: errors[key])
            best.append(f"T={length} {noise_std:g}: {name}")
            if length == 2:
                bounds = [
                    best_mse(*measure_corrections(length, noise_std, seed)[:2], 64 * GROUP) for seed in SEEDS
                ]
                distances.append(errors[name] / float(np.mean(bounds)))
    worst_is = (
        measure_corrections(6, 1.0, 0)[2]["sequence IS"].std
        / measure_corrections(6, 0.03, 0)[2]["sequence IS"].std
    )
    return Residual(
        0.0,
        min(distances) > 0.9,
        f"least MSE over 64 groups: {'; '.join(best)}; std of sequence IS x{worst_is:.0f} from 0.03 to 1",
        float(1 / max(distances)),
    )


def sample_size() -> Residual:
    """Compare the expected ESS of sequence weights: enumeration, transfer matrix, budget formula."""
    pair = random_pair(8, 0.1, 0, memory=1)
    exact, chain = effective_fraction(pair), effective_fraction_of_chain(pair, 8)
    residual = abs(exact / chain - 1)
    long = effective_fraction_of_chain(pair, 512)
    formula = budget(pair.rho_std, 512)
    return Residual(
        residual,
        residual < EXACT * 100,
        f"T = 8: {exact:.4f}; T = 512 at std rho 0.1: {long:.2e}, budget's (1 + std^2)^-T {formula.ess:.2e}; "
        f"half is left after {formula.length_at_half_ess:.0f} tokens",
    )
