"""vLLM on a CPU behind simlab's protocol, beside simlab's own engine."""

import json
import subprocess
import sysconfig
from dataclasses import replace

import jax
import numpy as np
import pytest

from simlab.models import MODELS, init_params
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.protocol import EngineError, SamplingRequest
from simlab.serving.real_training import real_rollout
from simlab.serving.vllm_engine import VllmEngine
from simlab.tasks import TASKS
from simlab.tasks.vocabulary import EOS_TOKEN_ID, PAD_TOKEN_ID
from simlab.training.step import score_rollout
from tests.engines_real.frameworks import ROOT, interpreter
from tests.training.recipes import QUICK, small_recipe, small_state

pytestmark = pytest.mark.engines

TASK = TASKS["add"]()
PROMPTS = TASK.prompt_set()[:32]
SAMPLING = SamplingRequest(max_tokens=12, eos_token_id=EOS_TOKEN_ID, pad_token_id=PAD_TOKEN_ID, seed=5)
# Log-probs up to 10 after some 600 roundings in a row, of 2^-24 each; see `bound` of the checkpoints.
ROUNDING = 2 * 8 * np.sqrt(600) * 2.0**-24 * 10
MOE = MODELS["tiny-moe"]
DENSE = replace(MODELS["tiny-dense"], qk_norm=False, attention_bias=True, tie_word_embeddings=False)


def policy(config, seed=0):
    return config, init_params(jax.random.key(seed), config)


@pytest.fixture(scope="module")
def real():
    with VllmEngine(interpreter("vllm"), dtype="float32") as engine:
        yield engine


def test_before_weights_it_says_so(real):
    with pytest.raises(EngineError, match="vllm float32 has no weights"):
        real.score(PROMPTS, PROMPTS)
    assert real.describe()["versions"]["vllm"]


@pytest.mark.parametrize("config", [MOE, DENSE], ids=["moe", "qwen2"])
def test_it_is_the_lab_in_float32(real, config):
    """Greedy tokens and experts equal; log-probs of samples within rounding of simlab's score."""
    own = JaxEngine("f32")
    own.sync_weights(*policy(config))
    assert real.sync_weights(*policy(config)) < 1e-5
    greedy = replace(SAMPLING, temperature=0.0, max_tokens=6)
    np.testing.assert_array_equal(
        real.generate(PROMPTS, greedy).responses, own.generate(PROMPTS, greedy).responses
    )
    found = real.generate(PROMPTS, SAMPLING)
    ours, again = own.score(PROMPTS, found.responses), real.score(PROMPTS, found.responses)
    # Some responses end early, or nothing is tested of what stands behind the end.
    assert 0 < found.mask.sum() < found.mask.size
    for scored in (ours, again):
        assert np.abs(np.where(found.mask, scored.logps - found.logps, 0)).max() < ROUNDING
    if config.num_experts:
        # The token that predicts each response token: it was read whether or not the response ended there.
        start = PROMPTS.shape[1] - 1
        for scored in (ours, again):
            np.testing.assert_array_equal(
                np.sort(found.routed_experts)[:, start:][found.mask],
                np.sort(scored.routed_experts)[:, start:][found.mask],
            )
    else:
        assert found.routed_experts is None


def test_sampling_depends_on_seed_and_temperature(real):
    real.sync_weights(*policy(MOE))
    draws = [real.generate(PROMPTS, replace(SAMPLING, seed=seed)) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0].responses, draws[1].responses)
    assert (draws[0].responses != draws[2].responses).any()
    hot = real.generate(PROMPTS, replace(SAMPLING, temperature=2.0))
    # Reported are log-probabilities of the raw logits, whatever the temperature.
    assert (
        np.abs(np.where(hot.mask, real.score(PROMPTS, hot.responses).logps - hot.logps, 0)).max() < ROUNDING
    )


