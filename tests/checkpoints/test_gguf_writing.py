"""GGUF files out: read back as they were sent, and refused where llama.cpp would compute something else."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from simlab.checkpoints import load_checkpoint
from simlab.checkpoints.gguf_writer import save_gguf
from simlab.models import TransformerConfig, init_params

MOE = TransformerConfig(hidden_size=32, num_hidden_layers=2, intermediate_size=32, num_experts=4)
CONFIGS = {
    "qwen3_moe": MOE,
    "qwen3": replace(MOE, num_experts=0, tie_word_embeddings=False, rope_theta=1e6),
    "qwen2": replace(MOE, num_experts=0, qk_norm=False, attention_bias=True),
    "llama": replace(MOE, num_experts=0, qk_norm=False),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_gguf_round_trips(name, tmp_path):
    config = CONFIGS[name]
    params = init_params(jax.random.key(0), config)
    path = save_gguf(tmp_path / "policy.gguf", config, params, stored="f32")
    found_config, found = load_checkpoint(path)
    # A dense model has no numbers of experts in the file; the two float32 numbers are rounded there.
    rounded = ("rope_theta", "rms_norm_eps")
    absent = ("num_experts_per_tok", "moe_intermediate_size")
    assert found_config == replace(config, **{name: getattr(found_config, name) for name in rounded + absent})
    for name in rounded:
        assert getattr(found_config, name) == pytest.approx(getattr(config, name))
    jax.tree.map(np.testing.assert_array_equal, found, params)
    assert list(tmp_path.iterdir()) == [path]


def test_gguf_quantizes_matrices_and_keeps_norms(tmp_path):
    """q8_0: 127 levels to the largest of 32 numbers on either side, and a float16 scale."""
    params = init_params(jax.random.key(0), MOE)
    params = {**params, "norm": params["norm"] * np.float32(1.1)}
    _, found = load_checkpoint(save_gguf(tmp_path / "p.gguf", MOE, params))
    np.testing.assert_array_equal(found["norm"], params["norm"])
    for layer, sent in zip(found["layers"], params["layers"], strict=True):
        np.testing.assert_array_equal(layer["router"], sent["router"])
        blocks = np.abs(np.asarray(sent["o"]).T.reshape(32, -1, 32)).max(-1, keepdims=True)
        apart = np.abs(np.asarray(layer["o"] - sent["o"]).T.reshape(32, -1, 32))
        assert (apart <= blocks / 127 * (0.5 + 127 * 2**-11)).all()
        assert apart.max() > 0


def test_gguf_rejects_what_llama_cpp_cannot_do(tmp_path):
    params = init_params(jax.random.key(0), MOE)
    with pytest.raises(ValueError, match="unknown GGUF format 'q8'"):
        save_gguf(tmp_path / "p.gguf", MOE, params, stored="q8")
    with pytest.raises(ValueError, match="norm_topk_prob must be True"):
        save_gguf(tmp_path / "p.gguf", replace(MOE, norm_topk_prob=False), params)
    narrow = replace(MOE, moe_intermediate_size=48)
    with pytest.raises(ValueError, match=r"must be a multiple of 32 for Q8_0, got 48"):
        save_gguf(tmp_path / "p.gguf", narrow, init_params(jax.random.key(0), narrow))
    assert not list(tmp_path.iterdir())
