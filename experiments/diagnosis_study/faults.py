"""The faults by cause: each changes a draft where the real fault acts, or the finished log of the loader."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from experiments.diagnosis_study.forward_passes import GAPS, ROPE_FACTORS, UPDATES, Pool
from experiments.diagnosis_study.log_assembly import (
    Draft,
    current_scores,
    draw_tokens,
    finish_log,
    log_softmax,
    random_engines,
    route_moved,
    start_draft,
)
from simlab.diagnosis.log import LOWEST, TokenLog
from simlab.tasks import EOS_TOKEN_ID

Change = Callable[[Draft], None]


@dataclass(frozen=True)
class Fault:
    """A variant of a cause.

    `forward` changes logits before sampling, `score` changes what is logged after it. `held_out` variants
    are for the test only.
    """

    cause: str
    forward: Change | None = None
    score: Change | None = None
    held_out: bool = False
    needs_experts: bool = False


def _old_age(draft: Draft) -> str:
    return f"old {1 + round(draft.size * (UPDATES - 1))}"


def _uniform(draft: Draft, low: float, high: float) -> float:
    """Return the size of the fault, 0 to 1, on a scale from `low` to `high`."""
    return low + draft.size * (high - low)


def _nats(draft: Draft, low: float = 0.03, high: float = 0.7) -> float:
    """Return the size of the fault on a logarithmic scale, nats per token."""
    return float(low * (high / low) ** draft.size)


# The forward pass


def _old_weights(draft: Draft) -> None:
    draft.infer = draft.infer + draft.change("old 4", _nats(draft))


def _frozen(draft: Draft) -> None:
    steps = max(8, len(np.unique(draft.step)))
    draft.step = np.arange(len(draft.lengths)) * steps // len(draft.lengths)
    progress = (draft.step / draft.step.max())[draft.sequence][:, None]
    draft.infer = draft.infer + progress * draft.change("old 5", 2 * _nats(draft))


def _layer(name: str) -> Change:
    def change(draft: Draft) -> None:
        draft.infer = draft.infer + draft.change(name, _nats(draft))

    return change


def _head_rows(draft: Draft) -> None:
    """Leave rows of the head or a shard of them at other values: a fixed offset per id."""
    width, count = draft.pool.hidden.shape[1], 32 * draft.buckets
    rng = draft.rng
    if rng.random() < 0.5:
        late = rng.random(count) < rng.choice([0.1, 0.25, 0.5])
    else:
        parts = int(rng.choice([2, 4, 8]))
        late = np.arange(count) * parts // count == rng.integers(parts)
    scale = _nats(draft, 0.15, 1.2)
    direction = rng.normal(size=width) / np.sqrt(width)
    row = scale * rng.normal(size=count) * late
    ids = draft.bucket[:, None] * 32 + np.arange(32)
    hidden = draft.pool.hidden[draft.context]
    along = hidden @ direction / hidden.std()
    draft.infer = draft.infer + row[ids] * (1 + 0.3 * along[:, None])


def _one_worker(layout: str) -> Change:
    def change(draft: Draft) -> None:
        count, workers = len(draft.lengths), int(draft.rng.choice([2, 4, 8, 16]))
        workers = min(workers, count // 3)
        rows = np.arange(count)
        worker = rows % workers if layout == "stride" else rows * workers // count
        bad = worker == draft.rng.integers(workers)
        change = draft.change(str(draft.rng.choice(["old 5", "layer old"])), _nats(draft, 0.05, 0.9))
        draft.infer = draft.infer + bad[draft.sequence][:, None] * change
        if draft.rng.random() < 0.3:
            draft.columns["worker"] = worker

    return change


def _stale(with_version: bool, within: bool = False) -> Change:
    def change(draft: Draft) -> None:
        lag = draft.rng.integers(0, 5, len(draft.lengths))
        age = lag[draft.sequence].astype(float)
        if within:
            # A partial rollout continues under newer weights.
            age = age * (draft.index < draft.lengths[draft.sequence] * 0.5)
        nats = _nats(draft, 0.03, 0.4)
        moved = sum((age == k)[:, None] * draft.change(f"old {k}", k / 2 * nats) for k in range(1, 5))
        draft.infer = draft.infer + moved
        if with_version:
            draft.columns["version"] = draft.step - lag

    return change


def _jump(draft: Draft) -> None:
    """Give other positions to the tokens after an index."""
    gap = GAPS[min(len(GAPS) - 1, int(draft.size * len(GAPS)))]
    place = draft.rng.uniform(0.15, 0.7) * draft.lengths.max()
    draft.infer = draft.infer + (draft.index >= place)[:, None] * draft.change(f"gap {gap}", _nats(draft))


def _grows(draft: Draft) -> None:
    """Give other rotations whose error grows with the index, as a wrong rope scaling does."""
    place = draft.index / draft.lengths.max()
    level = np.clip((place * len(ROPE_FACTORS)).astype(int), 0, len(ROPE_FACTORS) - 1)
    for number, factor in enumerate(ROPE_FACTORS):
        nats = (number + 0.3) / 2 * _nats(draft)
        draft.infer = draft.infer + (level == number)[:, None] * draft.change(f"rope {factor}", nats)


def _blocks(draft: Draft) -> None:
    """Lose the context at the first token of each block of the cache."""
    block = int(draft.rng.choice([16, 32, 64, 128, 256]))
    while block > 16 and block * 3 > draft.lengths.max():
        block //= 2
    at = (draft.index % block < max(1, block // 32)) & (draft.index > 0)
    gap = draft.change("gap 4", _nats(draft, 0.2, 2)) + draft.change("prompt end", _nats(draft, 0.2, 2))
    draft.infer = draft.infer + at[:, None] * gap


def _prompt(name: str) -> Change:
    def change(draft: Draft) -> None:
        reach = draft.rng.choice([1, 4, 8, 16, 32])
        near = np.exp(-draft.index / reach)[:, None]
        draft.infer = draft.infer + near * draft.change(name, _nats(draft, 0.2, 2))

    return change


def _dropout(rate: float) -> Change:
    def change(draft: Draft) -> None:
        draft.train = draft.train + _uniform(draft, 0.6, 1.2) * draft.change(f"dropout {rate}")

    return change


def _routing(draft: Draft) -> None:
    draft.infer = draft.infer + _uniform(draft, 0.7, 1.8) * draft.change("routing")
    if draft.rng.random() < 0.5:
        draft.columns |= route_moved(draft)


def _wrong_page(draft: Draft) -> None:
    """Read cache pages of other sequences: confident answers to another context."""
    run = int(draft.rng.choice([1, 4, 16, 64]))
    rate = 10 ** _uniform(draft, -2.5, -1.3)
    count = len(draft.context)
    starts = draft.rng.random(count) < rate / run
    hit = np.convolve(starts, np.ones(run), "full")[:count] > 0
    other = draft.rng.integers(0, len(draft.pool.index), count)
    strange = draft.pool.engines["bf16"][other] * draft.sharpness
    draft.infer = np.where(hit[:, None], strange, draft.infer)


# The sampler


def _temperature(draft: Draft) -> None:
    cold = draft.rng.random() < 0.7
    draft.infer = draft.infer / (_uniform(draft, 0.93, 0.5) if cold else _uniform(draft, 1.08, 1.6))


def _temperature_in_training(draft: Draft) -> None:
    draft.train = draft.train / _uniform(draft, 0.9, 0.6)


def _top_p(draft: Draft) -> None:
    probs = np.exp(log_softmax(draft.infer))
    order = np.argsort(-probs, axis=1)
    ranked = np.take_along_axis(probs, order, 1)
    kept = np.cumsum(ranked, 1) - ranked < _uniform(draft, 0.98, 0.6)
    inside = np.empty_like(kept)
    np.put_along_axis(inside, order, kept, 1)
    draft.infer = np.where(inside, draft.infer, -np.inf)


def _top_k(draft: Draft) -> None:
    # Of 32 tokens as many as 20 to 100 of a real vocabulary.
    k = round(_uniform(draft, 6, 2))
    least = -np.sort(-draft.infer, axis=1)[:, [k - 1]]
    draft.infer = np.where(draft.infer >= least, draft.infer, -np.inf)


def _min_p(draft: Draft) -> None:
    probs = np.exp(log_softmax(draft.infer))
    kept = probs >= _uniform(draft, 0.03, 0.3) * probs.max(1, keepdims=True)
    draft.infer = np.where(kept, draft.infer, -np.inf)


def _end_logit(in_training: bool) -> Change:
    """Move the end token's logit in one engine: another end token, or a minimum length."""

    def change(draft: Draft) -> None:
        offset = -_uniform(draft, 4.0, 16.0)
        logits = (draft.train if in_training else draft.infer).copy()
        logits[:, EOS_TOKEN_ID] += offset
        if in_training:
            draft.train = logits
        else:
            draft.infer = logits

    return change


