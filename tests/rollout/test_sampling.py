"""Drawing tokens: which are allowed, how often they come, and what is reported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.rollout import GREEDY, SamplingParams, draw_token, processed_logits
from simlab.rollout.trajectory import response_mask
from tests.tolerances import assert_exact, assert_within_interval, binomial_interval

END = 1
LOGITS = jnp.asarray([0.5, 2.0, -1.0, 2.0, 0.0, 1.0], jnp.float32)

process = jax.jit(processed_logits, static_argnums=3)


def allowed(sampler, logits=LOGITS, position=9):
    return np.flatnonzero(np.asarray(process(logits, sampler, position, END)) > -np.inf).tolist()


def test_without_filters_only_the_temperature_acts():
    assert_exact(process(LOGITS, SamplingParams(temperature=2.0), 0, END), LOGITS / 2)


@pytest.mark.parametrize(("k", "tokens"), [(1, [1]), (2, [1, 3]), (3, [1, 3, 5]), (6, [0, 1, 2, 3, 4, 5])])
def test_top_k_ranks_the_lower_index_first(k, tokens):
    assert allowed(SamplingParams(top_k=k)) == tokens


def test_top_p_keeps_the_fewest_that_reach_it():
    probs = np.sort(np.asarray(jax.nn.softmax(LOGITS)))[::-1]
    order = [1, 3, 5, 0, 4, 2]
    for count in range(1, 6):
        just_enough = probs[:count].sum() - 1e-4
        assert allowed(SamplingParams(top_p=just_enough)) == sorted(order[:count])
    assert allowed(SamplingParams(top_p=1e-9)) == [1]


def test_top_p_counts_after_top_k():
    # Of the two tokens that top-k leaves, each has probability one half.
    assert allowed(SamplingParams(top_k=2, top_p=0.4)) == [1]
    assert allowed(SamplingParams(top_k=2, top_p=0.6)) == [1, 3]


def test_no_end_before_the_minimum_length():
    sampler = SamplingParams(min_length=3)
    assert [END in allowed(sampler, position=p) for p in (0, 2, 3, 4)] == [False, False, True, True]
    assert allowed(SamplingParams(top_k=1, min_length=3), position=0) == [3]


def test_greedy_takes_the_largest():
    logits = jax.random.normal(jax.random.key(0), (50, 7))
    uniforms = jax.random.uniform(jax.random.key(1), (50,))
    drawn = draw_token(uniforms, jax.nn.softmax(process(logits, GREEDY, 0, END)))
    assert_exact(drawn, jnp.argmax(logits, axis=-1).astype(jnp.int32))


@given(
    st.lists(st.sampled_from([0.0, 1e-30, 0.01, 0.3, 1.0]), min_size=2, max_size=40).filter(any),
    st.integers(0, 2**23 - 1),
)
def test_a_probability_of_zero_is_never_drawn(weights, step):
    probs = np.asarray(weights, np.float32)
    token = int(draw_token(jnp.float32(step / 2**23), jnp.asarray(probs)))
    assert probs[token] > 0


def test_tokens_come_as_often_as_they_should():
    probs = jax.nn.softmax(LOGITS)
    uniforms = jax.random.uniform(jax.random.key(0), (20_000,))
    counts = np.bincount(draw_token(uniforms, jnp.tile(probs, (20_000, 1))), minlength=6)
    for count, p in zip(counts, probs, strict=True):
        # Six tokens at 1e-7 each.
        assert_within_interval(count, *binomial_interval(20_000, float(p), 1e-7), alpha=6e-7)


def test_mask_ends_with_the_end():
    responses = np.asarray([[5, 6, END, 0, 0], [END, 0, 0, 0, 0], [5, 0, 6, 7, 8], [5, END, 6, END, 0]])
    expected = np.asarray([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], bool)
    assert_exact(response_mask(responses, END), expected)
