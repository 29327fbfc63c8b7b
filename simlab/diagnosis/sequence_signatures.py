"""Signatures over sequences and over optional columns: workers, duplicates, ages, updates, experts."""

import numpy as np

from simlab.diagnosis.log import TokenLog
from simlab.diagnosis.rank_tests import mean_by_class, rms, spearman_z
from simlab.diagnosis.routing import find_flips, fraction_from_flips
from simlab.diagnosis.token_view import TokenView, rank_parts, signed_log

STRIDES = range(2, 17)
GROUPS = (2, 4, 8, 16)
"""Numbers of responses per prompt."""
MIN_ROWS = 8
ROWS_PER_STEP = 4
DIGITS = 2e-6
"""Difference, nats, of one log-probability written as text with six digits by one of two columns."""
MIN_TOKENS = 4
"""Number of tokens below which a sequence has no level."""
ROW_SIGNATURES = (
    "row_stride",
    "row_block",
    "row_class_effect",
    "row_order",
    "row_worker",
    "row_two_kinds",
    "row_share",
    "row_spread",
    "row_trend",
    "row_parity",
    "row_halves",
)


def measure_rows(view: TokenView) -> dict[str, float]:
    """Measure which rows differ: every k-th, blocks, one worker, or several kinds without order."""
    log = view.log
    measured = dict.fromkeys(ROW_SIGNATURES, np.nan) | _measure_duplicates(log)
    chosen = log.lengths >= MIN_TOKENS
    if chosen.sum() < MIN_ROWS:
        return measured
    sums = np.bincount(view.sequence, view.size, len(log.lengths))[chosen]
    lengths = log.lengths[chosen]
    size_by_row = np.log(sums / lengths + 0.02)
    rows, step = np.flatnonzero(chosen), log.step[chosen]
    # A bad worker differs within a step; engines that stay behind differ between steps.
    level = size_by_row - _step_means(size_by_row, step)
    tests = {
        name: [_class_contrast(level, each) for each in classes]
        for name, classes in _list_orders(rows, step).items()
    }
    measured |= {name: np.log1p(max(each)[0]) for name, each in tests.items()}
    measured["row_class_effect"] = max(max(each)[1] for each in tests.values())
    measured["row_order"] = max(share for each in tests.values() for _, _, share in each)
    if log.worker is not None:
        measured["row_worker"] = np.log1p(_class_contrast(level, log.worker[chosen])[0])
    measured["row_two_kinds"], measured["row_share"] = _split_in_two(level)
    noise = np.sqrt(np.mean(1 / lengths))
    measured["row_spread"] = np.log(level.std() / noise + 1e-3)
    measured["row_trend"] = signed_log(spearman_z(rows, size_by_row))
    measured["row_parity"] = _correlate_parts(view, view.index % 2 == 1, chosen)
    measured["row_halves"] = _correlate_parts(view, 2 * view.index >= view.length, chosen)
    return measured


