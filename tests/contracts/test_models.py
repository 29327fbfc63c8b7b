"""What every model preset has to keep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import Engine
from simlab.models.config import MODELS
from simlab.models.parameters import init_params
from simlab.models.transformer import logits
from tests.tolerances import assert_exact

# The small presets are the tiny ones with larger numbers, at four times the compile time.
PRESETS = [pytest.param(name, marks=pytest.mark.slow if name.startswith("small") else ()) for name in MODELS]


@pytest.fixture(params=PRESETS, scope="module")
def config(request):
    return MODELS[request.param]


@pytest.fixture(scope="module")
def scored(config):
    params = init_params(jax.random.key(0), config)
    tokens = jax.random.randint(jax.random.key(1), (2, 6), 0, config.vocab_size)

    @jax.jit
    def loss_and_gradient(params, tokens):
        def loss(params):
            z = logits(params, config, tokens, Engine())
            return -jax.nn.log_softmax(z)[..., 0].mean(), z

        return jax.value_and_grad(loss, has_aux=True)(params)

    (_, z), grads = loss_and_gradient(params, tokens)
    (_, future), _ = loss_and_gradient(params, tokens.at[:, -1].add(1) % config.vocab_size)
    return z, future, grads


def test_logits_are_finite_and_of_order_one(config, scored):
    z = np.asarray(scored[0])
    assert z.shape == (2, 6, config.vocab_size)
    assert np.isfinite(z).all()
    assert 0.3 < z.std() < 3


def test_the_future_is_hidden(scored):
    before, after, _ = scored
    assert_exact(before[:, :-1], after[:, :-1])
    assert (np.asarray(before[:, -1]) != np.asarray(after[:, -1])).any()


def test_every_weight_has_a_gradient(scored):
    for place, leaf in jax.tree_util.tree_leaves_with_path(scored[2]):
        assert np.isfinite(leaf).all(), place
        assert (leaf != 0).any(), place


def test_fresh_parameters_depend_on_the_key_alone(config):
    first, again, other = (init_params(jax.random.key(seed), config)["embedding"] for seed in (0, 0, 1))
    assert_exact(first, again)
    assert (jnp.abs(first - other) > 0).any()
