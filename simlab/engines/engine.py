"""The engine record: format, scaling, rounding and order of summation at each site of a forward pass."""

from collections.abc import Hashable
from dataclasses import field

import jax

from simlab.core.pytree import pytree, static
from simlab.engines.accumulate import Accumulator, Float32Sum
from simlab.engines.fused_attention import FusedAttention
from simlab.engines.site import FLOAT32_SITE, Site

NORMALIZE = ("before", "after")
REPLAYS = ("none", "R2", "R3")
BACKWARDS = ("dequantized", "high_precision", "quantized")


@pytree
class Linear:
    """Sites of a matrix product with weights: x `activations`, w `weights`, the result `output`.

    - `dequantized`: where a weight-only kernel stores weights times their scales before it multiplies; None
      applies scales after the sums.
    - `backward`: operands of the products of the backward pass. `dequantized`: those of the forward pass, in
      float32. `high_precision`: the operands before they were quantized. `quantized`: these quantized again
      along the new sums, with the gradient of the result rounded to `cotangent`.

    Raises:
        ValueError: For an unknown backward pass, and `quantized` with `dequantized` weights.

    Reference: TransformerEngine NVTE_BACKWARD_OVERRIDE (its default is `quantized`, that of miles
        `high_precision`); Marlin for `dequantized` weights.
    """

    activations: Site = FLOAT32_SITE
    weights: Site = FLOAT32_SITE
    output: Site = FLOAT32_SITE
    accumulator: Accumulator = field(default_factory=Float32Sum)
    dequantized: Site | None = None
    cotangent: Site = FLOAT32_SITE
    backward: str = static(default="dequantized")

    def __post_init__(self):
        """Reject an unknown backward pass, and a quantized one of weight-only kernels."""
        if self.backward not in BACKWARDS:
            raise ValueError(f"unknown backward {self.backward!r}; allowed: {', '.join(BACKWARDS)}")
        if self.backward == "quantized" and self.dequantized is not None:
            raise ValueError("backward 'quantized' with dequantized weights; allowed: the other two")


@pytree
class Softmax:
    """Sites of a softmax, exp(z - max z) / sum, in the order in which they are computed.

    `logits` z; `shifted` z - max z; `exponentials`; `total`, their sum, which is itself float32; `probs`;
    `log_probs`, the result of a log-softmax.
    """

    logits: Site = FLOAT32_SITE
    shifted: Site = FLOAT32_SITE
    exponentials: Site = FLOAT32_SITE
    total: Site = FLOAT32_SITE
    probs: Site = FLOAT32_SITE
    log_probs: Site = FLOAT32_SITE


@pytree
class Attention:
    """Sites of attention. `softmax.logits` are the scores, `softmax.probs` the attention probabilities.

    `cache` holds keys and values, in decoding as in scoring; those of the first `cache_from` positions are
    held at `early_cache` instead. `normalize` says when the softmax divides:
    `before` the product with the values, or `after` it, as fused kernels do, which round the
    `softmax.exponentials` instead of the probabilities. With `fused` one kernel computes everything between
    queries and output, in float32.

    Raises:
        ValueError: For an unknown `normalize`, a negative `cache_from`, and settings inside `fused`.

    Deviation: with `after` the divisor is the sum of the rounded exponentials. FlashAttention and the Triton
        kernels of vLLM add them in float32 before they round them for the product.
    """

    queries: Site = FLOAT32_SITE
    cache: Site = FLOAT32_SITE
    softmax: Softmax = field(default_factory=Softmax)
    output: Site = FLOAT32_SITE
    score_accumulator: Accumulator = field(default_factory=Float32Sum)
    value_accumulator: Accumulator = field(default_factory=Float32Sum)
    early_cache: Site = FLOAT32_SITE
    fused: FusedAttention | None = None
    normalize: str = static(default="before")
    cache_from: int = static(default=0)

    def __post_init__(self):
        """Reject an unknown order of division, a negative position, and sites inside a fused kernel."""
        if self.cache_from < 0:
            raise ValueError(f"cache_from must be a position >= 0, got {self.cache_from}.")
        if self.normalize not in NORMALIZE:
            raise ValueError(f"unknown normalize {self.normalize!r}; allowed: {', '.join(NORMALIZE)}")
        inside = self.normalize, self.softmax, self.score_accumulator, self.value_accumulator
        if self.fused is not None and inside != ("after", Softmax(), Float32Sum(), Float32Sum()):
            raise ValueError(
                "fused attention must have normalize='after' and the defaults of softmax, score_accumulator "
                "and value_accumulator: its kernel rounds nothing and has sums of its own"
            )


