"""The tables of the experiment: drawn tokens, and exact expectations of formats x roundings x placements.

In the sweep nothing is sampled: moments are taken under pi_infer itself, so the only randomness left is that
of the logits. One compiled function per shape of the logits; everything else is traced.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from experiments.measurements.softmax import sampling, theory
from experiments.measurements.softmax.sampling import EXACT, Setting, make_setting, probabilities
from experiments.measurements.softmax.statistics import count_levels, mean_interval, summary
from simlab.core.streams import stream
from simlab.engines import SOFTMAX_PLACEMENTS
from simlab.engines.engine import Softmax
from simlab.formats import FORMATS, ROUNDINGS, Format, Rounding, stack

ROUNDINGS_SWEPT = ("nearest_even", "toward_zero")
SWEPT_PLACEMENTS = ("logits-probs", "logits", "probs", "centered-logits")
# Not a format of numbers with a sign: it holds powers of two, the scales of MX blocks.
SWEPT_FORMATS = {name: fmt for name, fmt in FORMATS.items() if name != "e8m0"}
PAPER_PLACEMENT = "logits-probs"
PLACEMENTS = (*(name for name in SOFTMAX_PLACEMENTS if name != "float32"), "centered-logits")
ELEMENTS = 2**15  # logits per seed and setting of a sweep
BF16 = make_setting(PAPER_PLACEMENT, "bf16")


DRAWN = (
    *((placement, "bf16") for placement in PLACEMENTS),
    *((PAPER_PLACEMENT, name) for name in SWEPT_FORMATS if name != "bf16"),
)
"""Placement and format of each drawn setting: BF16 everywhere, every format at the paper's placement."""


