"""Interim analyses of runs with a controlled error rate."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy import optimize, stats

from simlab.core.catalog import lookup

NODES = 64

# The bound on |z| at analysis k of K, in units of one constant.
SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "obrien_fleming": lambda analyses: np.sqrt(len(analyses) / analyses),
    "pocock": np.ones_like,
}


def stopping_levels(analyses: int, shape: str = "obrien_fleming", alpha: float = 0.05) -> np.ndarray:
    """Return the confidence level [analyses] of the interval at each of equally spaced interim analyses.

    Stop at the first analysis whose interval of that level excludes zero: without an effect this happens
    with probability `alpha` over all analyses. `obrien_fleming` spends little on early analyses, `pocock`
    the same on each. Pass a level to `paired_effect`.

    Source: O'Brien & Fleming 1979; Pocock 1977.
    Raises `ValueError` for an unknown shape and fewer than one analysis.
    """
    return 1 - 2 * stats.norm.sf(stopping_bounds(analyses, shape, alpha))


def stopping_bounds(analyses: int, shape: str = "obrien_fleming", alpha: float = 0.05) -> np.ndarray:
    """Return the bounds [analyses] on |z|: crossing any of them has probability `alpha` without an effect."""
    if analyses < 1:
        raise ValueError(f"analyses must be at least 1, got {analyses}")
    units = lookup(SHAPES, shape, "shape of bounds")(np.arange(1, analyses + 1, dtype=float))
    constant = optimize.brentq(lambda c: _crossing(c * units) - alpha, 0.5, 8.0, xtol=1e-10)
    return float(constant) * units  # pyright: ignore[reportArgumentType]


def _crossing(bounds: np.ndarray) -> float:
    """Return the probability that z_k = s_k / sqrt(k) leaves +-bounds at some analysis; s_k sums k normals.

    Source: Armitage, McPherson & Rowe 1969 (the density of s_k on paths inside the bounds).
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    limits = bounds * np.sqrt(np.arange(1, len(bounds) + 1))
    places = limits[0] * nodes
    density = stats.norm.pdf(places)
    for before, limit in pairwise(limits):
        reached = limit * nodes
        density = stats.norm.pdf(reached[:, None] - places[None]) @ (density * weights * before)
        places = reached
    return float(1 - density @ weights * limits[-1])
