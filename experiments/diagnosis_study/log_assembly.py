"""Logs of real size from the contexts of a pool: sampler, loader and trainer, each with its faults.

A response chains contexts of the pool; a table maps each of the lab's 32 tokens to thousands of ids. The
token is drawn from the logits of the inference engine, as a sampler does, and both engines score it.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.diagnosis_study.forward_passes import INFER_ENGINES, TRAIN_ENGINES, Pool
from simlab.diagnosis.log import LOWEST, TokenLog
from simlab.tasks import EOS_TOKEN_ID

LENGTHS = (30, 10_000)
TOKENS = (500, 30_000)
BUCKETS = (1, 3200)
GROUP = 8


@dataclass
class Draft:
    """A log under construction: logits [N, V] of both engines, the tokens' places, columns by name."""

    pool: Pool
    rng: np.random.Generator
    size: float
    context: np.ndarray
    bucket: np.ndarray
    buckets: int
    lengths: np.ndarray
    step: np.ndarray
    train: np.ndarray
    infer: np.ndarray
    sharpness: float
    token: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    logp_train: np.ndarray = field(default_factory=lambda: np.zeros(0))
    logp_infer: np.ndarray = field(default_factory=lambda: np.zeros(0))
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def sequence(self) -> np.ndarray:
        """Sequence of each token, [N]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def index(self) -> np.ndarray:
        """Index of each token in its response, [N]."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.context)) - np.repeat(starts, self.lengths)

    @property
    def from_end(self) -> np.ndarray:
        """Tokens that follow each token in its response, [N]."""
        return self.lengths[self.sequence] - 1 - self.index

    def change(self, fault: str, nats: float | None = None) -> np.ndarray:
        """Return what the faulty forward pass adds to the logits of these tokens, [N, V].

        Args:
            fault: Name of the forward pass.
            nats: RMS change of the sampled token's log-probability to scale it to, at most 1.5-fold.
        """
        pool = self.pool
        change = (pool.faults[fault][self.context] - pool.reference[self.context]) * self.sharpness
        if nats is None:
            return change
        rows = slice(0, 4000)
        probs, part = np.exp(log_softmax(self.infer[rows])), change[rows]
        variance = np.sum(probs * part**2, 1) - np.sum(probs * part, 1) ** 2
        return change * min(1.5, nats / (np.sqrt(max(0.0, float(variance.mean()))) + 1e-9))

    def ids(self, tokens: np.ndarray) -> np.ndarray:
        """Return ids of the lab's tokens [N] in a vocabulary of 32 x `buckets`; the end token has one id."""
        return np.where(tokens == EOS_TOKEN_ID, EOS_TOKEN_ID, self.bucket * 32 + tokens)


