"""Sharpness: the ends of the spectrum of a loss's Hessian, by Lanczos on Hessian-vector products."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PyTree

from simlab.engines.accumulate import float32_dot

# Float32 as such, never TF32.
FULL = lax.Precision.HIGHEST


class Spectrum(NamedTuple):
    """Largest and smallest eigenvalue found, and a bound on the distance of `top` to an eigenvalue."""

    top: Float[Array, ""]
    bottom: Float[Array, ""]
    residual: Float[Array, ""]


def hessian_ends(
    loss: Callable[[PyTree], Float[Array, ""]], params: PyTree, key: Array, iterations: int = 16
) -> Spectrum:
    """Return the extreme eigenvalues of the Hessian of `loss` at `params`, a tree of float32 arrays.

    Reverse over reverse: the gradient of <gradient, v>, two backward passes for each of the `iterations`
    (static). With at least as many iterations as there are parameters the result is exact to round-off.

    Reference: lr Sec. 3.1.
    """
    flat, unravel = ravel_pytree(params)

    def product(vector: Array) -> Array:
        def slope(flat: Array) -> Array:
            return jnp.vdot(jax.grad(lambda x: loss(unravel(x)))(flat), vector, precision=FULL)

        return jax.grad(slope)(flat)

    return lanczos_ends(product, jax.random.normal(key, flat.shape, flat.dtype), iterations)


def lanczos_ends(
    product: Callable[[Float[Array, " P"]], Float[Array, " P"]], start: Float[Array, " P"], iterations: int
) -> Spectrum:
    """Return the extreme eigenvalues of the symmetric matrix that `product` applies to vectors like `start`.

    Every new direction is made orthogonal to all before, twice, since float32 forgets.
    """

    def step(carry: tuple, number: Array) -> tuple[tuple, tuple[Array, Array]]:
        basis, vector, first = carry
        basis = basis.at[number].set(vector)
        image = product(vector)
        alpha = jnp.vdot(vector, image, precision=FULL)
        first = jnp.where(number == 0, alpha, first)
        rest = image
        for _ in range(2):
            rest = rest - float32_dot(basis.T, float32_dot(basis, rest))
        beta = jnp.linalg.norm(rest)
        # Nothing is left but round-off: the Krylov space is exhausted, and zero vectors follow.
        alive = beta > 1e-5 * jnp.linalg.norm(image)
        beta = jnp.where(alive, beta, 0.0)
        vector_exists = jnp.any(vector != 0)
        following = jnp.where(alive, rest / jnp.where(alive, beta, 1.0), 0.0)
        # An empty direction repeats a value from within the spectrum, so that it is at neither end.
        return (basis, following, first), (jnp.where(vector_exists, alpha, first), beta)

    basis = jnp.zeros((iterations, start.size), start.dtype)
    carry = (basis, start / jnp.linalg.norm(start), jnp.zeros((), start.dtype))
    _, (alphas, betas) = lax.scan(step, carry, jnp.arange(iterations))
    side = jnp.diag(betas[:-1], 1)
    values, vectors = jnp.linalg.eigh(jnp.diag(alphas) + side + side.T)
    return Spectrum(values[-1], values[0], betas[-1] * jnp.abs(vectors[-1, -1]))
