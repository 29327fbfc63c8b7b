"""GGUF files: names, quantized types, the permuted rows of `llama`, and files that are broken."""

import gguf
import numpy as np
import pytest

from simlab.checkpoints import load_checkpoint
from simlab.checkpoints.layouts import _GGUF_LAYER, _GGUF_TOP
from tests.checkpoints.folders import (
    BASE,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    INNER,
    KEY_HEADS,
    LAYERS,
    MOE,
    VOCABULARY,
    WIDTH,
    state_dict,
)
from tests.tolerances import assert_exact

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
F32 = gguf.GGMLQuantizationType.F32
QUANTIZED = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0")
T = gguf.MODEL_TENSOR
NAMES = {
    "attention_norm": T.ATTN_NORM,
    "q": T.ATTN_Q,
    "k": T.ATTN_K,
    "v": T.ATTN_V,
    "q_norm": T.ATTN_Q_NORM,
    "k_norm": T.ATTN_K_NORM,
    "o": T.ATTN_OUT,
    "mlp_norm": T.FFN_NORM,
    "gate": T.FFN_GATE,
    "up": T.FFN_UP,
    "down": T.FFN_DOWN,
    "router": T.FFN_GATE_INP,
    "experts_gate": T.FFN_GATE_EXP,
    "experts_up": T.FFN_UP_EXP,
    "experts_down": T.FFN_DOWN_EXP,
}


def test_gguf_tensor_names_match_package():
    for part, name in _GGUF_LAYER.items():
        whole = "blk.{bid}." + name.removesuffix(".weight").removesuffix(".bias")
        assert whole == gguf.TENSOR_NAMES[NAMES[part.removesuffix("_bias")]]
    top = {"embedding": T.TOKEN_EMBD, "norm": T.OUTPUT_NORM, "lm_head": T.OUTPUT}
    assert {part: gguf.TENSOR_NAMES[tensor] + ".weight" for part, tensor in top.items()} == _GGUF_TOP


def permuted(weight, heads):
    """Permute q and k of `llama` like llama.cpp's converter: neighbors for halves."""
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def gguf_tensors(state, architecture):
    """The tensors of a Hugging Face state under GGUF's names, experts stacked."""
    hf = {
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": "ffn_norm.weight",
        "self_attn.o_proj.weight": "attn_output.weight",
        "mlp.gate.weight": "ffn_gate_inp.weight",
        **{f"mlp.{x}_proj.weight": f"ffn_{x}.weight" for x in ("gate", "up", "down")},
        **{f"self_attn.{x}_proj.{w}": f"attn_{x}.{w}" for x in "qkv" for w in ("weight", "bias")},
        **{f"self_attn.{x}_norm.weight": f"attn_{x}_norm.weight" for x in "qk"},
    }
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for theirs, name in hf.items():
            if at + theirs in state:
                tensors[f"blk.{layer}.{name}"] = state[at + theirs]
        if architecture == "qwen3moe":
            for x in ("gate", "up", "down"):
                each = [state[at + f"mlp.experts.{expert}.{x}_proj.weight"] for expert in range(EXPERTS)]
                tensors[f"blk.{layer}.ffn_{x}_exps.weight"] = np.stack(each)
        if architecture == "llama":
            for x, heads in (("q", HEADS), ("k", KEY_HEADS)):
                name = f"blk.{layer}.attn_{x}.weight"
                tensors[name] = permuted(tensors[name], heads)
    return tensors


