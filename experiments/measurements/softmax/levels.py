"""Count the discrete levels of rounded probabilities, and compare them between seeds."""

from itertools import combinations

import numpy as np
from numpy import ndarray

from experiments.measurements.softmax.statistics import jaccard, noise_variation, shared_mass, total_variation

# The complete range in sixteenths of an octave, and a quarter octave in quarters of a BF16 step, with
# every BF16 level at the center of a bin.
WINDOWS: dict[str, ndarray] = {
    "octaves": np.exp2(np.arange(-14 * 16, -3 * 16 + 1) / 16),
    "steps": (np.arange(181 * 4, 215 * 4 + 1) - 0.5) / 4 / 128 / 1024,
}


def compare_seeds(samples: dict[int, ndarray]) -> list[dict]:
    """Return one row per pair of seeds: the similarity of the values of their samples.

    `samples[seed]` [2, tokens]: float32 probabilities, rounded probabilities. `noise` is the total
    variation of a random split of both samples together: if it equals `variation`, the seed changes
    neither the positions nor the heights of the levels.
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


def histograms(infer: ndarray) -> list[dict]:
    """Return the counts of `infer` [tokens] in the bins of both windows."""
    rows = []
    for window, edges in WINDOWS.items():
        counts = np.histogram(infer, edges)[0]
        rows += [
            {"window": window, "left": left, "right": right, "count": int(count)}
            for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
    return rows


def count_levels(values: ndarray) -> tuple[int, float]:
    """Return the number of distinct values of a sample, and exp of their entropy: as many equal ones."""
    fractions = np.unique(values, return_counts=True)[1] / len(values)
    return len(fractions), float(np.exp(-np.sum(fractions * np.log(fractions))))
