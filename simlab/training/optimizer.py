"""AdamW with clipping of the gradient norm, every number of it traced."""

from typing import Annotated

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float, PyTree

from simlab.core.backend import is_gpu_backend
from simlab.core.pytree import Scalar, pytree
from simlab.core.ranges import NOT_NEGATIVE, TINY, Range
from simlab.models.parameters import Params

LARGEST_FLAT = 2**20
"""Number of parameters up to which a GPU adds up the squares of a gradient in one kernel."""


@pytree(kw_only=True)
class AdamW:
    """Numbers of optax's AdamW; the gradient's global norm is clipped to `max_grad_norm` first.

    `learning_rate` 0 freezes the policy. `weight_decay` is decoupled and multiplied by the learning rate.

    Reference: AdamW arXiv 1711.05101; optax.adamw.
    """

    learning_rate: Annotated[Scalar, NOT_NEGATIVE] = 2.5e-4
    beta1: Annotated[Scalar, Range(0.0, 1 - 2.0**-24)] = 0.9
    beta2: Annotated[Scalar, Range(0.0, 1 - 2.0**-24)] = 0.99
    eps: Annotated[Scalar, NOT_NEGATIVE] = 1e-8
    weight_decay: Annotated[float | Array, NOT_NEGATIVE] = 0.0
    max_grad_norm: Annotated[Scalar, Range(TINY)] = 1.0

    def transformation(self) -> optax.GradientTransformation:
        """Return the direction of a step, before the learning rate."""
        return optax.chain(
            optax.stateless(lambda grads, _: clip_norm(grads, self.max_grad_norm)),
            optax.scale_by_adam(self.beta1, self.beta2, self.eps),
            optax.add_decayed_weights(self.weight_decay),
        )

    def init(self, params: Params) -> PyTree:
        """Return the optimizer state before the first step."""
        return self.transformation().init(params)

    def update(self, grads: Params, state: PyTree, params: Params, factor: Scalar) -> tuple[Params, PyTree]:
        """Return new parameters and state; `factor` of the schedule multiplies the learning rate."""
        # optax raises its decay rates to an integer power, which strict promotion of types forbids.
        with jax.numpy_dtype_promotion("standard"):
            direction, state = self.transformation().update(grads, state, params)
        rate = jnp.asarray(self.learning_rate * factor, jnp.float32)
        # Zero times an infinite step is NaN, and -0 minus -0 is +0: frozen means that no bit moves.
        return jax.tree.map(lambda p, d: jnp.where(rate == 0, p, p - rate * d), params, direction), state


def clip_norm(grads: PyTree, limit: Scalar) -> PyTree:
    """Return the gradient, scaled to the norm `limit` where its norm is not below that.

    As `optax.clip_by_global_norm`, in the operations of `global_norm`: a compiled step that reports the norm
    computes it once.
    """
    norm = global_norm(grads)
    return jax.tree.map(lambda leaf: lax.select(norm < limit, leaf, leaf / norm * limit), grads)


def global_norm(grads: PyTree) -> Float[Array, ""]:
    """Return the Euclidean norm of all leaves together."""
    leaves = jax.tree.leaves(grads)
    # A sum is a kernel. Of large leaves the copy would cost more, and sharded ones would be gathered.
    if is_gpu_backend() and sum(leaf.size for leaf in leaves) <= LARGEST_FLAT:
        leaves = [jnp.concatenate([leaf.reshape(-1) for leaf in leaves])]
    return jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in leaves))
