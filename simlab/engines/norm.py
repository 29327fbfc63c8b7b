"""RMSNorm and the residual stream under an engine."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.engines.catalog import find_engine
from simlab.engines.engine import Engine
from simlab.engines.materialize_once import materialize_on_cpu
from simlab.engines.ordered_sums import is_order_free, tree_sum
from simlab.engines.site import site_key, store
from simlab.formats.scale_rules import multiply


def rms_norm(
    x: Float[AnyArray, "*B D"],
    weight: Float[AnyArray, " D"],
    engine: Engine | str,
    *,
    epsilon: float = 1e-6,
    key: Array | None = None,
) -> Float[Array, "*B D"]:
    """Normalize x to unit root mean square, times weight: x / sqrt(mean x^2 + epsilon) w.

    Statistics are float32 over a fixed tree, or in any order on a GPU (`is_order_free`). Three values are
    rounded: x as it is read, x / rms(x), and the result.

    Args:
        x: float32 [..., D].
        weight: float32 [D].
        engine: an engine, or its name.
        epsilon: added to the mean square.
        key: of the random bits; needed where a site rounds stochastically.

    Returns:
        Float32 [..., D].

    Reference: RMSNorm arXiv 1910.07467; Qwen3RMSNorm of transformers; vLLM RMSNorm.forward_native.
    """
    engine = find_engine(engine)
    sites = engine.norm
    x = store(x, sites.input, site_key(key, "input"))
    normalized = x * lax.rsqrt(_mean_square(x, engine) + jnp.float32(epsilon))
    normalized = store(normalized, sites.normalized, site_key(key, "normalized"))
    scaled = normalized * weight.reshape((1,) * (x.ndim - 1) + weight.shape)
    return store(scaled, sites.output, site_key(key, "output"))


def _mean_square(x: Float[AnyArray, "*B D"], engine: Engine) -> Float[Array, "*B 1"]:
    sites, scale = engine.norm, jnp.float32(1 / x.shape[-1])
    rounds = any(site.format is not None for site in (sites.input, sites.normalized, sites.output))
    # Of plain operations XLA makes one GPU kernel, together with the rest of a norm that rounds nothing.
    if is_order_free(engine.projection.accumulator) and not rounds:
        return jnp.sum(x * x, axis=-1, keepdims=True) * scale
    return multiply(tree_sum(multiply(x, x)), scale)[..., None]


def add_residual(
    residual: Float[AnyArray, "*B"],
    update: Float[AnyArray, "*B"],
    engine: Engine | str,
    key: Array | None = None,
) -> tuple[Float[Array, "*B"], Float[Array, "*B"]]:
    """Add an update to the residual stream, float32 of one shape.

    Returns:
        The stored stream, and what the next norm reads: the sum itself, not rounded. Fused kernels normalize
        that; the `input` site of the norm rounds it for an engine whose kernels read the stored stream.
    """
    site = find_engine(engine).residual
    # Otherwise a CPU rounds all earlier sums again for each later norm.
    total = materialize_on_cpu(residual + update, site)
    return materialize_on_cpu(store(total, site, site_key(key, "residual")), site), total
