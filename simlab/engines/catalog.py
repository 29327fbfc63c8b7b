"""The engines by name, the real software each stands for, and their pairs. Adding one is one record here."""

from dataclasses import dataclass, replace

import numpy as np

from simlab.core.catalog import lookup
from simlab.engines.accumulate import ACCUMULATORS, Accumulator, ExactSum, Float32Sum
from simlab.engines.engine import Attention, Engine, EnginePair, Linear, Norm, Softmax
from simlab.engines.kernel_order import LastTileFirst
from simlab.engines.site import Site
from simlab.engines.tensor_core import TENSOR_CORES, MXTensorCore, NVFP4TensorCore
from simlab.formats import SCALINGS, Format, Scaling

EXACT = ACCUMULATORS["exact"]
ORDERED = ACCUMULATORS["float32-ordered"]
SPLIT_K = ACCUMULATORS["bf16-split-k-4"]

BF16 = Site.of("bf16", overflow="format")
FP16 = Site.of("fp16", overflow="format")
# E4M3 with one more mantissa bit and the same range.
FP8_S4 = Format.declare(4, -6, 448.0, overflow_value=float("nan"))
# E4M3 with one mantissa bit less.
FP8_S2 = Format.declare(2, -6, 448.0, overflow_value=float("nan"))


@dataclass(frozen=True)
class EngineCard:
    """An engine, the real one it stands for, and what it leaves out of it."""

    engine: Engine
    counterpart: str
    leaves_out: str


def _trainer(stored: Site) -> Engine:
    """16-bit modules one after another, each result stored: softmax and statistics of norms in float32."""
    product = Linear(stored, stored, stored)
    return Engine(
        projection=product,
        attention=Attention(stored, stored, Softmax(logits=stored, probs=stored), stored),
        router=product,
        router_weights=stored,
        lm_head=product,
        token_softmax=Softmax(logits=stored),
        norm=Norm(stored, stored, stored),
        residual=stored,
        elementwise=stored,
    )


def _server(stored: Site, accumulator: Accumulator) -> Engine:
    """Fused kernels: the norm reads the unrounded residual sum, attention divides last, router in float32."""
    product = Linear(stored, stored, stored, accumulator)
    return replace(
        _trainer(stored),
        projection=product,
        attention=Attention(stored, stored, Softmax(exponentials=stored), stored, normalize="after"),
        router=product,
        router_weights=Site(),
        lm_head=product,
        norm=Norm(Site(), stored, stored),
    )


def _quantized(
    fmt: str | Format,
    activations: str | Scaling,
    weights: str | Scaling,
    rounding: str = "nearest_even",
) -> Engine:
    """BF16 server whose projections and experts multiply quantized operands; the rest stays BF16."""
    base = _server(BF16, Float32Sum())
    x = Site.of(fmt, rounding, scaling=activations)
    w = Site.of(fmt, rounding, scaling=weights)
    return replace(base, projection=Linear(x, w, BF16))


def _everywhere(engine: Engine) -> Engine:
    """The lm_head and attention multiply the same quantized operands; results are stored as before."""
    x, w = engine.projection.activations, engine.projection.weights
    softmax = replace(engine.attention.softmax, exponentials=x)
    return replace(
        engine,
        lm_head=replace(engine.lm_head, activations=x, weights=w),
        attention=replace(engine.attention, queries=x, cache=x, softmax=softmax),
    )


def _with_accumulators(engine: Engine, product: Accumulator, values: Accumulator) -> Engine:
    """The same rounding points with other sums; `values` adds over keys, whose number grows in decoding."""
    return replace(
        engine,
        projection=replace(engine.projection, accumulator=product),
        attention=replace(engine.attention, score_accumulator=product, value_accumulator=values),
        router=replace(engine.router, accumulator=product),
        lm_head=replace(engine.lm_head, accumulator=product),
    )


def _along_k(scaling: str) -> Scaling:
    """The preset with its blocks along the second last axis, as weights [K, N] need."""
    return replace(SCALINGS[scaling], axis=-2)


def _with_cache(engine: Engine, cache: Site) -> Engine:
    return replace(engine, attention=replace(engine.attention, cache=cache))


