"""The exact KL over a vocabulary."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from scipy.stats import entropy

from simlab.metrics import exact_kl


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 4))
def test_scipy_agrees_and_it_is_never_negative(seed, scale):
    rng = np.random.default_rng(seed)
    ours, theirs = log_softmax(scale * rng.normal(size=(2, 3, 8)), axis=-1)
    expected = entropy(np.exp(ours), np.exp(theirs), axis=-1)
    actual = np.asarray(exact_kl(ours.astype(np.float32), theirs.astype(np.float32)))
    # 8 terms p (a - b) with |a|, |b| up to 40, each rounded to 2^-24 of itself, and p likewise.
    np.testing.assert_allclose(actual, expected, atol=8 * 4 * 40 * 2.0**-24)
    assert (actual > -8 * 4 * 40 * 2.0**-24).all()


def test_tokens_that_cannot_be_drawn_add_nothing():
    ours, theirs = jnp.log(jnp.asarray([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]))
    assert np.isclose(exact_kl(ours, theirs), np.log(2))
    # Nor does one that neither policy can draw.
    assert np.isclose(exact_kl(ours, theirs.at[2].set(-jnp.inf)), np.log(2))
