"""Scoring in the form for GPUs, on a CPU, against the form of the CPU."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import ENGINES
from simlab.models.config import TransformerConfig
from simlab.models.parameters import init_params
from simlab.models.prompt_rows import PromptRows
from simlab.models.transformer import response_logps
from tests.tolerances import assert_exact

CONFIG = TransformerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
ROWS = PromptRows(group_size=3, prompt_length=4, response_length=5)
PROMPTS = jnp.repeat(jax.random.randint(jax.random.key(0), (2, 4), 0, CONFIG.vocab_size), 3, axis=0)
RESPONSES = jax.random.randint(jax.random.key(1), (6, 6), 0, CONFIG.vocab_size)


def set_backend(monkeypatch, name: str) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: name)


def score(engine: str, prompts=PROMPTS, responses=RESPONSES):
    """Return log-probs and entropies, and the gradient of a weighted sum of the log-probs."""
    weights = jnp.cos(jnp.arange(6.0))[None, : responses.shape[1]]

    def loss(params):
        scores = response_logps(params, CONFIG, ENGINES[engine], prompts, responses, group_size=3)
        return jnp.sum(weights * scores.logp), (scores.logp, scores.entropy)

    # A new function each time: one that is traced for one backend would be taken for the other.
    return jax.jit(jax.grad(lambda params: loss(params), has_aux=True))(
        init_params(jax.random.key(2), CONFIG)
    )


@pytest.mark.parametrize("engine", ["f32", "f32-flash", "bf16", "fp8-block128"])
def test_prompt_rows_keep_scores_and_gradient(engine, monkeypatch):
    gradient, values = score(engine)
    set_backend(monkeypatch, "gpu")
    in_rows, values_in_rows = score(engine)
    # A float32 sum of up to 64 terms of order 10 may turn the last bit of a few BF16 logits.
    tolerance = 20 * 64 * 2.0**-24 if engine.startswith("f32") else 2.0**-6
    for actual, expected in zip(values_in_rows, values, strict=True):
        np.testing.assert_allclose(actual, expected, atol=tolerance)
    for actual, expected in zip(jax.tree.leaves(in_rows), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(actual, expected, atol=tolerance * float(jnp.abs(expected).max()))


def test_prompt_rows_keep_scores_of_short_responses(monkeypatch):
    _, values = score("f32", responses=RESPONSES[:, :4])
    set_backend(monkeypatch, "gpu")
    _, values_in_rows = score("f32", responses=RESPONSES[:, :4])
    np.testing.assert_allclose(values_in_rows[0], values[0], atol=20 * 64 * 2.0**-24)


def test_prompt_rows_fit_only_where_values_stay(monkeypatch):
    assert not ROWS.fits(CONFIG, ENGINES["f32"])
    set_backend(monkeypatch, "gpu")
    assert ROWS.fits(CONFIG, ENGINES["f32"])
    assert ROWS.fits(CONFIG, ENGINES["mxfp8"])
    assert not ROWS.fits(replace(CONFIG, num_experts=4), ENGINES["f32"])
    # Scales of a tensor, and of blocks along the tokens.
    assert not ROWS.fits(CONFIG, ENGINES["nvfp4"])
    assert not ROWS.fits(CONFIG, ENGINES["fp8-block128-quantized"])
    assert not ROWS._replace(group_size=1).fits(CONFIG, ENGINES["f32"])
    assert not ROWS._replace(prompt_length=40).fits(CONFIG, ENGINES["f32"])


def test_prompt_rows_split_what_they_join():
    joined = ROWS.join(PROMPTS, RESPONSES[:, :-1])
    assert joined.shape == (8, 5)
    # Each token stands for its hidden state.
    tokens = ROWS.split(joined[..., None].astype(jnp.float32))[..., 0].astype(jnp.int32)
    assert_exact(tokens, jnp.concatenate([PROMPTS[:, -1:], RESPONSES[:, :-1]], axis=1))
