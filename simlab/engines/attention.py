"""Attention of one head over one sequence, for decoding and scoring."""

from dataclasses import replace

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from simlab.core.arrays import AnyArray
from simlab.engines.catalog import find_engine
from simlab.engines.engine import Attention, Engine
from simlab.engines.materialize_once import materialize_on_cpu
from simlab.engines.matmul import product
from simlab.engines.site import Site, site_key, store
from simlab.engines.softmax import exponentials_at, softmax, total_at
from simlab.formats.scale_rules import divide, multiply


def store_cache(
    x: Float[AnyArray, "*B D"],
    engine: Engine | str,
    key: Array | None = None,
    positions: Int[AnyArray, "*#B"] | None = None,
) -> Float[Array, "*B D"]:
    """Round keys or values to the engine's KV cache.

    Scoring must pass its keys and values through it too, or the two engines read different numbers.

    Args:
        x: float32 keys or values [..., D].
        engine: an engine, or its name.
        key: of the random bits; needed where the cache rounds stochastically.
        positions: of the tokens, any shape that broadcasts to x without D. An engine with `cache_from` stores
            positions before it at `early_cache`; without `positions` it stores all of x at `cache`.

    Returns:
        Float32 [..., D].
    """
    sites = find_engine(engine).attention
    stored = _store_scaled(x, sites.cache, key)
    if not sites.cache_from or positions is None:
        return stored
    early = _store_scaled(x, sites.early_cache, key)
    return jnp.where((positions < sites.cache_from)[..., None], early, stored)


def _store_scaled(x: AnyArray, site: Site, key: Array | None) -> AnyArray:
    """Store x at a site that may have a scaling, which reads x twice: for amax and to round it."""
    return store(x if site.scaling is None else materialize_on_cpu(x, site), site, key)


def attend(
    queries: Float[AnyArray, "T D"],
    keys: Float[AnyArray, "S D"],
    values: Float[AnyArray, "S D"],
    mask: Bool[AnyArray, "T S"],
    engine: Engine | str,
    key: Array | None = None,
) -> Float[Array, "T D"]:
    """Compute the attention of one head over one sequence, with scores q k / sqrt(D).

    What masked keys and values hold never changes a bit, as long as it is finite, if the engine's value
    accumulator adds in order. One query alone has the bits that it has among others if both accumulators do
    not depend on the batch (see `EXACT_PAIRS`). Fused attention has both properties.

    Args:
        queries: float32 [T, D].
        keys: float32 [S, D], from `store_cache`.
        values: float32 [S, D], from `store_cache`.
        mask: [T, S], True where a query sees a key; every query must see one.
        engine: an engine, or its name.
        key: of the random bits; needed where a site rounds stochastically.

    Returns:
        Float32 [T, D].

    Reference: scaled dot-product attention arXiv 1706.03762 Eq. 1.
    """
    sites = find_engine(engine).attention
    queries = _store_scaled(queries, sites.queries, site_key(key, "queries"))
    if sites.fused is None:
        result = _attend_in_steps(queries, keys, values, mask, sites, key)
    else:
        result = sites.fused.attend(queries, keys, values, mask)
    return store(result, sites.output, site_key(key, "output"))


def _attend_in_steps(
    queries: Array, keys: AnyArray, values: AnyArray, mask: AnyArray, sites: Attention, key: Array | None
) -> Array:
    scores = product(queries, keys.T, sites.score_accumulator)
    scores = multiply(scores, jnp.float32(queries.shape[-1] ** -0.5))
    # Scores are stored before they are masked: few formats have an infinity.
    scores = store(scores, sites.softmax.logits, site_key(key, "scores"))
    scores = jnp.where(mask, scores, -jnp.inf)
    return _weigh_values(scores, values, sites, site_key(key, "softmax"))


def _weigh_values(scores: Array, values: Array, sites: Attention, key: Array | None) -> Array:
    steps, products = replace(sites.softmax, logits=Site()), sites.value_accumulator
    if sites.normalize == "before":
        return product(softmax(scores, steps, key, products), values, products)
    exponentials = exponentials_at(scores, steps, key)[1]
    # The sum of the rounded ones; see the deviation of `Attention`.
    total = total_at(exponentials, steps, key, products)
    return divide(product(exponentials, values, products), total)