def draw_pairs(
    seed: int, per_vector: int, tokens: int, wanted: Callable[[str, str], bool]
) -> dict[tuple[str, str], np.ndarray]:
    """Return {(placement, format): [2, tokens]} of float32 and rounded probabilities of drawn tokens.

    Args:
        seed: of the logits and the tokens.
        per_vector: tokens from each vector of logits.
        tokens: in all.
        wanted: whether a placement and a format are drawn.
    """
    settings = stack([make_setting(*each) for each in DRAWN])
    active = jnp.array([wanted(*each) for each in DRAWN])
    keys = sampling.chunk_keys(seed, max(1, tokens // per_vector // sampling.CHUNK))
    pairs = np.asarray(sampling.sample(keys, settings, active, per_vector, tokens), float)
    return {name: pairs[:, i] for i, name in enumerate(DRAWN) if active[i]}


def ratio_row(pair: np.ndarray) -> dict[str, float]:
    """Return the columns of the paper's table, E[1/rho] and the numbers of distinct values.

    If a complete distribution is rounded to zero, no token can be drawn; `drawn` is the fraction of others.
    """
    train, infer = pair[:, pair[1] > 0]
    drawn = {"drawn": len(infer) / pair.shape[1]}
    if len(infer) == 0:
        return drawn
    distinct, effective = count_levels(infer)
    counts = {
        "levels": distinct,
        "effective_levels": effective,
        "levels_float32": count_levels(train)[0],
    }
    return drawn | summary(train / infer) | counts | {"inverse": float(np.mean(infer / train))}


def inverse_row(seed: int) -> dict[str, float]:
    """Return E[1/rho] over complete vocabularies for the first 250 vectors of a seed, in float64.

    Sampling follows p_infer / sum p_infer. `reported` takes 1/rho = p_infer / p_train with the rounded
    probabilities as they are, whose sum (`mass`) is not 1; `normalized` divides it by that sum.
    Reference: hacking Eq. 46-47.
    Deviation: the proof takes both distributions to sum to 1. Without that the bound on `reported` is
      the mass, and values below 1 occur.
    """
    pair = sampling.distributions(sampling.chunk_keys(seed, 1)[0], BF16)
    train, infer = (np.asarray(p, dtype=float) for p in pair)
    train /= train.sum(-1, keepdims=True)
    mass = infer.sum(-1)
    reported = np.sum(infer**2 / train, -1) / mass
    normalized = reported / mass
    return {
        "seed": seed,
        "normalized": normalized.mean(),
        "normalized_min": normalized.min(),
        "normalized_below_1": np.mean(normalized < 1),
        "reported": reported.mean(),
        "reported_min": reported.min(),
        "reported_below_1": np.mean(reported < 1),
        "mass_min": mass.min(),
        "mass_max": mass.max(),
        "bound_kept": bool(np.all(reported >= mass)),
    }


def sweep_frame(labels: list[dict], measured: Sequence[dict[str, Array]]) -> pd.DataFrame:
    """Return one row per setting and rounding: means over seeds, and the interval of the std."""
    columns = {name: np.stack([np.asarray(one[name], float) for one in measured]) for name in measured[0]}
    rows = []
    for i, label in enumerate(labels):
        for j, rounding in enumerate(ROUNDINGS_SWEPT):
            row = label | {"rounding": rounding}
            row |= {name: float(values[:, i, j].mean()) for name, values in columns.items()}
            row["std_low"], row["std_high"] = _interval(columns["std"][:, i, j])
            rows.append(row)
    return pd.DataFrame(rows)


def _interval(values: np.ndarray) -> tuple[float, float]:
    return mean_interval(values) if len(values) > 1 else (float("nan"), float("nan"))


def gaussian_sweep(
    formats: dict[str, Format], seeds: Sequence[int]
) -> tuple[list[dict], list[dict[str, Array]]]:
    """Return labels and measurements [seed][name][C, R] of all settings."""
    labels, settings = combine(formats)
    n = ELEMENTS // sampling.VOCABULARY
    measured = []
    for seed in seeds:
        z = jnp.sort(sampling.logits(stream(jax.random.key(seed), "sweep"), n), -1)
        measured.append(measure(z, jnp.full((n,), -jnp.inf), settings))
    return labels, measured


def rho_std_rows(seeds: Sequence[int]) -> list[dict]:
    """Return the measured and the predicted std of rho against mantissa bits, exponents unlimited."""
    bits = range(1, len(SWEPT_FORMATS) + 1)  # as many as there are formats: the same program
    labels, measured = gaussian_sweep({str(m): _wide(m) for m in bits}, seeds)
    frame = sweep_frame([label | {"mantissa_bits": int(label["format"])} for label in labels], measured)
    rows = []
    for row in frame.to_dict("records"):
        predicted = _predict(row)
        if predicted is not None:
            columns = ("mantissa_bits", "placement", "rounding", "std", "std_low", "std_high")
            rows.append({name: row[name] for name in columns} | {"theory": predicted})
    return rows


def _wide(mantissa_bits: int) -> Format:
    return Format.declare(mantissa_bits, -126, (2 - 2.0**-mantissa_bits) * 2.0**127)


def _predict(row: dict) -> float | None:
    """Return the first-order std for a row of the table `spread`, None where the theory has no formula."""
    logit_term, signed = theory.gaussian_shares(sampling.STD)
    both = row["placement"] == PAPER_PLACEMENT
    if row["rounding"] == "nearest_even" and row["placement"] in (PAPER_PLACEMENT, "logits", "probs"):
        logits = 0.0 if row["placement"] == "probs" else logit_term
        probs = 0.0 if row["placement"] == "logits" else theory.FRACTION_TERM
        return float(theory.rho_std(row["mantissa_bits"], logits, probs))
    if row["rounding"] == "toward_zero" and both:
        return float(theory.rho_std_toward_zero(row["mantissa_bits"], logit_term, signed))
    return None


def combine(formats: Mapping[str, Format]) -> tuple[list[dict], Setting]:
    """Return the labels of all combinations and the stacked `Setting` [C] that holds their numbers."""
    axes = tuple(product(formats, SWEPT_PLACEMENTS))
    labels = [{"format": name, "placement": placement} for name, placement in axes]
    return labels, stack([make_setting(placement, formats[name]) for name, placement in axes])


def describe(train: Array, infer: Array) -> dict[str, Array]:
    """Return scalars that compare `infer` with `train` [n, V], pooled over the n distributions.

    Averages are under `infer`, scaled to sum to 1 as a sampler does; rho = train / infer before that
    scaling. `lost` is the float32 probability of tokens whose rounded probability is zero, `levels`
    the number of distinct nonzero probabilities per distribution, for ascending columns. All but
    `lost`, `levels` and `mass` are NaN where a complete distribution was rounded to zero, or a logit to inf.
    """
    mass = infer.sum(-1, keepdims=True)
    weight = infer / mass
    alive = infer > 0
    excess = jnp.where(alive, train / jnp.where(alive, infer, 1) - 1, 0)
    mean = (weight * excess).sum(-1).mean()
    square = (weight * excess**2).sum(-1).mean()
    # KL as a sum of nonnegative terms, since the plain form cancels below 1e-6; with a remainder, between
    # the distributions given that a listed token is drawn.
    listed = train / train.sum(-1, keepdims=True)
    relative = jnp.where(alive, weight / listed - 1, 0)
    terms = jnp.where(alive, (1 + relative) * jnp.log1p(relative) - relative, 1)
    ratios = {
        "mean": 1 + mean,
        "std": jnp.sqrt(square - mean**2),
        "max": 1 + jnp.where(alive, excess, -1).max(),
        "min": 1 + jnp.where(alive, excess, jnp.inf).min(),
        "inverse": (weight * infer / train).sum(-1).mean(),
        "kl": (listed * terms).sum(-1).mean(),
    }
    complete = (mass > 0).all()
    steps = (infer[:, 1:] != infer[:, :-1]) & alive[:, 1:]
    return {name: jnp.where(complete, value, jnp.nan) for name, value in ratios.items()} | {
        "mass": mass.mean(),
        "lost": jnp.where(alive, 0, train).sum(-1).mean(),
        "levels": (steps.sum(-1) + alive[:, 0].astype(jnp.int32)).astype(jnp.float32).mean(),
    }


def measure(z: Array, rest: Array, settings: Setting) -> dict[str, Array]:
    """Return `describe` of every setting [C] under every rounding of `ROUNDINGS_SWEPT` [R]: [C, R].

    `z` [n, V] ascending along V, `rest` [n].
    """
    return _measure(z, rest, settings, stack([ROUNDINGS[name] for name in ROUNDINGS_SWEPT]))


@jax.jit
def _measure(z: Array, rest: Array, settings: Setting, roundings: Rounding) -> dict[str, Array]:
    train = probabilities(z, rest, EXACT)

    def one(chosen: Setting) -> dict[str, Array]:
        return jax.lax.map(
            lambda mode: describe(train, probabilities(z, rest, rounded_by(chosen, mode))), roundings
        )

    return jax.lax.map(one, settings)


def rounded_by(chosen: Setting, mode: Rounding) -> Setting:
    """Return `chosen` with another rounding at every site."""
    sites = {
        field.name: replace(getattr(chosen.sites, field.name), rounding=mode)
        for field in fields(chosen.sites)
    }
    return replace(chosen, sites=Softmax(**sites))
