"""Points for the figure of signatures, panel by panel."""

import numpy as np

from simlab.core.json_value import Json
from simlab.diagnosis.log import TokenLog
from simlab.diagnosis.rank_tests import mean_by_class
from simlab.diagnosis.signatures import FEW, MAX_SHIFT
from simlab.diagnosis.token_view import TokenView, view_log

BINS, MAX_DOTS = 24, 800


def measure_panels(log: TokenLog) -> list[dict[str, Json]]:
    """Return rows `panel`, `x`, `y` for a log without masked tokens; [] for fewer than `FEW` tokens."""
    if len(log.logp_train) < FEW:
        return []
    view = view_log(log.select_sequences(log.lengths > 0))
    points = {
        "log_rho": _histogram(view.x, *np.quantile(view.x, (0.002, 0.998))),
        "probability": _by_probability(view),
        "index": _by_index(view.index + 1, view.size),
        "from_end": _by_index(view.from_end + 1, view.size),
        "sequence": _thin(mean_by_class(view.size, view.sequence)),
        "id": _by_id(view),
        "shift": _by_shift(view),
        "factor": _factors(view),
    }
    return [
        {"panel": name, "x": float(x), "y": float(y)}
        for name, rows in points.items()
        for x, y in rows
        if np.isfinite(x) and np.isfinite(y)
    ]


Points = list[tuple[float, float]]


def _histogram(values: np.ndarray, low: float, high: float) -> Points:
    counts, edges = np.histogram(values, 2 * BINS, (low, max(high, low + 1e-9)))
    return list(zip((edges[1:] + edges[:-1]) / 2, counts / max(1, len(values)), strict=True))


def _by_probability(view: TokenView) -> Points:
    probs = np.exp(view.infer, dtype=np.float64)
    index = np.minimum((probs * 10).astype(int), 9)
    return [
        ((number + 0.5) / 10, float(np.sqrt(np.mean(view.x[index == number] ** 2))))
        for number in range(10)
        if (index == number).sum() >= 5
    ]


def _by_index(index: np.ndarray, size: np.ndarray) -> Points:
    edges = np.unique(np.geomspace(1, index.max() + 1, BINS).astype(int))
    number = np.searchsorted(edges, index, side="right")
    means, centers = mean_by_class(size, number), mean_by_class(index, number)
    return [(float(centers[k]), float(means[k])) for k in np.flatnonzero(np.bincount(number) >= 3)]


def _by_id(view: TokenView) -> Points:
    if view.log.ids is None:
        return []
    _, index = np.unique(view.log.ids, return_inverse=True)
    return _thin(np.sort(mean_by_class(view.z, index)[np.bincount(index) >= 8]))


def _thin(means: np.ndarray) -> Points:
    """Return at most `MAX_DOTS` points of a curve."""
    rows = np.linspace(0, len(means) - 1, min(len(means), MAX_DOTS)).astype(int)
    return [(float(row), float(means[row])) for row in rows]


def _by_shift(view: TokenView) -> Points:
    points = []
    for shift in range(-MAX_SHIFT, MAX_SHIFT + 1):
        k = abs(shift)
        here = slice(None, -k or None) if shift >= 0 else slice(k, None)
        there = slice(k, None) if shift >= 0 else slice(None, -k)
        inside = view.sequence[here] == view.sequence[there]
        apart = np.abs(view.train[here] - view.infer[there])[inside]
        points.append((shift, float(np.minimum(apart, 5).mean()) if len(apart) else np.nan))
    return points


def _factors(view: TokenView) -> Points:
    usable = (view.infer < -0.05) & (view.train < -1e-4)
    return _histogram(view.infer[usable] / view.train[usable], 0.0, 3.0) if usable.sum() >= 30 else []
