"""The tabular policy: every sequence once, contexts shared as asked, scores equal to autodiff."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.models import tabular
from simlab.models.tabular import enumerate_sequences, list_sequences, log_softmax, token_values


def policy(space, seed=0):
    logits = np.random.default_rng(seed).normal(size=space.table_shape)
    return logits, np.exp(log_softmax(logits))


SPACES = {
    "plain": enumerate_sequences(3, 3),
    "ended": enumerate_sequences(3, 4, end=1),
    "ended by zero": enumerate_sequences(3, 3, end=0),
    "chain": enumerate_sequences(3, 4, memory=1),
    "one context": enumerate_sequences(2, 5, memory=0),
    "merged": enumerate_sequences(3, 3, same={(1,): (0,), (2, 0): ()}),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_laws_sum_to_one(space):
    _, probs = policy(space)
    law = np.exp(token_values(space, np.log(probs)).sum(1))
    assert law.sum() == pytest.approx(1, abs=1e-13)


def test_all_sequences_once_against_itertools():
    found = [tuple(row) for row in enumerate_sequences(3, 3).tokens.tolist()]
    assert found == list(product(range(3), repeat=3))


@pytest.mark.parametrize("end", [0, 1, 2])
def test_ended_sequences_against_a_plain_loop(end):
    expected = set()
    for row in product(range(3), repeat=3):
        cut = row.index(end) + 1 if end in row else 3
        expected.add(row[:cut])
    space = enumerate_sequences(3, 3, end=end)
    found = [tuple(row[: int(n)]) for row, n in zip(space.tokens.tolist(), space.lengths, strict=True)]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_contexts_are_prefixes_and_are_shared_as_asked():
    plain = enumerate_sequences(2, 3)
    for tokens, contexts in zip(plain.tokens, plain.contexts, strict=True):
        for t in range(3):
            assert plain.prefixes[contexts[t]] == tuple(tokens[:t])
    assert len(plain.prefixes) == 1 + 2 + 4
    assert SPACES["chain"].prefixes == ((), (0,), (1,), (2,))
    assert SPACES["one context"].prefixes == ((),)
    merged = SPACES["merged"]
    assert (1,) not in merged.prefixes
    first_one = merged.tokens[:, 0] == 1
    assert (merged.contexts[first_one, 1] == merged.prefixes.index((0,))).all()
    # A context may come back at another position.
    later = (merged.tokens[:, 0] == 2) & (merged.tokens[:, 1] == 0)
    assert (merged.contexts[later, 2] == 0).all()


def test_shorter_policies_are_the_first_rows_of_longer_ones():
    long, short = enumerate_sequences(3, 4), enumerate_sequences(3, 2)
    assert long.prefixes[: len(short.prefixes)] == short.prefixes


def test_listed_sequences_keep_order_and_mask_the_rest():
    space = list_sequences([(2, 0), (1,), (2, 0, 1)], 3)
    assert space.lengths.tolist() == [2, 1, 3]
    assert space.contexts[0, 1] == space.contexts[2, 1]
    _, probs = policy(space)
    values = token_values(space, np.log(probs))
    assert (values[~space.mask] == 0).all()


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_scores_are_the_gradient_by_autodiff(space):
    logits, probs = policy(space)
    coefficients = np.random.default_rng(1).normal(size=space.tokens.shape)
    with jax.enable_x64():
        table = jnp.asarray(logits)
        assert table.dtype == jnp.float64

        def total(z):
            return (token_values(space, log_softmax(z)) * jnp.asarray(coefficients)).sum()

        by_autodiff = np.asarray(jax.grad(total)(table))
    exact = tabular.sum_of_scores(space, probs, coefficients)
    np.testing.assert_allclose(exact, by_autodiff, rtol=0, atol=1e-11)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_score_norms_equal_single_sequences(space):
    _, probs = policy(space)
    coefficients = np.random.default_rng(2).normal(size=space.tokens.shape)
    norms = tabular.square_score_norms(space, probs, coefficients)
    dense = tabular.sequence_scores(space, probs)
    for s in range(0, len(norms), 5):
        one = np.zeros(space.tokens.shape)
        one[s] = coefficients[s]
        assert norms[s] == pytest.approx((tabular.sum_of_scores(space, probs, one) ** 2).sum(), abs=1e-12)
        one[s] = 1.0
        expected = tabular.sum_of_scores(space, probs, one).ravel()
        np.testing.assert_allclose(dense[s], expected, rtol=0, atol=1e-13)


def test_a_million_sequences():
    space = enumerate_sequences(10, 6)
    assert space.tokens.shape == (1_000_000, 6)
    logits, probs = policy(space)
    law = np.exp(token_values(space, log_softmax(logits)).sum(1))
    gradient = tabular.sum_of_scores(space, probs, np.broadcast_to(law[:, None], space.tokens.shape))
    # The mean score is zero.
    assert np.abs(gradient).max() < 1e-13


def test_bad_input_is_refused_before_any_work():
    with pytest.raises(ValueError, match="at least 1"):
        enumerate_sequences(0, 3)
    with pytest.raises(ValueError, match="too many to enumerate"):
        enumerate_sequences(50, 6)
    with pytest.raises(ValueError, match=r"must lie in 0\.\.2, got 3"):
        enumerate_sequences(3, 2, end=3)
    with pytest.raises(ValueError, match="at least one sequence"):
        list_sequences([], 3)
    with pytest.raises(ValueError, match=r"must lie in 0\.\.2"):
        list_sequences([(0, 3)], 3)
