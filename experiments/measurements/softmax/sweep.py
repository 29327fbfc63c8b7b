"""Formats x roundings x placements x temperature: exact expectations over the vocabulary.

Nothing is sampled here: moments are taken under pi_infer itself, so the only randomness left is that
of the logits. One program per shape of the logits; everything else is traced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
from jax import Array

from experiments.measurements.softmax.placements import EXACT, Setting, probabilities, setting
from simlab.engines.engine import Softmax
from simlab.formats import FORMATS, ROUNDINGS, Format, Rounding, StochasticRounding, stack

FIXED_ROUNDINGS = tuple(name for name, mode in ROUNDINGS.items() if isinstance(mode, Rounding))
TEMPERATURES = (0.6, 1.0, 1.5)
ALL_ROUNDINGS = (*FIXED_ROUNDINGS, "stochastic")
SWEPT_PLACEMENTS = ("logits-probs", "logits", "probs", "centered-logits")
# Not a format of numbers with a sign: it holds powers of two, the scales of MX blocks.
SWEPT_FORMATS = {name: fmt for name, fmt in FORMATS.items() if name != "e8m0"}


_TRACED: list[tuple[int, ...]] = []  # shapes of logits; a program appends its own while it is traced


def combine(formats: Mapping[str, Format], temperatures: Sequence[float]) -> tuple[list[dict], Setting]:
    """Return the labels of all combinations and the stacked `Setting` [C] that holds their numbers."""
    axes = tuple(product(formats, SWEPT_PLACEMENTS, temperatures))
    labels = [{"format": name, "placement": place, "temperature": t} for name, place, t in axes]
    return labels, stack([setting(place, formats[name], temperature=t) for name, place, t in axes])


def describe(train: Array, infer: Array) -> dict[str, Array]:
    """Return scalars that compare `infer` with `train` [n, V], pooled over the n distributions.

    Averages are under `infer`, scaled to sum to 1 as a sampler does; rho = train / infer before that
    scaling. `lost` is the float32 probability of tokens whose rounded probability is zero, `levels`
    the number of distinct nonzero probabilities per distribution, for ascending columns. All but
    `lost`, `levels` and `mass` are NaN where a whole distribution was rounded to zero, or a logit to inf.
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
    whole = (mass > 0).all()
    steps = (infer[:, 1:] != infer[:, :-1]) & alive[:, 1:]
    return {name: jnp.where(whole, value, jnp.nan) for name, value in ratios.items()} | {
        "mass": mass.mean(),
        "lost": jnp.where(alive, 0, train).sum(-1).mean(),
        "levels": (steps.sum(-1) + alive[:, 0].astype(jnp.int32)).astype(jnp.float32).mean(),
    }


def measure(z: Array, rest: Array, settings: Setting, key: Array) -> dict[str, Array]:
    """Return `describe` of every setting [C] under every rounding of `ALL_ROUNDINGS` [R + 1]: [C, R + 1].

    `z` [n, V] ascending along V, `rest` [n].
    """
    return _measure(z, rest, settings, stack([ROUNDINGS[name] for name in FIXED_ROUNDINGS]), key)


def compiled_programs() -> int:
    """Return how many programs this process has compiled for `measure`: one per shape of its arguments."""
    return len(_TRACED)


@jax.jit
def _measure(z: Array, rest: Array, settings: Setting, roundings: Rounding, key: Array) -> dict[str, Array]:
    _TRACED.append(z.shape)

    def one(chosen: Setting) -> dict[str, Array]:
        train = probabilities(z, rest, replace(EXACT, temperature=chosen.temperature))
        fixed = jax.lax.map(lambda mode: probabilities(z, rest, rounded_by(chosen, mode)), roundings)
        random = probabilities(z, rest, rounded_by(chosen, ROUNDINGS["stochastic"]), key)
        return jax.lax.map(partial(describe, train), jnp.concatenate([fixed, random[None]]))

    return jax.lax.map(one, settings)


def rounded_by(chosen: Setting, mode: Rounding | StochasticRounding) -> Setting:
    """Return `chosen` with another rounding at every site."""
    sites = {
        field.name: replace(getattr(chosen.sites, field.name), rounding=mode)
        for field in fields(chosen.sites)
    }
    return replace(chosen, sites=Softmax(**sites))
