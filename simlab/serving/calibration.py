"""Calibration: which emulated engine, at which dose, predicts what was measured between two real ones.

The measured log rho of every sampled token is put beside that of the emulation: the same tokens scored by
an emulated training and an emulated inference engine. Where the two *distributions* agree in every bin of
probability, the emulation tells how often, how much and for which tokens the pair disagrees; it need not
err at the same tokens as the real kernels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from simlab.core.manifest import Json
from simlab.engines import ENGINE_CARDS, ENGINES, Engine
from simlab.engines.dose import DOSES
from simlab.metrics import PROBABILITY_EDGES
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.models.transformer import response_logps
from simlab.studies.estimands import Frame

GOOD, FAIR = 0.25, 0.5
"""A fit is good when its whole interval is below the first, fair when the distance is below the second."""


@dataclass(frozen=True)
class Emulation:
    """An emulated inference engine, and what it is known to leave out."""

    engine: Engine
    leaves_out: str


def catalog_emulations(names: tuple[str, ...]) -> dict[str, Emulation]:
    """Return engines of the catalog as emulations."""
    return {name: Emulation(ENGINES[name], ENGINE_CARDS[name].leaves_out) for name in names}


def dosed_emulations(dose: str, bits: range, base: str = "f32") -> dict[str, Emulation]:
    """Return an engine with a dose of `DOSES` at each number of mantissa bits; they are one program."""
    left = "everything but the products of projections and experts"
    return {f"{dose} {k}": Emulation(DOSES[dose](ENGINES[base], k), left) for k in bits}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How well an emulation predicts a measured pair.

    `distance`, with its 95% interval `low` to `high`: 0 is perfect, 1 as bad as predicting no mismatch.
    `best` is the fraction of resamples in which it is the nearest. `rms_measured`, `rms_predicted` in nats.
    """

    emulation: str
    distance: float
    low: float
    high: float
    best: float
    rms_measured: float
    rms_predicted: float
    verdict: str
    note: str


def distance(measured: np.ndarray, predicted: np.ndarray, bins: np.ndarray) -> float:
    """Distance of two sets of log rho [n] whose tokens fall into `bins` [n], relative to the measured size.

    In each bin the first Wasserstein distance; over bins their mean by tokens, divided by the mean of
    |measured|, which is the distance of a prediction of 0. Any one size: nats over nats.
    """
    total = 0.0
    for which in np.unique(bins):
        inside = bins == which
        total += np.abs(np.sort(measured[inside]) - np.sort(predicted[inside])).sum()
    size = np.abs(measured).sum()
    return float(total / size) if size else float("inf" if total else 0.0)


def predicted_log_rho(
    params: Params,
    config: TransformerConfig,
    train: Engine,
    infer: Engine,
    prompts: np.ndarray,
    responses: np.ndarray,
) -> np.ndarray:
    """Return log rho [N, T] of an emulated pair on the responses that a real engine sampled."""
    ours, theirs = (emulated_logps(params, config, engine, prompts, responses) for engine in (train, infer))
    return ours - theirs


def emulated_logps(
    params: Params, config: TransformerConfig, engine: Engine, prompts: np.ndarray, responses: np.ndarray
) -> np.ndarray:
    """Return the log-probabilities [N, T] that an emulated engine gives to responses."""
    # A deep model as one program takes minutes to compile, op by op seconds.
    score = response_logps if config.num_hidden_layers > _DEEP else _compiled
    return np.asarray(score(params, config, engine, jnp.asarray(prompts), jnp.asarray(responses)).logp)


_DEEP = 8
_compiled = jax.jit(response_logps, static_argnums=1)


