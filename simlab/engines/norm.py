"""RMSNorm and the residual stream under an engine."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.engines.catalog import find_engine
from simlab.engines.engine import Engine
from simlab.engines.ordered_sums import tree_sum
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
    """Normalize float32 x [..., D] to unit root mean square, times weight [D]; returns float32 [..., D].

    Statistics are float32 over a fixed tree. Roundings: what is read, x / rms(x), and the result.
    Reference: Qwen3RMSNorm of transformers; vLLM RMSNorm.forward_native.
    """
    sites = find_engine(engine).norm
    x = store(x, sites.input, site_key(key, "input"))
    mean_square = multiply(tree_sum(multiply(x, x)), jnp.float32(1 / x.shape[-1]))[..., None]
    normalized = x * lax.rsqrt(mean_square + jnp.float32(epsilon))
    normalized = store(normalized, sites.normalized, site_key(key, "normalized"))
    scaled = normalized * weight.reshape((1,) * (x.ndim - 1) + weight.shape)
    return store(scaled, sites.output, site_key(key, "output"))


def add_residual(
    residual: Float[AnyArray, "*B"],
    update: Float[AnyArray, "*B"],
    engine: Engine | str,
    key: Array | None = None,
) -> tuple[Float[Array, "*B"], Float[Array, "*B"]]:
    """Add an update to the residual stream; returns (the stored stream, what the next norm reads).

    All are float32 of one shape. The second is the sum itself, not rounded: fused kernels normalize it, and
    the norm's `input` site says whether an engine does.
    """
    total = residual + update
    return store(total, find_engine(engine).residual, site_key(key, "residual")), total