def test_every_sync_arrives(real):
    """Into the same engine, again and again; without packing experts and head anew, none would."""
    for seed in (1, 0, 2):
        assert real.sync_weights(*policy(MOE, seed)) < 1e-5


def test_a_reload_that_corrupts_experts_is_named(real):
    real.sync_weights(*policy(replace(MOE, tie_word_embeddings=False)))
    real.repack = False
    try:
        with pytest.raises(EngineError, match=r"weight sync to vllm float32 failed: .* at most"):
            real.sync_weights(*policy(replace(MOE, tie_word_embeddings=False)))
    finally:
        real.repack = True
    assert real.sync_weights(*policy(MOE)) < 1e-5


def test_a_mistake_is_an_error_and_not_the_end(real):
    real.sync_weights(*policy(MOE))
    with pytest.raises(EngineError, match="vllm float32 failed in 'score': IndexError: tokens must be"):
        real.score(PROMPTS + 10_000, PROMPTS)
    assert real.score(PROMPTS, PROMPTS).logps.shape == PROMPTS.shape


def test_fp8_cache_increases_mismatch_within_parity():
    """And its decoding differs from float32 more than rounding explains."""
    with VllmEngine(interpreter("vllm"), kv_cache="fp8") as engine:
        assert 1e-3 < engine.sync_weights(*policy(MOE)) < engine.parity
        assert engine.describe()["kv_cache"] == "fp8"
        check_replays(engine)


def check_replays(engine):
    """Its rollouts train under either replay: R3 takes its experts, R2 those of the trainer, who differs."""
    recipe = small_recipe(model=MOE, minibatches=1)
    state, score = small_state(recipe), jax.jit(score_rollout, compiler_options=QUICK)
    trajectory, _ = real_rollout(engine, recipe, state)
    kept = {}
    for replay in ("R2", "R3"):
        replaying = replace(recipe, engines=replace(recipe.engines, replay=replay))
        scores, replayed = score(replaying, state.params, trajectory)
        kept[replay] = np.asarray(replayed.routed_experts)
        expected = {"R2": scores, "R3": trajectory}[replay].routed_experts
        np.testing.assert_array_equal(kept[replay], expected)
    # The tokens that predict a response token: what an engine tells of others, it need not have read.
    start, mask = recipe.task.prompt_length - 1, np.asarray(trajectory.mask)
    own, theirs = (np.sort(kept[replay])[:, start:][mask] for replay in ("R2", "R3"))
    assert 0 < np.mean(own != theirs) < 0.5


def test_w8a8_is_nearer_to_its_emulation_than_to_float32():
    """Of a dense model all products of projections are int8 on both sides; every sync arrives."""
    with VllmEngine(interpreter("vllm"), dtype="w8a8") as engine:
        for seed in (1, 0):
            assert 1e-3 < engine.sync_weights(*policy(DENSE, seed)) < engine.parity
        found = engine.score(PROMPTS, PROMPTS).logps
        apart = {}
        for name in ("f32", "int8-w8a8"):
            own = JaxEngine(name)
            own.sync_weights(*policy(DENSE))
            apart[name] = np.abs(own.score(PROMPTS, PROMPTS).logps - found).mean()
        assert apart["int8-w8a8"] < apart["f32"]


def test_unknown_formats_are_refused_before_anything_starts():
    with pytest.raises(ValueError, match="unknown KV cache 'fp4'"):
        VllmEngine("nowhere", kv_cache="fp4")
    with pytest.raises(EngineError, match=r"vllm bfloat16 is not installed .* Install: python"):
        VllmEngine("nowhere/python")


def test_in_this_process_it_is_the_lab_in_float32():
    command = [
        interpreter("vllm"),
        "tests/engines_real/vllm_here_side.py",
        str(ROOT),
        sysconfig.get_path("purelib"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert max(found["synced"]) < 1e-5
    assert max(found["apart"]) < ROUNDING
    assert found["experts"]
