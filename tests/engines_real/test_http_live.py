"""The HTTP engine against vLLM's own server."""

import os
import socket
import subprocess
import time
from dataclasses import replace

import jax
import numpy as np
import pytest

from simlab.checkpoints import save_checkpoint
from simlab.models import MODELS, init_params
from simlab.serving.http_engine import HttpEngine
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.protocol import EngineError, SamplingRequest
from simlab.tasks import TASKS
from simlab.tasks.vocabulary import EOS_TOKEN_ID, PAD_TOKEN_ID
from tests.engines_real.frameworks import interpreter

pytestmark = pytest.mark.engines

CONFIG = MODELS["tiny-dense"]
PROMPTS = TASKS["add"]().prompt_set()[:8]
SAMPLING = SamplingRequest(max_tokens=8, eos_token_id=EOS_TOKEN_ID, pad_token_id=PAD_TOKEN_ID, seed=3)
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
OPTIONS = "--dtype float32 --enforce-eager --max-model-len 256 --logprobs-mode raw_logprobs"


@pytest.fixture(scope="module")
def policy():
    return CONFIG, init_params(jax.random.key(0), CONFIG)


@pytest.fixture(scope="module")
def engine(policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    checkpoint = save_checkpoint(folder / "policy", *policy)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not `vllm serve`: that looks for a distribution of another name than that of the CPU build.
    command = [interpreter("vllm"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--no-enable-prefix-caching", *OPTIONS.split()]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **SETTINGS})
    try:
        yield connected(f"http://127.0.0.1:{port}", server, folder / "log")
    finally:
        server.terminate()
        server.wait(timeout=60)


def connected(url, server, log) -> HttpEngine:
    """The engine, as soon as the server answers."""
    for _ in range(300):
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            return HttpEngine(url)
        except EngineError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-2000:])


def test_a_served_policy_is_the_lab_in_float32(engine, policy):
    assert engine.sync_weights(*policy) < 1e-5
    found = engine.generate(PROMPTS, SAMPLING)
    np.testing.assert_array_equal(engine.generate(PROMPTS, SAMPLING).responses, found.responses)
    assert (engine.generate(PROMPTS, replace(SAMPLING, seed=4)).responses != found.responses).any()
    own = JaxEngine("f32")
    own.sync_weights(*policy)
    # Log-probs up to 10 after some 600 roundings in a row, of 2^-24 each; see `bound` of the checkpoints.
    allowed = 2 * 8 * np.sqrt(600) * 2.0**-24 * 10
    for scored in (own.score(PROMPTS, found.responses), engine.score(PROMPTS, found.responses)):
        assert np.abs(np.where(found.mask, scored.logps - found.logps, 0)).max() < allowed


def test_other_weights_than_those_served_are_named(engine):
    with pytest.raises(EngineError, match=r"weight sync to server http.* failed"):
        engine.sync_weights(CONFIG, init_params(jax.random.key(1), CONFIG))


def test_what_the_server_refuses_is_told(engine):
    with pytest.raises(EngineError, match=r"rejected 'completions' with status 400: .*out of vocabulary"):
        engine.score(PROMPTS + 1000, PROMPTS)
