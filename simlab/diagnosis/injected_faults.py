"""Synthetic logs with an injected fault of known kind and size, to test the detectors.

Each context has hidden features, a head maps them to logits, and one token is sampled. The two engines
differ in the head and by noise on the logits. No language model is involved, but the probabilities are as
peaked as those of one (about 70% of the tokens above 0.9).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simlab.core.catalog import lookup
from simlab.diagnosis.log import LOWEST, Sequences, TokenLog
from simlab.models.tabular import log_softmax

FEATURES, VOCABULARY = 8, 32
LAYERS, TOP_K, EXPERTS = 4, 2, 8


@dataclass
class SyntheticLog(Sequences):
    """A log under construction: `train` and `infer` are logits [N, V] under the two engines."""

    rng: np.random.Generator
    size: float
    lengths: np.ndarray
    step: np.ndarray
    hidden: np.ndarray
    train: np.ndarray
    infer: np.ndarray
    lag: np.ndarray
    flipped: np.ndarray

    def progress(self) -> np.ndarray:
        """Return the fraction of the run completed at each token, [N, 1]."""
        return (self.step / max(1, self.step.max()))[self.sequence][:, None]

    def other_head(self) -> np.ndarray:
        """Return logits [N, V] of a change of the head that is as large as the head."""
        return _logits(self.hidden, self.rng.normal(size=(FEATURES, VOCABULARY)))


def filter_top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Return logits [N, V] with -inf at tokens outside the most probable ones that sum to `p`."""
    probs = np.exp(log_softmax(logits))
    order = np.argsort(-probs, axis=1)
    ranked = np.take_along_axis(probs, order, 1)
    kept = np.cumsum(ranked, 1) - ranked < p
    inside = np.empty_like(kept)
    np.put_along_axis(inside, order, kept, 1)
    return np.where(inside, logits, -np.inf)