# What is logged


def _log_base(factor: float) -> Change:
    def change(draft: Draft) -> None:
        draft.logp_infer = draft.logp_infer * factor

    return change


def _log_base_in_training(draft: Draft) -> None:
    draft.logp_train = draft.logp_train / np.log(2)


def _token_shift(draft: Draft) -> None:
    shift = int(draft.rng.choice([-1, 1, 1, -2, 2]))
    index = draft.index
    source = np.arange(len(index)) + np.clip(index + shift, 0, draft.lengths[draft.sequence] - 1) - index
    draft.logp_infer = draft.logp_infer[source]


def _end_value(draft: Draft) -> None:
    """Log another value for the end token: 0 for a stop string, or that of a forced stop."""
    last = draft.from_end == 0
    value = draft.rng.choice([0.0, -1e-4, -_uniform(draft, 2.0, 12.0)])
    draft.logp_infer = np.where(last, value, draft.logp_infer)


def _other_ids(draft: Draft) -> None:
    """Score ids that the sampler did not draw: text was decoded and encoded again."""
    rate = 10 ** _uniform(draft, -2.5, -1.2)
    changed = draft.rng.random(len(draft.token)) < rate
    rows = np.flatnonzero(changed)
    scores = log_softmax(draft.train)
    other = np.argmax(scores[rows] + draft.rng.gumbel(size=(len(rows), 32)) * 3, axis=1)
    other = np.where(other == draft.token[rows], (other + 1) % 32, other)
    draft.logp_train = draft.logp_train.copy()
    draft.logp_train[rows] = scores[rows, other]
    draft.token = draft.token.copy()
    draft.token[rows] = other
    # The next tokens read the other id as context.
    reach = int(draft.rng.choice([1, 2, 3]))
    after = np.convolve(changed, np.r_[0, np.ones(reach)], "full")[: len(changed)] > 0
    after &= ~changed & (draft.index > 0)
    near = np.flatnonzero(after)
    moved = log_softmax(draft.train[near] + draft.change("other token")[near])
    draft.logp_train[near] = moved[np.arange(len(near)), draft.token[near]]


