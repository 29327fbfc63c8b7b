"""Probabilities of causes from signatures: boosted trees fitted on simulated logs, and an open-set check.

`classifier.npz` is written by `simlab run diagnosis_roc`; docs/diagnosis.md reports its accuracy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from simlab.diagnosis.causes import CAUSES

PATH = Path(__file__).with_name("classifier.npz")
MISSING = -9.0
"""Value of a signature that the log cannot give; below all others."""
LIMIT = 8.0
UNKNOWN = "unknown"
UNPROVED = 0.59
"""Largest probability of `weight_sync` where no sign of it is outside the range of logs without a fault:
weights rounded to 4 bits are other weights too."""


@dataclass(frozen=True)
class Classifier:
    """A fitted model: K classes, F signatures, trees as flat arrays of nodes.

    - `names` [F], `causes` [K].
    - `feature`, `threshold`, `left`, `right`, `value`: nodes; `left` is -1 at a leaf. `value` is float32.
    - `roots` [trees, K]: first node of each tree; `baseline` [K].
    - `temperature`: divides the scores; fitted on logs that the trees did not see.
    - `shrink` [2]: slope and offset of the shrinkage of the best probability, see `shrink_probability`.
    - `center`, `scale` [F], `means` [K, F], `precision` [F, F]: open-set check; `far` [2]: squared distance
      at which `unknown` has probability one half, and the width of that logistic in log distance.
    - `faultless_low`, `faultless_high` [F]: 2% and 98% quantiles of logs without a fault.
    """

    names: np.ndarray
    causes: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    roots: np.ndarray
    baseline: np.ndarray
    temperature: np.ndarray
    center: np.ndarray
    scale: np.ndarray
    means: np.ndarray
    precision: np.ndarray
    far: np.ndarray
    faultless_low: np.ndarray
    faultless_high: np.ndarray
    shrink: np.ndarray = field(default_factory=lambda: np.array([1.0, 0.0]))

    def score(self, rows: np.ndarray) -> np.ndarray:
        """Return the sum of the trees [R, K] for rows of signatures [R, F]."""
        total = np.tile(self.baseline, (len(rows), 1))
        number = np.arange(len(rows))[:, None]
        for roots in self.roots:
            node = np.tile(roots, (len(rows), 1))
            while (inner := self.left[node] >= 0).any():
                goes_left = rows[number, self.feature[node]] <= self.threshold[node]
                node = np.where(inner, np.where(goes_left, self.left[node], self.right[node]), node)
            total += self.value[node]
        return total

    def measure_distance(self, rows: np.ndarray) -> np.ndarray:
        """Return the squared Mahalanobis distance to the nearest class [R]."""
        centered = (rows - self.center) / self.scale
        apart = np.clip(centered, -LIMIT, LIMIT)[:, None] - self.means
        return ((apart @ self.precision) * apart).sum(2).min(1)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """Return the probability of each cause [R, K]; rows unlike all fitted logs move to `unknown`."""
        scores = self.score(rows) / self.temperature
        probs = np.exp(scores - scores.max(1, keepdims=True))
        probs /= probs.sum(1, keepdims=True)
        probs = self._limit_unproved(self._shrink(probs), rows)
        limit, width = self.far
        strange = np.log(np.maximum(self.measure_distance(rows), 1e-9) / limit) / width
        far = 1 / (1 + np.exp(-np.clip(strange, -30, 30)))
        probs *= 1 - far[:, None]
        probs[:, self.causes == UNKNOWN] += far[:, None]
        return probs

    def has_sign(self, cause: str, rows: np.ndarray) -> np.ndarray:
        """Return whether a sign of the cause is outside the range of logs without a fault, [R]."""
        columns = np.flatnonzero(np.isin(self.names, CAUSES[cause].signs))
        values = rows[:, columns]
        outside = (values < self.faultless_low[columns]) | (values > self.faultless_high[columns])
        return np.any(outside & (values > MISSING), axis=1)

    def _limit_unproved(self, probs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return probabilities [R, K] with `weight_sync` at most `UNPROVED` without a sign of it.

        `rounding` gets the difference.
        """
        sync, rounding = self.causes == "weight_sync", self.causes == "rounding"
        if not (sync.any() and rounding.any()):
            return probs
        surplus = np.maximum(probs[:, sync] - UNPROVED, 0) * ~self.has_sign("weight_sync", rows)[:, None]
        limited = probs.copy()
        limited[:, sync] -= surplus
        limited[:, rounding] += surplus
        return limited

    def _shrink(self, probs: np.ndarray) -> np.ndarray:
        """Return probabilities [R, K] with a smaller best one; the sum of a row may be below 1.

        `unknown` gets what the others lose, as long as the best cause stays first.
        """
        top = probs.max(1, keepdims=True)
        ratio = np.minimum(1.0, shrink_probability(top, self.shrink) / top)
        column = self.causes == UNKNOWN
        unknown = probs[:, column]
        shrunk = probs * ratio
        limit = np.maximum(0.95 * top * ratio - unknown * ratio, 0)
        is_unknown = unknown >= top
        shrunk[:, column] += np.where(is_unknown, (1 - ratio) * unknown, np.minimum(limit, 1 - ratio))
        return shrunk


def shrink_probability(probability: np.ndarray, shrink: np.ndarray) -> np.ndarray:
    """Return the logistic function of `shrink[0]` x logit(probability) + `shrink[1]`."""
    inside = np.clip(probability, 1e-9, 1 - 1e-9)
    return 1 / (1 + np.exp(-shrink[0] * np.log(inside / (1 - inside)) - shrink[1]))


@cache
def load_classifier() -> Classifier:
    """Return the classifier of the package."""
    with np.load(PATH, allow_pickle=False) as stored:
        return Classifier(**{name: stored[name] for name in stored.files})


def as_rows(signatures: ArrayLike) -> np.ndarray:
    """Return signatures [R, F] as the trees read them, with `MISSING` for NaN; also used by the fit."""
    # In float32, as the stored logs of the fit: a threshold may lie between two roundings of one value.
    return np.nan_to_num(np.asarray(signatures, np.float32), nan=MISSING, posinf=LIMIT, neginf=-LIMIT)


def as_row(signatures: Mapping[str, float], names: np.ndarray) -> np.ndarray:
    """Return signatures as a row [F] in the order of `names`, with `MISSING` for NaN and absent ones."""
    return as_rows([signatures.get(str(name), np.nan) for name in names])


def estimate_causes(signatures: Mapping[str, float]) -> dict[str, float]:
    """Return the probability of each cause, most probable first; their sum is at most 1."""
    model = load_classifier()
    probs = model.predict(as_row(signatures, model.names)[None])[0]
    order = np.argsort(-probs, kind="stable")
    return {str(model.causes[index]): float(probs[index]) for index in order}
