"""Emulations of llama.cpp and of vLLM's truncating cache, against values built by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from simlab.engines import ENGINES, store_cache
from simlab.models import TransformerConfig, init_params
from simlab.serving.calibration import score_with_emulation
from simlab.serving.emulations import (
    get_llamacpp_emulations,
    get_real_kernels,
    get_vllm_cpu_emulations,
    reload_from_gguf,
)

CONFIG = TransformerConfig(hidden_size=32, num_hidden_layers=1, intermediate_size=32)


def test_q8_0_is_close_to_its_file():
    """The remaining difference, float16 scales and embeddings, is below the distance from float32.

    Not of q4_0, whose levels go from -8 to 7, unlike int4 (-7 to 7).
    """
    params = init_params(jax.random.key(0), CONFIG)
    tokens = np.random.default_rng(0).integers(2, 30, (8, 12)).astype(np.int32)
    emulations = get_llamacpp_emulations()

    def logps(engine, weights=params):
        return score_with_emulation(weights, CONFIG, engine, tokens[:, :4], tokens[:, 4:])

    exact = logps(ENGINES["f32"])
    file = logps(emulations["read back"].engine, reload_from_gguf(CONFIG, params, "q8_0"))
    difference = np.sqrt(np.mean((file - exact) ** 2))
    assert difference > 1e-4
    assert np.sqrt(np.mean((file - logps(emulations["q8_0"].engine)) ** 2)) < 0.7 * difference


def test_real_kernels_have_unique_names():
    names = get_real_kernels().keys()
    assert {"q8_0", "q4_0", "bf16-fp8kv truncated"} == set(names)
    assert not names & ENGINES.keys()


def test_vllm_cpu_cache_is_truncated():
    engine = get_vllm_cpu_emulations()["bf16-fp8kv truncated"].engine
    keys = jnp.asarray([1.99, -1.99, 1.0625, 500.0], jnp.float32)
    assert store_cache(keys, engine).tolist() == [1.875, -1.875, 1.0, 448.0]
    assert store_cache(keys, ENGINES["bf16-fp8kv"]).tolist() == [2.0, -2.0, 1.0, 448.0]