def start_draft(pool: Pool, rng: np.random.Generator, size: float, engines: tuple[str, str]) -> Draft:
    """Choose contexts, lengths, vocabulary and sharpness; take the logits of a train and an infer engine."""
    longest = float(np.exp(rng.uniform(*np.log(LENGTHS))))
    budget = float(np.exp(rng.uniform(*np.log(TOKENS))))
    least = int(rng.choice([8, 16, 24, 64]))
    count = max(least, int(budget / longest / GROUP) * GROUP)
    longest = max(LENGTHS[0], min(longest, 2 * budget / count))
    lengths = np.maximum(8, (longest * rng.uniform(rng.uniform(0.3, 0.9), 1.1, count)).astype(np.int64))
    # Contexts follow each other as they do in the pool, from the begin of a sequence to the end of one.
    begins = np.flatnonzero(pool.index == 0)
    begin, count_contexts = rng.choice(begins, count), len(pool.index)
    ends = np.append(begins[1:], count_contexts) - 1
    last = (begin + lengths - 1) % count_contexts
    lengths = lengths + ends[np.searchsorted(ends, last)] - last
    context = (np.repeat(begin, lengths) + _arange(lengths)) % count_contexts
    # Only the last token of a response is an end token.
    inner = np.arange(len(context)) != np.repeat(np.cumsum(lengths) - 1, lengths)
    kept = ~(inner & np.isin(context, ends))
    lengths = np.bincount(np.repeat(np.arange(count), lengths)[kept], minlength=count)
    context, total = context[kept], int(kept.sum())
    buckets = round(np.exp(rng.uniform(*np.log(BUCKETS))))
    ranks = np.minimum(rng.pareto(1.0, total) * 2, buckets - 1).astype(np.int64)
    sharpness = float(rng.uniform(1.0, 1.8))
    steps = int(rng.choice([1, 4, 8, 16]))
    train, infer = (pool.engines[name][context] * sharpness for name in engines)
    return Draft(
        pool=pool,
        rng=rng,
        size=size,
        context=context,
        bucket=ranks,
        buckets=buckets,
        lengths=lengths,
        step=np.sort(np.arange(count) * steps // count),
        train=train,
        infer=infer,
        sharpness=sharpness,
    )


def _arange(lengths: np.ndarray) -> np.ndarray:
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities [N, V]; -inf stays."""
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def draw_tokens(draft: Draft) -> None:
    """Sample from the inference engine's logits; score in both. Responses end with the end token."""
    noise = draft.rng.gumbel(size=draft.infer.shape)
    draft.token = np.argmax(draft.infer + noise, axis=1)
    draft.token[draft.from_end == 0] = np.where(
        np.isfinite(draft.infer[draft.from_end == 0, EOS_TOKEN_ID]),
        EOS_TOKEN_ID,
        draft.token[draft.from_end == 0],
    )
    rows = np.arange(len(draft.token))
    draft.logp_train = log_softmax(draft.train)[rows, draft.token]
    draft.logp_infer = log_softmax(draft.infer)[rows, draft.token]


def finish_log(draft: Draft) -> TokenLog:
    """Return the log with the optional columns that this run happens to write."""
    rng, count = draft.rng, len(draft.lengths)
    optional: dict[str, Any] = {
        "ids": draft.ids(draft.token).astype(np.int32),
        "group": np.arange(count) // GROUP,
        "rewards": rng.integers(0, 2, count).astype(np.float32),
        "micro_batch": np.arange(count) // 4,
    }
    if rng.random() < 0.4:
        optional["version"] = draft.step.copy()
    if rng.random() < 0.4:
        optional |= _score_current(draft)
    if draft.pool.experts is not None and rng.random() < 0.5:
        optional |= _route(draft)
    kept = {name: value for name, value in optional.items() if rng.random() < 0.8}
    kept |= draft.columns
    return TokenLog(
        lengths=draft.lengths,
        logp_train=np.clip(draft.logp_train, LOWEST, 0).astype(np.float32),
        logp_infer=np.clip(draft.logp_infer, LOWEST, 0).astype(np.float32),
        mask=np.ones(len(draft.token), bool),
        step=draft.step,
        top_k=2,
        **kept,
    )


def current_scores(draft: Draft, before: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return `logp` after 0 or 1 updates and `update`: equal to `logp_train` before the first."""
    update = np.arange(len(draft.lengths)) % 2
    rows = np.arange(len(draft.token))
    after = log_softmax(draft.train - 0.3 * draft.change("old 1"))[rows, draft.token]
    unchanged = draft.logp_train if before is None else before
    logp = np.where((update == 1)[draft.sequence], after, unchanged)
    return {"logp": np.clip(logp, LOWEST, 0).astype(np.float32), "update": update}


def _score_current(draft: Draft) -> dict[str, np.ndarray]:
    return current_scores(draft)


def _route(draft: Draft, moved: np.ndarray | None = None) -> dict[str, np.ndarray]:
    assert draft.pool.experts is not None
    experts = draft.pool.experts[draft.context]
    other = experts.copy()
    rows = np.flatnonzero(draft.rng.random(len(other)) < 0.01 if moved is None else moved)
    other[rows, 1] = (other[rows, 0] + 1 + draft.rng.integers(0, 6, len(rows))) % 8
    return {"experts_train": experts, "experts_infer": other}


def route_moved(draft: Draft) -> dict[str, np.ndarray]:
    """Return the experts of both engines with the flips of the pool's `routing` forward pass."""
    assert draft.pool.flipped is not None
    return _route(draft, draft.pool.flipped[draft.context])


def random_engines(rng: np.random.Generator, held_out: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return a train and an inference engine; one of `held_out` if there are any."""
    return str(rng.choice(TRAIN_ENGINES)), str(rng.choice(held_out or INFER_ENGINES))
