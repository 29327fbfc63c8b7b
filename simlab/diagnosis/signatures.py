"""Signatures of a log: numbers that describe location and shape of its mismatch.

Except for the levels, they are relative to the mismatch of the log, and compare tokens of equal probability.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from simlab.diagnosis.index_signatures import measure_index
from simlab.diagnosis.log import LOWEST, TokenLog
from simlab.diagnosis.rank_tests import EPSILON, correlate, largest_finite
from simlab.diagnosis.sequence_signatures import measure_logged_columns, measure_rows
from simlab.diagnosis.token_view import TokenView, bin_by_quantile, contrast, signed_log, view_log

FEW = 200
"""Number of tokens below which a log has no signatures."""
MAX_SHIFT = 3
PROBABILITIES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0 + 1e-9)
LOG_BASES = {"base_2": np.log(2), "base_10": np.log(10)}


def _balance(x: np.ndarray) -> float:
    """Return mean(rho - 1) over the k3 KL: near 0 if the tokens are samples of the reported log-probs."""
    inside = np.clip(x, -5, 5)
    excess = np.expm1(inside)
    return float(np.clip(excess.mean() / (np.mean(excess - inside) + EPSILON), -3, 3))


def _measure_neighbors(view: TokenView) -> dict[str, float]:
    """Measure whether neighbors in a sequence share the size or the sign of their mismatch."""
    inside = view.sequence[1:] == view.sequence[:-1]
    names = {"neighbor_size": np.minimum(view.size, 5), "neighbor_sign": np.clip(view.z, -5, 5)}
    return {
        name: correlate(values[1:][inside], values[:-1][inside]) if inside.sum() >= 50 else np.nan
        for name, values in names.items()
    }


def _measure_levels(view: TokenView) -> dict[str, float]:
    x, infer = view.x, view.infer
    probs = np.exp(infer, dtype=np.float64)
    middle = (probs > 0.1) & (probs < 0.9)
    inside = x[middle] if middle.sum() >= 30 else x
    rms, magnitude = float(np.sqrt(np.mean(inside**2))), np.abs(inside)
    low, q25, q75, high = np.quantile(inside, (0.02, 0.25, 0.75, 0.98))
    rho = np.expm1(np.minimum(x, 10))
    measured = {
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
        "tilt": correlate(x, infer),
        "kurtosis": float(np.log(np.mean(view.z**4) / (np.mean(view.z**2) ** 2 + EPSILON) + 1e-3)),
        "entropy": float(-infer.mean()),
        "confident": float(np.mean(probs > 0.9)),
    }
    for low, high in pairwise(PROBABILITIES):
        chosen = (probs >= low) & (probs < high)
        part = x[chosen]
        enough = len(part) >= 20
        measured[f"rms_above_{low}"] = (
            np.log10((np.sqrt(np.mean(part**2)) + 1e-9) / (rms + 1e-9)) if enough else np.nan
        )
        measured[f"bias_above_{low}"] = (
            float(np.clip(part.mean() / (np.sqrt(np.mean(part**2)) + EPSILON), -1, 1)) if enough else np.nan
        )
    return measured


def _measure_outliers(view: TokenView) -> dict[str, float]:
    outlier = view.size > 6
    count, rate = int(outlier.sum()), float(outlier.mean())
    p, q = np.exp(view.infer, dtype=np.float64), np.exp(view.train, dtype=np.float64)
    sure = (p > 0.9) & (q < 0.3)
    measured = {
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
        measured[f"outliers_together_{distance}"] = (
            np.log((both.mean() + 0.5 * rate**2) / (1.5 * rate**2)) if count >= 8 else np.nan
        )
    return measured


def _measure_scale(view: TokenView) -> dict[str, float]:
    """Measure a common factor of the log-probabilities (base of the log) and of the logits (temperature)."""
    measured: dict[str, float] = dict.fromkeys(
        (
            "log_factor",
            "log_factor_spread",
            "log_factor_fit",
            "temperature",
            "temperature_spread",
            "temperature_fit",
            *LOG_BASES,
        ),
        np.nan,
    )
    usable = (view.infer < -0.05) & (view.train < -1e-4) & (view.infer > LOWEST)
    if usable.sum() >= 30:
        factor = np.log(view.infer[usable] / view.train[usable])
        measured |= _summarize("log_factor", factor, 0.0)
        for name, base in LOG_BASES.items():
            distance = np.minimum(np.abs(factor - np.log(base)), np.abs(factor + np.log(base)))
            measured[name] = float(np.mean(distance < 0.05))
    probs = np.exp(view.infer, dtype=np.float64)
    likely = (probs > 0.55) & (probs < 0.999)
    if likely.sum() >= 30:
        trained = np.clip(np.exp(view.train[likely], dtype=np.float64), 1e-9, 1 - 1e-9)
        inferred = probs[likely]
        ratio = np.log(trained / (1 - trained)) / np.log(inferred / (1 - inferred))
        measured |= _summarize("temperature", ratio, 1.0)
    return measured


def _summarize(name: str, values: np.ndarray, expected: float) -> dict[str, float]:
    """Return median, interquartile range, and log of the distance from `expected` over that range."""
    low, middle, high = map(float, np.quantile(values, (0.25, 0.5, 0.75)))
    fit = float(np.log((abs(middle - expected) + 1e-3) / (high - low + 1e-3)))
    return {name: middle, f"{name}_spread": high - low, f"{name}_fit": fit}


def _measure_shift(view: TokenView) -> dict[str, float]:
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


def _measure_ids(view: TokenView) -> dict[str, float]:
    """Measure errors common to all tokens of an id, as the correlation between two halves of the log."""
    names = ("id_offset", "id_offset_z", "id_size", "id_range", "id_share")
    ids = view.log.ids
    measured: dict[str, float] = dict.fromkeys(names, np.nan)
    if ids is None or len(np.unique(ids[:5000])) < 4:
        return measured
    # A wrong end token is another signature.
    inner = view.from_end > 0
    _, id_index = np.unique(ids[inner], return_inverse=True)
    half = view.sequence[inner] % 2
    signed = np.clip(view.z[inner], -5, 5)
    measured["id_offset"] = _halves_correlation(id_index, half, signed - signed.mean())
    measured["id_offset_z"] = _halves_z(id_index, half, signed - signed.mean())
    size = np.minimum(view.size[inner], 5)
    measured["id_size"] = _halves_correlation(id_index, half, size - size.mean())
    part, count = bin_by_quantile(ids[inner], 16)
    measured["id_range"] = largest_finite(contrast(view.size[inner], part == k) for k in range(count))
    counts, sums = np.bincount(id_index), np.bincount(id_index, signed)
    offset = np.abs(sums) / np.sqrt(np.maximum(counts, 1)) / (signed.std() + EPSILON)
    measured["id_share"] = float(counts[offset > 4].sum() / counts.sum())
    return measured


def _halves_correlation(id_index: np.ndarray, half: np.ndarray, values: np.ndarray) -> float:
    size = int(id_index.max()) + 1
    sums = [np.bincount(id_index[half == part], values[half == part], size) for part in (0, 1)]
    counts = [np.bincount(id_index[half == part], minlength=size) for part in (0, 1)]
    both = (counts[0] >= 2) & (counts[1] >= 2)
    if both.sum() < 3:
        return np.nan
    a, b = (total[both] / count[both] for total, count in zip(sums, counts, strict=True))
    weight = np.sqrt(counts[0][both] * counts[1][both])
    scale = np.sqrt((weight * a * a).sum() * (weight * b * b).sum())
    return float((weight * a * b).sum() / scale) if scale > 0 else 0.0


def _halves_z(id_index: np.ndarray, half: np.ndarray, values: np.ndarray) -> float:
    """Return the `signed_log` z of the products of the two halves' sums per id; near 0 for chance."""
    size, variance = int(id_index.max()) + 1, float(np.mean(values**2))
    a, b = (np.bincount(id_index[half == part], values[half == part], size) for part in (0, 1))
    n, m = (np.bincount(id_index[half == part], minlength=size).astype(np.float64) for part in (0, 1))
    error = variance * np.sqrt(float((n * m).sum()))
    return signed_log(float((a * b).sum()) / error) if error > 0 else np.nan


PARTS: tuple[Callable[[TokenView], dict[str, float]], ...] = (
    _measure_levels,
    _measure_neighbors,
    _measure_outliers,
    _measure_scale,
    measure_index,
    _measure_shift,
    _measure_ids,
    measure_rows,
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
