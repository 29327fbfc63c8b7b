"""Calibrate emulated engines against the measured mismatch of a real engine pair.

Calibration compares the distribution of the measured log rho of sampled tokens with that of the same tokens
scored by an emulated training and an emulated inference engine, in bins of probability. An emulation with
equal distributions predicts how often, how much and for which tokens the pair disagrees. Its errors need not
be at the same tokens as those of the real kernels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from simlab.core.json_value import Json
from simlab.engines import ENGINE_CARDS, ENGINES, Engine
from simlab.engines.noise_levels import NOISE_KINDS
from simlab.metrics import PROBABILITY_EDGES
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.models.transformer import response_logps
from simlab.serving.protocol import score_compiled
from simlab.studies.estimands import Frame

GOOD, FAIR = 0.25, 0.5
"""A fit is good if its interval is below `GOOD`, fair if its distance is below `FAIR`, else poor."""


@dataclass(frozen=True)
class Emulation:
    """An emulated inference engine, and the parts of the real one that are not modeled."""

    engine: Engine
    not_modeled: str


def get_catalog_emulations(names: tuple[str, ...]) -> dict[str, Emulation]:
    """Return the emulations for engines of the catalog."""
    return {name: Emulation(ENGINES[name], ENGINE_CARDS[name].not_modeled) for name in names}


def get_noisy_emulations(kind: str, bits: range) -> dict[str, Emulation]:
    """Return a float32 engine with noise of `NOISE_KINDS[kind]` at each number of mantissa bits."""
    not_modeled = "everything but the products of projections and experts"
    return {f"{kind} {k}": Emulation(NOISE_KINDS[kind](ENGINES["f32"], k), not_modeled) for k in bits}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The distance of an emulation from a measured pair.

    - `distance`: 0 is perfect, 1 as bad as predicting no mismatch; 95% interval `ci_low` to `ci_high`.
    - `best`: fraction of resamples in which this emulation has the smallest distance.
    - `rms_measured`, `rms_predicted`: RMS log rho, nats.
    """

    emulation: str
    distance: float
    ci_low: float
    ci_high: float
    best: float
    rms_measured: float
    rms_predicted: float
    verdict: str
    note: str


def measure_distance(
    measured: Float[np.ndarray, " n"], predicted: Float[np.ndarray, " n"], bins: Int[np.ndarray, " n"]
) -> float:
    """Return the distance of two sets of log rho [n] with `bins` [n], relative to a prediction of 0.

    Averages the first Wasserstein distance of each bin over the tokens, and divides by the mean of
    abs(measured).
    """
    total = 0.0
    for number in np.unique(bins):
        inside = bins == number
        total += np.abs(np.sort(measured[inside]) - np.sort(predicted[inside])).sum()
    size = np.abs(measured).sum()
    return float(total / size) if size else float("inf" if total else 0.0)


def score_with_emulation(
    params: Params,
    config: TransformerConfig,
    engine: Engine,
    prompts: Int[np.ndarray, "N P"],
    responses: Int[np.ndarray, "N T"],
) -> Float[np.ndarray, "N T"]:
    """Return the log-probabilities [N, T] of responses under an emulated engine."""
    # Compiling a deep model takes minutes; running op by op takes seconds.
    score = response_logps if config.num_hidden_layers > _DEEP else score_compiled
    return np.asarray(score(params, config, engine, jnp.asarray(prompts), jnp.asarray(responses)).logp)


_DEEP = 8


def calibrate(
    logp_train: Float[np.ndarray, "N T"],
    logp_infer: Float[np.ndarray, "N T"],
    mask: Bool[np.ndarray, "N T"],
    predict: Callable[[Engine], Float[np.ndarray, "N T"]],
    emulations: Mapping[str, Emulation],
    *,
    resamples: int = 400,
) -> list[Fit]:
    """Return the fit of each emulation, the smallest distance first.

    Args:
        logp_train: Measured log-probabilities of the scoring engine, [N, T].
        logp_infer: Measured log-probabilities of the sampling engine, [N, T].
        mask: Response tokens, [N, T].
        predict: Returns the emulated log rho [N, T] of an engine.
        emulations: The emulations by name.
        resamples: Number of bootstrap draws of complete sequences, shared by all emulations. Intervals are
            basic bootstrap intervals.

    Raises:
        ValueError: An emulation predicts an infinity or NaN.
    """
    measured = (logp_train - logp_infer).astype(np.float64)
    bins = np.searchsorted(np.log(PROBABILITY_EDGES[1:-1]), logp_train, side="right")
    predictions = {
        name: predict(emulation.engine).astype(np.float64) for name, emulation in emulations.items()
    }
    for name, predicted in predictions.items():
        if not np.isfinite(predicted[mask]).all():
            raise ValueError(f"log rho predicted by emulation {name!r} must be finite.")
    rng = np.random.default_rng(0)
    draws = [np.arange(len(mask)), *rng.integers(0, len(mask), (resamples, len(mask)))]

    def distance(predicted: np.ndarray, rows: np.ndarray) -> float:
        chosen = mask[rows]
        return measure_distance(measured[rows][chosen], predicted[rows][chosen], bins[rows][chosen])

    distances = np.asarray([[distance(each, rows) for rows in draws] for each in predictions.values()])
    nearest = distances[:, 1:].argmin(0)
    fits = [
        _build_fit(
            name,
            emulations[name],
            distances[number],
            best=float(np.mean(nearest == number)),
            rms_measured=_rms(measured[mask]),
            rms_predicted=_rms(predicted[mask]),
        )
        for number, (name, predicted) in enumerate(predictions.items())
    ]
    return sorted(fits, key=lambda fit: fit.distance)


