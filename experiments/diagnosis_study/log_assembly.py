"""Logs of real size from the contexts of a pool: inference engine, loader and training engine, with faults.

A response is a sequence of the pool, or chains contexts to thousands of tokens. A wide head splits each of
simlab's 32 tokens into up to 64, and a table maps these to up to 100,000 ids. The token is drawn from the
logits of the inference engine and both engines score it.
"""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from scipy.special import log_softmax

from experiments.diagnosis_study.forward_passes import Pass, Pool
from simlab.diagnosis.log import LOWEST, Sequences, TokenLog, index_tokens
from simlab.tasks import EOS_TOKEN_ID

LENGTHS = (30, 10_000)
TOKENS = (250, 12_000)
VOCABULARY = 100_000
LAB_VOCABULARY = 32
SPLITS = (1, 1, 4, 16, 64)
LOGITS = 2_000_000
"""Number of logits of an engine that a log may hold in memory."""
GROUP = 8
NATURAL, BARE, SCALED, COARSE = 0.4, 0.35, 0.6, 0.5
"""Fractions of logs: of unchained responses, without optional columns, of other noise, of BF16 logits."""


@dataclass(frozen=True)
class WideHead:
    """A head that splits each of simlab's tokens: logit + hidden x `rows` + `prior`, times `sharpness`.

    - `rows` [D, V x splits], `prior` [splits]: less probable splits are rarer, as in a real vocabulary.
    """

    rows: np.ndarray
    prior: np.ndarray
    sharpness: float

    def read(self, forward: Pass, context: np.ndarray) -> np.ndarray:
        """Return logits [N, V x splits] at contexts [N]."""
        splits = len(self.prior)
        logits = forward.logits[context]
        if splits > 1:
            logits = np.repeat(logits, splits, axis=1) + np.tile(self.prior, logits.shape[1])
            logits += forward.hidden[context] @ self.rows
            end = EOS_TOKEN_ID * splits
            logits[:, end + 1 : end + splits] = -40
        return logits * self.sharpness


def log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    """Draw from a uniform distribution over the logarithm."""
    return float(np.exp(rng.uniform(*np.log(limits))))


def make_head(rng: np.random.Generator, pool: Pool, splits: int) -> WideHead:
    """Return a head with `splits` tokens for each of simlab's."""
    width = pool.reference.hidden.shape[1]
    scale = rng.uniform(0.5, 2.0) / (np.sqrt(width) * pool.reference.hidden.std())
    rows = scale * rng.normal(size=(width, LAB_VOCABULARY * splits))
    prior = -rng.uniform(0.5, 1.5) * np.log(1 + np.arange(splits))
    sharpness = float(rng.uniform(0.6, 1.8))
    return WideHead(rows.astype(np.float32), prior.astype(np.float32), sharpness)


@dataclass
class LogDraft(Sequences):
    """A log under construction: logits [N, V] of both engines, where the tokens are, columns by name."""

    pool: Pool
    rng: np.random.Generator
    size: float
    context: np.ndarray
    bucket: np.ndarray
    buckets: int
    lengths: np.ndarray
    step: np.ndarray
    head: WideHead
    train: np.ndarray
    infer: np.ndarray
    bare: bool
    token: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    logp_train: np.ndarray = field(default_factory=lambda: np.zeros(0))
    logp_infer: np.ndarray = field(default_factory=lambda: np.zeros(0))
    columns: dict[str, np.ndarray | None] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Number of logits per token."""
        return self.train.shape[1]

    @property
    def end(self) -> int:
        """Index of the end token among the logits."""
        return EOS_TOKEN_ID * len(self.head.prior)

    @property
    def hidden(self) -> np.ndarray:
        """Hidden states of the tokens' contexts, [N, D]."""
        return self.pool.reference.hidden[self.context]

    def read(self, forward: Pass, context: np.ndarray | None = None) -> np.ndarray:
        """Return the logits [N, V] of a forward pass, at the tokens' contexts or at others."""
        return self.head.read(forward, self.context if context is None else context)

    def change(self, fault: str, nats: float | None = None) -> np.ndarray:
        """Return what the faulty forward pass adds to the logits of these tokens, [N, V].

        Args:
            fault: Name of the forward pass.
            nats: RMS change of the sampled token's log-probability to scale it to, at most 1.5-fold.
        """
        change = self.read(self.pool.faults[fault]) - self.read(self.pool.reference)
        if nats is None:
            return change
        rows = slice(0, 4000)
        probs, part = np.exp(log_softmax(self.infer[rows], axis=1)), change[rows]
        variance = np.sum(probs * part**2, 1) - np.sum(probs * part, 1) ** 2
        change *= min(1.5, nats / (np.sqrt(max(0.0, float(variance.mean()))) + 1e-9))
        return change

    def move(self, fault: str, nats: float | None = None, weight: float | np.ndarray = 1) -> None:
        """Add `weight` times the `change` by a fault to the inference engine's logits.

        Args:
            fault: Name of the forward pass.
            nats: See `change`.
            weight: A number, or one per token, [N, 1].
        """
        self.infer = self.infer + weight * self.change(fault, nats)

    def candidate_ids(self) -> np.ndarray:
        """Return the ids that the logits belong to, [N, V], in a vocabulary of V x `buckets`."""
        return self.bucket[:, None] * self.width + np.arange(self.width)

    def ids(self, tokens: np.ndarray) -> np.ndarray:
        """Return ids of tokens [N]; the end token has one id."""
        return np.where(tokens == self.end, self.end, self.bucket * self.width + tokens)


