"""Signatures of a log: numbers that describe where its mismatch is, and of which shape.

All but the levels are relative to the mismatch of the log itself, and compare tokens of equal probability:
`View.size` divides abs(log rho) by its typical value at the token's probability.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simlab.diagnosis.log import LOWEST, TokenLog, log_rho
from simlab.diagnosis.sequence_signatures import measure_logged_columns, measure_rows

FEW = 200
"""Number of tokens below which a log has no signatures."""
MAX_SHIFT = 3
PROBABILITIES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0 + 1e-9)
LOG_BASES = {"base_2": np.log(2), "base_10": np.log(10)}
BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
EPSILON = 1e-12


@dataclass(frozen=True)
class View:
    """Input of the signatures, [N]: arrays over the tokens of nonempty sequences.

    - `x`: log rho, nats; `train`, `infer`: log-probabilities.
    - `z`: log rho over its typical size at this probability, within +-10; `size`: abs(z).
    - `sequence`, `index`, `from_end`: place of the token; `length`: tokens of its sequence.
    """

    log: TokenLog
    x: np.ndarray
    train: np.ndarray
    infer: np.ndarray
    z: np.ndarray
    size: np.ndarray
    sequence: np.ndarray
    index: np.ndarray
    from_end: np.ndarray
    length: np.ndarray


def view_log(log: TokenLog) -> View:
    """Return the view of a log without masked tokens."""
    lengths = log.lengths
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    index = np.arange(len(sequence)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    length = lengths[sequence]
    x = log_rho(log).astype(np.float64)
    z = np.clip(x / _typical_size(x, log.logp_infer), -10, 10)
    return View(
        log, x, log.logp_train, log.logp_infer, z, np.abs(z), sequence, index, length - 1 - index, length
    )


def _typical_size(x: np.ndarray, infer: np.ndarray) -> np.ndarray:
    """Return the typical abs(x) of the tokens with about the same probability, [N]."""
    count = int(np.clip(len(x) // 200, 1, 24))
    edges = np.unique(np.quantile(infer, np.linspace(0, 1, count + 1)[1:-1]))
    place = np.searchsorted(edges, infer, side="right")
    order = np.argsort(place, kind="stable")
    sizes = np.zeros(len(edges) + 1)
    bounds = np.searchsorted(place[order], np.arange(len(edges) + 2))
    magnitude = np.abs(x)[order]
    for number in range(len(sizes)):
        inside = magnitude[bounds[number] : bounds[number + 1]]
        if len(inside):
            # The median resists outliers; where most are exactly 0 a tenth of the RMS stands in.
            sizes[number] = max(1.48 * np.median(inside), 0.1 * np.sqrt(np.mean(inside**2)), 1e-7)
    return np.maximum(sizes, 1e-7)[place]


def contrast(values: np.ndarray, chosen: np.ndarray) -> float:
    """Return the log of the mean of the chosen values over that of the others, shrunk if few are chosen."""
    count, others = int(chosen.sum()), int(len(chosen) - chosen.sum())
    if min(count, others) < 4:
        return np.nan
    inside = float(values[chosen].mean())
    outside = (float(values.sum()) - inside * count) / others
    effect = np.log((inside + 0.02) / (outside + 0.02))
    return float(effect * min(count, others) / (min(count, others) + 20))


def _balance(x: np.ndarray) -> float:
    """Return mean(rho - 1) over the k3 KL: near 0 if the tokens are samples of the reported log-probs."""
    inside = np.clip(x, -5, 5)
    excess = np.expm1(inside)
    return float(np.clip(excess.mean() / (np.mean(excess - inside) + EPSILON), -3, 3))


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt(np.mean(a * a) * np.mean(b * b))
    return float(np.mean(a * b) / scale) if scale > EPSILON else 0.0


def _measure_neighbors(view: View) -> dict[str, float]:
    """Measure whether neighbors in a sequence share the size or the sign of their mismatch."""
    inside = view.sequence[1:] == view.sequence[:-1]
    names = {"neighbor_size": np.minimum(view.size, 5), "neighbor_sign": np.clip(view.z, -5, 5)}
    return {
        name: _correlation(values[1:][inside], values[:-1][inside]) if inside.sum() >= 50 else np.nan
        for name, values in names.items()
    }


def _measure_levels(view: View) -> dict[str, float]:
    x, infer = view.x, view.infer
    probs = np.exp(infer, dtype=np.float64)
    middle = (probs > 0.1) & (probs < 0.9)
    inside = x[middle] if middle.sum() >= 30 else x
    rms, magnitude = float(np.sqrt(np.mean(inside**2))), np.abs(inside)
    low, q25, q75, high = np.quantile(inside, (0.02, 0.25, 0.75, 0.98))
    rho = np.expm1(np.minimum(x, 10))
    found = {
        "level": np.log10(rms + 1e-9),
        "level_median": np.log10(np.median(magnitude) + 1e-9),
        "level_all": np.log10(np.sqrt(np.mean(x**2)) + 1e-9),
        "copied": float(np.mean(view.train == view.infer)),
        "bias": float(inside.mean() / (rms + EPSILON)),
        "bias_median": float(np.median(inside) / (rms + EPSILON)),
        "negative": float(np.mean(inside < 0) + 0.5 * np.mean(inside == 0)),
        "skew": float((high + low) / (high - low + EPSILON)),
        "skew_core": float((q75 + q25) / (q75 - q25 + EPSILON)),
        "tail": np.log((high - low + EPSILON) / (q75 - q25 + EPSILON)),
        "mean_rho": float(rho.mean() / (rho.std() + 1e-6)),
        "mean_rho_excess": float(np.clip(rho.mean(), -1, 5)),
        "rho_balance": _balance(x),
        "tilt": _correlation(x, infer),
        "kurtosis": float(np.log(np.mean(view.z**4) / (np.mean(view.z**2) ** 2 + EPSILON) + 1e-3)),
        "entropy": float(-infer.mean()),
        "confident": float(np.mean(probs > 0.9)),
    }
    for low, high in pairwise(PROBABILITIES):
        chosen = (probs >= low) & (probs < high)
        part = x[chosen]
        enough = len(part) >= 20
        found[f"rms_above_{low}"] = (
            np.log10((np.sqrt(np.mean(part**2)) + 1e-9) / (rms + 1e-9)) if enough else np.nan
        )
        found[f"bias_above_{low}"] = (
            float(np.clip(part.mean() / (np.sqrt(np.mean(part**2)) + EPSILON), -1, 1)) if enough else np.nan
        )
    return found


def _measure_outliers(view: View) -> dict[str, float]:
    outlier = view.size > 6
    count, rate = int(outlier.sum()), float(outlier.mean())
    p, q = np.exp(view.infer, dtype=np.float64), np.exp(view.train, dtype=np.float64)
    sure = (p > 0.9) & (q < 0.3)
    found = {
        "outliers": np.log10(rate + 1e-5),
        "outliers_negative": float(np.mean(view.x[outlier] < 0)) if count >= 5 else np.nan,
        "outliers_probability": float(np.mean(p[outlier])) if count >= 5 else np.nan,
        "outliers_nats": np.log10(np.median(np.abs(view.x[outlier])) + 1e-6) if count >= 5 else np.nan,
        "infer_sure_train_not": np.log10(sure.mean() + 1e-6),
        "train_sure_infer_not": np.log10(np.mean((q > 0.9) & (p < 0.3)) + 1e-6),
        "nats_below": np.log10(np.mean(view.x < -2) + 1e-6),
        "nats_above": np.log10(np.mean(view.x > 2) + 1e-6),
        "holes": np.log10(np.mean((view.train <= LOWEST) != (view.infer <= LOWEST)) + 1e-6),
        "certain": np.log10(np.mean((view.infer == 0) & (view.train < -0.02)) + 1e-6),
    }
    for distance in (1, 2, 8):
        both = outlier[:-distance] & outlier[distance:]
        both &= view.sequence[:-distance] == view.sequence[distance:]
        found[f"outliers_together_{distance}"] = (
            np.log((both.mean() + 0.5 * rate**2) / (1.5 * rate**2)) if count >= 8 else np.nan
        )
    return found


def _measure_scale(view: View) -> dict[str, float]:
    """Measure a common factor of the log-probabilities (base of the log) and of the logits (temperature)."""
    found: dict[str, float] = dict.fromkeys(
        ("log_factor", "log_factor_spread", "temperature", "temperature_spread", *LOG_BASES), np.nan
    )
    usable = (view.infer < -0.05) & (view.train < -1e-4) & (view.infer > LOWEST)
    if usable.sum() >= 30:
        factor = np.log(view.infer[usable] / view.train[usable])
        low, middle, high = np.quantile(factor, (0.25, 0.5, 0.75))
        found |= {"log_factor": float(middle), "log_factor_spread": float(high - low)}
        for name, base in LOG_BASES.items():
            distance = np.minimum(np.abs(factor - np.log(base)), np.abs(factor + np.log(base)))
            found[name] = float(np.mean(distance < 0.05))
    probs = np.exp(view.infer, dtype=np.float64)
    likely = (probs > 0.55) & (probs < 0.999)
    if likely.sum() >= 30:
        trained = np.clip(np.exp(view.train[likely], dtype=np.float64), 1e-9, 1 - 1e-9)
        inferred = probs[likely]
        ratio = np.log(trained / (1 - trained)) / np.log(inferred / (1 - inferred))
        low, middle, high = np.quantile(ratio, (0.25, 0.5, 0.75))
        found |= {"temperature": float(middle), "temperature_spread": float(high - low)}
    return found


def _measure_index(view: View) -> dict[str, float]:
    index, size, z = view.index, view.size, view.z
    first, last = index == 0, view.from_end == 0
    found = {
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
    }
    found["index_jump"], found["index_trend"] = _find_jump(index, size)
    blocks = [
        contrast(size, (index % block == 0) & (index > 0)) for block in BLOCKS if index.max() >= 2 * block
    ]
    found["index_block"] = max((value for value in blocks if np.isfinite(value)), default=np.nan)
    chunks = [contrast(size, index // block % 2 == 1) for block in (8, *BLOCKS) if index.max() >= 2 * block]
    found["index_alternate"] = max((abs(value) for value in chunks if np.isfinite(value)), default=np.nan)
    return found


def _find_jump(index: np.ndarray, size: np.ndarray) -> tuple[float, float]:
    """Return the largest log ratio of the mean size after an index and before it, and the trend over bins."""
    count = int(np.clip(len(index) // 100, 3, 24))
    edges = np.unique(np.quantile(index, np.linspace(0, 1, count + 1)[1:-1]))
    place = np.searchsorted(edges, index, side="right")
    tokens = np.bincount(place, minlength=len(edges) + 1)
    sums = np.bincount(place, size, len(edges) + 1)
    tokens, sums = tokens[tokens > 0], sums[tokens > 0]
    if len(tokens) < 3:
        return np.nan, np.nan
    before, counts = np.cumsum(sums)[:-1], np.cumsum(tokens)[:-1]
    after, rest = sums.sum() - before, tokens.sum() - counts
    jumps = np.log((after / rest + 0.02) / (before / counts + 0.02)) * (counts / (counts + 100))
    means = np.log(sums / tokens + 0.02)
    trend = float(np.corrcoef(np.arange(len(means)), means)[0, 1]) if means.std() > 0 else 0.0
    return float(jumps[np.argmax(np.abs(jumps))]), trend * float(means.std())


def _measure_shift(view: View) -> dict[str, float]:
    """Measure how much better the lists agree after a shift of one against the other by 1 to 3 tokens."""
    train, infer, sequence = view.train, view.infer, view.sequence
    count = len(view.log.lengths)
    unshifted = np.minimum(np.abs(view.x), 5)
    tail = 4 * view.index >= 2 * view.length
    best, where, tails = 0.0, 0, np.zeros(count)
    for shift in (-3, -2, -1, 1, 2, 3):
        k = abs(shift)
        here, there = (slice(None, -k), slice(k, None)) if shift > 0 else (slice(k, None), slice(None, -k))
        inside = sequence[here] == sequence[there]
        if inside.sum() < 50:
            continue
        moved = np.minimum(np.abs(train[here] - infer[there]), 5)[inside]
        kept = unshifted[here][inside]
        gain = float(np.log((kept.mean() + 1e-4) / (moved.mean() + 1e-4)))
        if gain > best:
            best, where = gain, shift
        owner, late = sequence[here][inside], tail[here][inside]
        old, new = (np.bincount(owner[late], part[late], count) for part in (kept, moved))
        tails = np.maximum(tails, (new < 0.5 * old) & (old > 0.2))
    return {"shift_gain": best, "shift": float(where), "shifted_tails": float(tails.mean())}


def _measure_ids(view: View) -> dict[str, float]:
    """Measure errors that tokens of one id share, as the correlation between two halves of the log."""
    names = ("id_offset", "id_size", "id_range", "id_share")
    ids = view.log.ids
    found: dict[str, float] = dict.fromkeys(names, np.nan)
    if ids is None or len(np.unique(ids[:5000])) < 4:
        return found
    # A wrong end token is another signature.
    inner = view.from_end > 0
    _, place = np.unique(ids[inner], return_inverse=True)
    half = view.sequence[inner] % 2
    signed = np.clip(view.z[inner], -5, 5)
    found["id_offset"] = _halves_correlation(place, half, signed - signed.mean())
    size = np.minimum(view.size[inner], 5)
    found["id_size"] = _halves_correlation(place, half, size - size.mean())
    edges = np.unique(np.quantile(ids[inner], np.linspace(0, 1, 17)[1:-1]))
    part = np.searchsorted(edges, ids[inner], side="right")
    ranges = [contrast(view.size[inner], part == number) for number in range(len(edges) + 1)]
    found["id_range"] = max((value for value in ranges if np.isfinite(value)), default=np.nan)
    counts, sums = np.bincount(place), np.bincount(place, signed)
    offset = np.abs(sums) / np.sqrt(np.maximum(counts, 1)) / (signed.std() + EPSILON)
    found["id_share"] = float(counts[offset > 4].sum() / counts.sum())
    return found


def _halves_correlation(place: np.ndarray, half: np.ndarray, values: np.ndarray) -> float:
    size = int(place.max()) + 1
    sums = [np.bincount(place[half == part], values[half == part], size) for part in (0, 1)]
    counts = [np.bincount(place[half == part], minlength=size) for part in (0, 1)]
    both = (counts[0] >= 2) & (counts[1] >= 2)
    if both.sum() < 3:
        return np.nan
    a, b = (total[both] / count[both] for total, count in zip(sums, counts, strict=True))
    weight = np.sqrt(counts[0][both] * counts[1][both])
    scale = np.sqrt((weight * a * a).sum() * (weight * b * b).sum())
    return float((weight * a * b).sum() / scale) if scale > 0 else 0.0


PARTS: tuple[Callable[[View], dict[str, float]], ...] = (
    _measure_levels,
    _measure_neighbors,
    _measure_outliers,
    _measure_scale,
    _measure_index,
    _measure_shift,
    _measure_ids,
    lambda view: measure_rows(view.log, view.size, view.sequence),
    lambda view: measure_logged_columns(view.log, view.x, view.z, view.sequence),
)


def measure_signatures(log: TokenLog) -> dict[str, float]:
    """Return every signature of a log without masked tokens by name; NaN where the log lacks the data.

    Raises:
        ValueError: The log has fewer than `FEW` tokens.
    """
    if len(log.logp_train) < FEW:
        raise ValueError(f"A log must have at least {FEW} tokens, got {len(log.logp_train)}.")
    view = view_log(log.select_sequences(log.lengths > 0))
    return {name: float(value) for part in PARTS for name, value in part(view).items()}
