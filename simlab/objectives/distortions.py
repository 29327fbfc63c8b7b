"""Token weights injected on purpose: objective-level hacking as an experiment.

A distortion maps a batch to detached weights [B, T].
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from simlab.core.pytree import pytree
from simlab.core.streams import draw_array, stream
from simlab.objectives.batch import PerToken, TokenBatch
from simlab.objectives.override_ranges import Fraction, NotNegative


@pytree
class LowProbabilityDelta:
    """Weight `distortion_delta` at tokens with pi_train < `distortion_threshold`, one elsewhere.

    Reference: hacking Eq. 17-20, 36, Fig. 5, 10.
    """

    distortion_delta: NotNegative = 2.0
    distortion_threshold: Fraction = 0.1

    def __call__(self, batch: TokenBatch) -> PerToken:
        """Return the weights [B, T]."""
        low = jnp.exp(batch.logp_train) < self.distortion_threshold
        return jnp.where(low, jnp.float32(self.distortion_delta), 1)


@pytree
class GaussianNoise:
    """Independent weights from N(1, `distortion_std`^2), drawn from `batch.key`.

    Reference: hacking Eq. 21, 22, 37-43, Fig. 12.
    """

    distortion_std: NotNegative = 0.2
    needs: ClassVar[tuple[str, ...]] = ("key",)

    def __call__(self, batch: TokenBatch) -> PerToken:
        """Return the weights [B, T]."""
        assert batch.key is not None
        noise = draw_array(
            jax.random.normal, stream(batch.key, "objectives.distortion"), batch.mask.shape, jnp.float32
        )
        return 1 + self.distortion_std * noise
