"""Logs of runs that never were, with a fault of known kind and size: what the detectors are tested on.

Contexts have hidden features, a head turns them into logits, one sampler draws a token; the two engines
differ in the head and by noise on the logits. Nothing here is a language model, but the probabilities are as
peaked as those of one (about 70% of the tokens above 0.9).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simlab.core.catalog import lookup
from simlab.diagnosis.log import LOWEST, TokenLog

FEATURES, VOCABULARY = 8, 32
LAYERS, TOP_K, EXPERTS = 4, 2, 8


@dataclass
class World:
    """A log in the making: `train` and `infer` are logits [N, V] under the two engines."""

    rng: np.random.Generator
    size: float
    lengths: np.ndarray
    step: np.ndarray
    sequence: np.ndarray
    hidden: np.ndarray
    train: np.ndarray
    infer: np.ndarray
    lag: np.ndarray
    flipped: np.ndarray

    def progress(self) -> np.ndarray:
        """How far the run is at each token, 0 to 1, [N, 1]."""
        return (self.step / max(1, self.step.max()))[self.sequence][:, None]

    def other_head(self) -> np.ndarray:
        """Logits [N, V] of a change of the head as large as the head."""
        return _logits(self.hidden, self.rng.normal(size=(FEATURES, VOCABULARY)))

    def sharpness(self) -> np.ndarray:
        """Spread of each context's logits [N, 1]."""
        return self.train.std(1, keepdims=True)


Fault = Callable[[World], None]


def _honest(world: World) -> None:
    """Nothing but rounding."""


def _frozen(world: World) -> None:
    """The engine keeps its first weights: at the last step the head differs by `size` of itself."""
    world.infer = world.infer + world.size * world.progress() * world.other_head()


def _partial(world: World) -> None:
    """A quarter of the head's rows did not arrive and are `size` away from those of the trainer."""
    late = world.rng.random(VOCABULARY) < 0.25
    world.infer = world.infer + world.size * late * world.other_head()


def _scrambled(world: World) -> None:
    """One expert is garbage: a tenth of the contexts get logits that are `size` parts something else."""
    hit = world.rng.random((len(world.train), 1)) < 0.1
    world.infer = np.where(hit, (1 - world.size) * world.infer + world.size * world.other_head(), world.infer)


def _temperature(world: World) -> None:
    """Sampled, and scored, at temperature `size`; the trainer scores at 1."""
    world.infer = world.infer / world.size


def _top_p(world: World) -> None:
    """Sampled, and scored, among the likeliest tokens that hold `size` of the mass."""
    probs = _softmax(world.infer)
    order = np.argsort(-probs, axis=1)
    ranked = np.take_along_axis(probs, order, 1)
    kept = np.cumsum(ranked, 1) - ranked < world.size
    inside = np.empty_like(kept)
    np.put_along_axis(inside, order, kept, 1)
    world.infer = np.where(inside, world.infer, -np.inf)


def _top_k(world: World) -> None:
    """Sampled, and scored, among the `size` likeliest tokens."""
    least = -np.sort(-world.infer, axis=1)[:, [round(world.size) - 1]]
    world.infer = np.where(world.infer >= least, world.infer, -np.inf)


def _stale(world: World) -> None:
    """Each update moves the head by `size` of itself, and sequences were sampled 0 to 3 updates ago."""
    world.lag = world.rng.integers(0, 4, len(world.lengths))
    world.infer = world.infer - world.size * world.lag[world.sequence][:, None] * world.other_head()


def _router(world: World) -> None:
    """5% of the tokens go to another expert, which moves their logits by `size` nats."""
    world.flipped = world.rng.random(len(world.train)) < 0.05
    noise = world.rng.normal(size=world.train.shape) * world.size
    world.infer = world.infer + np.where(world.flipped[:, None], noise, 0)


def _micro_batch(world: World) -> None:
    """The policy ratio is not 1 before the first update: off by about `size` (see `_current`)."""


@dataclass(frozen=True)
class Kind:
    """A fault, and the smallest and largest size that a test plants."""

    fault: Fault
    smallest: float
    largest: float


KINDS: dict[str, Kind] = {
    "honest": Kind(_honest, 0.0, 0.0),
    "frozen": Kind(_frozen, 0.2, 1.0),
    "partial": Kind(_partial, 0.3, 1.0),
    "scrambled": Kind(_scrambled, 0.5, 1.0),
    "temperature": Kind(_temperature, 0.6, 0.9),
    "top_p": Kind(_top_p, 0.7, 0.98),
    "top_k": Kind(_top_k, 2.0, 6.0),
    "stale": Kind(_stale, 0.03, 0.15),
    "router": Kind(_router, 0.5, 2.0),
    "micro_batch": Kind(_micro_batch, 1e-3, 3e-2),
}

# Standard deviation of the noise on the logits; |log rho| comes out near 0.3 of it.
NOISE = {"bf16": (0.01, 0.06), "fp8": (0.2, 1.0)}