@pytree
class Norm:
    """Sites of RMSNorm: `input` is what it reads, `normalized` x / rms(x), `output` that times the weight."""

    input: Site = FLOAT32_SITE
    normalized: Site = FLOAT32_SITE
    output: Site = FLOAT32_SITE


@pytree
class Engine:
    """Numerics of one forward pass, site by site; `Engine()` is float32 throughout.

    | tensor | site |
    |---|---|
    | weights, activations of projections and experts | `projection.weights`, `projection.activations` |
    | the same of experts alone | `experts` (None: as `projection`) |
    | the same of o and down alone | `row_parallel` (None: as `projection`) |
    | KV cache | `attention.cache` |
    | attention scores, attention probabilities | `attention.softmax.logits`, `attention.softmax.probs` |
    | residual stream, norms | `residual`, `norm` |
    | router logits, router probabilities, weights of the chosen experts | `router.output`,
      `router_softmax.probs`, `router_weights` |
    | lm_head, logits | `lm_head` (weights, activations), `lm_head.output` |
    | logits as the sampler reads them, token probabilities | `token_softmax.logits`, `token_softmax.probs` |
    | embeddings, rotary embedding, SwiGLU, scaled expert outputs | `elementwise` |

    With `expert_ranks` above one the experts are divided among that many ranks in order; each adds the
    outputs of its own, then the ranks' sums are added (both at `elementwise`).

    Every matrix product has its own accumulator. All numbers are data: engines of one `static_signature`
    can be stacked (`simlab.formats.stack`) and mapped over by `jax.vmap`. Names live in the catalog.
    """

    projection: Linear = field(default_factory=Linear)
    experts: Linear | None = None
    row_parallel: Linear | None = None
    attention: Attention = field(default_factory=Attention)
    router: Linear = field(default_factory=Linear)
    router_softmax: Softmax = field(default_factory=Softmax)
    router_weights: Site = FLOAT32_SITE
    lm_head: Linear = field(default_factory=Linear)
    token_softmax: Softmax = field(default_factory=Softmax)
    norm: Norm = field(default_factory=Norm)
    residual: Site = FLOAT32_SITE
    elementwise: Site = FLOAT32_SITE
    expert_ranks: int = static(default=1)

    @property
    def reduced(self) -> Linear:
        """The product of o and down, whose terms tensor parallelism divides among devices."""
        return self.row_parallel or self.projection


@pytree
class EnginePair:
    """The engine that computes gradients, the engine that samples, and the replay of routed experts.

    `replay`, of an MoE: with `none` the training engine routes anew in every forward pass; with `R2` the
    updates take the experts that it chose at theta_old; with `R3` scoring and updates take those of the
    rollout. Replay fixes the choice only: the weights of the experts follow from the router's own logits.

    Raises:
        ValueError: For an unknown replay.

    Reference: verl `router_replay.mode`; R3 arXiv 2510.11370.
    """

    train: Engine
    infer: Engine
    replay: str = static(default="none")

    def __post_init__(self):
        """Reject an unknown replay."""
        if self.replay not in REPLAYS:
            raise ValueError(f"unknown replay {self.replay!r}; allowed: {', '.join(REPLAYS)}")


def static_signature(engine: Engine | EnginePair) -> Hashable:
    """Return the part of an engine that shapes a compiled function; equal signatures share one."""
    return jax.tree.structure(engine)
