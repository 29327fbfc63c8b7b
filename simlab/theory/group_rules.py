"""Corrections that no weight per sample can state: masks that read the complete group, and score centering.

Their moments are sums over all S^G groups, one by one. At theta_old the current policy is the old one, so
w = p / mu is rho. Advantages are RLOO's, and a term is divided by the number of sequences in the loss.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

from simlab.models.tabular import SequenceSpace
from simlab.theory.correction_moments import Quality, none, quality_of
from simlab.theory.expectation import PolicyPair
from simlab.theory.group_moments import group_gradient_moments
from simlab.theory.groups import leave_one_out

# Gradient of every group [N, K V] from the pair, the rewards [S] and the members [N, G].
GroupRule = Callable[[PolicyPair, Float[np.ndarray, " S"], Int[np.ndarray, "N G"]], Float[np.ndarray, "N D"]]
SECOND_MOMENT = 0.04
"""Largest mean of (log w)^2 over the tokens that stay."""


def all_groups(sequences: int, size: int) -> Int[np.ndarray, "N G"]:
    """Return the members [S^G, G] of every group of `size` sequences."""
    return np.indices((sequences,) * size).reshape(size, -1).T


def moments_over_groups(
    pair: PolicyPair, members: Int[np.ndarray, "N G"], gradients: Float[np.ndarray, "N D"]
) -> tuple[Float[np.ndarray, " D"], float]:
    """Return the mean [K V] and the total variance of the gradients [N, K V] of the groups [N, G]."""
    chance = pair.probs_infer[members].prod(1)
    mean = chance @ gradients
    return mean, float(chance @ (gradients**2).sum(1) - mean @ mean)


def token_scores(pair: PolicyPair) -> Float[np.ndarray, "S T D"]:
    """Return grad log pi_train of every token [S, T, K V], zero where masked."""
    space = pair.space
    return _put_into_contexts(space, np.eye(space.vocabulary)[space.tokens] - pair.train[space.contexts])


def _put_into_contexts(space: SequenceSpace, rows: np.ndarray) -> np.ndarray:
    """Put rows [S, T, V] into the contexts of their tokens, [S, T, K V]."""
    table = np.zeros((*space.tokens.shape, *space.table_shape))
    at = np.ix_(*map(np.arange, space.tokens.shape))
    table[(*at, space.contexts)] = np.where(space.mask[..., None], rows, 0.0)
    return table.reshape(*space.tokens.shape, -1)


def rloo(rewards: Float[np.ndarray, "N G"], present: Bool[np.ndarray, "N G"]) -> Float[np.ndarray, "N G"]:
    """Return each reward minus the mean of the others [N, G]; members that are not `present` do not count."""
    count = present.sum(1, keepdims=True)
    total = (rewards * present).sum(1, keepdims=True)
    others = (total - rewards) / np.maximum(count - 1, 1)
    return np.where(present & (count > 1), rewards - others, 0.0)


def m2po(
    pair: PolicyPair, rewards: Float[np.ndarray, " S"], members: Int[np.ndarray, "N G"]
) -> Float[np.ndarray, "N D"]:
    """Compute M2PO with the group as the batch.

    Reference: M2PO arXiv 2510.01161 Algorithm 1.
    """
    log_w, real = pair.log_rho[members], pair.space.mask[members]
    advantages = rloo(rewards[members], np.ones(members.shape, bool))[..., None]
    outward = real & (advantages * log_w > 0)
    stays = smallest_with_mean(log_w**2, outward, SECOND_MOMENT, strict=False)
    weights = advantages * np.exp(log_w) * (stays | ~outward) * real
    return _weigh(pair, members, weights) / members.shape[1]


def m2_mask(
    pair: PolicyPair, rewards: Float[np.ndarray, " S"], members: Int[np.ndarray, "N G"]
) -> Float[np.ndarray, "N D"]:
    """Compute AReaL's second-moment mask on the group; empty sequences leave baseline and loss.

    Reference: AReaL actor.py m2_threshold.
    """
    squares, real = pair.log_rho[members] ** 2, pair.space.mask[members]
    selected = smallest_with_mean(squares, real, SECOND_MOMENT, strict=True)
    present = np.asarray(selected.any(2))
    advantages = rloo(rewards[members], present)[..., None]
    return _weigh(pair, members, advantages * selected) / present.sum(1)[:, None]


def smallest_with_mean(
    squares: Float[np.ndarray, "N G T"], chosen: Bool[np.ndarray, "N G T"], bound: float, *, strict: bool
) -> Bool[np.ndarray, "N G T"]:
    """Return which `chosen` entries [N, G, T] stay when the largest of a group go until their mean fits.

    `strict`: the mean must be below the bound, and one entry stays; else it is at most the bound.
    """
    flat = np.where(chosen, squares, np.inf).reshape(len(squares), -1)
    order = np.argsort(flat, axis=1, kind="stable")
    ordered = np.take_along_axis(flat, order, axis=1)
    mean = np.cumsum(ordered, axis=1) / np.arange(1, flat.shape[1] + 1)
    count = ((mean < bound) if strict else (mean <= bound)).sum(1, keepdims=True)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(flat.shape[1])[None], axis=1)
    return chosen & (ranks < np.maximum(count, int(strict))).reshape(squares.shape)


def center(
    coefficient: Callable[[Float[np.ndarray, "K V"], Float[np.ndarray, "K V"]], Float[np.ndarray, "K V"]],
) -> GroupRule:
    """Score centering over the vocabulary of a loss with this coefficient of A, a function of (p, mu).

    Reference: score centering arXiv 2609.20807.
    """

    def gradients(pair: PolicyPair, rewards: np.ndarray, members: np.ndarray) -> np.ndarray:
        space, every = pair.space, coefficient(pair.train, pair.infer)
        # The score of token v is e_v - p, so the subtracted mean is z - p sum z with z = mu f.
        mass = pair.infer * every
        means = mass - pair.train * mass.sum(1, keepdims=True)
        sampled = every[space.contexts, space.tokens][..., None] * token_scores(pair)
        sequences = (sampled - _put_into_contexts(space, means[space.contexts])).sum(1)
        advantages = rloo(rewards[members], np.ones(members.shape, bool))
        total = np.zeros((len(members), pair.train.size))
        for i in range(members.shape[1]):
            total += advantages[:, i, None] * sequences[members[:, i]]
        return total / members.shape[1]

    return gradients


def likelihood_coefficient(
    p: Float[np.ndarray, "K V"], mu: Float[np.ndarray, "K V"]
) -> Float[np.ndarray, "K V"]:
    """Return ones: the loss is A log p.

    Reference: lr Eq. 2-4.
    """
    del mu
    return np.ones_like(p)


def ipo_coefficient(p: Float[np.ndarray, "K V"], mu: Float[np.ndarray, "K V"]) -> Float[np.ndarray, "K V"]:
    """Return w where |p - mu| is at most 0.3, else zero.

    Reference: prime-rl trainer/rl/loss.py ipo.
    """
    return np.where(np.abs(p - mu) <= 0.3, p / mu, 0.0)


def _weigh(pair: PolicyPair, members: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sum of weights [N, G, T] times the scores of the members' tokens, [N, K V]."""
    scores, total = token_scores(pair), np.zeros((len(members), pair.train.size))
    for i, t in np.ndindex(*weights.shape[1:]):
        total += weights[:, i, t, None] * scores[members[:, i], t]
    return total


GROUP_RULES: dict[str, GroupRule] = {
    "M2PO": m2po,
    "M2 mask": m2_mask,
    "score centering": center(likelihood_coefficient),
    "IPO, centered": center(ipo_coefficient),
}
"""Rules of 2026 with their default numbers."""


def group_rule_qualities(pair: PolicyPair, rewards: Float[np.ndarray, " S"], size: int) -> dict[str, Quality]:
    """Return bias, std, angle and norm of the gradient of every group rule, samples from pi_infer.

    Raises:
        ValueError: S^G exceeds 2^20 groups.
    """
    if len(rewards) ** size > 2**20:
        raise ValueError(f"groups must be at most 2^20, got {len(rewards)}^{size}.")
    same = PolicyPair(pair.space, pair.train, pair.train)
    target, _ = group_gradient_moments(same, none(same), rewards, leave_one_out, size)
    members = all_groups(len(rewards), size)
    return {
        name: quality_of(*moments_over_groups(pair, members, rule(pair, rewards, members)), target.ravel())
        for name, rule in GROUP_RULES.items()
    }