def _slip(draft: Draft) -> None:
    """Shift the trainer's list by one from a random token of some sequences on: one id became two."""
    chosen = draft.rng.random(len(draft.lengths)) < _uniform(draft, 0.15, 0.8)
    place = (draft.rng.uniform(0, 0.8, len(draft.lengths)) * draft.lengths).astype(int)
    late = (chosen[draft.sequence]) & (draft.index >= place[draft.sequence]) & (draft.from_end > 0)
    source = np.arange(len(late)) + late
    draft.logp_train = draft.logp_train[source]


def _identical(draft: Draft) -> None:
    """Repeat the first response of a group in the others: one seed for all samples."""
    count = len(draft.lengths)
    source = np.arange(count)
    groups = draft.rng.random(count // 8 + 1) < _uniform(draft, 0.4, 1.0)
    source = np.where(groups[source // 8], source // 8 * 8, source)
    starts = np.cumsum(draft.lengths) - draft.lengths
    lengths = draft.lengths[source]
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    tokens = np.repeat(starts[source], lengths) + within
    for name in ("context", "bucket", "train", "infer", "token", "logp_train", "logp_infer"):
        setattr(draft, name, getattr(draft, name)[tokens])
    draft.lengths = lengths


def _frozen_old(by_version: bool) -> Change:
    def change(draft: Draft) -> None:
        draft.columns["logp"] = np.clip(draft.logp_train, LOWEST, 0).astype(np.float32)
        if by_version:
            draft.columns["version"] = draft.step - draft.rng.integers(1, 3, len(draft.step))
        draft.columns["update"] = (
            np.arange(len(draft.lengths)) % 2 * (1 if not by_version else 0) + by_version
        )

    return change


def _double_ratio(draft: Draft) -> None:
    """Bypass mode with an IS weight: the old log-prob is the sampler's, and the weight repeats the ratio."""
    current = draft.logp_train
    draft.logp_train = draft.logp_infer
    draft.columns["logp"] = np.clip(current, LOWEST, 0).astype(np.float32)
    ratio = np.exp(np.clip(current - draft.logp_infer, -5, 5))
    draft.columns["is_weight"] = np.minimum(ratio, 2.0).astype(np.float32)


def _micro_batch(draft: Draft) -> None:
    """Score the update by kernels that sum in another order than those of the old log-probs."""
    rows = np.arange(len(draft.token))
    pool, pair = draft.pool, draft.rng.choice([0, 1, 2])
    engine, other = (("bf16", "vllm-bf16"), ("bf16", "bf16-fp32head"), ("fp16", "bf16"))[pair]
    apart = (pool.engines[other][draft.context] - pool.engines[engine][draft.context]) * draft.sharpness
    again = log_softmax(draft.train + _uniform(draft, 0.3, 1.0) * apart)[rows, draft.token]
    draft.columns |= current_scores(draft, again)


# Logs unlike all causes


def _offset(draft: Draft) -> None:
    draft.logp_infer = draft.logp_infer - _uniform(draft, 0.3, 3.0)


def _permute(draft: Draft) -> None:
    draft.logp_infer = draft.rng.permutation(draft.logp_infer)


def _round(draft: Draft) -> None:
    draft.logp_infer = np.round(draft.logp_infer, 1)


def _entropy(draft: Draft) -> None:
    scores = log_softmax(draft.infer)
    draft.logp_infer = np.sum(np.exp(scores) * np.where(np.isfinite(scores), scores, 0), axis=1)


def _sequence_mean(draft: Draft) -> None:
    sums = np.bincount(draft.sequence, draft.logp_infer)
    draft.logp_infer = (sums / draft.lengths)[draft.sequence]


def _square(draft: Draft) -> None:
    draft.logp_infer = -np.square(draft.logp_infer)


def _reverse(draft: Draft) -> None:
    starts = (np.cumsum(draft.lengths) - draft.lengths)[draft.sequence]
    draft.logp_infer = draft.logp_infer[starts + draft.from_end]


FAULTS: dict[str, Fault] = {
    "no fault": Fault("rounding"),
    "old weights": Fault("weight_sync", _old_weights),
    "frozen": Fault("weight_sync", _frozen),
    "layer old": Fault("weight_sync", _layer("layer old")),
    "layer corrupt": Fault("weight_sync", _layer("layer corrupt")),
    "head rows": Fault("weight_sync", _head_rows),
    "every k-th row": Fault("one_worker", _one_worker("stride")),
    "block of rows": Fault("one_worker", _one_worker("block")),
    "ages": Fault("staleness", _stale(True)),
    "ages not logged": Fault("staleness", _stale(False)),
    "partial rollout": Fault("staleness", _stale(True, within=True), held_out=True),
    "temperature": Fault("temperature", _temperature),
    "temperature in training": Fault("temperature", _temperature_in_training, held_out=True),
    "top-p": Fault("support", _top_p),
    "top-k": Fault("support", _top_k),
    "min-p": Fault("support", _min_p, held_out=True),
    "base 2": Fault("log_base", score=_log_base(1 / np.log(2))),
    "base 10": Fault("log_base", score=_log_base(1 / np.log(10))),
    "base 2 in training": Fault("log_base", score=_log_base_in_training),
    "shift": Fault("token_shift", score=_token_shift),
    "jump": Fault("position", _jump),
    "rope": Fault("position", _grows),
    "cache blocks": Fault("position", _blocks),
    "prompt start": Fault("start_of_response", _prompt("prompt start")),
    "prompt end": Fault("start_of_response", _prompt("prompt end")),
    "end logit": Fault("end_of_sequence", _end_logit(False)),
    "end logit in training": Fault("end_of_sequence", _end_logit(True), held_out=True),
    "end value": Fault("end_of_sequence", score=_end_value),
    "other ids": Fault("retokenization", score=_other_ids),
    "slip": Fault("retokenization", score=_slip),
    "dropout 0.1": Fault("dropout", _dropout(0.1)),
    "dropout 0.05": Fault("dropout", _dropout(0.05)),
    "micro batch": Fault("micro_batch", score=_micro_batch),
    "router": Fault("routing", _routing, needs_experts=True),
    "identical": Fault("identical_samples", score=_identical),
    "frozen old": Fault("frozen_old", score=_frozen_old(False)),
    "frozen old by version": Fault("frozen_old", score=_frozen_old(True)),
    "double ratio": Fault("double_ratio", score=_double_ratio),
    "wrong page": Fault("confident_disagreement", _wrong_page),
    "offset": Fault("unknown", score=_offset),
    "permuted": Fault("unknown", score=_permute),
    "rounded": Fault("unknown", score=_round),
    "entropy": Fault("unknown", score=_entropy),
    "sequence mean": Fault("unknown", score=_sequence_mean, held_out=True),
    "squared": Fault("unknown", score=_square, held_out=True),
    "reversed": Fault("unknown", score=_reverse, held_out=True),
}
"""Every variant by name."""

UNSEEN_IN_RHO = ("micro_batch", "identical_samples", "frozen_old", "double_ratio")
"""Causes that leave the mismatch as it is; their logs count as realistic at every size."""


def simulate_log(
    name: str, pool: Pool, rng: np.random.Generator, size: float, held_out: tuple[str, ...] = ()
) -> tuple[TokenLog, dict[str, float | str]]:
    """Return a log with the fault `name`, and its description.

    Args:
        name: Key of `FAULTS`.
        pool: Contexts and logits of a policy.
        rng: Random numbers.
        size: Size of the fault, 0 to 1 on the scale of the variant.
        held_out: Inference engines to choose from instead of those of the fit.

    Returns:
        The log, and a row with `excess`: RMS log rho with the fault over that without.
    """
    fault = FAULTS[name]
    engines = random_engines(rng, held_out)
    draft = start_draft(pool, rng, size, engines)
    clean_train, clean_infer = draft.train, draft.infer
    if fault.forward:
        fault.forward(draft)
    draw_tokens(draft)
    rows = np.arange(len(draft.token))
    clean = log_softmax(clean_train)[rows, draft.token] - log_softmax(clean_infer)[rows, draft.token]
    if fault.score:
        fault.score(draft)
    log = finish_log(draft)
    apart = np.clip(log.logp_train.astype(np.float64) - log.logp_infer, -20, 20)
    excess = float(np.sqrt(np.mean(apart**2) / max(np.mean(clean**2), 1e-12)))
    row = {
        "fault": name,
        "cause": fault.cause,
        "size": size,
        "engines": "/".join(engines),
        "policy": pool.name,
    }
    shape = {"tokens": len(apart), "sequences": log.num_sequences, "vocabulary": 32 * draft.buckets}
    return log, row | shape | {"excess": excess}
