"""The transformers engine behind simlab's protocol, beside simlab's own engine."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from simlab.models import MODELS, init_params
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.protocol import EngineError, SamplingRequest
from simlab.serving.transformers_engine import TransformersEngine
from simlab.tasks import TASKS
from simlab.tasks.vocabulary import EOS_TOKEN_ID, PAD_TOKEN_ID
from tests.engines_real.frameworks import interpreter

pytestmark = pytest.mark.engines

TASK = TASKS["add"]()
PROMPTS = TASK.prompt_set()[:8]
GREEDY = SamplingRequest(max_tokens=6, eos_token_id=EOS_TOKEN_ID, pad_token_id=PAD_TOKEN_ID, temperature=0.0)
CONFIGS = {"moe": MODELS["tiny-moe"], "dense": replace(MODELS["tiny-dense"], tie_word_embeddings=False)}


@pytest.fixture(scope="module")
def real():
    with TransformersEngine(interpreter("hf")) as engine:
        yield engine


@pytest.fixture(scope="module", params=CONFIGS)
def policy(request):
    config = CONFIGS[request.param]
    return config, init_params(jax.random.key(0), config)


def test_before_weights_it_says_so(real):
    with (
        TransformersEngine(interpreter("hf")) as fresh,
        pytest.raises(EngineError, match="has no weights"),
    ):
        fresh.score(PROMPTS, PROMPTS)
    assert real.describe()["versions"]["transformers"].startswith("5.")


def test_it_is_the_lab_in_float32(real, policy):
    """Two float32 engines: greedy tokens and experts equal, log-probs within rounding."""
    own = JaxEngine("f32")
    assert own.sync_weights(*policy) < 1e-6
    assert real.sync_weights(*policy) < 1e-5
    ours, theirs = own.generate(PROMPTS, GREEDY), real.generate(PROMPTS, GREEDY)
    np.testing.assert_array_equal(theirs.responses, ours.responses)
    np.testing.assert_array_equal(theirs.mask, ours.mask)
    # Log-probs up to 10 after some 600 roundings in a row, of 2^-24 each; see `bound` of the checkpoints.
    allowed = 2 * 8 * np.sqrt(600) * 2.0**-24 * 10
    assert np.abs(theirs.logps - ours.logps).max() < allowed
    # Decoding against scoring, of the same engine.
    again = real.score(PROMPTS, theirs.responses)
    assert np.abs(np.where(theirs.mask, again.logps, 0) - theirs.logps).max() < allowed
    if policy[0].num_experts:
        assert theirs.routed_experts is not None
        read = theirs.routed_experts.shape[1]
        assert theirs.routed_experts.shape == (8, PROMPTS.shape[1] + 5, policy[0].num_hidden_layers, 2)
        alive = np.concatenate([np.ones_like(PROMPTS, bool), theirs.mask], 1)[:, :read]
        for experts in (ours.routed_experts, again.routed_experts):
            np.testing.assert_array_equal(np.sort(theirs.routed_experts)[alive], np.sort(experts)[alive])


def test_sampling_is_repeatable_and_moves_with_the_seed(real, policy):
    real.sync_weights(*policy)
    draws = [
        real.generate(PROMPTS, replace(GREEDY, temperature=1.0, seed=seed)).responses for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).any()


def test_a_wrong_sync_is_named(real, policy, monkeypatch):
    """Weights that arrive as others, as a broken reload has them, fail the probe."""
    config, params = policy
    import simlab.serving.served_engine as module

    layers = (*params["layers"][:-1], {**params["layers"][-1], "down": params["layers"][-1]["down"] * 0})

    def lose_a_matrix(folder, config, params, **options):
        return module_save(folder, config, {**params, "layers": layers}, **options)

    module_save = module.save_checkpoint
    monkeypatch.setattr(module, "save_checkpoint", lose_a_matrix)
    with pytest.raises(EngineError, match=r"weight sync to transformers float32 failed: .* at most"):
        real.sync_weights(config, params)


def test_a_mistake_of_the_framework_is_an_error_and_not_the_end(real, policy):
    real.sync_weights(*policy)
    with pytest.raises(EngineError, match="transformers float32 failed in 'score': IndexError"):
        real.score(PROMPTS + 10_000, PROMPTS)
    assert real.score(PROMPTS, PROMPTS).logps.shape == PROMPTS.shape


def test_half_precision_is_apart_but_within_parity(policy):
    with TransformersEngine(interpreter("hf"), dtype="bfloat16") as engine:
        assert 1e-5 < engine.sync_weights(*policy) < 0.3
