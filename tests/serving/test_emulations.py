"""llama.cpp and vLLM's truncating cache, as engines: each against what it stands for, built by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from simlab.engines import ENGINES, store_cache
from simlab.models import TransformerConfig, init_params
from simlab.serving.calibration import emulated_logps
from simlab.serving.emulations import llamacpp_emulations, read_back, real_kernels, vllm_cpu_emulations

CONFIG = TransformerConfig(hidden_size=32, num_hidden_layers=1, intermediate_size=32)


def test_weights_rounded_by_the_engine_are_nearly_those_of_the_file():
    """What is left between them, float16 scales and embeddings, is less than what both are off float32.

    Of q8_0: the levels of q4_0 go from -8 to 7, those of int4 from -7 to 7.
    """
    params = init_params(jax.random.key(0), CONFIG)
    tokens = np.random.default_rng(0).integers(2, 30, (8, 12)).astype(np.int32)
    emulations = llamacpp_emulations()

    def logps(engine, weights=params):
        return emulated_logps(weights, CONFIG, engine, tokens[:, :4], tokens[:, 4:])

    exact = logps(ENGINES["f32"])
    file = logps(emulations["read back"].engine, read_back(CONFIG, params, "q8_0"))
    off = np.sqrt(np.mean((file - exact) ** 2))
    assert off > 1e-4
    assert np.sqrt(np.mean((file - logps(emulations["q8_0"].engine)) ** 2)) < 0.7 * off


def test_kernels_that_round_what_they_are_given_have_names_of_their_own():
    names = real_kernels().keys()
    assert {"q8_0", "q4_0", "bf16-fp8kv truncated"} == set(names)
    assert not names & ENGINES.keys()


def test_the_cache_is_cut_and_not_rounded():
    engine = vllm_cpu_emulations()["bf16-fp8kv truncated"].engine
    keys = jnp.asarray([1.99, -1.99, 1.0625, 500.0], jnp.float32)
    assert store_cache(keys, engine).tolist() == [1.875, -1.875, 1.0, 448.0]
    assert store_cache(keys, ENGINES["bf16-fp8kv"]).tolist() == [2.0, -2.0, 1.0, 448.0]
