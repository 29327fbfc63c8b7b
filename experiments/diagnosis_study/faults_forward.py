"""Faults of the forward pass: weights, workers, ages, positions, prompts, dropout, experts, cache."""

from collections.abc import Callable, Sequence

import numpy as np

from experiments.diagnosis_study.forward_passes import GAPS, ROPE_FACTORS
from experiments.diagnosis_study.log_assembly import LogDraft, move_experts

Change = Callable[[LogDraft], None]


def uniform(draft: LogDraft, low: float, high: float) -> float:
    """Return the size of the fault, 0 to 1, on a scale from `low` to `high`."""
    return low + draft.size * (high - low)


def scale_nats(draft: LogDraft, low: float = 0.03, high: float = 0.7) -> float:
    """Return the size of the fault on a logarithmic scale, nats per token."""
    return float(low * (high / low) ** draft.size)


def draw_runs(draft: LogDraft, lengths: Sequence[int], high: float) -> np.ndarray:
    """Return a mask [N] of runs of so many tokens, of 10^-2.5 to 10^`high` of all tokens."""
    length = int(draft.rng.choice(lengths))
    starts = draft.rng.random(len(draft.context)) < 10 ** uniform(draft, -2.5, high) / length
    return np.convolve(starts, np.ones(length), "full")[: len(starts)] > 0


def draw_period(draft: LogDraft, periods: Sequence[int]) -> int:
    """Return one of the periods, or the largest below it that the longest response has three times."""
    chosen = draft.rng.choice(periods)
    return max((p for p in periods if p <= chosen and 3 * p <= draft.lengths.max()), default=periods[0])


def frozen(draft: LogDraft) -> None:
    """Keep the weights of the first step while training goes on."""
    steps = max(int(draft.rng.choice([6, 8, 12])), len(np.unique(draft.step)))
    steps = min(steps, len(draft.lengths))
    draft.step = np.arange(len(draft.lengths)) * steps // len(draft.lengths)
    progress = (draft.step / draft.step.max())[draft.sequence][:, None]
    draft.move("old 5", 2 * scale_nats(draft), progress)


def layer(draft: LogDraft, name: str) -> None:
    draft.move(name, scale_nats(draft))


def head_rows(draft: LogDraft) -> None:
    """Leave rows of the head or a shard of them at other values: a fixed offset per id."""
    width, count = draft.hidden.shape[1], draft.width * draft.buckets
    rng = draft.rng
    if rng.random() < 0.5:
        late = rng.random(count) < rng.choice([0.1, 0.25, 0.5])
    else:
        parts = int(rng.choice([2, 4, 8]))
        late = np.arange(count) * parts // count == rng.integers(parts)
    scale = scale_nats(draft, 0.15, 1.2)
    direction = rng.normal(size=width) / np.sqrt(width)
    row = scale * rng.normal(size=count) * late
    along = draft.hidden @ direction / draft.hidden.std()
    draft.infer = draft.infer + (row[draft.candidate_ids()] * (1 + 0.3 * along[:, None])).astype(np.float32)


