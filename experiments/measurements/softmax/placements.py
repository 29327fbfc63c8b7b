"""Softmax probabilities with temperature and a remainder, from the steps of `simlab.engines`."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from simlab.core.pytree import pytree
from simlab.engines.engine import Softmax
from simlab.engines.ordered_sums import tree_sum
from simlab.engines.site import Site, site_key, store
from simlab.engines.softmax import SOFTMAX_PLACEMENTS, exponentials_at, softmax_placement
from simlab.formats import Format, Rounding, StochasticRounding
from simlab.formats.scale_rules import divide

UNROUNDED = Site()
CENTERED = "centered-logits"
"""The placement `logits` after the largest logit is subtracted."""


@pytree
class Setting:
    """The sites of a softmax, and other differences between settings; every field is traced.

    `centered` is 1 if the largest logit is subtracted before the logits are rounded. `from_log` is True if
    the engine returns log-probabilities, whose exponential is the probability.
    """

    sites: Softmax
    temperature: Array | float = 1.0
    centered: Array | float = 0.0
    from_log: Array | bool = False


EXACT = Setting(Softmax())


def make_setting(
    placement: str,
    fmt: str | Format,
    rounding: str | Rounding | StochasticRounding = "nearest_even",
    temperature: Array | float = 1.0,
) -> Setting:
    """Return the setting that rounds at `placement`: a name of `SOFTMAX_PLACEMENTS`, or `centered-logits`."""
    centered = placement == CENTERED
    name = "logits" if centered else placement
    sites = softmax_placement(name, fmt, rounding)
    rounded = SOFTMAX_PLACEMENTS[name].sites
    return Setting(sites, temperature, float(centered), "log_probs" in rounded and "probs" not in rounded)


def probabilities(z: Array, rest: Array, chosen: Setting, key: Array | None = None) -> Array:
    """Return the probabilities [n, V] of logits `z` [n, V], rounded at the sites of `chosen`.

    `rest` [n] is the logsumexp of logits that are not in `z` (-inf for none): it enters the normalizer
    in float32, is not rounded and gets no column. Temperature divides the rounded logits, as in engines
    whose last layer writes the format and whose sampler works in float32.
    """
    sites = chosen.sites
    shift = chosen.centered * z.max(-1, keepdims=True)
    z = store(z - shift, sites.logits, site_key(key, "logits")) / chosen.temperature
    shifted, exponentials = exponentials_at(z, replace(sites, logits=UNROUNDED), key)
    remainder = jnp.exp((rest[:, None] - shift) / chosen.temperature - z.max(-1, keepdims=True))
    total = store(tree_sum(exponentials)[..., None] + remainder, sites.total, site_key(key, "total"))
    return jax.lax.cond(
        chosen.from_log,
        lambda: jnp.exp(store(shifted - jnp.log(total), sites.log_probs, site_key(key, "log_probs"))),
        lambda: store(divide(exponentials, total), sites.probs, site_key(key, "probs")),
    )