def write_gguf(path, architecture, tensors, kind=F32, **more):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_feed_forward_length(INNER)
    writer.add_rope_freq_base(50000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    if architecture == "qwen3moe" or more.get("experts"):
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(INNER)
    if "rope_scaling" in more:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    for name, tensor in tensors.items():
        if kind == F32 or tensor.ndim == 1:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def state_of(architecture):
    config = MOE if architecture == "qwen3moe" else {**BASE, "model_type": ARCHITECTURES[architecture]}
    return state_dict(config)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reader_maps_every_tensor(tmp_path, architecture):
    state = state_of(architecture)
    path = write_gguf(tmp_path / "m.gguf", architecture, gguf_tensors(state, architecture))
    config, params = load_checkpoint(path)
    layer, at = params["layers"][1], "model.layers.1."
    assert (config.rope_theta, config.head_dim, config.vocab_size) == (50000.0, HEAD_DIM, VOCABULARY)
    assert config.rms_norm_eps == pytest.approx(1e-5)  # GGUF keeps it as a float32
    assert not config.tie_word_embeddings
    assert_exact(params["lm_head"], state["lm_head.weight"].T)
    qkv = [state[at + f"self_attn.{x}_proj.weight"] for x in "qkv"]
    assert_exact(layer["qkv"], np.concatenate(qkv).T)
    if architecture == "qwen2":
        biases = [state[at + f"self_attn.{x}_proj.bias"] for x in "qkv"]
        assert_exact(layer["qkv_bias"], np.concatenate(biases))
    if architecture == "qwen3moe":
        assert_exact(layer["router"], state[at + "mlp.gate.weight"].T)
        for expert in range(EXPERTS):
            gate, up, down = (
                state[at + f"mlp.experts.{expert}.{x}_proj.weight"] for x in ("gate", "up", "down")
            )
            assert_exact(layer["gate_up"][expert], np.concatenate([gate, up]).T)
            assert_exact(layer["down"][expert], down.T)
    else:
        assert_exact(layer["down"], state[at + "mlp.down_proj.weight"].T)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_gguf_dequantizes_like_package(tmp_path, kind):
    kind = gguf.GGMLQuantizationType[kind]
    generator = np.random.default_rng(0)
    # Rows must be whole blocks of 32.
    tensors = {
        name: generator.normal(size=shape).astype(np.float32)
        for name, shape in {
            "token_embd.weight": (5, 64),
            "output_norm.weight": (64,),
            "blk.0.attn_norm.weight": (64,),
            "blk.0.ffn_norm.weight": (64,),
            "blk.0.attn_q.weight": (64, 64),
            "blk.0.attn_k.weight": (32, 64),
            "blk.0.attn_v.weight": (32, 64),
            "blk.0.attn_output.weight": (64, 64),
            "blk.0.ffn_gate.weight": (96, 64),
            "blk.0.ffn_up.weight": (96, 64),
            "blk.0.ffn_down.weight": (64, 96),
            "blk.0.attn_q.bias": (64,),
            "blk.0.attn_k.bias": (32,),
            "blk.0.attn_v.bias": (32,),
        }.items()
    }
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_feed_forward_length(96)
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config, params = load_checkpoint(path)
    assert config.tie_word_embeddings
    assert config.head_dim == 32
    down = tensors["blk.0.ffn_down.weight"]
    expected = gguf.quants.dequantize(gguf.quants.quantize(down, kind), kind)
    assert_exact(params["layers"][0]["down"], np.ascontiguousarray(expected.T))
    assert np.abs(expected - down).max() < np.abs(down).max() / 8


def test_gguf_rejects_broken_files(tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(ValueError, match=r"no.gguf is not a GGUF file"):
        load_checkpoint(tmp_path / "no.gguf")
    whole = write_gguf(tmp_path / "m.gguf", "qwen3", gguf_tensors(state_of("qwen3"), "qwen3"))
    content = whole.read_bytes()
    for length in (4, 20, 200, len(content) // 2, len(content) - 200):
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"cut.gguf is a truncated or corrupt GGUF file"):
            load_checkpoint(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("architecture", "change", "more", "words"),
    [
        ("gemma", {}, {}, "unknown architecture 'gemma'; .*allowed: qwen3, qwen3moe, qwen2, llama"),
        ("llama", {}, {"rope_scaling": True}, "rope scaling 'yarn' is not supported"),
        ("llama", {"rope_freqs.weight": np.ones(6, np.float32)}, {}, "rope scaling"),
        ("llama", {}, {"experts": True}, "experts in architecture 'llama' are not supported"),
        ("qwen3", {"blk.0.attn_q.weight": None}, {}, "lacks tensor 'blk.0.attn_q.weight'"),
        ("qwen3", {"blk.9.attn_q.weight": np.ones(2, np.float32)}, {}, "unexpected tensor 'blk.9.attn_q"),
        ("qwen3", {"output_norm.weight": np.ones(3, np.float32)}, {}, r"must have shape \[16\], got \[3\]"),
        ("qwen3", {"output_norm.weight": np.ones(16, np.int32)}, {}, "got I32"),
        ("qwen3", {"token_embd.weight": None}, {}, "must have the tensor 'token_embd.weight'"),
    ],
)
def test_reader_rejects_unsupported_options(tmp_path, architecture, change, more, words):
    known = architecture if architecture in ARCHITECTURES else "qwen3"
    tensors = {**gguf_tensors(state_of(known), known), **change}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    path = write_gguf(tmp_path / "m.gguf", architecture, tensors, **more)
    with pytest.raises(ValueError, match=words):
        load_checkpoint(path)


def test_gguf_without_package_names_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ImportError, match=r"pip install 'simlab\[hf\]'"):
        load_checkpoint(tmp_path / "m.gguf")
