"""Values that are read several times and computed once."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.engines.site import Site
from simlab.formats.scale_rules import divide


def materialize_once(x: Float[AnyArray, "*S"], site: Site) -> Float[AnyArray, "*S"]:
    """Return x, which is rounded at `site` or about to be, in a form that a compiler computes once.

    A compiler that fuses computes a chain of cheap steps again for each of its readers, and a rounding is
    some twenty of them; a quotient it keeps. So x is divided by one. Where nothing is rounded there is no
    chain and x stays as it is. Float32 subnormals become zeros, as everywhere in scaled arithmetic.
    """
    return x if site.format is None else _quotient_by_one(x)


def materialize_on_cpu(x: Float[AnyArray, "*S"], site: Site) -> Float[AnyArray, "*S"]:
    """Return x as `materialize_once` does on a CPU, and x itself elsewhere.

    On a GPU the steps that are computed again cost less than the kernel that would store their result.
    A pass that is differentiated keeps x: its gradient would be compiled to other last bits.
    """
    return x if site.format is None else _quotient_on_cpu(x)


@jax.custom_jvp
def _quotient_on_cpu(x: Array) -> Array:
    return lax.platform_dependent(x, cpu=_quotient_by_one, default=lambda x: x)


@_quotient_on_cpu.defjvp
def _quotient_on_cpu_jvp(primals, tangents):
    return primals[0], tangents[0]


@jax.custom_jvp
def _quotient_by_one(x: Array) -> Array:
    return divide(x, jnp.float32(1))


@_quotient_by_one.defjvp
def _quotient_by_one_jvp(primals, tangents):
    return _quotient_by_one(*primals), tangents[0]
