"""Mean and variance of one group's corrected gradient, exactly, also for weights that see the group."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from simlab.models.tabular import square_score_norms
from simlab.theory.expectation import PolicyPair
from simlab.theory.groups import Advantage, compositions, multinomial_ways

NEGLIGIBLE = 1e-16
"""Group totals rarer than this are left out; the Fourier transforms are no more exact."""


@dataclass(frozen=True)
class Weighting:
    """The weights of a correction for the tokens of a sample, and its statistics of the group.

    `weights(mean_step, sign)`: `[S, T]` from the group's mean of `steps` and the sign of the sample's
    advantage. `steps` `[S]`: numbers >= 0, zero where the group does not matter; one that is not an integer
    counts as one of its neighbors, with probabilities that keep its mean. `in_loss` `[S]`: the sequences
    that stay in the loss, its denominator and the others' baseline.
    """

    weights: Callable[[float, int], Float[np.ndarray, "S T"]]
    steps: Float[np.ndarray, " S"]
    in_loss: Bool[np.ndarray, " S"]


def fix_weights(
    weights: Float[np.ndarray, "S T"], in_loss: Bool[np.ndarray, " S"] | None = None
) -> Weighting:
    """Return weights `[S, T]` that depend on the sample alone; `in_loss` defaults to all sequences."""
    count = len(weights)
    kept = np.ones(count, bool) if in_loss is None else in_loss
    return Weighting(lambda *_: weights, np.zeros(count), kept)


@dataclass(frozen=True)
class _Totals:
    """Sums over all groups of coefficients A / n times the probability that the others' steps total m.

    A kind is a reward value with a sign of the advantage, (value, sign), listed in `kinds`. `one`,
    `square` `[kinds, m]`: for one sample's coefficient and its square. `pair` `[kinds, kinds, m]`: for the
    product of two samples' coefficients. `total` `[m]`: probability of the group's total.
    """

    kinds: list[tuple[int, int]]
    one: np.ndarray
    square: np.ndarray
    pair: np.ndarray
    total: np.ndarray


def _total_distributions(probs: np.ndarray, values: np.ndarray, rule: Advantage, size: int) -> _Totals:
    """Sum over compositions of the others; `probs` `[R + 1, steps]`, last row: dropped samples.

    Steps add up, so the distribution of their total is a product of Fourier transforms.
    """
    count, length = len(values), size * (probs.shape[1] - 1) + 1
    spectrum = np.fft.rfft(probs, length)
    one_more = np.eye(count, dtype=int)

    def over_others(number: int, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return distributions of the others' total `[M, length]`, and coefficients by own value `[R, M]`."""
        counts = compositions(number, count + 1)
        transformed = multinomial_ways(counts)[:, None] * (spectrum ** counts[..., None]).prod(1)
        alive = counts[:, :count] + present
        coefficient = [
            rule(own, alive + k, values) / (alive + k).sum(1) for own, k in zip(values, one_more, strict=True)
        ]
        return np.fft.irfft(transformed, length), np.stack(coefficient)

    distributions, alone = over_others(size - 1, np.zeros(count, int))
    kinds = [(r, sign) for r in range(count) for sign in (1, -1) if (np.sign(alone[r]) == sign).any()]
    own = np.array([np.where(np.sign(alone[r]) == sign, alone[r], 0.0) for r, sign in kinds])
    pair = np.zeros((len(kinds), len(kinds), length))
    for i, (r, sign) in enumerate(kinds):
        for j, (other, other_sign) in enumerate(kinds):
            # The coefficient of each with the other present.
            first = over_others(size - 2, one_more[other])[1][r]
            rest, of_other = over_others(size - 2, one_more[r])
            both = (np.sign(first) == sign) & (np.sign(of_other[other]) == other_sign)
            pair[i, j] = np.where(both, first * of_other[other], 0.0) @ rest
    total = np.fft.irfft(spectrum.sum(0) ** size, length)
    return _Totals(kinds, own @ distributions, own**2 @ distributions, pair, total)