def start_draft(pool: Pool, rng: np.random.Generator, size: float, engines: tuple[str, str]) -> LogDraft:
    """Choose contexts, lengths, vocabulary and sharpness; take the logits of a train and an infer engine."""
    context, lengths = _natural_contexts(pool, rng) if rng.random() < NATURAL else _chain(pool, rng)
    total, count = len(context), len(lengths)
    allowed = [splits for splits in SPLITS if total * LAB_VOCABULARY * splits <= LOGITS]
    splits = int(rng.choice(allowed))
    buckets = round(np.exp(rng.uniform(0, np.log(VOCABULARY / (LAB_VOCABULARY * splits)))))
    ranks = np.minimum(rng.pareto(1.0, total) * 2, buckets - 1).astype(np.int64)
    head = make_head(rng, pool, splits)
    steps = min(count, int(rng.choice([1, 1, 4, 6, 8, 16])))
    draft = LogDraft(
        pool=pool,
        rng=rng,
        size=size,
        context=context,
        bucket=ranks,
        buckets=buckets,
        lengths=lengths,
        step=np.sort(np.arange(count) * steps // count),
        head=head,
        train=np.zeros((0, LAB_VOCABULARY * splits)),
        infer=np.zeros(0),
        bare=bool(rng.random() < BARE),
    )
    _run_engines(draft, engines)
    return draft


def _run_engines(draft: LogDraft, engines: tuple[str, str]) -> None:
    """Set both engines' logits: with noise of another size, uneven over the tokens, or on BF16 logits."""
    rng, reference = draft.rng, draft.read(draft.pool.reference)
    gain = np.ones((len(draft.context), 1), np.float32)
    if rng.random() < SCALED:
        drift = rng.normal(0, 0.25) * (draft.index / draft.lengths.max() - 0.5)
        rows = np.abs(rng.normal(0, 0.15)) * rng.normal(size=len(draft.lengths))[draft.sequence]
        gain = np.exp(rng.uniform(np.log(0.3), np.log(4)) + drift + rows).astype(np.float32)[:, None]
    coarse, offset = rng.random() < COARSE, np.float32(rng.uniform(0, 24))
    both = []
    for name in engines:
        logits = reference + gain * (draft.read(draft.pool.engines[name]) - reference)
        if coarse and "bf16" in name and "fp32head" not in name:
            logits = (logits + offset).astype(ml_dtypes.bfloat16).astype(np.float32) - offset
        both.append(logits)
    draft.train, draft.infer = both


def _natural_contexts(pool: Pool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return contexts and lengths of complete responses of the pool."""
    begins = np.flatnonzero(pool.index == 0)
    lengths = np.diff(np.append(begins, len(pool.index)))
    count = max(8, int(log_uniform(rng, TOKENS) / lengths.mean() / GROUP) * GROUP)
    chosen = rng.integers(0, len(begins), count)
    return np.repeat(begins[chosen], lengths[chosen]) + index_tokens(lengths[chosen]), lengths[chosen]


def _chain(pool: Pool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return contexts and lengths of long responses: contexts follow each other as they do in the pool."""
    longest, budget = log_uniform(rng, LENGTHS), log_uniform(rng, TOKENS)
    least = int(rng.choice([8, 16, 24, 64]))
    count = max(least, int(budget / longest / GROUP) * GROUP)
    longest = max(LENGTHS[0], min(longest, 2 * budget / count))
    lengths = np.maximum(8, (longest * rng.uniform(rng.uniform(0.3, 0.9), 1.1, count)).astype(np.int64))
    begins = np.flatnonzero(pool.index == 0)
    begin, count_contexts = rng.choice(begins, count), len(pool.index)
    ends = np.append(begins[1:], count_contexts) - 1
    last = (begin + lengths - 1) % count_contexts
    lengths = lengths + ends[np.searchsorted(ends, last)] - last
    context = (np.repeat(begin, lengths) + index_tokens(lengths)) % count_contexts
    # Only the last token of a response is an end token.
    inner = np.arange(len(context)) != np.repeat(np.cumsum(lengths) - 1, lengths)
    kept = ~(inner & np.isin(context, ends))
    return context[kept], np.bincount(np.repeat(np.arange(count), lengths)[kept], minlength=count)


def pick_scores(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the log-probabilities [N] of tokens [N] without a table of all of them."""
    peak = logits.max(1)
    total = np.log(np.exp(logits - peak[:, None]).sum(1, dtype=np.float64))
    return logits[np.arange(len(tokens)), tokens] - peak - total


def draw_tokens(draft: LogDraft) -> None:
    """Sample from the inference engine's logits; score in both. Responses end with the end token."""
    exponential = draft.rng.standard_exponential(draft.infer.shape, np.float32)
    draft.token = np.argmax(draft.infer - np.log(exponential + np.float32(1e-30)), axis=1)
    last = draft.from_end == 0
    is_possible = np.isfinite(draft.infer[last, draft.end])
    draft.token[last] = np.where(is_possible, draft.end, draft.token[last])
    draft.logp_train = pick_scores(draft.train, draft.token)
    draft.logp_infer = pick_scores(draft.infer, draft.token)


def finish_log(draft: LogDraft) -> TokenLog:
    """Return the log with the optional columns that this run happens to write."""
    rng, count = draft.rng, len(draft.lengths)
    optional = {
        "ids": draft.ids(draft.token).astype(np.int32),
        "group": np.arange(count) // GROUP,
        "rewards": rng.integers(0, 2, count).astype(np.float32),
        "micro_batch": np.arange(count) // 4,
    }
    if rng.random() < 0.4:
        optional["version"] = draft.step.copy()
    if rng.random() < 0.4:
        optional |= current_scores(draft)
    if draft.pool.experts is not None and rng.random() < 0.5:
        optional |= move_experts(draft, rng.random(len(draft.context)) < 0.01)
    often = {"ids": 0.8} if draft.bare else dict.fromkeys(optional, 0.8)
    kept = {name: value for name, value in optional.items() if rng.random() < often.get(name, 0.0)}
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


def current_scores(draft: LogDraft, before: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return `logp` after 0 or 1 updates and `update`: equal to `logp_train` before the first."""
    update = np.arange(len(draft.lengths)) % 2
    after = pick_scores(draft.train - 0.3 * draft.change("old 1"), draft.token)
    unchanged = draft.logp_train if before is None else before
    logp = np.where((update == 1)[draft.sequence], after, unchanged)
    return {"logp": np.clip(logp, LOWEST, 0).astype(np.float32), "update": update}


def move_experts(draft: LogDraft, moved: np.ndarray) -> dict[str, np.ndarray]:
    """Return the experts of both engines; the second one differs for the `moved` tokens [N]."""
    assert draft.pool.experts is not None
    experts = draft.pool.experts[draft.context]
    other = experts.copy()
    rows = np.flatnonzero(moved)
    other[rows, 1] = (other[rows, 0] + 1 + draft.rng.integers(0, 6, len(rows))) % 8
    return {"experts_train": experts, "experts_infer": other}
