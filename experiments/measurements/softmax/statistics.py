"""The discrete levels of rounded probabilities between seeds, and the printed table compared with ours."""

import math
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from simlab.studies.estimands import Frame

# The complete range in sixteenths of an octave, and a quarter octave in quarters of a BF16 step, with
# every BF16 level at the center of a bin.
WINDOWS: dict[str, np.ndarray] = {
    "octaves": np.exp2(np.arange(-14 * 16, -3 * 16 + 1) / 16),
    "steps": (np.arange(181 * 4, 215 * 4 + 1) - 0.5) / 4 / 128 / 1024,
}
# hacking Tab. 2: averages over its five seeds, four printed digits.
PAPER = {"mean": 1.0000, "std": 0.0048, "max": 1.0189, "min": 0.9815}
PAPER_SEEDS = 5
LAST_DIGIT = 1e-4
FALSE_ALARM = 0.05


def summary(rho: np.ndarray) -> dict[str, float]:
    """Return mean, std, max and min of rho, the columns of the paper's table."""
    rho = np.asarray(rho, float)
    return {name: float(getattr(rho, name)()) for name in ("mean", "std", "max", "min")}


def prediction_interval(
    values: np.ndarray, of: int, alpha: float, printed: float = 0.0
) -> tuple[float, float]:
    """Return bounds on the average of `of` further draws, given `values` (normal theory).

    `printed` is one unit of the last printed digit; half of it is added on both sides.
    """
    values = np.asarray(values, float)
    half = stats.t.isf(alpha / 2, len(values) - 1) * values.std(ddof=1)
    half = half * math.sqrt(1 / of + 1 / len(values)) + printed / 2
    return float(values.mean() - half), float(values.mean() + half)


def mean_interval(values: np.ndarray, alpha: float = 0.05) -> tuple[float, float]:
    """Return the t interval of the mean of `values`."""
    values = np.asarray(values, float)
    half = stats.t.isf(alpha / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """Return |A and B| / |A or B| of the sets of values."""
    a, b = np.unique(a), np.unique(b)
    return len(np.intersect1d(a, b, assume_unique=True)) / len(np.union1d(a, b))


def shared_mass(a: np.ndarray, b: np.ndarray) -> float:
    """Return the fraction of sample `a` whose values also occur in sample `b`."""
    return float(np.isin(a, b).mean())


def total_variation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the total-variation distance of the samples' distributions over exact values."""
    both, where = np.unique(np.concatenate([a, b]), return_inverse=True)
    counts = np.bincount(where[: len(a)], minlength=len(both)) / len(a)
    return float(np.abs(counts - np.bincount(where[len(a) :], minlength=len(both)) / len(b)).sum() / 2)


def noise_variation(a: np.ndarray, b: np.ndarray, generator: np.random.Generator, splits: int = 8) -> float:
    """Return the mean total variation of random splits of both samples, that of sampling alone."""
    pooled = np.unique(np.concatenate([a, b]), return_inverse=True)[1]
    distances = []
    for _ in range(splits):
        order = generator.permutation(pooled)
        counts = [
            np.bincount(part, minlength=pooled.max() + 1) for part in (order[: len(a)], order[len(a) :])
        ]
        distances.append(np.abs(counts[0] / len(a) - counts[1] / len(b)).sum() / 2)
    return float(np.mean(distances))


def compare_seeds(samples: dict[int, np.ndarray]) -> list[dict]:
    """Return one row per pair of seeds: the similarity of the values of their samples.

    `samples[seed]` [2, tokens]: float32 probabilities, rounded probabilities. `noise` is the total
    variation of a random split of both samples together: where it equals `variation`, the seed moves
    neither the places nor the heights of the levels.
    Reference: hacking Fig. 13.
    """
    rows = []
    for (a, first), (b, second) in combinations(samples.items(), 2):
        for row, precision in enumerate(("float32", "rounded")):
            generator = np.random.default_rng([a, b, row])
            p, q = first[row], second[row]
            rows.append(
                {
                    "seed_a": a,
                    "seed_b": b,
                    "precision": precision,
                    "jaccard": jaccard(p, q),
                    "shared_mass": shared_mass(p, q),
                    "variation": total_variation(p, q),
                    "noise": noise_variation(p, q, generator),
                }
            )
    return rows


def histograms(infer: np.ndarray) -> list[dict]:
    """Return the counts of `infer` [tokens] in the bins of both windows."""
    rows = []
    for window, edges in WINDOWS.items():
        counts = np.histogram(infer, edges)[0]
        rows += [
            {"window": window, "left": left, "right": right, "count": int(count)}
            for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
    return rows


def count_levels(values: np.ndarray) -> tuple[int, float]:
    """Return the number of distinct values of a sample, and exp of their entropy: as many equal ones."""
    fractions = np.unique(values, return_counts=True)[1] / len(values)
    return len(fractions), float(np.exp(-np.sum(fractions * np.log(fractions))))


def fit(ratios: Frame) -> pd.DataFrame:
    """Return, per reading, placement and column, the prediction interval and the printed average.

    A placement fits if the paper's averages, +- half a printed digit, lie in our prediction intervals for
    five seeds, 95% over the four columns together.

    Reference: hacking Tab. 2.
    """
    rows = []
    for (reading, placement), group in ratios.groupby(["per_vector", "placement"], sort=False):
        for column, paper in PAPER.items():
            values = group[column].to_numpy()
            low, high = prediction_interval(values, PAPER_SEEDS, FALSE_ALARM / len(PAPER), printed=LAST_DIGIT)
            rows.append(
                {
                    "per_vector": reading,
                    "placement": placement,
                    "column": column,
                    "paper": paper,
                    "ours": values.mean(),
                    "low": low,
                    "high": high,
                    "seeds": len(values),
                    "inside": low <= paper <= high,
                }
            )
    return pd.DataFrame(rows)
