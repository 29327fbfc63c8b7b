"""Interim analyses of runs with a controlled error rate."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import optimize, stats

from simlab.core.catalog import lookup

NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)
FAINT, SMOOTH = 1e-12, 0.4
"""p-values outside are not corrected for the number of looks: nothing depends on them."""

# The bound on |z| at analysis k of K, in units of one constant.
SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "obrien_fleming": lambda information: np.sqrt(information[-1] / information),
    "pocock": np.ones_like,
}


def stopping_levels(analyses: int, shape: str = "obrien_fleming", alpha: float = 0.05) -> np.ndarray:
    """Return the confidence level [analyses] of the interval at each of equally spaced interim analyses.

    Stop at the first analysis whose interval of that level excludes zero: without an effect this happens
    with probability `alpha` over all analyses. `obrien_fleming` spends little on early analyses, `pocock`
    the same on each. Pass a level to `paired_effect`.

    Reference: O'Brien & Fleming 1979; Pocock 1977.
    Raises `ValueError` for an unknown shape and fewer than one analysis.
    """
    if analyses < 1:
        raise ValueError(f"analyses must be at least 1, got {analyses}")
    return 1 - 2 * stats.norm.sf(stopping_bounds(tuple(range(1, analyses + 1)), shape, alpha))


@cache
def stopping_bounds(
    policies: tuple[int, ...], shape: str = "obrien_fleming", alpha: float = 0.05
) -> np.ndarray:
    """Return the bounds on |z| at each analysis. Without an effect, a crossing has probability `alpha`.

    Args:
        policies: numbers of initial policies at the K analyses, increasing.
        shape: `obrien_fleming` or `pocock`.
        alpha: two-sided error rate over all analyses.

    Returns:
        Bounds [K], in standard errors.

    Raises:
        ValueError: For an unknown shape.
    """
    information = np.asarray(policies, float) / policies[0]
    shape_values = lookup(SHAPES, shape, "shape of bounds")(information)
    constant = optimize.brentq(
        lambda c: _crossing(c * shape_values, information) - alpha, 0.2, 12.0, xtol=1e-10
    )
    return float(constant) * shape_values  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Looks:
    """The numbers of initial policies at which a study is analyzed.

    If there are several, the first analysis only stops for futility and decides nothing. If there are none,
    the study is analyzed once, with all of its policies.
    """

    policies: tuple[int, ...] = ()

    @property
    def deciding(self) -> tuple[int, ...]:
        """The analyses that may decide."""
        return self.policies[1:] if len(self.policies) > 1 else self.policies

    def decides(self, num_policies: int) -> bool:
        """Return whether a study of `num_policies` may be decided."""
        return not self.deciding or num_policies >= self.deciding[0]

    def nominal(self, alpha: float, num_policies: int) -> float:
        """Return the level of one look of a study whose looks have the error rate `alpha` together."""
        if len(self.deciding) < 2:
            return alpha
        reached = sum(num_policies >= look for look in self.deciding)
        bounds = stopping_bounds(self.deciding, alpha=float(f"{alpha:.6g}"))
        return float(2 * stats.norm.sf(bounds[max(reached, 1) - 1]))

    def overall(self, p: float, num_policies: int) -> float:
        """Return the error rate of all looks at which a look with p-value `p` just decides.

        Reference: Liu & Anderson 2008 (sequential p-values).
        """
        if len(self.deciding) < 2 or p >= SMOOTH:
            return p
        low, high = np.log(FAINT), np.log(0.5)
        if self.nominal(FAINT, num_policies) >= p:
            return p
        if self.nominal(0.5, num_policies) <= p:
            return max(p, 0.5)
        log_level: Any = optimize.brentq(
            lambda x: np.log(self.nominal(float(np.exp(x)), num_policies) / p), low, high, xtol=1e-6
        )
        return float(np.exp(log_level))


def _crossing(bounds: np.ndarray, information: np.ndarray) -> float:
    """Return the probability that z_k = s_k / sqrt(i_k) leaves +-bounds at some analysis.

    s_k is normal with variance i_k, the information of analysis k, and has independent increments.

    Reference: Armitage, McPherson & Rowe 1969 (the density of s_k on paths inside the bounds).
    """
    limits = bounds * np.sqrt(information)
    points = limits[0] * NODES
    density = stats.norm.pdf(points, scale=np.sqrt(information[0]))
    for (before, limit), width in zip(pairwise(limits), np.sqrt(np.diff(information)), strict=True):
        reached = limit * NODES
        step = stats.norm.pdf(reached[:, None] - points[None], scale=width)
        density = step @ (density * WEIGHTS * before)
        points = reached
    return float(1 - density @ WEIGHTS * limits[-1])
