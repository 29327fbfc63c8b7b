"""DFPO: transforms of the post-clip sequence weights of one group, made so that shared tokens cancel.

A transform maps (weights [G], advantages [G], real [G]) to weights [G]; sequences without tokens (`real`
false) take no part and their entry is ignored. The result is a constant coefficient on the score unless
`Differentiated`.
"""

from abc import ABC, abstractmethod

import jax.numpy as jnp
from jaxtyping import Bool, Float

from simlab.core.pytree import pytree
from simlab.objectives.batch import Array, PerToken
from simlab.objectives.override_ranges import NotNegative
from simlab.objectives.ratios import score_through

PerMember = Float[Array, " G"]
"""One number per response of a group."""


class GroupTransform(ABC):
    """Base of the transforms; all treat the transformed weight as a constant (stop-gradient).

    Reference: cancel Eq. 16, 45, 68, 70, 85.
    """

    @abstractmethod
    def __call__(self, weights: PerMember, advantages: PerMember, real: Bool[Array, " G"]) -> PerMember:
        """Return the transformed weights [G]."""

    def attach(self, weights: PerToken, logp: PerToken) -> PerToken:
        """Return u [B, T] from transformed weights [B, T]."""
        return score_through(weights, logp)


@pytree
class Unchanged(GroupTransform):
    """The post-clip weights themselves, detached: the control in which clipped sequences keep a gradient.

    Reference: cancel Eq. 83, 86.
    """

    def __call__(self, weights: PerMember, advantages: PerMember, real: Bool[Array, " G"]) -> PerMember:
        """Return the transformed weights [G]."""
        del advantages, real
        return weights


@pytree
class MinReplace(GroupTransform):
    """Every weight becomes the smallest of the group.

    Reference: cancel Eq. 17, 50, 59-62, 84, 87-91, Thm. C.1, Thm. K.1.
    """

    def __call__(self, weights: PerMember, advantages: PerMember, real: Bool[Array, " G"]) -> PerMember:
        """Return the transformed weights [G]."""
        del advantages
        smallest = jnp.min(jnp.where(real, weights, jnp.inf))
        return jnp.full_like(weights, jnp.where(real.any(), smallest, 1))


@pytree
class OrthogonalProjection(GroupTransform):
    """w - (A.w / A.A) A: the nearest weights with sum A w = 0; entries may become negative.

    Reference: cancel Eq. 18, 63.
    """

    def __call__(self, weights: PerMember, advantages: PerMember, real: Bool[Array, " G"]) -> PerMember:
        """Return the transformed weights [G]."""
        a = jnp.where(real, advantages, 0)
        return weights - safe_ratio(jnp.sum(a * weights), jnp.sum(a * a)) * a


@pytree
class NonNegativeProjection(GroupTransform):
    """The nearest weights with sum A v = 0 and v >= 0, in closed form.

    v = max(w - m A, 0) for the multiplier m at which g(m) = sum A max(w - m A, 0) vanishes. g falls, and
    entry j leaves at m = w_j / A_j; so j stays positive exactly if that point lies beyond the root, which the
    sign of g there shows. With the active set known, m = (A.w) / (A.A) over it.

    Reference: cancel Eq. 51.
    """

    def __call__(self, weights: PerMember, advantages: PerMember, real: Bool[Array, " G"]) -> PerMember:
        """Return the transformed weights [G]."""
        a = jnp.where(real, advantages, 0)
        leaves = weights / jnp.where(a == 0, 1, a)
        at_leaving = jnp.maximum(weights[None, :] - leaves[:, None] * a[None, :], 0)
        g = jnp.sum(a[None, :] * at_leaving, axis=1)
        active = jnp.where(a > 0, g <= 0, jnp.where(a < 0, g >= 0, True))
        a_active = jnp.where(active, a, 0)
        multiplier = safe_ratio(jnp.sum(a_active * weights), jnp.sum(a_active * a_active))
        return jnp.where(active, jnp.maximum(weights - multiplier * a, 0), 0)


@pytree
class TruncateAndRebalance(GroupTransform):
    """Raise weights to `rebalance_floor`, then shrink the heavier side until sum A w = 0.

    The positive side is scaled by min(1, n / p), the negative by min(1, p / n), with p and n the two sides'
    sums of |A| w.

    Reference: cancel Eq. 52-55.
    Deviation: Eq. 55 prints a minus sign too many in beta; p / n is right. After scaling only w > 0 holds,
        not w >= floor. The paper gives no floor: 1e-6.
    """

    rebalance_floor: NotNegative = 1e-6

    def __call__(self, weights: PerMember, advantages: PerMember, real: Bool[Array, " G"]) -> PerMember:
        """Return the transformed weights [G]."""
        a = jnp.where(real, advantages, 0)
        raised = jnp.maximum(weights, self.rebalance_floor)
        positive = jnp.sum(jnp.maximum(a, 0) * raised)
        negative = jnp.sum(jnp.maximum(-a, 0) * raised)
        heavier_positive = jnp.minimum(safe_ratio(negative, positive), 1)
        heavier_negative = jnp.minimum(safe_ratio(positive, negative), 1)
        return raised * jnp.where(a > 0, heavier_positive, jnp.where(a < 0, heavier_negative, 1))


@pytree
class Scaled(GroupTransform):
    """All weights times one constant: the ablation that only takes smaller steps.

    Reference: cancel Tab. 3, App. K.6.
    """

    transform_scale: NotNegative = 0.5

    def __call__(self, weights: PerMember, advantages: PerMember, real: Bool[Array, " G"]) -> PerMember:
        """Return the transformed weights [G]."""
        del advantages, real
        return self.transform_scale * weights


@pytree
class Differentiated(GroupTransform):
    """A transform without stop-gradient: u = w(theta) log pi(theta), both factors differentiated.

    Reference: cancel Tab. 3, App. K.6.
    Deviation: differentiating Eq. 49-50 as printed gives zero, since sum A = 0; so the ablation must keep the
        score term. Here the transformed weight is differentiated as a factor of log pi.
    """

    inner: GroupTransform

    def __call__(self, weights: PerMember, advantages: PerMember, real: Bool[Array, " G"]) -> PerMember:
        """Return the transformed weights [G]."""
        return self.inner(weights, advantages, real)

    def attach(self, weights: PerToken, logp: PerToken) -> PerToken:
        """Return u [B, T] from transformed weights [B, T]."""
        return weights * logp


def safe_ratio(numerator: Float[Array, "*S"], denominator: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Return numerator / denominator, and zero where the denominator is (in value and gradient)."""
    usable = denominator != 0
    return jnp.where(usable, numerator / jnp.where(usable, denominator, 1), 0)
