"""Looking at runs before all of them are there, without raising the rate of false alarms."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy import optimize, stats

from simlab.core.catalog import lookup

NODES = 64

# The bound on |z| at look k of K, in units of one constant.
SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "obrien_fleming": lambda looks: np.sqrt(len(looks) / looks),
    "pocock": np.ones_like,
}


def stopping_levels(looks: int, shape: str = "obrien_fleming", alpha: float = 0.05) -> np.ndarray:
    """Return the confidence level [looks] of the interval at each of equally spaced looks at the runs.

    Stop at the first look whose interval of that level leaves zero out: without an effect that happens with
    probability `alpha` over all looks. `obrien_fleming` hardly spends on early looks, `pocock` the same on
    each. Give a level to `paired_effect`.

    Source: O'Brien & Fleming 1979; Pocock 1977.
    Raises `ValueError` for an unknown shape and fewer than one look.
    """
    return 1 - 2 * stats.norm.sf(stopping_bounds(looks, shape, alpha))


def stopping_bounds(looks: int, shape: str = "obrien_fleming", alpha: float = 0.05) -> np.ndarray:
    """Return the bounds [looks] on |z|: crossing any of them has probability `alpha` without an effect."""
    if looks < 1:
        raise ValueError(f"looks must be at least 1, got {looks}")
    units = lookup(SHAPES, shape, "shape of bounds")(np.arange(1, looks + 1, dtype=float))
    constant = optimize.brentq(lambda c: _crossing(c * units) - alpha, 0.5, 8.0, xtol=1e-10)
    return float(constant) * units  # pyright: ignore[reportArgumentType]


def _crossing(bounds: np.ndarray) -> float:
    """Probability that z_k = s_k / sqrt(k), s_k a sum of k standard normals, leaves +-bounds at some look.

    Source: Armitage, McPherson & Rowe 1969 (the density of s_k on paths that stayed inside, look by look).
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