def filter_top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Return logits [N, V] with -inf below the `k`-th largest."""
    least = -np.sort(-logits, axis=1)[:, [k - 1]]
    return np.where(logits >= least, logits, -np.inf)


Fault = Callable[[SyntheticLog], None]


def _no_fault(synthetic: SyntheticLog) -> None:
    """Inject nothing: rounding only."""


def _frozen(synthetic: SyntheticLog) -> None:
    """Keep the initial weights of the engine: at the last step its head has a relative error of `size`."""
    synthetic.infer += synthetic.size * synthetic.progress() * synthetic.other_head()


def _partial(synthetic: SyntheticLog) -> None:
    """Skip a quarter of the rows of the head in the sync: their relative error is `size`."""
    late = synthetic.rng.random(VOCABULARY) < 0.25
    synthetic.infer += synthetic.size * late * synthetic.other_head()


def _scramble_expert(synthetic: SyntheticLog) -> None:
    """Scramble one expert: in a tenth of the contexts a fraction `size` of the logits is random."""
    hit = synthetic.rng.random((len(synthetic.train), 1)) < 0.1
    synthetic.infer = np.where(
        hit, (1 - synthetic.size) * synthetic.infer + synthetic.size * synthetic.other_head(), synthetic.infer
    )


def _temperature(synthetic: SyntheticLog) -> None:
    """Sample and score at temperature `size`; the training engine scores at 1."""
    synthetic.infer /= synthetic.size


def _top_p(synthetic: SyntheticLog) -> None:
    """Sample and score with top-p, p = `size`."""
    synthetic.infer = filter_top_p(synthetic.infer, synthetic.size)


def _top_k(synthetic: SyntheticLog) -> None:
    """Sample and score with top-k, k = `size`."""
    synthetic.infer = filter_top_k(synthetic.infer, round(synthetic.size))


def _stale(synthetic: SyntheticLog) -> None:
    """Change the head by a relative `size` per update; sequences are 0 to 3 updates old."""
    synthetic.lag = synthetic.rng.integers(0, 4, len(synthetic.lengths))
    lag = synthetic.lag[synthetic.sequence][:, None]
    synthetic.infer -= synthetic.size * lag * synthetic.other_head()


def _router(synthetic: SyntheticLog) -> None:
    """Route 5% of the tokens to another expert, which moves their logits by `size` nats."""
    synthetic.flipped = synthetic.rng.random(len(synthetic.train)) < 0.05
    noise = synthetic.rng.normal(size=synthetic.train.shape) * synthetic.size
    synthetic.infer += np.where(synthetic.flipped[:, None], noise, 0)


def _micro_batch(synthetic: SyntheticLog) -> None:
    """Move the PPO ratio before the first update away from 1 by about `size` (see `_score_current`)."""


@dataclass(frozen=True)
class Kind:
    """A fault with the smallest and largest size that a test injects."""

    fault: Fault
    smallest: float
    largest: float


KINDS: dict[str, Kind] = {
    "no_fault": Kind(_no_fault, 0.0, 0.0),
    "frozen": Kind(_frozen, 0.2, 1.0),
    "partial": Kind(_partial, 0.3, 1.0),
    "scrambled": Kind(_scramble_expert, 0.5, 1.0),
    "temperature": Kind(_temperature, 0.6, 0.9),
    "top_p": Kind(_top_p, 0.7, 0.98),
    "top_k": Kind(_top_k, 2.0, 6.0),
    "stale": Kind(_stale, 0.03, 0.15),
    "router": Kind(_router, 0.5, 2.0),
    "micro_batch": Kind(_micro_batch, 1e-3, 3e-2),
}

# Standard deviation of the noise on the logits; |log rho| comes out near 0.3 of it.
NOISE = {"bf16": (0.01, 0.06), "fp8": (0.2, 1.0)}


def generate_log(
    kind: str,
    size: float,
    seed: int,
    *,
    noise: float = 0.02,
    sequences: int = 64,
    length: int = 64,
    steps: int = 8,
    with_update: bool = True,
    old: bool = False,
) -> TokenLog:
    """Return a log with the fault `kind` of `size` in addition to rounding `noise`.

    Args:
        kind: Name in `KINDS`.
        size: Size of the fault, see `KINDS`.
        seed: Seed of the random numbers.
        noise: Standard deviation of the noise on the logits, see `NOISE`.
        sequences: Number of sequences.
        length: Maximum response length, tokens.
        steps: Number of training steps.
        with_update: Whether the log has the column `update`.
        old: Whether sequences are 0 to 3 updates old, also without a fault of staleness.
    """
    fault = lookup(KINDS, kind, "injected fault").fault
    synthetic = _start_log(np.random.default_rng(seed), size, noise, sequences, length, steps)
    if old:
        synthetic.lag = synthetic.rng.integers(0, 4, sequences)
    fault(synthetic)
    rng = synthetic.rng
    chosen = _sample(rng, synthetic.infer)
    picked = np.arange(len(chosen)), chosen
    logp_train, logp_infer = (
        np.maximum(log_softmax(logits)[picked], LOWEST) for logits in (synthetic.train, synthetic.infer)
    )
    rewards = rng.integers(0, 2, sequences).astype(np.float32)
    advantages = np.repeat(2 * rewards - 1, synthetic.lengths)
    update = np.arange(sequences) % 2
    experts_train, experts_infer = _route(synthetic)
    return TokenLog(
        lengths=synthetic.lengths,
        logp_train=logp_train.astype(np.float32),
        logp_infer=logp_infer.astype(np.float32),
        mask=np.ones(len(chosen), bool),
        step=synthetic.step,
        logp=_score_current(synthetic, kind, logp_train, advantages, update).astype(np.float32),
        ids=chosen.astype(np.int32),
        advantages=advantages,
        experts_train=experts_train,
        experts_infer=experts_infer,
        top_k=TOP_K,
        group=np.arange(sequences) // 8,
        rewards=rewards,
        version=synthetic.step - synthetic.lag,
        update=update if with_update else None,
        micro_batch=np.arange(sequences) // 4,
    )


def generate_random_log(kind: str, seed: int) -> tuple[TokenLog, float]:
    """Return a log with a fault of random size and BF16 or FP8 noise, and the size of the fault."""
    rng = np.random.default_rng([seed, 1])
    spec = KINDS[kind]
    log_size = rng.uniform(*np.log(np.maximum((spec.smallest, spec.largest), 1e-9)))
    size = float(np.exp(log_size)) if spec.smallest else 0.0
    noise = float(np.exp(rng.uniform(*np.log(NOISE["fp8" if rng.random() < 0.5 else "bf16"]))))
    with_update, old = rng.random(2) < 0.5
    return generate_log(kind, size, seed, noise=noise, with_update=with_update, old=old), size


def _start_log(
    rng: np.random.Generator, size: float, noise: float, sequences: int, length: int, steps: int
) -> SyntheticLog:
    lengths = rng.integers(length // 2, length + 1, sequences)
    count = int(lengths.sum())
    hidden = rng.normal(size=(count, FEATURES)) * np.exp(rng.normal(2.2, 0.6, (count, 1)))
    train = _logits(hidden, rng.normal(size=(FEATURES, VOCABULARY)))
    # Rounding error depends on the context, which gives a tail heavier than normal.
    spread = noise * np.sqrt(3 / rng.chisquare(5, (count, 1))) * train.std(1, keepdims=True) / 5
    infer = train + spread * rng.normal(size=train.shape)
    # The rounding errors of the head's weights are the same at every token.
    infer = infer + noise * _logits(hidden, rng.normal(size=(FEATURES, VOCABULARY))) / 20
    return SyntheticLog(
        rng=rng,
        size=size,
        lengths=lengths,
        step=np.sort(np.arange(sequences) * steps // sequences),
        hidden=hidden,
        train=train,
        infer=infer,
        lag=np.zeros(sequences, np.int64),
        flipped=rng.random(count) < 0.01,
    )


def _logits(hidden: np.ndarray, head: np.ndarray) -> np.ndarray:
    return hidden @ head / np.sqrt(FEATURES)


def _score_current(
    synthetic: SyntheticLog, kind: str, logp_train: np.ndarray, advantages: np.ndarray, update: np.ndarray
) -> np.ndarray:
    """Return log-probabilities under theta: moved along the advantage after an update, exact before it."""
    rng, headroom = synthetic.rng, -np.expm1(logp_train)
    moved = (
        update[synthetic.sequence] * headroom * (0.02 * advantages + 0.05 * rng.normal(size=len(logp_train)))
    )
    if kind == "micro_batch":
        moved = moved + headroom * synthetic.size * rng.normal(size=len(logp_train))
    return logp_train + np.where(moved == 0, 0, moved)


def _route(synthetic: SyntheticLog) -> tuple[np.ndarray, np.ndarray]:
    count = len(synthetic.train)
    ranks = np.argsort(synthetic.rng.random((count, LAYERS, EXPERTS)), axis=2)
    train, infer = ranks[..., :TOP_K], ranks[..., :TOP_K].copy()
    layer = synthetic.rng.integers(0, LAYERS, count)
    rows = np.flatnonzero(synthetic.flipped)
    infer[rows, layer[rows], 0] = ranks[rows, layer[rows], TOP_K]
    return train.reshape(count, -1).astype(np.int16), infer.reshape(count, -1).astype(np.int16)


def _sample(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    # Gumbel-max trick: one draw per token for any distribution.
    return np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
