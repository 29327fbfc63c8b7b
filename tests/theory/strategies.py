"""Random pairs of laws, and random groups; `test_strategies` checks that the corners are reached."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from simlab.models.tabular import enumerate_sequences
from simlab.theory.expectation import PolicyPair, softmax

SPACES = {
    length: [
        enumerate_sequences(3, length),
        enumerate_sequences(3, length, end=0),
        enumerate_sequences(3, length, memory=1),
    ]
    for length in (1, 2, 3)
}


def rows(width: int, extreme: float = 8.0) -> st.SearchStrategy[np.ndarray]:
    """Logits of one row; now and then all equal, or far apart."""
    return st.one_of(
        st.just(np.zeros(width)),
        st.lists(st.floats(-extreme, extreme), min_size=width, max_size=width).map(np.asarray),
    )


@st.composite
def laws(draw, width: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Two rows `[1, V]` of probabilities: equal, close, or far; the second may miss tokens of the first."""
    train = softmax(draw(rows(width))[None])
    kind = draw(st.sampled_from(["equal", "far", "missing"]))
    if kind == "equal":
        return train, train.copy()
    infer = softmax(draw(rows(width))[None])
    if kind == "missing":
        kept = np.arange(width) < draw(st.integers(1, width - 1))
        infer = np.where(kept, infer, 0.0)
        infer /= infer.sum()
    return train, infer


@st.composite
def pairs(draw, noise_std: float = 1.0) -> PolicyPair:
    """Draw a pair on a space of 1 to 3 tokens: plain, with an end token, or a chain."""
    space = draw(st.sampled_from(SPACES[draw(st.integers(1, 3))]))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    logits = rng.normal(scale=draw(st.sampled_from([0.1, 1.5, 4.0])), size=space.table_shape)
    shift = draw(st.sampled_from([0.0, 0.01, 0.3, 1.0])) * noise_std * rng.normal(size=logits.shape)
    return PolicyPair(space, softmax(logits), softmax(logits + shift))


@dataclass(frozen=True)
class Group:
    """One group: log PPO ratios `[G, T]` with token 0 shared, rewards `[G]`, and lengths `[G]`."""

    log_ratio: np.ndarray
    rewards: np.ndarray
    lengths: np.ndarray

    @property
    def advantages(self) -> np.ndarray:
        """Centered rewards."""
        return self.rewards - self.rewards.mean()

    @property
    def mask(self) -> np.ndarray:
        """Real tokens, `[G, T]`."""
        return np.arange(self.log_ratio.shape[1]) < self.lengths[:, None]


@st.composite
def groups(draw, shared: float = 3.0, spread: float = 3.0) -> Group:
    """A group of 2 or 8 samples, padded to 1 or 5 tokens; the shared log-ratio within +-`shared`."""
    size, length = draw(st.sampled_from([(2, 1), (2, 5), (8, 1), (8, 5)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    log_ratio = draw(st.sampled_from([0.0, 0.1, 1.0])) * spread * rng.uniform(-1, 1, size=(size, length))
    log_ratio[:, 0] = draw(st.floats(-shared, shared))
    kind = draw(st.sampled_from(["binary", "real", "equal"]))
    if kind == "equal":
        rewards = np.ones(size)
    elif kind == "binary":
        rewards = (rng.permutation(size) < draw(st.integers(1, size - 1))).astype(np.float64)
    else:
        rewards = rng.normal(size=size)
    lengths = rng.integers(1, length + 1, size=size) if draw(st.booleans()) else np.full(size, length)
    return Group(log_ratio, rewards, lengths)


@st.composite
def weighted_groups(draw) -> tuple[np.ndarray, np.ndarray]:
    """Weights and centered advantages `[G]`, G = 8, with ties, zero advantages and weights 1e6 apart."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    weights = np.exp(draw(st.sampled_from([0.0, 0.3, 3.0])) * rng.normal(size=8))
    advantages = rng.normal(size=8) * (rng.random(8) < draw(st.sampled_from([0.4, 1.0])))
    advantages[advantages != 0] -= advantages[advantages != 0].mean() if (advantages != 0).any() else 0.0
    return weights, advantages