def _fp8_exact() -> Engine:
    fp8 = _quantized("e4m3fn", "fp8-per-token", "fp8-per-channel")
    exact = _with_accumulators(fp8, EXACT, ORDERED)
    return replace(exact, projection=replace(exact.projection, accumulator=ExactSum(slices=2)))


def _on_card(architecture: str, projection: Linear | None = None) -> Engine:
    """BF16 server on a card's tensor cores, with other projections if given; values by FlashAttention."""
    core = TENSOR_CORES[architecture]["bf16"]
    engine = _with_accumulators(_server(BF16, core), core, LastTileFirst(core))
    return engine if projection is None else replace(engine, projection=projection)


def _fp8_on(
    architecture: str, activations: str = "fp8-per-token", weights: str = "fp8-per-channel"
) -> Linear:
    """Projections in E4M3 with the FP8 adder of an architecture."""
    x, w = (Site.of("e4m3fn", scaling=scaling) for scaling in (activations, weights))
    return Linear(x, w, BF16, TENSOR_CORES[architecture]["e4m3fn"])


def _mxfp8_on(architecture: str) -> Linear:
    """Projections in MXFP8; from the top binade of E4M3 to its smallest normal number there are 14 more."""
    x, w = Site.of("e4m3fn", scaling="mxfp8"), Site.of("e4m3fn", scaling=_along_k("mxfp8"))
    return Linear(x, w, BF16, MXTensorCore(TENSOR_CORES[architecture]["e4m3fn"], np.int32(14)))


def _nvfp4_on_blackwell() -> Linear:
    product = _quantized("e2m1", "nvfp4", _along_k("nvfp4")).projection
    return replace(product, accumulator=NVFP4TensorCore(np.int32(35), np.int32(23)))


_CARD_GAPS = (
    "split-K and tile shapes that libraries choose by size, the rescaling inside FlashAttention, "
    "exponentials of the card's own unit"
)

