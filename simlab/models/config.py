"""The shape of a transformer, with the names of Qwen3's `config.json`, and the presets of simlab."""

from dataclasses import dataclass, replace
from typing import Annotated

from simlab.core.ranges import COUNT, POSITIVE, Range


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """A Qwen3 or Qwen3-MoE architecture; static and hashable.

    `num_experts` 0 is dense, with feed-forward layers of width `intermediate_size`; otherwise each token goes
    to `num_experts_per_tok` experts of width `moe_intermediate_size`, whose router probabilities are
    normalized to sum 1 if `norm_topk_prob`. `qk_norm` False with `attention_bias` True is Qwen2.

    Raises:
        ValueError: For shapes that do not fit together.

    Reference: Qwen3 arXiv 2505.09388; Qwen3Config and Qwen3MoeConfig of transformers.
    """

    vocab_size: Annotated[int, COUNT] = 32
    hidden_size: Annotated[int, COUNT] = 64
    num_hidden_layers: Annotated[int, Range(1, 10_000)] = 2
    num_attention_heads: Annotated[int, Range(1, 10_000)] = 2
    num_key_value_heads: Annotated[int, Range(1, 10_000)] = 1
    head_dim: Annotated[int, Range(2, 10_000)] = 32
    intermediate_size: Annotated[int, Range(1, 10_000_000)] = 96
    num_experts: Annotated[int, Range(0, 10_000)] = 0
    num_experts_per_tok: int = 2
    moe_intermediate_size: Annotated[int, Range(1, 10_000_000)] = 32
    norm_topk_prob: bool = True
    qk_norm: bool = True
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    rope_theta: Annotated[float, POSITIVE] = 10000.0
    rms_norm_eps: Annotated[float, POSITIVE] = 1e-6

    def __post_init__(self):
        """Reject shapes that attention or the router cannot have."""
        for name, value in vars(self).items():
            least = 0 if name == "num_experts" else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads must be a multiple of num_key_value_heads, got "
                f"{self.num_attention_heads} and {self.num_key_value_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim must be even, because rotary embedding turns pairs, got {self.head_dim}."
            )
        if self.num_experts and not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok must be 1 to num_experts = {self.num_experts}, got "
                f"{self.num_experts_per_tok}."
            )

    @property
    def heads(self) -> tuple[int, int, int]:
        """Numbers of query, key and value heads, in the order of the fused projection."""
        return self.num_attention_heads, self.num_key_value_heads, self.num_key_value_heads

    @property
    def queries_per_key(self) -> int:
        """Number of query heads that share a key head."""
        return self.num_attention_heads // self.num_key_value_heads


_TINY = TransformerConfig()
_SMALL = TransformerConfig(
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=256,
    moe_intermediate_size=64,
)

# head_dim 32 and widths that are multiples of 32: the smallest that real engines serve on a CPU.
MODELS: dict[str, TransformerConfig] = {
    "tiny-dense": _TINY,
    "tiny-moe": replace(_TINY, num_experts=8),
    # Llama, SmolLM2: no norms of queries and keys, which would dampen the rounding errors of their products.
    "tiny-llama": replace(_TINY, qk_norm=False),
    "small-dense": _SMALL,
    "small-moe": replace(_SMALL, num_experts=16, num_experts_per_tok=4),
}
