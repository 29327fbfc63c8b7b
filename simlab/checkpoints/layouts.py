"""Map each tensor of a checkpoint to a region of the parameters, for loading and saving."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from simlab.checkpoints.param_tree import LeafPath
from simlab.models.config import TransformerConfig

ALL = slice(None)


@dataclass(frozen=True, eq=False)
class Slot:
    """A region of a leaf of the parameters.

    - `path`: the path of the leaf.
    - `region`: the index of the region in the leaf.
    - `transposed`: whether the stored tensor has the last two axes swapped.
    - `order`: for each stored row its row in the leaf; None for the same order.
    """

    path: LeafPath
    region: tuple[int | slice, ...] = ()
    transposed: bool = False
    order: Int[np.ndarray, " rows"] | None = None

    def view(self, leaf: np.ndarray) -> np.ndarray:
        """Return a view of the region with the stored axes, in the order of the leaf's rows."""
        part = leaf[self.region]
        return part.swapaxes(-1, -2) if self.transposed else part

    def get_stored_shape(self, leaf_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the stored tensor for a leaf of shape `leaf_shape`."""
        return self.view(np.broadcast_to(np.float32(0), leaf_shape)).shape


Layout = dict[str, Slot]

_TOP = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "lm_head": "lm_head.weight"}
_LAYER = {
    "attention_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "o": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "router": "mlp.gate.weight",
    "experts_gate_up": "mlp.experts.gate_up_proj",
    "experts_down": "mlp.experts.down_proj",
}
_GGUF_TOP = {"embedding": "token_embd.weight", "norm": "output_norm.weight", "lm_head": "output.weight"}
_GGUF_LAYER = {
    "attention_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "o": "attn_output.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "router": "ffn_gate_inp.weight",
    "experts_gate": "ffn_gate_exps.weight",
    "experts_up": "ffn_up_exps.weight",
    "experts_down": "ffn_down_exps.weight",
}

FUSED_EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"
"""A tensor that marks checkpoints with fused experts."""


def hugging_face_layout(config: TransformerConfig, fused_experts: bool = False) -> Layout:
    """Return the slots of a Hugging Face checkpoint by tensor name, in the order of writing.

    Experts are stored separately, or with `fused_experts` as two tensors per layer.
    """
    parts = _list_attention_parts(config)
    names = dict(_LAYER)
    if not config.num_experts:
        parts |= _list_feed_forward_parts(config.intermediate_size)
    elif fused_experts:
        parts |= {
            "router": Slot(("router",), transposed=True),
            "experts_gate_up": Slot(("gate_up",), transposed=True),
            "experts_down": Slot(("down",), transposed=True),
        }
    else:
        parts["router"] = Slot(("router",), transposed=True)
        for expert in range(config.num_experts):
            for part, slot in _list_feed_forward_parts(config.moe_intermediate_size).items():
                name = f"experts.{expert}.{part}"
                names[name] = f"mlp.experts.{expert}.{part}_proj.weight"
                parts[name] = replace(slot, region=(expert, *slot.region))
    return _build_layout(config, parts, _TOP, "model.layers.", names)


def gguf_layout(config: TransformerConfig, rotate_pairs: bool) -> Layout:
    """Return the slots of a GGUF file by tensor name.

    With `rotate_pairs` (llama.cpp's architecture `llama`), rotary embedding pairs neighboring rows of q and k
    instead of the halves of a head.
    """
    parts = _list_attention_parts(config)
    if rotate_pairs:
        for part, heads in zip(("q", "k"), config.heads[:2], strict=True):
            parts[part] = replace(parts[part], order=_halves_from_pairs(heads, config.head_dim))
    if config.num_experts:
        experts = {
            f"experts_{part}": replace(slot, region=(ALL, *slot.region) if slot.region else ())
            for part, slot in _list_feed_forward_parts(config.moe_intermediate_size).items()
        }
        parts |= {"router": Slot(("router",), transposed=True), **experts}
    else:
        parts |= _list_feed_forward_parts(config.intermediate_size)
    return _build_layout(config, parts, _GGUF_TOP, "blk.", _GGUF_LAYER)


def _list_attention_parts(config: TransformerConfig) -> Layout:
    """Return the slots of a layer without the feed-forward part."""
    ends = np.cumsum((0, *config.heads)) * config.head_dim
    columns = {
        part: slice(int(start), int(stop))
        for part, start, stop in zip("qkv", ends[:-1], ends[1:], strict=True)
    }
    parts = {"attention_norm": Slot(("attention_norm",))}
    parts |= {part: Slot(("qkv",), (ALL, where), transposed=True) for part, where in columns.items()}
    if config.attention_bias:
        parts |= {f"{part}_bias": Slot(("qkv_bias",), (where,)) for part, where in columns.items()}
    if config.qk_norm:
        parts |= {name: Slot((name,)) for name in ("q_norm", "k_norm")}
    return parts | {"o": Slot(("o",), transposed=True), "mlp_norm": Slot(("mlp_norm",))}


def _list_feed_forward_parts(width: int) -> Layout:
    return {
        "gate": Slot(("gate_up",), (ALL, slice(0, width)), transposed=True),
        "up": Slot(("gate_up",), (ALL, slice(width, 2 * width)), transposed=True),
        "down": Slot(("down",), transposed=True),
    }


def _build_layout(
    config: TransformerConfig, parts: Layout, top: dict[str, str], prefix: str, names: dict[str, str]
) -> Layout:
    layout = {top["embedding"]: Slot(("embedding",))}
    for layer in range(config.num_hidden_layers):
        for part, slot in parts.items():
            path = ("layers", layer, *slot.path)
            layout[f"{prefix}{layer}.{names[part]}"] = replace(slot, path=path)
    layout[top["norm"]] = Slot(("norm",))
    if not config.tie_word_embeddings:
        layout[top["lm_head"]] = Slot(("lm_head",), transposed=True)
    return layout


def _halves_from_pairs(heads: int, head_dim: int) -> np.ndarray:
    """Return the row (head, half, j) of the halves for each row (head, j, half) of the pairs."""
    rows = np.arange(heads * head_dim).reshape(heads, 2, head_dim // 2)
    return rows.swapaxes(1, 2).reshape(-1)