def calibrate(
    logp_train: np.ndarray,
    logp_infer: np.ndarray,
    mask: np.ndarray,
    predict: Callable[[Engine], np.ndarray],
    emulations: Mapping[str, Emulation],
    *,
    resamples: int = 400,
    seed: int = 0,
) -> list[Fit]:
    """Return the fit of each emulation to measured log-probabilities [N, T], the nearest first.

    `predict` gives the emulated log rho [N, T] of an engine. Intervals are basic bootstrap intervals over
    `resamples` draws of whole sequences, the same draws for all emulations. Raises `ValueError` naming an
    emulation that predicts an infinity or NaN.
    """
    measured = (logp_train - logp_infer).astype(np.float64)
    bins = np.searchsorted(np.log(PROBABILITY_EDGES[1:-1]), logp_train, side="right")
    predictions = {
        name: predict(emulation.engine).astype(np.float64) for name, emulation in emulations.items()
    }
    for name, found in predictions.items():
        if not np.isfinite(found[mask]).all():
            raise ValueError(f"the emulation {name!r} predicts log-probs that are none")
    rng = np.random.default_rng(seed)
    draws = [np.arange(len(mask)), *rng.integers(0, len(mask), (resamples, len(mask)))]
    distances = np.asarray(
        [
            [
                distance(measured[rows][mask[rows]], found[rows][mask[rows]], bins[rows][mask[rows]])
                for rows in draws
            ]
            for found in predictions.values()
        ]
    )
    nearest = distances[:, 1:].argmin(0)
    fits = []
    for number, (name, found) in enumerate(predictions.items()):
        # Reflected at the estimate: drawing adds to a distance what the sample itself has added already.
        low, high = 2 * distances[number, 0] - np.quantile(distances[number, 1:], (0.975, 0.025))
        fits.append(
            Fit(
                emulation=name,
                distance=float(distances[number, 0]),
                low=max(0.0, float(low)),
                high=float(high),
                best=float(np.mean(nearest == number)),
                rms_measured=_rms(measured[mask]),
                rms_predicted=_rms(found[mask]),
                **_judged(float(distances[number, 0]), float(high), emulations[name].leaves_out),
            )
        )
    return sorted(fits, key=lambda fit: fit.distance)


LEVELS = tuple(np.linspace(0.01, 0.99, 50).tolist())


def quantile_rows(measured: np.ndarray, predicted: np.ndarray, **labels: str) -> list[dict[str, Json]]:
    """Return quantiles of two sets of log rho [n], a row per level: what `figures.real_engines` draws."""
    both = (np.quantile(one, LEVELS).tolist() for one in (measured, predicted))
    return [
        {**labels, "level": level, "measured": a, "predicted": b}
        for level, a, b in zip(LEVELS, *both, strict=True)
    ]


def _judged(found: float, high: float, leaves_out: str) -> dict[str, Any]:
    if high < GOOD:
        return {"verdict": "good", "note": ""}
    return {"verdict": "fair" if found < FAIR else "poor", "note": f"leaves out {leaves_out}"}


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def measured_pair(
    tokens: Frame, samples: Frame, sampler: str, scorer: str, **labels: str
) -> tuple[np.ndarray, ...]:
    """Return prompts, responses, mask, logp_train and logp_infer of a pair that a probe measured.

    `tokens` and `samples` are frames of these tables; responses [N, T] are padded with 0. `labels` choose
    among the rows of several probes. Raises `ValueError` naming the pairs that there are.
    """
    for column, value in labels.items():
        tokens, samples = tokens[tokens[column] == value], samples[samples[column] == value]
    chosen = tokens[(tokens.sampler == sampler) & (tokens.scorer == scorer)]
    if not len(chosen):
        there = sorted({f"{a} / {b}" for a, b in zip(tokens.sampler, tokens.scorer, strict=True)})
        raise ValueError(
            f"{sampler} / {scorer} (sampler / scorer) was not measured; there are: {', '.join(there)}"
        )
    said = samples[samples.sampler == sampler].sort_values("sequence")
    prompts = np.stack([np.asarray(prompt, np.int32) for prompt in said.prompt])
    place = chosen.sequence.to_numpy(), chosen.position.to_numpy()
    shape = len(said), int(place[1].max()) + 1
    mask, responses = np.zeros(shape, bool), np.zeros(shape, np.int32)
    logps = [np.zeros(shape, np.float32) for _ in range(2)]
    mask[place] = True
    for row, response in enumerate(said.response):
        responses[row, : len(response)] = response
    for logp, column in zip(logps, ("logp_train", "logp_infer"), strict=True):
        logp[place] = chosen[column]
    return prompts, responses, mask, *logps
