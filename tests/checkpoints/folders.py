"""Checkpoints written by hand under Hugging Face's names, independently of simlab's writer."""

import json
from pathlib import Path

import numpy as np

WIDTH, VOCABULARY, HEADS, KEY_HEADS, HEAD_DIM, INNER, LAYERS, EXPERTS = 16, 24, 2, 1, 12, 20, 2, 4

BASE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
LLAMA = {**BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN2 = {**BASE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
MOE = {
    **BASE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": INNER,
    "norm_topk_prob": True,
}


def state_dict(config: dict, fused: bool = False) -> dict[str, np.ndarray]:
    """Random weights of a model of the sizes above, as torch would name and shape them."""
    kind = config["model_type"]
    shapes = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "model.norm.weight": (WIDTH,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {
            at + f"{norm}.weight": (WIDTH,) for norm in ("input_layernorm", "post_attention_layernorm")
        }
        for name, heads in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            shapes[at + f"self_attn.{name}_proj.weight"] = (heads * HEAD_DIM, WIDTH)
            if kind == "qwen2":
                shapes[at + f"self_attn.{name}_proj.bias"] = (heads * HEAD_DIM,)
        shapes[at + "self_attn.o_proj.weight"] = (WIDTH, HEADS * HEAD_DIM)
        if kind in ("qwen3", "qwen3_moe"):
            shapes |= {at + f"self_attn.{name}_norm.weight": (HEAD_DIM,) for name in "qk"}
        shapes |= _feed_forward(at + "mlp.", kind == "qwen3_moe", fused)
    generator = np.random.default_rng(len(kind))
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _feed_forward(at: str, experts: bool, fused: bool) -> dict[str, tuple[int, ...]]:
    if fused:
        return {
            at + "gate.weight": (EXPERTS, WIDTH),
            at + "experts.gate_up_proj": (EXPERTS, 2 * INNER, WIDTH),
            at + "experts.down_proj": (EXPERTS, WIDTH, INNER),
        }
    shapes: dict[str, tuple[int, ...]] = {at + "gate.weight": (EXPERTS, WIDTH)} if experts else {}
    for place in [f"experts.{expert}." for expert in range(EXPERTS)] if experts else [""]:
        shapes[at + place + "gate_proj.weight"] = shapes[at + place + "up_proj.weight"] = (INNER, WIDTH)
        shapes[at + place + "down_proj.weight"] = (WIDTH, INNER)
    return shapes


def write_safetensors_by_hand(path: Path, tensors: dict[str, np.ndarray], names: dict | None = None) -> None:
    """Write the format from its definition: length, header, bytes."""
    names = names or {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
    header, data = {}, b""
    for name, tensor in tensors.items():
        start, data = len(data), data + tensor.tobytes()
        header[name] = {
            "dtype": names[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [start, len(data)],
        }
    write_raw(path, header, data)


def write_raw(path: Path, header, data: bytes) -> None:
    """Write any header, sound or not, before `data`."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_folder(folder: Path, config: dict, tensors: dict[str, np.ndarray]) -> Path:
    """Write `config.json` and one file of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors_by_hand(folder / "model.safetensors", tensors)
    return folder


def write_shards(folder: Path, config: dict, tensors: dict[str, np.ndarray], shards: int) -> Path:
    """Write `config.json`, several files of weights, and their index."""
    write_folder(folder, config, {})
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-{i % shards:05}.safetensors" for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        write_safetensors_by_hand(folder / file, part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
