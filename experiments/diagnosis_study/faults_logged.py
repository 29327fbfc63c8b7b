"""Faults of sampling, and of what the engines and the loader log."""

from collections.abc import Callable

import numpy as np
from scipy.special import log_softmax

from experiments.diagnosis_study.faults_forward import Change, draw_runs, uniform
from experiments.diagnosis_study.log_assembly import LogDraft, current_scores, pick_scores
from simlab.diagnosis.injected_faults import filter_top_k, filter_top_p
from simlab.diagnosis.log import LOWEST, index_tokens


def draw_temperature(draft: LogDraft, colder: float) -> float:
    """Return a temperature, below 1 in a fraction `colder` of the logs."""
    is_cold = draft.rng.random() < colder
    return uniform(draft, 0.93, 0.5) if is_cold else uniform(draft, 1.08, 1.6)


def temperature(draft: LogDraft) -> None:
    draft.infer = draft.infer / draw_temperature(draft, 0.7)


def temperature_in_training(draft: LogDraft) -> None:
    draft.train = draft.train / uniform(draft, 0.9, 0.6)


def top_p(draft: LogDraft) -> None:
    draft.infer = filter_top_p(draft.infer, uniform(draft, 0.98, 0.6))


def top_k(draft: LogDraft) -> None:
    # Of 32 tokens as many as 20 to 100 of a real vocabulary.
    k = max(2, round(uniform(draft, 6, 2) * (draft.width / 32) ** 0.7))
    draft.infer = filter_top_k(draft.infer, k)


def min_p(draft: LogDraft) -> None:
    probs = np.exp(log_softmax(draft.infer, axis=1))
    kept = probs >= uniform(draft, 0.03, 0.3) * probs.max(1, keepdims=True)
    draft.infer = np.where(kept, draft.infer, -np.inf)


def epsilon_cutoff(draft: LogDraft) -> None:
    """Sample from tokens above a fixed probability."""
    probs = np.exp(log_softmax(draft.infer, axis=1))
    kept = (probs >= uniform(draft, 0.01, 0.12)) | (probs == probs.max(1, keepdims=True))
    draft.infer = np.where(kept, draft.infer, -np.inf)


def top_p_and_top_k(draft: LogDraft) -> None:
    top_p(draft)
    top_k(draft)


def end_logit(draft: LogDraft, engine: str) -> None:
    """Move the end token's logit in "train" or "infer": another end token, or a minimum length."""
    logits = getattr(draft, engine).copy()
    logits[:, draft.end] -= uniform(draft, 4.0, 16.0)
    setattr(draft, engine, logits)


