"""Signatures of the index in a response: ends, jumps, trends, blocks of the cache."""

import numpy as np

from simlab.diagnosis.rank_tests import largest_finite
from simlab.diagnosis.token_view import (
    TokenView,
    bin_by_quantile,
    contrast,
    place_z,
    rank_parts,
    signed_log,
)

BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def measure_index(view: TokenView) -> dict[str, float]:
    """Measure where in a response the mismatch is."""
    index, size, z = view.index, view.size, view.z
    first, last = index == 0, view.from_end == 0
    measured = {
        "first_token": contrast(size, first),
        "first_8": contrast(size, index < 8),
        "first_32": contrast(size, index < 32) if view.log.lengths.max() > 64 else np.nan,
        "last_token": contrast(size, last),
        "last_8": contrast(size, view.from_end < 8),
        "before_last": contrast(size, (view.from_end > 0) & (view.from_end < 4)),
        "last_is_0": float(np.mean(view.infer[last] == 0)),
        "first_token_sign": float(z[first].mean()),
        "last_token_sign": float(z[last].mean()),
        "second_half": contrast(size, 2 * index >= view.length),
        "first_token_z": place_z(view.rank, first),
        "last_token_z": place_z(view.rank, last),
        "before_last_z": place_z(view.rank, (view.from_end > 0) & (view.from_end < 4)),
        "half_t": _compare_halves(view),
        "trailing_zeros": _count_trailing_zeros(view),
        "end_constant": _find_constant_end(view, last),
    }
    measured["index_jump"], measured["index_trend"] = _find_jump(index, size)
    measured["index_jump_z"] = _find_jump_z(index, view.rank)
    blocks = [
        contrast(size, (index % block == 0) & (index > 0)) for block in BLOCKS if index.max() >= 2 * block
    ]
    measured["index_block"] = largest_finite(blocks)
    chunks = [contrast(size, index // block % 2 == 1) for block in (8, *BLOCKS) if index.max() >= 2 * block]
    measured["index_alternate"] = largest_finite(map(abs, chunks))
    return measured


def _find_jump(index: np.ndarray, size: np.ndarray) -> tuple[float, float]:
    """Return the largest log ratio of the mean size after an index and before it, and the trend over bins."""
    bins, count = bin_by_quantile(index, int(np.clip(len(index) // 100, 3, 24)))
    tokens, sums = np.bincount(bins, minlength=count), np.bincount(bins, size, count)
    tokens, sums = tokens[tokens > 0], sums[tokens > 0]
    if len(tokens) < 3:
        return np.nan, np.nan
    before, counts = np.cumsum(sums)[:-1], np.cumsum(tokens)[:-1]
    after, rest = sums.sum() - before, tokens.sum() - counts
    jumps = np.log((after / rest + 0.02) / (before / counts + 0.02)) * (counts / (counts + 100))
    means = np.log(sums / tokens + 0.02)
    trend = float(np.corrcoef(np.arange(len(means)), means)[0, 1]) if means.std() > 0 else 0.0
    return float(jumps[np.argmax(np.abs(jumps))]), trend * float(means.std())


def _find_jump_z(index: np.ndarray, rank: np.ndarray) -> float:
    """Return the largest `signed_log` z of the ranks after an index against those before it."""
    bins, count = bin_by_quantile(index, 24)
    before = np.cumsum(np.bincount(bins, rank, count))[:-1]
    counts = np.cumsum(np.bincount(bins, minlength=count))[:-1]
    total, sums = len(rank), float(rank.sum())
    usable = (counts >= 20) & (total - counts >= 20)
    if not usable.any():
        return np.nan
    before, counts = before[usable], counts[usable]
    rest = total - counts
    z = ((sums - before) / rest - before / counts) * np.sqrt(12 / (1 / rest + 1 / counts))
    return signed_log(float(z[np.argmax(np.abs(z))]))


def _compare_halves(view: TokenView) -> float:
    """Return the `signed_log` t over sequences of the mean rank of the second half minus the first."""
    late, early = rank_parts(view, 2 * view.index >= view.length)
    apart = (late - early)[view.log.lengths >= 8]
    if len(apart) < 4:
        return np.nan
    return signed_log(float(apart.mean() / (apart.std() / np.sqrt(len(apart)) + 1e-6)))


def _count_trailing_zeros(view: TokenView) -> float:
    """Return the mean number of tokens with logp_infer = 0, and not logp_train, that end a response."""
    count = len(view.log.lengths)
    zero = (view.infer == 0) & (view.train < -1e-4)
    ends = np.cumsum(view.log.lengths) - 1
    running, total = np.ones(count, bool), 0.0
    for back in range(8):
        running &= (view.log.lengths > back) & zero[np.maximum(ends - back, 0)]
        total += float(running.mean())
    return total


def _find_constant_end(view: TokenView, last: np.ndarray) -> float:
    """Return the fraction of last tokens with the most frequent logp_infer, minus that of logp_train."""
    if last.sum() < 4:
        return np.nan
    shares = [
        np.unique(np.round(part[last], 3), return_counts=True)[1].max() for part in (view.infer, view.train)
    ]
    return float(shares[0] - shares[1]) / float(last.sum())
