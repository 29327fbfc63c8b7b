"""Reading checkpoints: every tensor where it belongs, and one clear error for whatever is wrong."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from simlab.checkpoints import load_checkpoint, open_checkpoint
from simlab.models import logits
from tests.checkpoints import folders
from tests.checkpoints.folders import (
    BASE,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    INNER,
    KEY_HEADS,
    LLAMA,
    MOE,
    QWEN2,
    state_dict,
    write_folder,
    write_shards,
)
from tests.tolerances import assert_exact

CONFIGS = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": BASE, "qwen3_moe": MOE}
LAYER = "model.layers.1."


def check_parameters(params, state):
    """Compare one layer and the top with the tensors by name, spelled out."""
    layer = params["layers"][1]
    assert_exact(params["embedding"], state["model.embed_tokens.weight"])
    assert_exact(params["norm"], state["model.norm.weight"])
    if "lm_head.weight" in state:
        assert_exact(params["lm_head"], state["lm_head.weight"].T)
    assert_exact(layer["attention_norm"], state[LAYER + "input_layernorm.weight"])
    assert_exact(layer["mlp_norm"], state[LAYER + "post_attention_layernorm.weight"])
    q, k, v = np.split(np.asarray(layer["qkv"]), np.cumsum([HEADS, KEY_HEADS]) * HEAD_DIM, axis=1)
    for name, matrix in (("q", q), ("k", k), ("v", v), ("o", layer["o"])):
        assert_exact(np.transpose(matrix), state[LAYER + f"self_attn.{name}_proj.weight"])
    if "qkv_bias" in layer:
        biases = [state[LAYER + f"self_attn.{name}_proj.bias"] for name in "qkv"]
        assert_exact(layer["qkv_bias"], np.concatenate(biases))
    for name in ("q_norm", "k_norm"):
        if name in layer:
            assert_exact(layer[name], state[LAYER + f"self_attn.{name}.weight"])


def check_feed_forward(gate_up, down, state, prefix):
    assert_exact(np.transpose(gate_up[:, :INNER]), state[prefix + "gate_proj.weight"])
    assert_exact(np.transpose(gate_up[:, INNER:]), state[prefix + "up_proj.weight"])
    assert_exact(np.transpose(down), state[prefix + "down_proj.weight"])


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("tied", [False, True])
def test_reader_maps_every_tensor(tmp_path, kind, tied):
    written = {**CONFIGS[kind], "tie_word_embeddings": tied}
    state = state_dict(written)
    config, params = load_checkpoint(write_folder(tmp_path / "m", written, state))
    check_parameters(params, state)
    layer = params["layers"][1]
    if kind == "qwen3_moe":
        assert_exact(np.transpose(layer["router"]), state[LAYER + "mlp.gate.weight"])
        for expert in range(EXPERTS):
            prefix = LAYER + f"mlp.experts.{expert}."
            check_feed_forward(layer["gate_up"][expert], layer["down"][expert], state, prefix)
    else:
        check_feed_forward(layer["gate_up"], layer["down"], state, LAYER + "mlp.")
    assert config.tie_word_embeddings is tied
    assert config.head_dim == HEAD_DIM != config.hidden_size // config.num_attention_heads
    assert (config.qk_norm, config.attention_bias) == (kind.startswith("qwen3"), kind == "qwen2")
    assert (config.rope_theta, config.rms_norm_eps) == (50000.0, 1e-5)


def test_loaded_params_compute(tmp_path):
    config, params = load_checkpoint(write_folder(tmp_path / "m", MOE, state_dict(MOE)))
    scores = logits(params, config, jnp.arange(6).reshape(2, 3), "f32")
    assert scores.shape == (2, 3, folders.VOCABULARY)
    assert np.isfinite(scores).all()


def test_reader_splits_fused_experts(tmp_path):
    state = state_dict(MOE, fused=True)
    _, params = load_checkpoint(write_folder(tmp_path / "m", MOE, state))
    layer = params["layers"][1]
    assert_exact(np.swapaxes(layer["gate_up"], 1, 2), state[LAYER + "mlp.experts.gate_up_proj"])
    assert_exact(np.swapaxes(layer["down"], 1, 2), state[LAYER + "mlp.experts.down_proj"])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_reader_widens_half_precision_exactly(tmp_path, dtype):
    state = {name: tensor.astype(dtype) for name, tensor in state_dict(BASE).items()}
    _, params = load_checkpoint(write_folder(tmp_path / "m", BASE, state))
    check_parameters(params, {name: tensor.astype(np.float32) for name, tensor in state.items()})


def test_reader_joins_shards(tmp_path):
    state = state_dict(MOE)
    whole = load_checkpoint(write_folder(tmp_path / "whole", MOE, state))
    parts = load_checkpoint(write_shards(tmp_path / "parts", MOE, state, 3))
    assert whole[0] == parts[0]
    jax.tree.map(assert_exact, parts[1], whole[1])


def read(tmp_path, **changes):
    """The config of a Qwen3-MoE checkpoint with some values of `config.json` changed; None takes one out."""
    values = {name: value for name, value in {**MOE, **changes}.items() if value is not None}
    return open_checkpoint(write_folder(tmp_path / "m", values, state_dict(MOE))).config


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts": None, "num_local_experts": EXPERTS},
        {"num_local_experts": EXPERTS},
        {"architectures": None},
        {"model_type": None},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"}},
        {"rope_scaling": {"rope_type": "default"}},
        {"layer_types": ["full_attention"] * 2, "sliding_window": 4096, "use_sliding_window": False},
        {"max_window_layers": 28, "transformers_version": "9", "unknown": {"to": ["us"]}},
    ],
)
def test_reader_accepts_spellings_of_config(tmp_path, changes):
    assert read(tmp_path, **changes) == read(tmp_path / "plain")


def test_reader_reads_config_options(tmp_path):
    plain = read(tmp_path / "plain")
    assert read(tmp_path / "a", norm_topk_prob=False) == replace(plain, norm_topk_prob=False)
    # What Qwen3-MoE takes where the file says nothing.
    assert read(tmp_path / "b", norm_topk_prob=None) == replace(plain, norm_topk_prob=False)
    assert read(tmp_path / "c", num_experts_per_tok=3) == replace(plain, num_experts_per_tok=3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "unknown architecture 'GPT2LMHeadModel'; .*allowed: Qw",
        ),
        ({"architectures": ["Qwen3MoeForSequenceClassification"]}, "unknown architecture"),
        ({"architectures": None, "model_type": "mixtral"}, "unknown model_type 'mixtral'"),
        ({"architectures": ["LlamaForCausalLM"]}, "model_type must be 'llama' .*, got 'qwen3_moe'"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling .*llama3.* not supported",
        ),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_parameters .*yarn"),
        ({"rope_parameters": 7}, "rope_parameters 7 is not supported"),
        ({"use_sliding_window": True}, "use_sliding_window True is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types .* is not supported"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step 2 is not supported"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers .0. is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config .* is not supported"),
        ({"num_local_experts": 5}, "one number of experts .*'num_local_experts': 5"),
        ({"num_experts": None}, "one number of experts"),
        ({"hidden_size": None}, "must have 'hidden_size'"),
        ({"hidden_size": "16"}, "hidden_size must be a positive integer, got '16'"),
        ({"num_experts": True}, "num_experts must be a positive integer, got True"),
        ({"rope_theta": -1.0}, "rope_theta must be a positive number, got -1.0"),
        ({"norm_topk_prob": 1}, "norm_topk_prob must be true or false, got 1"),
        (
            {"num_key_value_heads": 3},
            "num_attention_heads must be a multiple of num_key_value_heads, got 2 and 3",
        ),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok must be 1 to num_experts = 4, got 9"),
        ({"num_hidden_layers": 10**15}, "too few for 1000000000000000 layers"),
        ({"num_experts": 10**15}, "too few for 2 layers of 1000000000000000 experts"),
        ({"hidden_size": 10**15}, "must have shape .*1000000000000000"),
        ({"vocab_size": 25}, "embed_tokens.weight' in .* must have shape .25, 16., got .24, 16."),
        ({"num_hidden_layers": 3}, "lacks tensor 'model.layers.2.input_layernorm.weight' and"),
        ({"num_hidden_layers": 1}, "unexpected tensor 'model.layers.1.* and .* more"),
        ({"tie_word_embeddings": True}, "'lm_head.weight' must equal the embedding"),
        ({"head_dim": None}, "must have shape"),
    ],
)
def test_reader_rejects_unsupported_options(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        read(tmp_path, **changes)


def broken(tmp_path, change, config=BASE):
    """Load a checkpoint of which `change` has altered the tensors in place."""
    state = state_dict(config)
    change(state)
    return load_checkpoint(write_folder(tmp_path / "m", config, state))


def test_reader_rejects_wrong_tensors(tmp_path):
    name = LAYER + "self_attn.k_proj.weight"
    with pytest.raises(ValueError, match=f"lacks tensor '{name}'$"):
        broken(tmp_path, lambda state: state.pop(name))
    with pytest.raises(ValueError, match=r"unexpected tensor 'extra'$"):
        broken(tmp_path, lambda state: state.update(extra=np.zeros(1, np.float32)))
    with pytest.raises(ValueError, match=rf"'{name}' in .* must have shape \[12, 16\], got \[16, 12\]"):
        broken(tmp_path, lambda state: state.update({name: state[name].T.copy()}))
    with pytest.raises(ValueError, match=r"'model.norm.weight' in .* must have shape \[16\], got \[\]"):
        broken(tmp_path, lambda state: state.update({"model.norm.weight": np.float32(1)}))


def test_reader_ignores_stored_duplicates(tmp_path):
    tied = {**BASE, "tie_word_embeddings": True}

    def change(state):
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
        state[LAYER + "self_attn.rotary_emb.inv_freq"] = np.zeros(6, np.float32)

    config, _ = broken(tmp_path, change, tied)
    assert config.tie_word_embeddings


def test_reader_rejects_pickles(tmp_path):
    folder = write_folder(tmp_path / "m", BASE, {})
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pickle \(pytorch_model.bin\)"):
        load_checkpoint(folder)
    with pytest.raises(ValueError, match=r"pytorch_model.bin is a pickle"):
        load_checkpoint(folder / "pytorch_model.bin")


def test_reader_rejects_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"config.json does not exist"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    with pytest.raises(FileNotFoundError, match=r"must have model.safetensors or"):
        load_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"path must be a directory .* got .*config.json"):
        load_checkpoint(tmp_path / "config.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"a": 1'])
def test_reader_rejects_config_that_is_not_json(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config.json is not"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../outside.safetensors", "got '../outside.safetensors'"),
        ("/etc/passwd", "got '/etc/passwd'"),
        ("sub/model.safetensors", "got 'sub/model.safetensors'"),
        ("..\\x.safetensors", "must name .safetensors files"),
        ("model.bin", "got 'model.bin'"),
        ("..", "got '..'"),
        (7, "got '7'"),
    ],
)
def test_reader_rejects_index_outside_directory(tmp_path, name, words):
    folder = write_shards(tmp_path / "m", BASE, state_dict(BASE), 2)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ValueError, match=words.replace("\\", ".")):
        load_checkpoint(folder)


def test_reader_rejects_index_without_files(tmp_path):
    folder = write_shards(tmp_path / "m", BASE, state_dict(BASE), 2)
    (folder / "model-00001.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00001.safetensors does not exist"):
        load_checkpoint(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="must have weight_map"):
        load_checkpoint(folder)


def test_reader_rejects_tensor_in_two_shards(tmp_path):
    state = state_dict(BASE)
    folder = write_shards(tmp_path / "m", BASE, state, 2)
    folders.write_safetensors_by_hand(folder / "model-00001.safetensors", state)
    with pytest.raises(ValueError, match=r"tensor '.*' is in .*safetensors and in .*safetensors"):
        load_checkpoint(folder)
