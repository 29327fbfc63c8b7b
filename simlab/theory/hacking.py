"""Changes of the objective itself by sampling from another engine, clipping and noise."""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float

from simlab.theory.expectation import PolicyPair


@dataclass(frozen=True)
class ObjectiveGap:
    """J' - J in four forms, each the same linear functional of another measure.

    exact: sampled from pi_infer minus sampled from pi_train. printed: each token reweighted by its own
    1/rho alone. double_sum: all pairs (t, s), the exact one to first order. cross: the pairs t != s.
    Scalars, or gradients `[K, V]`.
    """

    exact: Float[np.ndarray, "K V"] | float
    printed: Float[np.ndarray, "K V"] | float
    double_sum: Float[np.ndarray, "K V"] | float
    cross: Float[np.ndarray, "K V"] | float


def objective_gap(pair: PolicyPair, x: Float[np.ndarray, "S T"]) -> ObjectiveGap:
    """Return J' - J for per-token terms X `[S, T]`, where J is the mean of sum_t X_t under pi_train.

    Reference: hacking Eq. 8-10, 28-31.
    Deviation: Eq. 10, 28 and 31 reweight X_t by 1/rho_t alone. All tokens are sampled as one sequence, so
    the ratio is the product over s of 1/rho_s; to first order the gap is sum over t and s of
    Cov(X_t, 1/rho_s), and the printed form lacks the terms t != s. They are equal for T = 1. When
    X_t = A / T, the printed form is the double sum divided by T.
    """
    return ObjectiveGap(**{name: float((w * x).sum()) for name, w in _gap_measures(pair).items()})


def objective_gap_gradient(pair: PolicyPair, coefficients: Float[np.ndarray, "S T"]) -> ObjectiveGap:
    """Return the gap of the gradient: X_t is c[s, t] grad log pi_train; forms are `[K, V]`.

    Reference: hacking Eq. 8-10, 28-31; lr Eq. 2, 3.
    """
    return ObjectiveGap(**{name: pair.gradient(w * coefficients) for name, w in _gap_measures(pair).items()})


def _gap_measures(pair: PolicyPair) -> dict[str, np.ndarray]:
    """Return signed measures on (sequence, token) `[S, T]`, one per form."""
    probs = pair.probs_train[:, None]
    excess = np.where(pair.space.mask, np.expm1(-pair.log_rho), 0.0)
    printed = probs * excess
    double_sum = probs * excess.sum(1, keepdims=True)
    exact = np.broadcast_to((pair.probs_infer - pair.probs_train)[:, None], excess.shape)
    # E of 1/rho given the prefix is one, so E[X (1/rho - 1)] is the covariance.
    return {
        "exact": np.where(pair.space.mask, exact, 0.0),
        "printed": printed,
        "double_sum": np.where(pair.space.mask, double_sum, 0.0),
        "cross": np.where(pair.space.mask, double_sum - printed, 0.0),
    }


def mean_inverse_rho_given_prefix(pair: PolicyPair) -> Float[np.ndarray, " K"]:
    """Return E over pi_train of 1/rho in every context, `[K]`: one if pi_train covers pi_infer.

    Reference: hacking Eq. 30.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(pair.train > 0, pair.train * (pair.infer / pair.train), 0.0).sum(1)


@dataclass(frozen=True)
class NoiseEffect:
    """Mean of the noisy objective minus the clean one, and the variance that the noise adds."""

    bias: float
    added_variance: float
    predicted_variance: float


def weight_noise(pair: PolicyPair, x: Float[np.ndarray, "S T"], std: float) -> NoiseEffect:
    """Return the exact effect of independent weights of mean 1 and std `std` on the terms X `[S, T]`.

    Only the first two moments of the noise enter, so weights 1 +- std with equal chances (2^T
    outcomes, enumerated) stand for any distribution. The variance added to one sequence's objective is
    std^2 E sum_t X_t^2; with n sequences it is 1/n of that.

    Reference: hacking Eq. 21, 22, 37-43.
    Deviation: the paper writes approximately zero; the mean is exactly zero, the variance is ours.
    """
    probs = pair.probs_train
    clean = x.sum(1)
    mean = second = 0.0
    for signs in product((-1.0, 1.0), repeat=x.shape[1]):
        noisy = (x * (1 + std * np.asarray(signs))).sum(1)
        mean += float(probs @ noisy) / 2 ** x.shape[1]
        second += float(probs @ noisy**2) / 2 ** x.shape[1]
    exact_mean = float(probs @ clean)
    return NoiseEffect(
        bias=mean - exact_mean,
        added_variance=second - mean**2 - (float(probs @ clean**2) - exact_mean**2),
        predicted_variance=std**2 * float(probs @ (x**2).sum(1)),
    )


def clip_weights(
    ratio: Float[np.ndarray, "S T"], advantages: Float[np.ndarray, " S #T"], low: float, high: float
) -> tuple[Float[np.ndarray, "S T"], Float[np.ndarray, "S T"]]:
    """Return phi by the ratio alone, and phi by ratio and sign of the advantage; `[S, T]` of 0 and 1.

    Reference: hacking Eq. 2, 12.
    Deviation: Eq. 12 drops every token outside the range; the gradient of the loss in Eq. 2 vanishes
    only above the range for A > 0 and below it for A < 0.
    """
    above, below = ratio > 1 + high, ratio < 1 - low
    by_ratio = ~(above | below)
    by_loss = ~np.where(advantages > 0, above, below)
    return by_ratio.astype(np.float64), by_loss.astype(np.float64)


def reweighting_gap(
    pair: PolicyPair, x: Float[np.ndarray, "S T"], phi: Float[np.ndarray, "S T"]
) -> tuple[float, float]:
    """Return J_phi - J and E over pi_train of sum_t X_t (phi_t - 1); equal for any weights phi `[S, T]`.

    Reference: hacking Eq. 11-15, 19, 20, 34, 35.
    """
    probs = pair.probs_train
    difference = float(probs @ (phi * x).sum(1)) - float(probs @ x.sum(1))
    return difference, float(probs @ (x * (phi - 1)).sum(1))
