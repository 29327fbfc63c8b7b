"""Lookups by token in the form for GPUs, on a CPU, against plain indexing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.models.token_lookup import embed_tokens, pick_tokens
from tests.tolerances import assert_exact

VALUES = jax.random.normal(jax.random.key(0), (2, 3, 7))
EMBEDDING = jax.random.normal(jax.random.key(1), (7, 4))
TOKENS = jnp.asarray([[0, 6, 2], [2, 2, 5]], jnp.int32)


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def index(values, tokens):
    return jnp.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]


@pytest.mark.usefixtures("on_gpu")
def test_pick_tokens_has_values_and_gradient_of_indexing():
    assert_exact(pick_tokens(VALUES, TOKENS), index(VALUES, TOKENS))
    for transform in (jax.grad, jax.jacfwd):
        actual, expected = (
            transform(lambda values, pick=pick: jnp.sum(jnp.exp(pick(values, TOKENS))))(VALUES)
            for pick in (pick_tokens, index)
        )
        assert_exact(actual, expected)


@pytest.mark.usefixtures("on_gpu")
def test_pick_tokens_passes_infinities_elsewhere():
    values = VALUES.at[..., 1].set(-jnp.inf)
    gradient = jax.grad(lambda values: jnp.sum(pick_tokens(values, TOKENS)))(values)
    assert_exact(pick_tokens(values, TOKENS), index(VALUES, TOKENS))
    np.testing.assert_array_equal(gradient[..., 1], 0)


@pytest.mark.usefixtures("on_gpu")
def test_embed_tokens_has_values_and_gradient_of_indexing():
    assert_exact(embed_tokens(EMBEDDING, TOKENS), EMBEDDING[TOKENS])
    actual, expected = (
        jax.grad(lambda table, embed=embed: jnp.sum(jnp.sin(embed(table, TOKENS))))(EMBEDDING)
        for embed in (embed_tokens, lambda table, tokens: table[tokens])
    )
    # Sums of up to three terms below one.
    np.testing.assert_allclose(actual, expected, atol=3 * 2.0**-23)


def find_scatters(lookup, values) -> bool:
    # A new function for each call: JAX keeps the trace of one.
    return "scatter" in str(jax.make_jaxpr(jax.grad(lambda values: jnp.sum(lookup(values, TOKENS))))(values))


@pytest.mark.parametrize(("lookup", "values"), [(pick_tokens, VALUES), (embed_tokens, EMBEDDING)])
def test_only_a_gpu_avoids_scatters(lookup, values, monkeypatch):
    assert find_scatters(lookup, values)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not find_scatters(lookup, values)


@pytest.mark.usefixtures("on_gpu")
def test_embed_tokens_of_a_large_vocabulary_scatters():
    assert find_scatters(embed_tokens, jnp.zeros((2048, 4)))
