"""The composed `grpo` against GRPO written out in fifteen lines."""

import jax
import numpy as np
import pytest

from simlab.objectives.plain_grpo import plain_grpo
from tests.objectives.batches import batch_of, coefficients_of, random_batch, value_of


def plain(batch, **clips):
    """Return value and gradient in logp."""

    @jax.jit
    def evaluate(logp):
        return plain_grpo(logp, batch.logp_train, batch.rewards, batch.mask, batch.group_size, **clips)

    return jax.value_and_grad(evaluate)(batch.logp)


@pytest.mark.parametrize("clips", [{}, {"clip_low": 0.05, "clip_high": 0.4}])
@pytest.mark.parametrize("seed", range(3))
def test_grpo_equals_plain_grpo(seed, clips):
    batch = random_batch(seed)
    value, gradient = plain(batch, **clips)
    # Sums of at most 20 float32 terms of order one, in another order.
    np.testing.assert_allclose(value_of("grpo", batch, **clips), value, atol=20 * 2.0**-23)
    np.testing.assert_allclose(coefficients_of("grpo", batch, **clips), gradient, atol=20 * 2.0**-23)
    assert np.any(np.asarray(gradient) != 0)


def test_plain_grpo_of_two_tokens_by_hand():
    batch = batch_of([[np.log(1.5)], [np.log(0.5)]], rewards=[1.0, 0.0], group_size=2)
    value, gradient = plain(batch)
    # A = +-0.5 / sqrt(0.5); both ratios are clipped, at 1.2 and 0.8, so no gradient is left.
    np.testing.assert_allclose(value, 0.5 * np.sqrt(0.5) * (1.2 - 0.8), rtol=1e-5)
    np.testing.assert_array_equal(gradient, 0.0)
