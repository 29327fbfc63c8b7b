"""Bias and variance of every correction for rho, exactly, at one mismatch.

The target is the gradient with samples from pi_train and the same advantages; a correction weighs, or
drops, samples from pi_infer. Both moments are sums over all sequences and all groups. At theta_old all
PPO ratios are one: clips and group transforms do nothing, and corrections are all that is left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Bool, Float

from simlab.models.tabular import enumerate_sequences, sequence_scores, square_score_norms, token_values
from simlab.theory.expectation import PolicyPair, expect, noisy_pair, random_logits
from simlab.theory.group_moments import Weighting, fix_weights, group_gradient_moments
from simlab.theory.groups import leave_one_out

Correction = Callable[[PolicyPair], Weighting]


def none(pair: PolicyPair) -> Weighting:
    """Return weights of one.

    Reference: lr Eq. 3; acrl Eq. 1.
    """
    return fix_weights(np.ones(pair.space.tokens.shape))


def temper(level: str, power: float, high: float = np.inf) -> Correction:
    """Return rho^power per token, per sequence (product) or geometric (per-token mean), at most `high`.

    Reference: lr Eq. 4, 5; acrl Eq. 2.
    """
    return lambda pair: fix_weights(np.minimum(np.exp(power * _log_rho(pair, level)), high))


def mask_ratio(level: str, low: float = 0.0, high: float = 2.0) -> Correction:
    """Return rho inside [low, high], zero outside.

    Reference: lr Eq. 6; acrl Eq. 3.
    """

    def compute_weighting(pair: PolicyPair) -> Weighting:
        rho = np.exp(_log_rho(pair, level))
        return fix_weights(np.where((rho >= low) & (rho <= high), rho, 0.0))

    return compute_weighting


def pool_ratio(high: float = 2.0) -> Correction:
    """Return the sequence's geometric mean of min(rho, high), as `gmpo+tis` pools its weights.

    Reference: verl core_algos.compute_policy_loss_geo_mean.
    """

    def compute_weighting(pair: PolicyPair) -> Weighting:
        logs = np.minimum(_log_rho(pair, "token"), np.log(high))
        return fix_weights(np.exp(sequence_mean(pair, logs)[:, None] * np.ones_like(logs)))

    return compute_weighting


def reject_sequences(keep: Callable[[PolicyPair], Bool[np.ndarray, " S"]]) -> Correction:
    """Return weights of one; sequences without `keep` `[S]` leave loss, denominator and baseline.

    Reference: verl rollout_corr_helper seq_mean_k1, seq_mean_k3.
    """
    return lambda pair: fix_weights(np.ones(pair.space.tokens.shape), keep(pair))


def geometric_band(low: float = 0.999, high: float = 1.001) -> Correction:
    """Keep sequences whose geometric mean of 1/rho lies in [low, high].

    Reference: verl rollout_corr_helper seq_mean_k1.
    """

    def keep(pair: PolicyPair) -> np.ndarray:
        mean = -sequence_mean(pair, _log_rho(pair, "token"))
        return (mean >= np.log(low)) & (mean <= np.log(high))

    return reject_sequences(keep)


def k3_cap(most: float = 0.01) -> Correction:
    """Keep sequences whose mean of rho - 1 - log rho is at most `most`.

    Reference: verl rollout_corr_helper seq_mean_k3.
    """

    def keep(pair: PolicyPair) -> np.ndarray:
        log_rho = _log_rho(pair, "token")
        return sequence_mean(pair, np.expm1(log_rho) - log_rho) <= most

    return reject_sequences(keep)


def veto(least: float = 0.5) -> Correction:
    """Keep sequences none of whose tokens has rho below `least`.

    Reference: slime rs_veto_threshold.
    Deviation: the default there is 1e-4, which no mismatch studied here reaches.
    """
    return reject_sequences(lambda pair: (_log_rho(pair, "token") >= np.log(least)).all(1))


def sequence_discrepancy(pair: PolicyPair) -> Float[np.ndarray, " S"]:
    """Return d: the mean over a sequence's tokens of |pi_train - pi_infer|, `[S]`.

    Reference: acrl Eq. 5, 6.
    """
    return sequence_mean(pair, token_values(pair.space, np.abs(pair.train - pair.infer)))


ACRL_LEVEL = 2.0
"""Expected discrepancy over the reference X: it has doubled since X was measured."""


def acrl(
    over: str = "group", level: float = ACRL_LEVEL, gamma: float = 0.65, clip: float = 3.0, bins: int = 8
) -> Correction:
    """Return min(rho^alpha, clip), alpha = gamma sign(A) (1 - Y / X), with X = E[d] / `level`.

    Y is the mean of d over the "group", or d of the "sequence" itself. `ValueError` for other levels.

    Reference: acrl Eq. 5-9.
    Deviation: for the group, d is put on `bins` steps up to the largest d, its mean kept, so that the
        group's total has a distribution in closed form: an error of second order in 1 / bins.
    """
    if over not in ("group", "sequence"):
        raise ValueError(f"over must be group or sequence, got {over!r}")

    def compute_weighting(pair: PolicyPair) -> Weighting:
        d, log_rho = sequence_discrepancy(pair), _log_rho(pair, "token")
        reference = expect(pair.probs_infer, d) / level
        if reference == 0:
            return none(pair)
        step = d.max() / bins

        def weights(mean_step: float, sign: int) -> np.ndarray:
            current = d[:, None] if over == "sequence" else step * mean_step
            return np.minimum(np.exp(sign * gamma * (1 - current / reference) * log_rho), clip)

        steps = d / step if over == "group" else np.zeros(len(d))
        return Weighting(weights, steps, np.ones(len(d), bool))

    return compute_weighting


def token_log_rho(pair: PolicyPair) -> Float[np.ndarray, "S T"]:
    """Return log rho per token [S, T], zero in sequences that are never sampled."""
    return np.where(pair.probs_infer[:, None] > 0, pair.log_rho, 0.0)


def _log_rho(pair: PolicyPair, level: str) -> np.ndarray:
    log_rho = token_log_rho(pair)
    if level == "token":
        return log_rho
    total = log_rho.sum(1, keepdims=True)
    scale = pair.space.lengths[:, None] if level == "geometric" else 1.0
    return np.broadcast_to(total / scale, log_rho.shape)


def sequence_mean(pair: PolicyPair, values: Float[np.ndarray, "S T"]) -> Float[np.ndarray, " S"]:
    """Return the mean over the tokens of each sequence [S]."""
    return values.sum(1) / pair.space.lengths


CLIP = 2.0
CORRECTIONS: dict[str, Correction] = {
    "none": none,
    "token IS": temper("token", 1.0),
    "token TIS": temper("token", 1.0, high=CLIP),
    "token MIS": mask_ratio("token", high=CLIP),
    "IcePop": mask_ratio("token", low=0.5, high=5.0),
    "ACRL": acrl("group"),
    "ACRL per sequence": acrl("sequence"),
    "geometric TIS": temper("geometric", 1.0, high=CLIP),
    "geometric MIS": mask_ratio("geometric", high=CLIP),
    "GMPO pooled TIS": pool_ratio(CLIP),
    "geometric mask": geometric_band(),
    "k3 mask": k3_cap(),
    "veto": veto(),
    "sequence IS": temper("sequence", 1.0),
    "sequence IS^1/2": temper("sequence", 0.5),
    "sequence TIS": temper("sequence", 1.0, high=CLIP),
    "sequence MIS": mask_ratio("sequence", high=CLIP),
}
"""Every correction of `simlab.objectives`; `counterparts` maps one to the other."""


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

    def mse(self, groups: float | int) -> float:
        """Return the mean squared error of the average over the groups of `groups` prompts."""
        return self.bias**2 + self.std**2 / groups


def qualities(
    pair: PolicyPair,
    rewards: Float[np.ndarray, " S"],
    size: int,
    corrections: Mapping[str, Correction] = CORRECTIONS,
) -> dict[str, Quality]:
    """Return bias, std, angle and norm of the gradient with each correction, samples from pi_infer.

    With RLOO: its mean is the exact policy gradient, so that bias is due to the mismatch alone.

    Reference: lr Eq. 2-6, 11; acrl Eq. 1-3.
    """
    same = PolicyPair(pair.space, pair.train, pair.train)
    target, _ = group_gradient_moments(same, none(same), rewards, leave_one_out, size)
    return {
        name: quality_of(
            *group_gradient_moments(pair, correction(pair), rewards, leave_one_out, size), target
        )
        for name, correction in corrections.items()
    }


def quality_of(mean: Float[np.ndarray, "*K"], variance: float, target: Float[np.ndarray, "*K"]) -> Quality:
    """Return the moments of a gradient relative to the norm of `target`, of the same shape as `mean`."""
    scale, norm = float(np.linalg.norm(target)), float(np.linalg.norm(mean))
    cosine = np.vdot(mean, target) / (norm * scale) if norm > 0 else 0.0
    return Quality(
        bias=float(np.linalg.norm(mean - target)) / scale,
        std=float(np.sqrt(max(variance, 0.0))) / scale,
        angle=float(np.degrees(np.arccos(np.clip(cosine, -1, 1)))),
        norm=norm / scale,
    )


def best_mse(pair: PolicyPair, rewards: Float[np.ndarray, " S"], samples: int) -> float:
    """Return the least mean squared error of any weight per sequence, relative to |target|^2.

    For `samples` independent sequences of pi_infer and fixed advantages a(o) = R - E_train[R]. With
    v = a s (s the sequence's score) and u = v / |v|, minimize |E[w v] - b|^2 + E[w^2 |v|^2] / n over
    all functions w of the sequence: w = n <v, b - m> / |v|^2, m = n D (b - m), D = E_infer[u u'], and
    the minimum is <b, (1 + n D)^-1 b>. No correction by sequence weights can do better; reaching it
    needs the answer b. (E[w v] is not subtracted from the second moment: a bound up to |b|^2 / n.)

    Reference: lr Eq. 11.
    Deviation: a result of ours.
    """
    values = rewards - float(pair.probs_train @ rewards)
    target = pair.gradient(pair.probs_train * values).ravel()
    ones = np.ones(pair.space.tokens.shape)
    norms = np.sqrt(square_score_norms(pair.space, pair.train, ones))
    scores = sequence_scores(pair.space, pair.train)
    directions = scores / np.where(norms > 0, norms, 1.0)[:, None]
    second = directions.T @ (pair.probs_infer[:, None] * directions)
    solved = np.linalg.solve(np.eye(len(target)) + samples * second, target)
    return float(target @ solved / (target @ target))


def scale_to_std_rho(target_std: float, make: Callable[[float], PolicyPair]) -> PolicyPair:
    """Find the pair of the family `make(noise_std)` whose std of rho is `target_std`, by bisection.

    Reference: hacking Eq. 5.
    """
    low, high = 0.0, 1.0
    while make(high).rho_std < target_std:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if make(middle).rho_std < target_std else (low, middle)
    return make((low + high) / 2)


VOCABULARY = 3


@cache
def random_pair(
    length: int, rho_std: float, seed: int, *, vocabulary: int = VOCABULARY, memory: int | None = None
) -> PolicyPair:
    """Return a policy of N(0, 1.5^2) logits with engine noise at which the std of rho is `rho_std`."""
    space = enumerate_sequences(vocabulary, length, memory=memory)
    logits = random_logits(space, seed)
    return scale_to_std_rho(rho_std, lambda noise_std: noisy_pair(space, logits, noise_std, seed))
