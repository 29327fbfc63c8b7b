"""Formats x roundings x placements: exact expectations over the vocabulary.

Nothing is sampled here: moments are taken under pi_infer itself, so the only randomness left is that
of the logits. One compiled function per shape of the logits; everything else is traced.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import product

import jax
import jax.numpy as jnp
from jax import Array

from experiments.measurements.softmax.placements import EXACT, Setting, make_setting, probabilities
from simlab.engines.engine import Softmax
from simlab.formats import FORMATS, ROUNDINGS, Format, Rounding, stack

ROUNDINGS_SWEPT = ("nearest_even", "toward_zero")
SWEPT_PLACEMENTS = ("logits-probs", "logits", "probs", "centered-logits")
# Not a format of numbers with a sign: it holds powers of two, the scales of MX blocks.
SWEPT_FORMATS = {name: fmt for name, fmt in FORMATS.items() if name != "e8m0"}


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