# What none of them has: tile order within a float32 product, kernels chosen by shape. Adders of tensor cores
# are in those named after a card, whose rounding points are those of vllm-bf16: two of them differ by the
# card and the format alone.
ENGINE_CARDS: dict[str, EngineCard] = {
    "f32": EngineCard(
        Engine(),
        "PyTorch FSDP or Hugging Face transformers in float32, TF32 off",
        "the order of sums of its kernels",
    ),
    "bf16": EngineCard(
        _trainer(BF16),
        "FSDP trainer in BF16: Hugging Face modules, eager attention, float32 log-probs of BF16 logits",
        "flash attention in training; the second rounding of scaled scores; optimizer and gradient formats",
    ),
    "fp16": EngineCard(
        _trainer(FP16),
        "the same trainer in FP16, as in the FP16 runs of lr Fig. 13",
        "loss scaling, which belongs to the backward pass",
    ),
    "vllm-bf16": EngineCard(
        _server(BF16, SPLIT_K),
        "vLLM in BF16: fused residual and norm, FlashAttention, float32 expert weights, "
        "cuBLAS split-K with BF16 reduction for small batches",
        "online softmax by tiles, choice of split by shape (four ranges of K always), CUDA graphs",
    ),
    "fp8-e4m3": EngineCard(
        _quantized("e4m3fn", "fp8-per-token", "fp8-per-channel"),
        "vLLM with quantization=fp8: dynamic per-token activations, per-channel weights, BF16 elsewhere",
        "the FP8 tensor core's 13-bit adder: sums are float32",
    ),
    "fp8-e4m3-truncated": EngineCard(
        _quantized("e4m3fn", "fp8-per-token", "fp8-per-channel", "toward_zero"),
        "fp8-e4m3 with directed truncation, acrl Tab. 2",
        "as fp8-e4m3; no library rounds this way",
    ),
    "fp8-s4-truncated": EngineCard(
        _quantized(FP8_S4, "fp8-per-token", "fp8-per-channel", "toward_zero"),
        "none: E4M3 with one more mantissa bit, truncated; the middle dose between BF16 and truncated FP8",
        "any hardware",
    ),
    "fp8-e4m3-truncated-all": EngineCard(
        _everywhere(_quantized("e4m3fn", "fp8-per-token", "fp8-per-channel", "toward_zero")),
        "fp8-e4m3-truncated with every product in FP8: lm_head, and queries, keys, values and probabilities "
        "of attention too",
        "as fp8-e4m3; no library rounds this way",
    ),
    "fp8-s2-truncated-all": EngineCard(
        _everywhere(_quantized(FP8_S2, "fp8-per-token", "fp8-per-channel", "toward_zero")),
        "none: the same with one mantissa bit less; the flagship's dose",
        "any hardware",
    ),
    "fp8-block128": EngineCard(
        _quantized("e4m3fn", "deepseek-1x128", "deepseek-128x128"),
        "DeepSeek-V3 recipe (vLLM block FP8, DeepGEMM): activations 1 x 128, weights 128 x 128",
        "the 13-bit adder inside a block of 128",
    ),
    "mxfp8": EngineCard(
        _quantized("e4m3fn", "mxfp8", _along_k("mxfp8")),
        "MXFP8 E4M3 of OCP MX (Blackwell tensor cores, torchao), blocks of 32 on both sides, floor rule",
        "the order in which the tensor core adds",
    ),
    "nvfp4": EngineCard(
        _quantized("e2m1", "nvfp4", _along_k("nvfp4")),
        "NVFP4 W4A4 on Blackwell: blocks of 16 with E4M3 scales under one float32 scale",
        "calibrated activation scales (found per tensor here), random Hadamard transforms",
    ),
    "int8-w8a8": EngineCard(
        _quantized("int8", "int8-per-token", "int8-per-channel"),
        "vLLM compressed-tensors W8A8: dynamic per-token activations, per-channel weights, symmetric",
        "int32 sums (float32 ones here, exact up to K = 1024), SmoothQuant",
    ),
    "bf16-fp8kv": EngineCard(
        _with_cache(_server(BF16, SPLIT_K), Site.of("e4m3fn")),
        "vllm-bf16 with kv_cache_dtype=fp8: E4M3 at the default scale of 1",
        "as vllm-bf16; calibrated cache scales; FP8 queries of some attention kernels",
    ),
    "bf16-fp32head": EngineCard(
        replace(_trainer(BF16), lm_head=Linear(BF16, BF16, Site()), token_softmax=Softmax()),
        "bf16 with the lm_head in float32 (MiniMax-M1 Sec. 3.2): BF16 inputs and weights, float32 logits",
        "float32 master weights of the head",
    ),
    "bf16-fp32router": EngineCard(
        replace(_trainer(BF16), router=Linear(BF16, BF16, Site()), router_weights=Site()),
        "bf16 with Megatron's moe_router_dtype=fp32: BF16 inputs and weights, float32 router logits",
        "float32 router weights",
    ),
    "f32-exact": EngineCard(
        _with_accumulators(Engine(), EXACT, ORDERED),
        "none: float32 storage, exact sums; equals its own decoding bit for bit, provided that the compiler "
        "contracts the multiply-adds of attention values alike",
        "everything about the order of sums",
    ),
    "bf16-exact": EngineCard(
        _with_accumulators(_trainer(BF16), EXACT, ORDERED),
        "none: the rounding points of bf16, exact sums; equals its own decoding bit for bit",
        "everything about the order of sums",
    ),
    "bf16-ordered": EngineCard(
        _with_accumulators(_trainer(BF16), ORDERED, ORDERED),
        "batch-invariant kernels (one fixed order of float32 sums), as vexact uses on both sides",
        "the tile shape of those kernels: products are added one by one",
    ),
    "fp8-e4m3-exact": EngineCard(
        _fp8_exact(),
        "none: fp8-e4m3 with exact sums; equals its own decoding bit for bit",
        "everything about the order of sums",
    ),
    "a100-bf16": EngineCard(
        _on_card("ampere"),
        "BF16 kernels of an A100 (mma.sync, 24 bits, blocks of 8), one running sum over K",
        _CARD_GAPS,
    ),
    "h100-bf16": EngineCard(
        _on_card("hopper"),
        "BF16 kernels of an H100 (wgmma, 25 bits, blocks of 16), one running sum over K; a B200 adds alike",
        _CARD_GAPS,
    ),
    "h100-fp8": EngineCard(
        _on_card("hopper", _fp8_on("hopper")),
        "vLLM with quantization=fp8 on an H100: CUTLASS with fast accumulation, 13 bits over all of K",
        _CARD_GAPS,
    ),
    "h100-fp8-deepgemm": EngineCard(
        _on_card("hopper", _fp8_on("hopper", "deepseek-1x128", "deepseek-128x128")),
        "DeepGEMM on an H100: 13 bits within 128 products, whose sums are scaled and added in float32",
        f"the fused multiply-add of scale and sum (two roundings here); {_CARD_GAPS}",
    ),
    "ada-fp8": EngineCard(
        _on_card("ampere", _fp8_on("ada")),
        "vLLM with quantization=fp8 on an L40S or RTX 4090: mma.sync, 13 bits, blocks of 16",
        f"BF16 products of its own: those of an A100 stand in; {_CARD_GAPS}",
    ),
    "b200-fp8": EngineCard(
        _on_card("blackwell", _fp8_on("blackwell")),
        "vLLM with quantization=fp8 on a B200: tcgen05, 25 bits, blocks of 32",
        _CARD_GAPS,
    ),
    "b200-mxfp8": EngineCard(
        _on_card("blackwell", _mxfp8_on("blackwell")),
        "MXFP8 E4M3 on a B200: tcgen05 block scaling, scales added to exponents before 25 bits are kept",
        f"scales by round-up, as torchao and cuBLAS choose them (floor rule here); {_CARD_GAPS}",
    ),
    "b200-nvfp4": EngineCard(
        _on_card("blackwell", _nvfp4_on_blackwell()),
        "NVFP4 W4A4 on a B200: tcgen05 adds four exact sums of 16 products under their E4M3 scales",
        f"as nvfp4; {_CARD_GAPS}",
    ),
}