def edit_logp(engine: str, edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Return a fault that logs `edit` of the log-probs of one engine, "train" or "infer"."""
    name = f"logp_{engine}"
    return lambda draft: setattr(draft, name, edit(getattr(draft, name)))


def token_shift(draft: LogDraft) -> None:
    shift = int(draft.rng.choice([-1, 1, 1, -2, 2]))
    index = draft.index
    source = np.arange(len(index)) + np.clip(index + shift, 0, draft.lengths[draft.sequence] - 1) - index
    if draft.rng.random() < 0.7:
        draft.logp_infer = draft.logp_infer[source]
    else:
        draft.logp_train = draft.logp_train[source]


def shift_by_three(draft: LogDraft) -> None:
    """Shift the list of the training engine by three tokens."""
    source = np.arange(len(draft.index)) + np.minimum(3, draft.from_end)
    draft.logp_train = draft.logp_train[source]


def roll(draft: LogDraft) -> None:
    """Shift the flat list of all sequences, over their borders."""
    draft.logp_infer = np.roll(draft.logp_infer, int(draft.rng.choice([-1, 1])))


def reported_temperature(draft: LogDraft) -> None:
    """Sample at temperature 1 and report the log-probs of another."""
    draft.logp_infer = pick_scores(draft.infer / draw_temperature(draft, 0.5), draft.token)


def stop_string(draft: LogDraft) -> None:
    """Log 0 for the last tokens, which a stop string cut off."""
    reach = int(draft.rng.choice([2, 3, 4]))
    draft.logp_infer = np.where(draft.from_end < reach, 0.0, draft.logp_infer)


def two_end_tokens(draft: LogDraft) -> None:
    """Log the value of a forced stop for the two tokens that end a turn."""
    value = -uniform(draft, 2.0, 12.0)
    draft.logp_infer = np.where(draft.from_end < 2, value, draft.logp_infer)


def end_value(draft: LogDraft) -> None:
    """Log another value for the end token: 0 for a stop string, or that of a forced stop."""
    last = draft.from_end == 0
    value = draft.rng.choice([0.0, -1e-4, -uniform(draft, 2.0, 12.0)])
    draft.logp_infer = np.where(last, value, draft.logp_infer)


def other_ids(draft: LogDraft) -> None:
    """Score ids that were not sampled: text was decoded and encoded again."""
    replace_ids(draft, draft.rng.random(len(draft.token)) < 10 ** uniform(draft, -2.5, -1.2))


def other_words(draft: LogDraft) -> None:
    """Replace words of 2 to 4 ids."""
    replace_ids(draft, draw_runs(draft, (2, 3, 4), -1.2))


def replace_ids(draft: LogDraft, changed: np.ndarray) -> None:
    rows = np.flatnonzero(changed)
    scores = log_softmax(draft.train, axis=1)
    other = np.argmax(scores[rows] + draft.rng.gumbel(size=(len(rows), draft.width)) * 3, axis=1)
    other = np.where(other == draft.token[rows], (other + 1) % draft.width, other)
    draft.logp_train = draft.logp_train.copy()
    draft.logp_train[rows] = scores[rows, other]
    draft.token = draft.token.copy()
    draft.token[rows] = other
    # The next tokens read the other id as context.
    reach = int(draft.rng.choice([1, 2, 3]))
    after = np.convolve(changed, np.r_[0, np.ones(reach)], "full")[: len(changed)] > 0
    after &= ~changed & (draft.index > 0)
    near = np.flatnonzero(after)
    moved = log_softmax(draft.train[near] + draft.change("other token")[near], axis=1)
    draft.logp_train[near] = moved[np.arange(len(near)), draft.token[near]]


def slip(draft: LogDraft, returns: bool = False) -> None:
    """Shift the trained list of some sequences from a token on: one id became two.

    It `returns` to its place at a later token if two ids became one there.
    """
    rng, count = draft.rng, len(draft.lengths)
    chosen = rng.random(count) < uniform(draft, 0.15, 0.8)
    begin = rng.uniform(0, 0.6 if returns else 0.8, count)
    end = begin + rng.uniform(0.1, 0.4, count) if returns else np.ones(count)
    first, stop = ((fraction * draft.lengths).astype(int)[draft.sequence] for fraction in (begin, end))
    late = chosen[draft.sequence] & (draft.index >= first) & (draft.index < stop) & (draft.from_end > 0)
    draft.logp_train = draft.logp_train[np.arange(len(late)) + late]


def repeat_in_groups(draft: LogDraft, group: int, distinct: int = 1) -> None:
    """Repeat the first `distinct` responses of some groups in the others: samples that share a seed."""
    row = np.arange(len(draft.lengths))
    is_repeated = draft.rng.random(len(row) // group + 1) < uniform(draft, 0.4, 1.0)
    source = np.where(is_repeated[row // group], row // group * group + row % distinct, row)
    lengths = draft.lengths[source]
    tokens = np.repeat(draft.starts[source], lengths) + index_tokens(lengths)
    for name in ("context", "bucket", "train", "infer", "token", "logp_train", "logp_infer"):
        setattr(draft, name, getattr(draft, name)[tokens])
    draft.lengths = lengths


def frozen_old(draft: LogDraft, by_version: bool) -> None:
    draft.columns["logp"] = np.clip(draft.logp_train, LOWEST, 0).astype(np.float32)
    if by_version:
        draft.columns["version"] = draft.step - draft.rng.integers(1, 3, len(draft.step))
    count = len(draft.lengths)
    draft.columns["update"] = np.ones(count, int) if by_version else np.arange(count) % 2
    if by_version and draft.rng.random() < 0.5:
        draft.columns["update"] = None
    if draft.rng.random() < 0.3:
        # A log as text has six digits.
        draft.columns["logp"] = np.round(draft.columns["logp"], 6)


def double_ratio(draft: LogDraft) -> None:
    """Bypass mode with an IS weight: old log-probs are those of the rollout, the weight is the ratio."""
    current = draft.logp_train
    draft.logp_train = draft.logp_infer
    draft.columns["logp"] = np.clip(current, LOWEST, 0).astype(np.float32)
    ratio = np.exp(np.clip(current - draft.logp_infer, -5, 5))
    draft.columns["is_weight"] = np.minimum(ratio, 2.0).astype(np.float32)


def micro_batch(draft: LogDraft) -> None:
    """Score the update by kernels that sum in another order than those of the old log-probs."""
    engines = draft.pool.engines
    other = next(name for name in engines if name.startswith("vllm-bf16"))
    apart = draft.read(engines[other]) - draft.read(engines["bf16"])
    again = pick_scores(draft.train + uniform(draft, 0.3, 1.0) * apart, draft.token)
    draft.columns |= current_scores(draft, again)


def offset(draft: LogDraft) -> None:
    draft.logp_infer = draft.logp_infer - uniform(draft, 0.3, 3.0)


def permute(draft: LogDraft) -> None:
    draft.logp_infer = draft.rng.permutation(draft.logp_infer)


def entropy(draft: LogDraft) -> None:
    scores = log_softmax(draft.infer, axis=1)
    draft.logp_infer = np.sum(np.exp(scores) * np.where(np.isfinite(scores), scores, 0), axis=1)


def sequence_mean(draft: LogDraft) -> None:
    sums = np.bincount(draft.sequence, draft.logp_infer)
    draft.logp_infer = (sums / draft.lengths)[draft.sequence]


def reverse(draft: LogDraft) -> None:
    draft.logp_infer = draft.logp_infer[draft.starts[draft.sequence] + draft.from_end]


def argmax(draft: LogDraft) -> None:
    """Log the most probable token's log-prob instead of the sampled one's."""
    draft.logp_infer = log_softmax(draft.infer, axis=1).max(1)


def clip(draft: LogDraft) -> None:
    draft.logp_infer = np.maximum(draft.logp_infer, -uniform(draft, 1.0, 0.1))


def running_sum(draft: LogDraft) -> None:
    total = np.cumsum(draft.logp_infer)
    starts = draft.starts[draft.sequence]
    draft.logp_infer = total - total[starts] + draft.logp_infer[starts]


def one_minus(logp: np.ndarray) -> np.ndarray:
    """Return the log of the probability that the token is not drawn."""
    return np.log1p(-np.clip(np.exp(logp), 0, 1 - 1e-6))


def moving_average(logp: np.ndarray) -> np.ndarray:
    """Return the mean over a token and its two neighbors."""
    padded = np.pad(logp, 1, mode="edge")
    return (padded[:-2] + padded[1:-1] + padded[2:]) / 3


def eight_levels(logp: np.ndarray) -> np.ndarray:
    """Return one of eight levels, as a compressed log may."""
    levels = np.quantile(logp, np.linspace(0.02, 0.98, 8))
    return levels[np.argmin(np.abs(logp[:, None] - levels), axis=1)]
