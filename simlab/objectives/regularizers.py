"""Terms that are subtracted from the objective and do not depend on the advantage.

A regularizer maps a batch, whose mask holds the tokens in the loss, to a number.
"""

from jaxtyping import Float

from simlab.core.pytree import pytree
from simlab.objectives.batch import Array, TokenBatch, masked_mean
from simlab.objectives.override_ranges import NotNegative


@pytree
class RolloutKl:
    """`rollout_kl_coefficient` times the mean of (log pi(theta) - log pi_infer)^2 over tokens in the loss.

    Tokens that a trust region drops count. The mean is over tokens whatever the objective's aggregation.

    Reference: Kimi-K2.5 arXiv 2602.02276; prime-rl trainer/rl/loss.py; SkyRL pull request 1811.
    """

    rollout_kl_coefficient: NotNegative = 1e-3

    def __call__(self, batch: TokenBatch) -> Float[Array, ""]:
        """Return the penalty, a scalar."""
        return self.rollout_kl_coefficient * masked_mean((batch.logp - batch.logp_infer) ** 2, batch.mask)