def planted(
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
    """Return a log with the fault `kind` of `size` on top of rounding `noise` (see `KINDS`, `NOISE`).

    `length` is the longest response; `with_update` false leaves out the column `update`;
    with `old` sequences were sampled 0 to 3 updates ago, whether that matters or not.
    """
    fault = lookup(KINDS, kind, "planted fault").fault
    world = _world(np.random.default_rng(seed), size, noise, sequences, length, steps)
    if old:
        world.lag = world.rng.integers(0, 4, sequences)
    fault(world)
    rng = world.rng
    chosen = _sampled(rng, world.infer)
    picked = np.arange(len(chosen)), chosen
    logp_train, logp_infer = (
        np.maximum(_log_softmax(logits)[picked], LOWEST) for logits in (world.train, world.infer)
    )
    rewards = rng.integers(0, 2, sequences).astype(np.float32)
    advantages = np.repeat(2 * rewards - 1, world.lengths)
    update = np.arange(sequences) % 2
    experts_train, experts_infer = _experts(world)
    return TokenLog(
        lengths=world.lengths,
        logp_train=logp_train.astype(np.float32),
        logp_infer=logp_infer.astype(np.float32),
        mask=np.ones(len(chosen), bool),
        step=world.step,
        logp=_current(world, kind, logp_train, advantages, update).astype(np.float32),
        ids=chosen.astype(np.int32),
        advantages=advantages,
        experts_train=experts_train,
        experts_infer=experts_infer,
        top_k=TOP_K,
        group=np.arange(sequences) // 8,
        rewards=rewards,
        version=world.step - world.lag,
        update=update if with_update else None,
        micro_batch=np.arange(sequences) // 4,
    )


def random_log(kind: str, seed: int) -> tuple[TokenLog, float]:
    """Return a log with a fault of random size, over BF16 or FP8 noise of random size, and the fault's."""
    rng = np.random.default_rng([seed, 1])
    which = KINDS[kind]
    drawn = rng.uniform(*np.log(np.maximum((which.smallest, which.largest), 1e-9)))
    size = float(np.exp(drawn)) if which.smallest else 0.0
    noise = float(np.exp(rng.uniform(*np.log(NOISE["fp8" if rng.random() < 0.5 else "bf16"]))))
    with_update, old = rng.random(2) < 0.5
    return planted(kind, size, seed, noise=noise, with_update=with_update, old=old), size


def _world(
    rng: np.random.Generator, size: float, noise: float, sequences: int, length: int, steps: int
) -> World:
    lengths = rng.integers(length // 2, length + 1, sequences)
    count = int(lengths.sum())
    hidden = rng.normal(size=(count, FEATURES)) * np.exp(rng.normal(2.2, 0.6, (count, 1)))
    train = _logits(hidden, rng.normal(size=(FEATURES, VOCABULARY)))
    # Some contexts round worse than others: a tail heavier than normal.
    spread = noise * np.sqrt(3 / rng.chisquare(5, (count, 1))) * train.std(1, keepdims=True) / 5
    infer = train + spread * rng.normal(size=train.shape)
    # The head's rounded weights are wrong in the same way at every token.
    infer = infer + noise * _logits(hidden, rng.normal(size=(FEATURES, VOCABULARY))) / 20
    return World(
        rng=rng,
        size=size,
        lengths=lengths,
        step=np.sort(np.arange(sequences) * steps // sequences),
        sequence=np.repeat(np.arange(sequences), lengths),
        hidden=hidden,
        train=train,
        infer=infer,
        lag=np.zeros(sequences, np.int64),
        flipped=rng.random(count) < 0.01,
    )


def _logits(hidden: np.ndarray, head: np.ndarray) -> np.ndarray:
    return hidden @ head / np.sqrt(FEATURES)


def _current(
    world: World, kind: str, logp_train: np.ndarray, advantages: np.ndarray, update: np.ndarray
) -> np.ndarray:
    """Log-probabilities at theta: moved along the advantage after an update, exact before it."""
    rng, room = world.rng, -np.expm1(logp_train)
    moved = update[world.sequence] * room * (0.02 * advantages + 0.05 * rng.normal(size=len(logp_train)))
    if kind == "micro_batch":
        moved = moved + room * world.size * rng.normal(size=len(logp_train))
    return logp_train + np.where(moved == 0, 0, moved)


def _experts(world: World) -> tuple[np.ndarray, np.ndarray]:
    count = len(world.train)
    ranks = np.argsort(world.rng.random((count, LAYERS, EXPERTS)), axis=2)
    train, infer = ranks[..., :TOP_K], ranks[..., :TOP_K].copy()
    layer = world.rng.integers(0, LAYERS, count)
    rows = np.flatnonzero(world.flipped)
    infer[rows, layer[rows], 0] = ranks[rows, layer[rows], TOP_K]
    return train.reshape(count, -1).astype(np.int16), infer.reshape(count, -1).astype(np.int16)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def _softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(_log_softmax(logits))


def _sampled(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    # Gumbel's trick: one draw per token, whatever the law.
    return np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
