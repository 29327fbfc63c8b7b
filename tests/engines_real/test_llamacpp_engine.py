"""llama.cpp behind simlab's protocol, and GGUF files that simlab wrote."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from simlab.checkpoints import load_checkpoint
from simlab.checkpoints.gguf_writer import save_gguf
from simlab.models import MODELS, init_params
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.llamacpp_engine import LlamaCppEngine
from simlab.serving.protocol import EngineError, SamplingRequest
from simlab.tasks import TASKS
from simlab.tasks.vocabulary import EOS_TOKEN_ID, PAD_TOKEN_ID
from tests.engines_real.frameworks import interpreter

pytestmark = pytest.mark.engines

PROMPTS = TASKS["add"]().prompt_set()[:16]
SAMPLING = SamplingRequest(max_tokens=8, eos_token_id=EOS_TOKEN_ID, pad_token_id=PAD_TOKEN_ID, seed=5)
CONFIGS = {
    "qwen3_moe": MODELS["tiny-moe"],
    "qwen2": replace(MODELS["tiny-dense"], qk_norm=False, attention_bias=True, tie_word_embeddings=False),
    "llama": replace(MODELS["tiny-llama"], rms_norm_eps=1e-5),
}


def policy(config, seed=0):
    return config, init_params(jax.random.key(seed), config)


@pytest.fixture(scope="module")
def real():
    with LlamaCppEngine(interpreter("llamacpp"), stored="f32") as engine:
        yield engine


@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_the_lab_in_float32(real, name):
    """Log-probs of samples within rounding; exp and rotation of ggml are approximations of float32."""
    config, own = CONFIGS[name], JaxEngine("f32")
    own.sync_weights(*policy(config))
    assert real.sync_weights(*policy(config)) < 1e-4
    found = real.generate(PROMPTS, SAMPLING)
    assert 0 < found.mask.sum() < found.mask.size
    for scored in (own.score(PROMPTS, found.responses), real.score(PROMPTS, found.responses)):
        assert np.abs(np.where(found.mask, scored.logps - found.logps, 0)).max() < 1e-3
    again = real.generate(PROMPTS, SAMPLING)
    np.testing.assert_array_equal(again.responses, found.responses)
    assert (real.generate(PROMPTS, replace(SAMPLING, seed=6)).responses != found.responses).any()


def test_quantized_weights_are_those_that_the_lab_reads_back(tmp_path):
    """q8_0 is nearer to simlab with the dequantized weights than with those that were sent."""
    config, params = policy(MODELS["tiny-moe"])
    path = save_gguf(tmp_path / "policy.gguf", config, params, stored="q8_0")
    _, dequantized = load_checkpoint(path)
    rounded, exact = JaxEngine("f32"), JaxEngine("f32")
    rounded.sync_weights(config, dequantized)
    exact.sync_weights(config, params)
    with LlamaCppEngine(interpreter("llamacpp"), stored="q8_0") as engine:
        assert 1e-4 < engine.sync_weights(config, params) < engine.parity
        found = engine.score(PROMPTS, PROMPTS).logps
        apart = [np.abs(own.score(PROMPTS, PROMPTS).logps - found).mean() for own in (rounded, exact)]
        assert apart[0] < apart[1]
        assert engine.describe()["dtype"] == "q8_0"


def test_a_mistake_is_an_error_and_not_the_end(real):
    real.sync_weights(*policy(MODELS["tiny-moe"]))
    with pytest.raises(EngineError, match="llamacpp f32 failed in 'score': IndexError: tokens must be"):
        real.score(PROMPTS + 10_000, PROMPTS)
    assert real.score(PROMPTS, PROMPTS).logps.shape == PROMPTS.shape