ENGINES: dict[str, Engine] = {name: card.engine for name, card in ENGINE_CARDS.items()}

# train/infer. In the last group both sides are one engine whose bits do not depend on the batch.
_EXACT = ("f32-exact", "bf16-exact", "bf16-ordered", "fp8-e4m3-exact", "h100-bf16", "h100-fp8")
EXACT_PAIRS = tuple(f"{name}/{name}" for name in _EXACT)
_PAIR_NAMES = (
    "f32/f32",
    "f32/bf16",
    "f32/fp8-e4m3",
    "f32/fp8-e4m3-truncated",
    "f32/fp8-s4-truncated",
    "f32/fp8-e4m3-truncated-all",
    "f32/fp8-s2-truncated-all",
    "bf16/bf16",
    "bf16/bf16-exact",
    "bf16/vllm-bf16",
    "bf16/fp8-e4m3",
    "bf16/fp8-e4m3-truncated",
    "bf16/fp8-s4-truncated",
    "bf16/fp8-block128",
    "bf16/mxfp8",
    "bf16/nvfp4",
    "bf16/int8-w8a8",
    "bf16/bf16-fp8kv",
    "bf16-fp32head/vllm-bf16",
    "bf16-fp32head/bf16-fp32head",
    "bf16-fp32router/vllm-bf16",
    "bf16-fp32router/bf16-fp32router",
    "fp16/fp16",
    "a100-bf16/h100-bf16",
    "a100-bf16/h100-fp8",
    "h100-bf16/ada-fp8",
    "h100-bf16/h100-fp8",
    "h100-bf16/h100-fp8-deepgemm",
    "h100-bf16/b200-fp8",
    "h100-bf16/b200-mxfp8",
    "h100-bf16/b200-nvfp4",
    "h100-fp8/b200-fp8",
    *EXACT_PAIRS,
)


def _pair(name: str) -> EnginePair:
    train, infer = name.split("/")
    return EnginePair(ENGINES[train], ENGINES[infer])


ENGINE_PAIRS: dict[str, EnginePair] = {name: _pair(name) for name in _PAIR_NAMES}


def find_engine(engine: Engine | str) -> Engine:
    """Return the engine itself or the one of that name; raises `ValueError` listing the names."""
    return engine if isinstance(engine, Engine) else lookup(ENGINES, engine, "engine")


def find_pair(pair: EnginePair | str) -> EnginePair:
    """Return the pair itself, the one of that name, or any two engines as `train/infer`.

    Raises `ValueError` listing the names.
    """
    if isinstance(pair, EnginePair):
        return pair
    train, slash, infer = str(pair).partition("/")
    if slash and train in ENGINES and infer in ENGINES:
        return _pair(pair)
    return lookup(ENGINE_PAIRS, pair, "engine pair")
