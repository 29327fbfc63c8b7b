"""Bias and variance of every correction for rho, exactly, at one mismatch.

The target is the gradient with samples from pi_train and the same advantages; a correction weighs
samples from pi_infer. Both moments are sums over all sequences and all groups.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from simlab.models.tabular import sequence_scores, squared_score_norms
from simlab.theory.expectation import PolicyPair
from simlab.theory.groups import Advantage, group_gradient_moments, leave_one_out

# Weights [S, T] from a pair.
Correction = Callable[[PolicyPair], np.ndarray]


def none(pair: PolicyPair) -> np.ndarray:
    """Weights of one.

    Source: lr Eq. 3; acrl Eq. 1.
    """
    return np.ones(pair.space.tokens.shape)


def tempered(level: str, power: float, low: float = 0.0, high: float = np.inf) -> Correction:
    """rho^power per token, per sequence (product) or geometric (per-token mean), clipped into [low, high].

    Source: lr Eq. 4, 5; acrl Eq. 2.
    """
    return lambda pair: np.clip(np.exp(power * _log_rho(pair, level)), low, high)


def masked(level: str, low: float = 0.0, high: float = 2.0) -> Correction:
    """rho inside [low, high], zero outside.

    Source: lr Eq. 6; acrl Eq. 3.
    """

    def weights(pair: PolicyPair) -> np.ndarray:
        rho = np.exp(_log_rho(pair, level))
        return np.where((rho >= low) & (rho <= high), rho, 0.0)

    return weights


def _log_rho(pair: PolicyPair, level: str) -> np.ndarray:
    log_rho = np.where(pair.law_infer[:, None] > 0, pair.log_rho, 0.0)
    if level == "token":
        return log_rho
    total = log_rho.sum(1, keepdims=True)
    scale = pair.space.lengths[:, None] if level == "geometric" else 1.0
    return np.broadcast_to(total / scale, log_rho.shape)


CLIP = 2.0
CORRECTIONS: dict[str, Correction] = {
    "none": none,
    "token IS": tempered("token", 1.0),
    "token TIS": tempered("token", 1.0, high=CLIP),
    "token MIS": masked("token", high=CLIP),
    "IcePop": masked("token", low=0.5, high=5.0),
    "sequence IS": tempered("sequence", 1.0),
    "sequence TIS": tempered("sequence", 1.0, high=CLIP),
    "sequence MIS": masked("sequence", high=CLIP),
    "sequence IS^1/2": tempered("sequence", 0.5),
}


@dataclass(frozen=True)
class Quality:
    """Moments of a corrected gradient, relative to the norm of the target gradient.

    `bias`: norm of the error of the mean. `std`: root of the total variance of one group. `angle`: between
    mean and target, degrees. `norm`: of the mean.
    """

    bias: float
    std: float
    angle: float
    norm: float

    def mse(self, groups: float) -> float:
        """Mean squared error of the average over `groups` prompts' worth of groups."""
        return self.bias**2 + self.std**2 / groups


def qualities(
    pair: PolicyPair,
    rewards: np.ndarray,
    size: int,
    rule: Advantage = leave_one_out,
    corrections: Mapping[str, Correction] = CORRECTIONS,
) -> dict[str, Quality]:
    """Bias, std, angle and norm of the gradient under each correction, samples from pi_infer.

    RLOO by default: its mean is the exact policy gradient, so that bias is due to the mismatch alone.

    Source: lr Eq. 2-6, 11; acrl Eq. 1-3.
    """
    same = PolicyPair(pair.space, pair.train, pair.train)
    target, _ = group_gradient_moments(same, none(same), rewards, rule, size)
    scale = float(np.linalg.norm(target))
    found = {}
    for name, correction in corrections.items():
        mean, variance = group_gradient_moments(pair, correction(pair), rewards, rule, size)
        norm = float(np.linalg.norm(mean))
        cosine = np.vdot(mean, target) / (norm * scale) if norm > 0 else 0.0
        found[name] = Quality(
            bias=float(np.linalg.norm(mean - target)) / scale,
            std=float(np.sqrt(max(variance, 0.0))) / scale,
            angle=float(np.degrees(np.arccos(np.clip(cosine, -1, 1)))),
            norm=norm / scale,
        )
    return found


def best_mse(pair: PolicyPair, rewards: np.ndarray, samples: int) -> float:
    """Least mean squared error that any weight per sequence can reach, relative to |target|^2.

    For `samples` independent sequences of pi_infer and fixed advantages a(o) = R - E_train[R]. With
    v = a s (s the sequence's score) and u = v / |v|, minimize |E[w v] - b|^2 + E[w^2 |v|^2] / n over
    all functions w of the sequence: w = n <v, b - m> / |v|^2, m = n D (b - m), D = E_infer[u u'], and
    the minimum is <b, (1 + n D)^-1 b>. No correction by sequence weights can do better; reaching it
    needs the answer b. (E[w v] is not subtracted from the second moment: a bound up to |b|^2 / n.)

    Source: lr Eq. 11.
    Deviation: a result of ours.
    """
    values = rewards - float(pair.law_train @ rewards)
    target = pair.gradient(pair.law_train * values).ravel()
    ones = none(pair)
    norms = np.sqrt(squared_score_norms(pair.space, pair.train, ones))
    scores = sequence_scores(pair.space, pair.train)
    directions = scores / np.where(norms > 0, norms, 1.0)[:, None]
    second = directions.T @ (pair.law_infer[:, None] * directions)
    solved = np.linalg.solve(np.eye(len(target)) + samples * second, target)
    return float(target @ solved / (target @ target))


def dose_for(target_std: float, make: Callable[[float], PolicyPair]) -> PolicyPair:
    """The pair of the family `make(dose)` whose std of rho is `target_std`, by bisection.

    Source: hacking Eq. 5.
    """
    low, high = 0.0, 1.0
    while make(high).rho_std < target_std:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if make(middle).rho_std < target_std else (low, middle)
    return make((low + high) / 2)