def _step_means(level: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return the mean level of each row's step, 0 if steps have fewer than `ROWS_PER_STEP` rows."""
    _, step_index = np.unique(step, return_inverse=True)
    means = mean_by_class(level, step_index)
    if len(means) < 2 or len(step) < ROWS_PER_STEP * len(means):
        return np.zeros_like(level)
    return means[step_index]


def _list_orders(rows: np.ndarray, step: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Return the classes of rows that a worker may have: every k-th, or blocks, of the log or of a step."""
    within = rows - np.searchsorted(step, step) if (np.diff(step) >= 0).all() else rows
    per_step = max(1, int(np.bincount(np.unique(step, return_inverse=True)[1]).max()))
    strides = [order % k for k in STRIDES for order in (rows, within)]
    # The responses of a prompt go to one worker: every k-th group of rows.
    strides += [order // group % k for group in GROUPS for k in (2, 4, 8, 16) for order in (rows, within)]
    blocks = [np.minimum(within * k // per_step, k - 1) for k in STRIDES]
    return {"row_stride": strides, "row_block": blocks}


def _correlate_parts(view: TokenView, second: np.ndarray, chosen: np.ndarray) -> float:
    """Return the correlation over rows between the mean ranks of two parts of a row."""
    a, b = (means[chosen] - means[chosen].mean() for means in rank_parts(view, second))
    scale = float(np.sqrt(np.sum(a * a) * np.sum(b * b)))
    return float(np.sum(a * b)) / scale if scale > 0 else 0.0


def _class_contrast(level: np.ndarray, classes: np.ndarray) -> tuple[float, float, float]:
    """Compare each class of rows with the others.

    Returns:
        The largest t statistic, the difference of means of that class, and the fraction of the variance that
        the classes explain beyond chance.
    """
    _, class_index = np.unique(classes, return_inverse=True)
    counts = np.bincount(class_index).astype(np.float64)
    if not 2 <= len(counts) <= 256:
        return 0.0, 0.0, 0.0
    sums, squares = np.bincount(class_index, level), np.bincount(class_index, level**2)
    others = np.maximum(len(level) - counts, 1)
    apart = sums / counts - (level.sum() - sums) / others
    within = (squares - sums**2 / counts).sum() / max(1, len(level) - len(counts))
    t = apart / np.sqrt(max(within, 1e-4) * (1 / counts + 1 / others))
    t[counts < 2] = 0
    best = int(np.argmax(t))
    share = 1 - within / max(float(level.var(ddof=1)), 1e-4)
    return max(0.0, float(t[best])), float(apart[best]), float(share)


def _split_in_two(level: np.ndarray) -> tuple[float, float]:
    """Return the largest fraction of variance that a threshold explains (Otsu), and the rows above it."""
    ordered = np.sort(level)
    count, counts = len(ordered), np.arange(1, len(ordered))
    sums = np.cumsum(ordered)[:-1]
    total = ordered.sum()
    between = (sums / counts - (total - sums) / (count - counts)) ** 2 * counts * (count - counts) / count**2
    best = int(np.argmax(between))
    return float(between[best] / max(ordered.var(), 1e-9)), float(1 - counts[best] / count)


def _measure_duplicates(log: TokenLog) -> dict[str, float]:
    """Measure sequences that repeat another of their group, beyond what their probability explains."""
    values = log.logp_infer.astype(np.float64) if log.ids is None else log.ids + 1.0
    # Irrational weights: equal sums mean equal sequences.
    digest = np.add.reduceat(values * np.modf(np.sqrt(log.index + 2.0))[0], log.starts)
    owner = log.step if log.group is None else log.group
    keys = np.stack([owner.astype(np.float64), log.lengths, digest], axis=1)
    repeats = len(keys) - len(np.unique(keys, axis=0))
    chance = np.exp(np.maximum(np.add.reduceat(log.logp_infer.astype(np.float64), log.starts), -700))
    sizes = np.bincount(np.unique(owner, return_inverse=True)[1])
    pairs = np.mean(sizes - 1) / 2
    # Without the prompt, equal answers to other prompts count as repeats too: more are expected.
    expected = float(chance.sum()) * max(pairs if log.group is not None else min(pairs, 8), 0.0)
    surplus = repeats - min(expected, len(keys))
    return {
        "repeats_z": signed_log(surplus / np.sqrt(min(expected, len(keys)) + 1)),
        "repeats": repeats / len(keys),
        "repeats_excess": float(np.log10((repeats + 0.5) / (min(expected, len(keys)) + 0.5))),
    }


def measure_logged_columns(
    log: TokenLog, x: np.ndarray, z: np.ndarray, sequence: np.ndarray
) -> dict[str, float]:
    """Measure what the columns `step`, `version`, `logp`, `update`, `is_weight` and the experts show."""
    return (
        _measure_steps(log, z, sequence)
        | _measure_ages(log, z, sequence)
        | _measure_current(log, sequence)
        | _measure_experts(log, x)
    )


def _measure_steps(log: TokenLog, z: np.ndarray, sequence: np.ndarray) -> dict[str, float]:
    names, step_index = np.unique(log.step, return_inverse=True)
    if len(names) < 6:
        return {"growth": np.nan, "step_jump": np.nan, "step_fit": np.nan}
    level = mean_by_class(np.minimum(np.abs(z), 10), step_index[sequence])
    third, logs = len(level) // 3, np.log(level + 0.02)
    return {
        "growth": float(logs[-third:].mean() - logs[:third].mean()),
        "step_jump": float(np.abs(np.diff(logs)).max() / (np.median(np.abs(np.diff(logs))) + 0.05)),
        "step_fit": _fit_steps(log, z, sequence, step_index),
    }


def _fit_steps(log: TokenLog, z: np.ndarray, sequence: np.ndarray, step: np.ndarray) -> float:
    """Return the fraction of the variance of the sequences' levels that their step explains."""
    level = np.log(np.bincount(sequence, np.abs(z), len(step)) / np.maximum(log.lengths, 1) + 0.02)
    means = mean_by_class(level, step)
    chance = (len(means) - 1) / max(1, len(level) - 1)
    explained = float(np.var(means[step]) / max(np.var(level), 1e-9))
    return (explained - chance) / max(1 - chance, 1e-3)


def _measure_ages(log: TokenLog, z: np.ndarray, sequence: np.ndarray) -> dict[str, float]:
    if log.version is None:
        return {"age_z": np.nan, "age_growth": np.nan}
    age = log.step - log.version
    if len(np.unique(age)) < 2:
        return {"age_z": 0.0, "age_growth": 0.0}
    level = np.bincount(sequence, np.abs(z), len(age)) / np.maximum(log.lengths, 1)
    oldest, freshest = level[age == age.max()].mean(), level[age == age.min()].mean()
    z_score = spearman_z(age, level)
    return {
        "age_z": signed_log(z_score),
        "age_growth": float(np.log((oldest + 0.02) / (freshest + 0.02))),
    }


def _measure_current(log: TokenLog, sequence: np.ndarray) -> dict[str, float]:
    """Measure the PPO ratio before and after updates, and IS weights that the ratio already contains."""
    names = ("ratio_before_update", "ratio_one_after_update", "ratio_copies_age", "weight_twice")
    measured: dict[str, float] = dict.fromkeys(names, np.nan)
    if log.logp is None:
        return measured
    moved = log.logp.astype(np.float64) - log.logp_train
    equal = np.abs(moved) < DIGITS
    if log.update is not None:
        before = (log.update == 0)[sequence]
        if before.sum() >= 50:
            measured["ratio_before_update"] = np.log10(rms(moved[before]) + 1e-8)
        if (~before).sum() >= 50:
            measured["ratio_one_after_update"] = float(np.mean(equal[~before]))
    if log.version is not None and (log.step > log.version).any():
        old = (log.step - log.version > 0)[sequence]
        measured["ratio_copies_age"] = float(np.mean(equal[old]))
        if log.update is None and old.sum() >= 50:
            # The weights of these tokens have seen updates, which `update` would count.
            measured["ratio_one_after_update"] = measured["ratio_copies_age"]
    if log.is_weight is not None:
        ratio = np.clip(log.logp.astype(np.float64) - log.logp_infer, -5, 5)
        weight = np.log(np.clip(log.is_weight.astype(np.float64), 1e-3, 1e3))
        # A truncated weight is at most 2; the ratio of a bypassed run is the IS ratio already.
        capped = np.minimum(ratio, max(float(weight.max()), 0.01))
        same = rms(weight - capped) / (rms(weight) + 1e-9) if rms(weight) > 1e-6 else np.inf
        is_bypassed = float(np.mean(log.logp_train == log.logp_infer)) > 0.99
        measured["weight_twice"] = float(is_bypassed and same < 0.5)
    return measured


def _measure_experts(log: TokenLog, x: np.ndarray) -> dict[str, float]:
    names = ("flips", "flips_share", "flips_ratio")
    if log.experts_train is None or log.experts_infer is None:
        return dict.fromkeys(names, np.nan)
    flipped = find_flips(log.experts_train, log.experts_infer, log.top_k)
    if not 20 <= flipped.sum() <= len(flipped) - 20:
        return {"flips": np.log10(flipped.mean() + 1e-4), "flips_share": 0.0, "flips_ratio": 0.0}
    ratio = rms(x[flipped]) / max(rms(x[~flipped]), 1e-9)
    return {
        "flips": float(np.log10(flipped.mean() + 1e-4)),
        "flips_share": fraction_from_flips(x, flipped),
        "flips_ratio": float(np.log(ratio + 1e-3)),
    }