def _build_fit(
    name: str, emulation: Emulation, distances: Float[np.ndarray, " draws"], **numbers: float
) -> Fit:
    """Return the fit with the `distances` of the sample and of its resamples."""
    # Reflect at the estimate: resampling adds the same bias to a distance as the sample itself.
    low, high = 2 * distances[0] - np.quantile(distances[1:], (0.975, 0.025))
    is_good, is_fair = high < GOOD, distances[0] < FAIR
    return Fit(
        emulation=name,
        distance=float(distances[0]),
        ci_low=max(0.0, float(low)),
        ci_high=float(high),
        verdict="good" if is_good else "fair" if is_fair else "poor",
        note="" if is_good else f"not modeled: {emulation.not_modeled}",
        **numbers,
    )


LEVELS = tuple(np.linspace(0.01, 0.99, 50).tolist())


def build_quantile_rows(
    measured: Float[np.ndarray, " n"], predicted: Float[np.ndarray, " n"], **labels: str
) -> list[dict[str, Json]]:
    """Return quantiles of two sets of log rho [n], one row per level, for `figures.real_engines`."""
    both = (np.quantile(one, LEVELS).tolist() for one in (measured, predicted))
    return [
        {**labels, "level": level, "measured": a, "predicted": b}
        for level, a, b in zip(LEVELS, *both, strict=True)
    ]


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def find_pair(tokens: Frame, sampling_engine: str | None, scoring_engine: str | None) -> tuple[str, str]:
    """Return the only measured pair of two engines, by name where one is given.

    Raises:
        ValueError: No pair, or more than one, has these names.
    """
    measured = sorted(set(zip(tokens.sampling_engine, tokens.scoring_engine, strict=True)))
    pairs = [
        (sampled, scored)
        for sampled, scored in measured
        if sampling_engine in (None, sampled)
        and scoring_engine in (None, scored)
        and (sampled != scored or scoring_engine is not None)
    ]
    if len(pairs) != 1:
        raise ValueError(
            "--sample and --score must name one pair (sampling / scoring engine) of "
            f"{', '.join(f'{sampled} / {scored}' for sampled, scored in measured)}, "
            f"got {sampling_engine} / {scoring_engine}."
        )
    return pairs[0]


def read_measured_pair(
    tokens: Frame, samples: Frame, sampling_engine: str, scoring_engine: str, **labels: str
) -> tuple[np.ndarray, ...]:
    """Return prompts [N, P], and responses, mask, logp_train and logp_infer [N, T] of a measured pair.

    `tokens` and `samples` are tables of a probe; `labels` are values of the columns that distinguish several
    probes. Responses are padded with 0.

    Raises:
        ValueError: The pair was not measured.
    """
    for column, value in labels.items():
        tokens, samples = tokens[tokens[column] == value], samples[samples[column] == value]
    pair = tokens[(tokens.sampling_engine == sampling_engine) & (tokens.scoring_engine == scoring_engine)]
    if not len(pair):
        names = zip(tokens.sampling_engine, tokens.scoring_engine, strict=True)
        raise ValueError(
            f"pair (sampling / scoring engine) must be one of "
            f"{', '.join(sorted({f'{a} / {b}' for a, b in names}))}, got "
            f"{sampling_engine} / {scoring_engine}."
        )
    sampled = samples[samples.sampling_engine == sampling_engine].sort_values("sequence")
    prompts = np.stack([np.asarray(prompt, np.int32) for prompt in sampled.prompt])
    index = pair.sequence.to_numpy(), pair.position.to_numpy()
    shape = len(sampled), int(index[1].max()) + 1
    mask, responses = np.zeros(shape, bool), np.zeros(shape, np.int32)
    logps = [np.zeros(shape, np.float32) for _ in range(2)]
    mask[index] = True
    for row, response in enumerate(sampled.response):
        responses[row, : len(response)] = response
    for logp, column in zip(logps, ("logp_train", "logp_infer"), strict=True):
        logp[index] = pair[column]
    return prompts, responses, mask, *logps
