"""Fit the classifier of `simlab diagnose`: boosted trees, temperature, open-set distance."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from simlab.diagnosis.classifier import LIMIT, UNKNOWN, Classifier, shrink_probability

TREES, LEAVES, RATE = 100, 8, 0.1
BOOSTERS = 2
FAULTLESS_WEIGHT = 1.3
"""Weight of logs without a fault over that of a cause: most runs have none."""
FAR_QUANTILE, FAR_FACTOR, FAR_WIDTH = 0.995, 2.0, 0.3
"""`unknown` has probability one half at `FAR_FACTOR` times this quantile of the distance of held-out logs."""
RIDGE = 0.1
MIN_FAULTLESS, OFFSETS = 0.9, np.arange(0.0, 2.05, 0.1)
"""Fraction of held-out logs without a fault to be named `rounding`, and offsets of its score to try.
The target is 85% on the test."""
CONFIDENT, MAX_WRONG = 0.6, 0.035
"""Fraction of held-out logs, below the target of 5%, with this probability on a wrong cause."""


def fit_classifier(rows: np.ndarray, causes: pd.Series, names: list[str], trees: int = TREES) -> Classifier:
    """Return a classifier with temperature 1, from rows of signatures [R, F] and their causes [R].

    The mean score of `BOOSTERS` models of so many trees per cause, which try other signatures.
    """
    # Needed for the fit only; the package reads the fitted numbers.
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    labels, index, counts = np.unique(causes, return_inverse=True, return_counts=True)
    weights = (len(rows) / len(labels) / counts)[index]
    weights[labels[index] == "rounding"] *= FAULTLESS_WEIGHT
    predictors, baselines = [], []
    for number in range(BOOSTERS):
        booster = HistGradientBoostingClassifier(
            max_iter=trees,
            max_leaf_nodes=LEAVES,
            learning_rate=RATE,
            l2_regularization=1.0,
            min_samples_leaf=8,
            max_features=0.2,
            early_stopping=False,  # pyright: ignore[reportArgumentType]
            random_state=number,
        )
        # Threads that wait for each other on a busy machine take twenty times as long as one.
        with threadpool_limits(1):
            model = booster.fit(rows, causes, sample_weight=weights)
        predictors += model._predictors
        baselines.append(np.ravel(model._baseline_prediction).astype(np.float64))
    known = causes.to_numpy() != UNKNOWN
    low, high = np.quantile(rows[(causes == "rounding").to_numpy()], (0.02, 0.98), axis=0)
    return Classifier(
        names=np.array(names),
        causes=labels.astype(str),
        **_flatten(predictors),
        baseline=np.mean(baselines, axis=0),
        temperature=np.array(1.0),
        **_fit_distance(rows[known], causes[known]),
        faultless_low=low,
        faultless_high=high,
    )


def _flatten(predictors: list) -> dict[str, np.ndarray]:
    """Return the trees of all boosters as arrays of nodes; their sum is the mean of the boosters."""
    parts, roots, offset = [], [], 0
    for trees in predictors:
        line = []
        for tree in trees:
            nodes, line = tree.nodes, [*line, offset]
            leaf = nodes["is_leaf"].astype(bool)
            parts.append(
                {
                    "feature": nodes["feature_idx"].astype(np.int16),
                    "threshold": nodes["num_threshold"].astype(np.float32),
                    "left": np.where(leaf, -1, nodes["left"].astype(np.int32) + offset),
                    "right": np.where(leaf, -1, nodes["right"].astype(np.int32) + offset),
                    "value": (nodes["value"] / BOOSTERS).astype(np.float32),
                }
            )
            offset += len(nodes)
        roots.append(line)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined |= {side: joined[side].astype(np.int32) for side in ("left", "right")}
    return joined | {"roots": np.array(roots, np.int32)}


def _fit_distance(rows: np.ndarray, causes: ArrayLike) -> dict[str, np.ndarray]:
    """Fit Gaussians of one covariance to the causes."""
    center, scale = np.median(rows, axis=0), np.maximum(rows.std(0), 1e-2)
    centered = np.clip((rows - center) / scale, -LIMIT, LIMIT)
    labels, index = np.unique(causes, return_inverse=True)
    means = np.stack([centered[index == number].mean(0) for number in range(len(labels))])
    within = centered - means[index]
    covariance = within.T @ within / len(within) + RIDGE * np.eye(rows.shape[1])
    precision = np.linalg.inv(covariance)
    return {
        "center": center,
        "scale": scale,
        "means": means,
        "precision": precision.astype(np.float32),
        "far": np.array([np.inf, FAR_WIDTH]),
    }


def calibrate(
    model: Classifier, scores: np.ndarray, causes: pd.Series, usual: np.ndarray, is_trained: np.ndarray
) -> Classifier:
    """Return the model with offset, temperature, open-set distance and shrinkage towards `unknown`.

    Args:
        model: Fitted with temperature 1.
        scores: Scores [R, K] of held-out logs.
        causes: Their causes, [R].
        usual: Signatures of held-out logs with a known cause.
        is_trained: Whether a policy was trained in simlab, [R]: the offset counts the logs of these, because
            the noise of random policies belongs to no engine and is easier to name.
    """
    index = np.searchsorted(model.causes, causes.astype(str))
    offset = fit_faultless_offset(scores[is_trained], index[is_trained], model.causes == "rounding")
    scores = scores + offset

    def loss(log_temperature: float) -> float:
        scaled = scores / np.exp(log_temperature)
        peak = scaled.max(1, keepdims=True)
        normal = peak[:, 0] + np.log(np.exp(scaled - peak).sum(1))
        return float(np.mean(normal - scaled[np.arange(len(index)), index]))

    best: Any = minimize_scalar(loss, bounds=(-1.5, 2.0), method="bounded")
    temperature = float(np.exp(best.x))
    limit = FAR_FACTOR * np.quantile(model.measure_distance(usual), FAR_QUANTILE)
    fitted = {
        "baseline": model.baseline + offset,
        "temperature": np.array(temperature),
        "far": np.array([limit, FAR_WIDTH]),
        "shrink": _fit_shrinkage(model, scores / temperature, index),
    }
    return Classifier(**(vars(model) | fitted))


def fit_faultless_offset(scores: np.ndarray, index: np.ndarray, is_rounding: np.ndarray) -> np.ndarray:
    """Return what to add to scores [K]: the least for `rounding` that names `MIN_FAULTLESS` of its logs.

    Args:
        scores: Scores [R, K] of held-out logs.
        index: Index of their causes, [R].
        is_rounding: Whether a cause is `rounding`, [K].
    """
    faultless = scores[is_rounding[index]]
    for offset in OFFSETS:
        named = (faultless + offset * is_rounding).argmax(1)
        if np.mean(is_rounding[named]) >= MIN_FAULTLESS:
            return offset * is_rounding
    return OFFSETS[-1] * is_rounding


def _fit_shrinkage(model: Classifier, scores: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the least shrinkage [2] that leaves `MAX_WRONG` of the known causes confidently wrong."""
    probs = np.exp(scores - scores.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    is_known = model.causes[index] != UNKNOWN
    named, top = probs.argmax(1)[is_known], probs.max(1)[is_known]
    wrong = (named != index[is_known]) & (model.causes[named] != UNKNOWN)
    shrink = np.array([1.0, 0.0])
    while np.mean(wrong & (shrink_probability(top, shrink) >= CONFIDENT)) > MAX_WRONG and shrink[1] > -6:
        shrink[1] -= 0.1
    return shrink


def save_classifier(model: Classifier, path: Path) -> str:
    """Write the arrays of a classifier; return the SHA-256 of the file."""
    arrays: Any = {name: np.asarray(value) for name, value in asdict(model).items()}
    np.savez_compressed(path, **arrays)
    return hashlib.sha256(path.read_bytes()).hexdigest()