def group_gradient_moments(
    pair: PolicyPair, weighting: Weighting, rewards: Float[np.ndarray, " S"], rule: Advantage, size: int
) -> tuple[Float[np.ndarray, "K V"], float]:
    """Return mean `[K, V]` and variance of a group's gradient (1/n) sum_i A_i sum_t w_t grad log pi_train.

    The G samples come from pi_infer; n of them stay in the loss. Rewards may take any few values.
    `ValueError` for groups of one and for too many values, see `groups.compositions`.

    Reference: lr Eq. 3-6, 11; acrl Eq. 1-9.
    """
    if size < 2:
        raise ValueError(f"a group needs at least 2 samples, got {size}")
    values, level = np.unique(rewards, return_inverse=True)
    if len(values) == 1:  # no advantages
        return np.zeros(pair.space.table_shape), 0.0
    level = np.where(weighting.in_loss, level, len(values))
    steps = _split(weighting.steps)
    reach = int(np.ceil(weighting.steps.max())) + 1
    level_probs = sum(
        np.bincount(level * reach + step, pair.probs_infer * fraction, (len(values) + 1) * reach)
        for step, fraction in steps
    )
    distributions = _total_distributions(np.reshape(level_probs, (-1, reach)), values, rule, size)
    mean, own, crossed = np.zeros(pair.space.table_shape), 0.0, 0.0
    for total in np.flatnonzero(distributions.total > NEGLIGIBLE).tolist():
        parts = []
        for i, (value, sign) in enumerate(distributions.kinds):
            weights = weighting.weights(total / size, sign)
            probs = np.where(level == value, pair.probs_infer, 0.0)
            one, square = (
                _expect_rest(probs, table[i], total, steps)
                for table in (distributions.one, distributions.square)
            )
            mean += pair.gradient(one[:, None] * weights)
            own += float(square @ square_score_norms(pair.space, pair.train, weights))
            parts.append(_by_step(pair, probs[:, None] * weights, steps, reach))
        crossed += _cross_samples(np.stack(parts), distributions.pair, total)
    mean *= size
    return mean, size * own + size * (size - 1) * crossed - float(np.vdot(mean, mean))


Split = list[tuple[np.ndarray, np.ndarray]]


def _split(steps: np.ndarray) -> Split:
    """Return integer steps `[S]`, and the probability that each sequence takes them."""
    low = np.floor(steps).astype(int)
    if (low == steps).all():
        return [(low, np.ones(len(steps)))]
    return [(low, 1 - (steps - low)), (np.ceil(steps).astype(int), steps - low)]


def _expect_rest(probs: np.ndarray, table: np.ndarray, total: int, steps: Split) -> np.ndarray:
    """Return `probs` times the mean over its steps of `table` at the rest of the total, `[S]`."""
    chance = sum(fraction * np.where(step <= total, table[total - step], 0.0) for step, fraction in steps)
    return probs * chance


def _by_step(pair: PolicyPair, coefficients: np.ndarray, steps: Split, reach: int) -> np.ndarray:
    """Return `pair.gradient` separately for the sequences of each step, `[reach, K V]`."""
    if reach == 1:
        return pair.gradient(coefficients).reshape(1, -1)
    space, size = pair.space, pair.train.size
    mass = np.zeros(reach * size)
    for step, fraction in steps:
        flat = step[:, None] * size + space.contexts * space.vocabulary + space.tokens
        mass += np.bincount(flat[space.mask], (fraction[:, None] * coefficients)[space.mask], reach * size)
    mass = mass.reshape(reach, *space.table_shape)
    return (mass - mass.sum(2, keepdims=True) * pair.train).reshape(reach, size)


def _cross_samples(parts: np.ndarray, distributions: np.ndarray, total: int) -> float:
    """Sum the inner product of `parts` `[kinds, reach, K V]` over two samples' kinds and steps."""
    kinds, reach, width = parts.shape
    flat = parts.reshape(kinds * reach, width)
    inner = (flat @ flat.T).reshape(kinds, reach, kinds, reach)
    left = total - np.add.outer(np.arange(reach), np.arange(reach))
    chance = np.where(left >= 0, distributions[:, :, left], 0.0)
    return float(np.einsum("ikjl,ijkl->", inner, chance))
