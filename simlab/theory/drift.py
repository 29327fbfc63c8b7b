"""Drift under uncancelled updates: of common tokens, and of answers that are equally good."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from simlab.models.tabular import (
    SequenceSpace,
    enumerate_sequences,
    list_sequences,
    log_softmax,
    square_score_norms,
    sum_of_scores,
    token_values,
)
from simlab.theory.expectation import safe_log, softmax
from simlab.theory.groups import Advantage, group_value, mean_advantage, reward_levels


def kl_after_step(
    logits: Float[np.ndarray, " V"], direction: Float[np.ndarray, " V"], eta: float
) -> tuple[float, float]:
    """Return KL(pi after | pi before) at one context, and its leading term eta^2/2 g'Fg; `[V]` each.

    Reference: cancel Eq. 3, 4, Prop. 3.1.
    """
    before, after = log_softmax(logits[None])[0], log_softmax((logits + eta * direction)[None])[0]
    probs = np.exp(before)
    fisher = (probs * direction**2).sum() - (probs @ direction) ** 2
    # Summing p_new (log p_new - log p) cancels digits; this form of KL does not.
    ratio = after - before
    exact = float((probs * (np.exp(ratio) * ratio - np.expm1(ratio))).sum())
    return exact, float(eta**2 / 2 * fisher)


@dataclass(frozen=True)
class LogOddsDrift:
    """Change of log pi(a)/pi(b) in one step, and two predictions to first order in eta."""

    exact: float
    own_constants: float
    one_constant: float


def log_odds_drift(
    space: SequenceSpace,
    logits: Float[np.ndarray, "K V"],
    pair: tuple[int, int],
    kappa: Float[np.ndarray, " 2"],
    eta: float,
) -> LogOddsDrift:
    """Take one step theta + eta sum_y kappa_y grad log pi(y) over two answers `pair` (rows of the space).

    To first order answer a gains eta (kappa_a n_a + kappa_b o) with n = |score|^2 and o the overlap of
    the two scores, so the log-odds move by eta (c_a kappa_a - c_b kappa_b), c = n - o. `one_constant`
    uses the mean of c_a and c_b for both, which is the form of the paper.

    Reference: cancel Eq. 5, 39-41, Cor. 3.2.
    Deviation: c differs between answers, so answers drift apart even at equal kappa.
    """
    probs = softmax(logits)
    change = sequence_logp(space, logits + eta * _sum_of_pair(space, probs, pair, kappa))
    change -= sequence_logp(space, logits)
    norms = square_score_norms(space, probs, np.ones(space.tokens.shape))[list(pair)]
    both = _sum_of_pair(space, probs, pair, np.ones(2))
    overlap = (float((both**2).sum()) - norms.sum()) / 2
    constants = norms - overlap
    return LogOddsDrift(
        exact=float(change[pair[0]] - change[pair[1]]),
        own_constants=eta * float(constants[0] * kappa[0] - constants[1] * kappa[1]),
        one_constant=eta * float(constants.mean() * (kappa[0] - kappa[1])),
    )


def _sum_of_pair(
    space: SequenceSpace, probs: np.ndarray, pair: tuple[int, int], kappa: np.ndarray
) -> np.ndarray:
    """Return sum_y kappa_y grad log pi(y) over two answers, `[K, V]`."""
    coefficients = np.zeros(space.tokens.shape)
    coefficients[list(pair)] = kappa[:, None]
    return sum_of_scores(space, probs, coefficients)


def sequence_logp(space: SequenceSpace, logits: Float[np.ndarray, "K V"]) -> Float[np.ndarray, " S"]:
    """Return log pi of every sequence, `[S]`."""
    return token_values(space, log_softmax(logits)).sum(1)


def pair_entropy_path(
    space: SequenceSpace,
    logits: Float[np.ndarray, "K V"],
    pair: tuple[int, int],
    kappa: Float[np.ndarray, " 2"],
    eta: float,
    steps: int,
) -> Float[np.ndarray, " N"]:
    """Return the entropy between the two answers before and after each of `steps` updates.

    Reference: cancel Cor. 3.2.
    """
    path = []
    for _ in range(steps + 1):
        odds = np.diff(sequence_logp(space, logits)[list(pair)])[0]
        shares = np.array([1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))])
        path.append(-(shares * np.where(shares > 0, safe_log(shares), 0)).sum())
        logits = logits + eta * _sum_of_pair(space, softmax(logits), pair, kappa)
    return np.asarray(path)


@dataclass(frozen=True)
class TemplateDrift:
    """Expected coefficient of a reward-irrelevant token under token and sequence weights.

    `sequence` equals `covariance`, the covariance of advantage and weight among sequences that have it.
    """

    token: float
    sequence: float
    covariance: float


def template_drift(seed: int, step: float, rule: Advantage, size: int) -> TemplateDrift:
    """Compute the drift where the first token is independent of the rest: every context has the same policy.

    The mean of A given the token is zero, so weights that do not depend on the rest cancel in
    expectation; sequence weights are correlated with A and do not.

    Reference: cancel Cor. G.1.
    """
    base = enumerate_sequences(3, 3)
    same = {prefix: (0, *prefix[1:]) for prefix in base.prefixes if prefix}
    space = enumerate_sequences(3, 3, same=same)
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=space.table_shape)
    log_ratio = log_softmax(logits + step * rng.normal(size=logits.shape)) - log_softmax(logits)
    probs = np.exp(sequence_logp(space, logits))
    rewards = np.tile((rng.random(9) < 0.5).astype(np.float64), 3)
    has = (space.tokens[:, 0] == 0).astype(np.float64)
    ratios = np.exp(token_values(space, log_ratio))
    token, sequence = (
        float(group_value(probs, probs, u, rewards, rule, size)) / float(probs @ has)
        for u in (has * ratios[:, 0], has * ratios.prod(1))
    )
    conditional = probs * has / (probs @ has)
    values, index, level_probs = reward_levels(rewards, probs)
    advantage = mean_advantage(rule, level_probs, values, size)[index]
    weight = ratios.prod(1)
    covariance = float(
        conditional @ (advantage * weight) - (conditional @ advantage) * (conditional @ weight)
    )
    return TemplateDrift(token, sequence, covariance)


WORDS = ("The", "answer", "is", "25", "20", "10", "+", "=", ".")
TOY = ("The answer is 25 .", "The answer is 20 .", "10 + 10 = 20 .")


def toy_space() -> SequenceSpace:
    """Return the three answers to 10 + 10 as sequences over `WORDS`.

    Reference: cancel Eq. 25-27.
    """
    return list_sequences([tuple(WORDS.index(word) for word in text.split()) for text in TOY], len(WORDS))


def three_trajectories(seed: int = 0, step: float = 0.1, eta: float = 0.01) -> dict:
    """Return the worked example: advantages, weights, template leftover, drift of equal answers.

    theta_old is a random table, theta lies `step` away, and one update of size `eta` follows, in the
    linear segment: coefficient A_i s_i / G on every token with the plain product s_i.

    Reference: cancel Eq. 25-41.
    Deviation: in the group of three the template is shared by two samples whose advantages sum to
    -1/3, so its coefficient is not zero even with equal weights; Eq. 38 is about the group of two.
    """
    space = toy_space()
    rng = np.random.default_rng(seed)
    old = rng.normal(scale=0.5, size=space.table_shape)
    logits = old + step * rng.normal(size=old.shape)
    rewards = np.array([0.0, 1.0, 1.0])
    advantages = rewards - rewards.mean()
    log_ratio = token_values(space, log_softmax(logits) - log_softmax(old))
    weights = np.exp(log_ratio.sum(1))
    update = sum_of_scores(
        space, softmax(logits), np.broadcast_to((advantages * weights / 3)[:, None], space.tokens.shape)
    )
    change = token_values(space, log_softmax(logits + eta * update) - log_softmax(logits))
    drift = change.sum(1)
    shared, last = np.exp(log_ratio[:2, :3].sum(1)), np.exp(log_ratio[:2, 3:].sum(1))
    return {
        "advantages": advantages,
        "weights": weights,
        "pair_leftover": float(weights[1] - weights[0]),
        "pair_predicted": float(shared[0] * (last[1] - last[0])),
        "group_leftover": float(advantages[:2] @ weights[:2]),
        "group_leftover_equal_weights": float(advantages[:2].sum()),
        "odds_drift": float(drift[1] - drift[2]),
        "template_change": float(change[0, :3].sum()),
    }