def worker_rows(draft: LogDraft, layout: str) -> np.ndarray:
    """Return the rows [S] of one of 2 to 16 workers; sometimes log the workers."""
    count, workers = len(draft.lengths), int(draft.rng.choice([2, 4, 8, 16]))
    workers = min(workers, count // 3)
    rows = np.arange(count)
    if layout == "stride":
        worker = rows % workers
    elif layout == "groups":
        # The responses of a prompt stay together.
        worker = rows // int(draft.rng.choice([2, 4, 8])) % workers
    else:
        # Each worker returns a block of every step.
        if count < 4 * len(np.unique(draft.step)):
            draft.step = np.zeros_like(draft.step)
        within = rows - np.searchsorted(draft.step, draft.step)
        per_step = int(np.bincount(draft.step).max())
        workers = min(workers, per_step)
        worker = np.minimum(within * workers // per_step, workers - 1)
    if draft.rng.random() < 0.3:
        draft.columns["worker"] = worker
    return worker == worker[draft.rng.integers(count)]


def one_worker(draft: LogDraft, layout: str) -> None:
    bad = worker_rows(draft, layout)
    name = str(draft.rng.choice(["old 5", "layer old", "embedding rows", "norms old"]))
    draft.move(name, scale_nats(draft, 0.05, 0.9), bad[draft.sequence][:, None])


def coarse_worker(draft: LogDraft) -> None:
    """Run one worker in a coarser number format."""
    bad = worker_rows(draft, str(draft.rng.choice(["stride", "block", "groups"])))[draft.sequence]
    coarse = draft.read(draft.pool.coarsest) - draft.read(draft.pool.reference)
    draft.infer = draft.infer + bad[:, None] * uniform(draft, 0.5, 1.5) * coarse


def worker_head(draft: LogDraft) -> None:
    """Leave rows of one worker's head at other values."""
    bad = worker_rows(draft, "stride")[draft.sequence]
    good = draft.infer
    head_rows(draft)
    draft.infer = np.where(bad[:, None], draft.infer, good)


def two_bad_workers(draft: LogDraft) -> None:
    """Leave two of 8 or 16 workers with other weights."""
    workers = int(draft.rng.choice([8, 16]))
    worker = np.arange(len(draft.lengths)) % workers
    bad = np.isin(worker, draft.rng.choice(workers, 2, replace=False))[draft.sequence]
    draft.move("old 6", scale_nats(draft, 0.08, 0.9), bad[:, None])


def move_by_age(draft: LogDraft, age: np.ndarray) -> None:
    """Sample tokens from weights of `age` updates ago, [N], 0 to 4."""
    nats = scale_nats(draft, 0.03, 0.4)
    draft.infer = draft.infer + sum(
        (age == k)[:, None] * draft.change(f"old {k}", k / 2 * nats) for k in range(1, 5)
    )


def age_long_responses(draft: LogDraft) -> None:
    """Sample long responses some updates ago: they finish later than short ones."""
    lag = np.clip(np.argsort(np.argsort(draft.lengths)) * 5 // len(draft.lengths), 0, 4)
    move_by_age(draft, lag[draft.sequence])
    draft.columns["version"] = draft.step - lag


def mix_ages(draft: LogDraft) -> None:
    """Mix fresh sequences with some of one age."""
    late = draft.rng.random(len(draft.lengths)) < draft.rng.choice([0.25, 0.5])
    draft.move("old 6", scale_nats(draft, 0.05, 0.6), late[draft.sequence][:, None])
    draft.columns["version"] = draft.step - 6 * late


def age_sequences(draft: LogDraft, with_version: bool, within: bool = False) -> None:
    lag = draft.rng.integers(0, 5, len(draft.lengths))
    age = lag[draft.sequence].astype(float)
    if within:
        # A partial rollout continues under newer weights.
        age = age * (draft.index < draft.lengths[draft.sequence] * 0.5)
    move_by_age(draft, age)
    if with_version:
        draft.columns["version"] = draft.step - lag


def jump(draft: LogDraft) -> None:
    """Give other positions to the tokens after an index."""
    gap = GAPS[min(len(GAPS) - 1, int(draft.size * len(GAPS)))]
    begin = draft.rng.uniform(0.15, 0.7) * draft.lengths.max()
    draft.move(f"gap {gap}", scale_nats(draft), (draft.index >= begin)[:, None])


def stretch_rotations(draft: LogDraft) -> None:
    """Give other rotations whose error grows with the index, as a wrong rope scaling does."""
    fraction = draft.index / draft.lengths.max()
    level = np.clip((fraction * len(ROPE_FACTORS)).astype(int), 0, len(ROPE_FACTORS) - 1)
    for number, factor in enumerate(ROPE_FACTORS):
        draft.move(f"rope {factor}", (number + 0.3) / 2 * scale_nats(draft), (level == number)[:, None])


def dynamic_rope(draft: LogDraft) -> None:
    """Rescale the rotations once a response is longer than a limit, in one engine."""
    late = draft.index >= draft.rng.uniform(0.3, 0.6) * draft.lengths.max()
    draft.move("rope 4.0", scale_nats(draft, 0.05, 0.8), late[:, None])


def shift_alternate_chunks(draft: LogDraft) -> None:
    """Shift the positions in every second chunk of a chunked prefill."""
    odd = draft.index // draw_period(draft, (8, 32, 128, 512)) % 2 == 1
    draft.move("gap 16", scale_nats(draft, 0.1, 1.0), odd[:, None])


def blocks(draft: LogDraft) -> None:
    """Lose the context at the first token of each block of the cache."""
    block = draw_period(draft, (16, 32, 64, 128, 256))
    at = (draft.index % block < max(1, block // 32)) & (draft.index > 0)
    nats = scale_nats(draft, 0.2, 2)
    draft.infer = draft.infer + at[:, None] * (draft.change("gap 4", nats) + draft.change("prompt end", nats))


def prompt(draft: LogDraft, name: str) -> None:
    reach = draft.rng.choice([1, 4, 8, 16, 32])
    near = np.exp(-draft.index / reach)[:, None]
    draft.move(name, scale_nats(draft, 0.2, 2), near)


def dropout(draft: LogDraft, name: str) -> None:
    draft.train = draft.train + uniform(draft, 0.6, 1.2) * draft.change(name)


def experts(draft: LogDraft, name: str) -> None:
    """Give tokens to experts that are not the router's, or are late: damage of full size."""
    draft.move(name, weight=uniform(draft, 0.4, 1.2))


def routing(draft: LogDraft) -> None:
    draft.move("routing", weight=uniform(draft, 0.7, 1.8))
    if draft.rng.random() < 0.5:
        assert draft.pool.flipped is not None
        draft.columns |= move_experts(draft, draft.pool.flipped[draft.context])


def wrong_page(draft: LogDraft) -> None:
    """Read cache pages of other sequences: confident answers to another context."""
    hit = draw_runs(draft, (1, 4, 16, 64), -1.3)
    other = draft.rng.integers(0, len(draft.pool.index), len(hit))
    strange = draft.read(draft.pool.engines["bf16"], other)
    draft.infer = np.where(hit[:, None], strange, draft.infer)


def aligned_pages(draft: LogDraft) -> None:
    """Read 16-token pages of another sequence."""
    page = draft.sequence * 1000 + draft.index // 16
    _, page_index = np.unique(page, return_inverse=True)
    hit = (draft.rng.random(int(page_index.max()) + 1) < 10 ** uniform(draft, -2.3, -1.3))[page_index]
    other = draft.rng.permutation(draft.context)
    draft.infer = np.where(hit[:, None], draft.read(draft.pool.engines["bf16"], other), draft.infer)


def garbage(draft: LogDraft) -> None:
    """Read cache slots that were never written: the probabilities of other tokens."""
    hit = draw_runs(draft, (2, 8, 32), -1.3)
    order = draft.rng.permutation(draft.width)
    draft.infer = np.where(hit[:, None], draft.infer[:, order], draft.infer)
