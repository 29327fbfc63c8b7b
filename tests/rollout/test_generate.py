"""Generation: shapes, endings, and log-probabilities that scoring confirms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.core.streams import draw_array, stream
from simlab.engines import ENGINES, Engine, Linear, Site
from simlab.models.config import TransformerConfig
from simlab.models.parameters import init_params
from simlab.models.transformer import logits, response_logps
from simlab.rollout import GREEDY, SamplingParams, generate
from simlab.rollout.noise import InjectedNoise
from tests.compiling import compile_quickly
from tests.tolerances import assert_exact

CONFIG = TransformerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
PROMPTS = jnp.asarray([[3, 4, 5], [6, 7, 8]], jnp.int32)
EOS_TOKEN_ID, PAD_TOKEN_ID, GROUP, LENGTH = 1, 0, 3, 6


@pytest.fixture(scope="module")
def params():
    # A likely end token, so that responses differ in length.
    params = init_params(jax.random.key(0), CONFIG)
    return {**params, "embedding": params["embedding"].at[EOS_TOKEN_ID].mul(3.0)}


@partial(jax.jit, static_argnames=("length",))
def sample(params, engine, sampler, key, length=LENGTH):
    return generate(
        params,
        CONFIG,
        engine,
        sampler,
        key,
        PROMPTS,
        lambda tokens: jnp.sum(tokens, axis=-1).astype(jnp.float32),
        group_size=GROUP,
        length=length,
        end=EOS_TOKEN_ID,
        pad=PAD_TOKEN_ID,
    )


@pytest.fixture(scope="module")
def trajectory(params):
    return sample(params, Engine(), SamplingParams(), jax.random.key(1))


def test_groups_are_contiguous(trajectory):
    assert_exact(trajectory.prompts, jnp.repeat(PROMPTS, GROUP, axis=0))
    assert trajectory.responses.shape == trajectory.mask.shape == (2 * GROUP, LENGTH)
    assert_exact(trajectory.rewards, trajectory.tokens.sum(-1).astype(jnp.float32))


def test_padding_follows_the_end(trajectory):
    for row, mask in zip(np.asarray(trajectory.responses), np.asarray(trajectory.mask), strict=True):
        assert (row[~mask] == PAD_TOKEN_ID).all()
        assert EOS_TOKEN_ID not in row[:-1][mask[1:]]
    lengths = np.asarray(trajectory.mask).sum(-1)
    assert len(set(lengths.tolist())) > 1


def scored(params, engine, trajectory):
    logps, *_ = jax.jit(response_logps, static_argnums=1)(
        params, CONFIG, engine, trajectory.prompts, trajectory.responses
    )
    return jnp.where(trajectory.mask, logps, 0.0)


def test_reported_logps_are_those_of_scoring(params, trajectory):
    # Float32 sums of up to 64 terms of order 1 in another order, in one layer.
    np.testing.assert_allclose(
        trajectory.logp_infer, scored(params, Engine(), trajectory), atol=20 * 64 * 2.0**-24
    )


@pytest.mark.slow
def test_reported_logps_are_those_of_scoring_bit_for_bit(params):
    compile_quickly(False)
    engine = ENGINES["bf16-exact"]
    trajectory = sample(params, engine, SamplingParams(), jax.random.key(1))
    assert_exact(trajectory.logp_infer, scored(params, engine, trajectory))


def test_greedy_follows_the_argmax(params):
    trajectory = sample(params, Engine(), GREEDY, jax.random.key(1))
    best = np.argmax(jax.jit(logits, static_argnums=1)(params, CONFIG, trajectory.tokens, Engine()), axis=-1)[
        :, 2:-1
    ]
    mask = np.asarray(trajectory.mask)
    assert_exact(np.asarray(trajectory.responses)[mask], best.astype(np.int32)[mask])


def test_processed_logps_are_of_what_was_drawn_from(params):
    trajectory = sample(params, Engine(), SamplingParams(top_k=1, processed=True), jax.random.key(1))
    assert_exact(trajectory.logp_infer, jnp.zeros_like(trajectory.logp_infer))


def test_responses_depend_on_key(params, trajectory):
    again = sample(params, Engine(), SamplingParams(), jax.random.key(1))
    other = sample(params, Engine(), SamplingParams(), jax.random.key(2))
    assert_exact(again.responses, trajectory.responses)
    assert (np.asarray(other.responses) != np.asarray(trajectory.responses)).any()


def test_nothing_ends_before_the_minimum_length(params):
    trajectory = sample(params, Engine(), SamplingParams(min_length=LENGTH), jax.random.key(1))
    assert np.asarray(trajectory.mask).all()


def test_end_token_is_drawn_from_the_minimum_length_on(params):
    keys = jax.random.split(jax.random.key(1), 8)
    samples = [sample(params, Engine(), SamplingParams(min_length=2), key).mask.sum(-1) for key in keys]
    # The shortest response has two tokens and its end.
    assert np.min(samples) == 3


def test_fresh_noise_is_keyed_by_the_position_of_a_token(params):
    noise, key = InjectedNoise(scale=2.0), jax.random.key(1)
    trajectory = sample(params, Engine(), SamplingParams(noise=noise), key)
    read = jax.jit(logits, static_argnums=1)(params, CONFIG, trajectory.tokens, Engine())
    for position in range(LENGTH):
        drawn = draw_array(
            jax.random.normal, jax.random.fold_in(stream(key, "logit noise"), position), read[:, 0].shape
        )
        logps = jax.nn.log_softmax(read[:, PROMPTS.shape[1] - 1 + position] + 2.0 * drawn)
        expected = jnp.take_along_axis(logps, trajectory.responses[:, position, None], axis=1)[:, 0]
        expected = jnp.where(trajectory.mask[:, position], expected, 0.0)
        # As above, and a logit of order 10.
        np.testing.assert_allclose(trajectory.logp_infer[:, position], expected, atol=20 * 64 * 2.0**-24)


def test_stochastic_weights_are_drawn_anew_with_each_key(params):
    weights = Site.of("e4m3fn", "stochastic")
    engine = Engine(projection=Linear(weights=weights))
    first, again, other = (
        sample(params, engine, GREEDY, jax.random.key(seed)).logp_infer for seed in (1, 1, 2)
    )
    assert_exact(first, again)
    assert bool(jnp.any(first[:, 0] != other[:, 0]))
    with pytest.raises(ValueError, match="stochastic rounding needs key="):
        logits(params, CONFIG, PROMPTS, engine)
