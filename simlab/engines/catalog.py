"""Engines by name with their reference systems, and their pairs. A new engine is one record here."""

from dataclasses import dataclass, replace

from simlab.core.catalog import lookup, shorten
from simlab.engines.builders import (
    BF16,
    EXACT,
    FP8_S2,
    FP8_S4,
    FP16,
    ORDERED,
    SPLIT_K,
    cache_behind,
    calibrated_fp8,
    calibrated_nvfp4,
    expert_parallel,
    four_over_six,
    fp8_block_training,
    fp8_exact,
    fp8_on,
    int4_products,
    mxfp4,
    mxfp8_on,
    nvfp4_on_blackwell,
    on_gpu,
    quantize_everywhere,
    quantize_operands,
    scale_along_k,
    server,
    split_over_keys,
    tensor_parallel,
    trainer,
    unified_fp8,
    weight_only,
    with_accumulators,
    with_cache,
    with_projection,
)
from simlab.engines.engine import Attention, Engine, EnginePair, Linear, Norm, Softmax
from simlab.engines.fused_attention import FusedAttention
from simlab.engines.site import Site


@dataclass(frozen=True)
class EngineCard:
    """An engine, the real system that it models, and the parts of that system that are not modeled."""

    engine: Engine
    reference_system: str
    not_modeled: str


_GPU_GAPS = (
    "split-K and tile shapes that libraries choose by size, the rescaling inside FlashAttention, "
    "exponentials of the GPU's own unit"
)

# What no engine models: tile order within a float32 product, kernels chosen by shape. Accumulators of tensor
# cores are in the engines named after a GPU, whose rounding sites are those of vllm-bf16: two of them differ
# by the GPU and the format alone.
ENGINE_CARDS: dict[str, EngineCard] = {
    "f32": EngineCard(
        Engine(),
        "PyTorch FSDP or Hugging Face transformers in float32, TF32 off",
        "the order of sums of its kernels",
    ),
    "bf16": EngineCard(
        trainer(BF16),
        "FSDP trainer in BF16: Hugging Face modules, eager attention, float32 log-probs of BF16 logits",
        "flash attention in training; the second rounding of scaled scores; optimizer and gradient formats",
    ),
    "fp16": EngineCard(
        trainer(FP16),
        "the same trainer in FP16, as in the FP16 runs of lr Fig. 13",
        "loss scaling, which belongs to the backward pass",
    ),
    "vllm-bf16": EngineCard(
        server(BF16, SPLIT_K),
        "vLLM in BF16: fused residual and norm, FlashAttention, float32 expert weights, "
        "cuBLAS split-K with BF16 reduction for small batches",
        "online softmax by tiles, choice of split by shape (four ranges of K always), CUDA graphs",
    ),
    "fp8-e4m3": EngineCard(
        quantize_operands("e4m3fn", "fp8-per-token", "fp8-per-channel"),
        "vLLM with quantization=fp8: dynamic per-token activations, per-channel weights, BF16 elsewhere",
        "the FP8 tensor core's 13-bit accumulator: sums are float32",
    ),
    "fp8-e4m3-truncated": EngineCard(
        quantize_operands("e4m3fn", "fp8-per-token", "fp8-per-channel", "toward_zero"),
        "fp8-e4m3 with directed truncation, acrl Tab. 2",
        "as fp8-e4m3; no library rounds this way",
    ),
    "fp8-s4-truncated": EngineCard(
        quantize_operands(FP8_S4, "fp8-per-token", "fp8-per-channel", "toward_zero"),
        "none: E4M3 with one more mantissa bit, truncated; between BF16 and truncated FP8",
        "any hardware",
    ),
    "fp8-e4m3-truncated-all": EngineCard(
        quantize_everywhere(quantize_operands("e4m3fn", "fp8-per-token", "fp8-per-channel", "toward_zero")),
        "fp8-e4m3-truncated with every product in FP8: lm_head, and queries, keys, values and probabilities "
        "of attention too",
        "as fp8-e4m3; no library rounds this way",
    ),
    "fp8-s2-truncated-all": EngineCard(
        quantize_everywhere(quantize_operands(FP8_S2, "fp8-per-token", "fp8-per-channel", "toward_zero")),
        "none: the same with one mantissa bit less; the flagship's noise level",
        "any hardware",
    ),
    "fp8-block128": EngineCard(
        quantize_operands("e4m3fn", "deepseek-1x128", "deepseek-128x128"),
        "DeepSeek-V3 recipe (vLLM block FP8, DeepGEMM): activations 1 x 128, weights 128 x 128",
        "the 13-bit accumulator inside a block of 128",
    ),
    "mxfp8": EngineCard(
        quantize_operands("e4m3fn", "mxfp8", scale_along_k("mxfp8")),
        "MXFP8 E4M3 of OCP MX (Blackwell tensor cores, torchao), blocks of 32 on both sides, floor rule",
        "the order in which the tensor core adds",
    ),
    "nvfp4": EngineCard(
        quantize_operands("e2m1", "nvfp4", scale_along_k("nvfp4")),
        "NVFP4 W4A4 on Blackwell: blocks of 16 with E4M3 scales under one float32 scale",
        "calibrated activation scales (found per tensor here), random Hadamard transforms",
    ),
    "int8-w8a8": EngineCard(
        quantize_operands("int8", "int8-per-token", "int8-per-channel"),
        "vLLM compressed-tensors W8A8: dynamic per-token activations, per-channel weights, symmetric",
        "int32 sums (float32 ones here, exact up to K = 1024), SmoothQuant",
    ),
    "bf16-fp8kv": EngineCard(
        with_cache(server(BF16, SPLIT_K), Site.of("e4m3fn")),
        "vllm-bf16 with kv_cache_dtype=fp8: E4M3 at the default scale of 1",
        "as vllm-bf16; calibrated cache scales; FP8 queries of some attention kernels",
    ),
    "bf16-fp8kv-calibrated": EngineCard(
        with_cache(server(BF16, SPLIT_K), calibrated_fp8()),
        "vllm-bf16 with kv_cache_dtype=fp8 and calibrated scales (calculate_kv_scales, llm-compressor)",
        "scales per layer, for keys and for values: one for all, set by calibrated_cache",
    ),
    "bf16-nvfp4kv": EngineCard(
        with_cache(server(BF16, SPLIT_K), calibrated_nvfp4()),
        "TensorRT-LLM and SGLang with an NVFP4 KV cache: blocks of 16 along the head, calibrated upper scale",
        "dequantization to FP8 before the products of attention; scales per layer",
    ),
    "int4-g128": EngineCard(
        with_projection(weight_only("int4", "int4-g128")),
        "vLLM W4A16 (Marlin): symmetric INT4 weights in groups of 128, BF16 activations; on both sides: QaRL "
        "(rollout-aligned quantization-aware RL, arXiv 2604.07853)",
        "scales in BF16, zero points and calibration (AWQ, GPTQ); amax / 7.5 of compressed-tensors (7 here)",
    ),
    "int4-g32": EngineCard(
        with_projection(weight_only("int4", "int4-g32")),
        "the same in groups of 32",
        "as int4-g128",
    ),
    "int4-g32-experts": EngineCard(
        with_projection(weight_only("int4", "int4-g32"), experts_only=True),
        "Kimi-K2-Thinking and miles/slime INT4 QAT: INT4 experts in groups of 32, the rest BF16",
        "as int4-g128; dense models have no experts",
    ),
    "int4-g128-experts": EngineCard(
        with_projection(weight_only("int4", "int4-g128"), experts_only=True),
        "int4-g128 in experts alone, the rest BF16",
        "as int4-g128; dense models have no experts",
    ),
    "int4-g128-w4a8": EngineCard(
        with_projection(int4_products("int4-g128", "int8-per-token")),
        "vLLM compressed-tensors W4A8: INT4 weights in groups of 128, dynamic INT8 activations per token",
        "int32 sums within a group (float32 ones here, exact); the second level of scales of QServe",
    ),
    "int4-g32-w4a8": EngineCard(
        with_projection(int4_products("int4-g32", "int8-per-token")),
        "the same in groups of 32",
        "as int4-g128-w4a8",
    ),
    "int4-g128-w4a4": EngineCard(
        with_projection(int4_products("int4-g128", "int4-g128")),
        "Atom (arXiv 2310.19102): INT4 weights and activations in groups of 128",
        "outlier channels in INT8, reordering; clipping of scales",
    ),
    "int4-g32-w4a4": EngineCard(
        with_projection(int4_products("int4-g32", "int4-g32")),
        "the same in groups of 32",
        "as int4-g128-w4a4",
    ),
    "nvfp4-w4a16": EngineCard(
        with_projection(weight_only("e2m1", "nvfp4-four-over-six")),
        "NeMo-RL and vLLM NVFP4 W4A16 (Marlin): weights by four over six, BF16 activations",
        "the upper scale after the sum (both levels are applied before it here)",
    ),
    "nvfp4-w4a16-experts": EngineCard(
        with_projection(weight_only("e2m1", "nvfp4-four-over-six"), experts_only=True),
        "the same in experts alone",
        "as nvfp4-w4a16; dense models have no experts",
    ),
    "nvfp4-four-over-six": EngineCard(
        with_projection(four_over_six()),
        "NVFP4 W4A4 with the four-over-six scale rule on both sides (fouroversix, arXiv 2512.02010)",
        "as nvfp4",
    ),
    "nvfp4-four-over-six-experts": EngineCard(
        with_projection(four_over_six(), experts_only=True),
        "the same in experts alone",
        "as nvfp4; dense models have no experts",
    ),
    "mxfp4": EngineCard(
        mxfp4(),
        "MXFP4 W4A4 of OCP MX: E2M1 in blocks of 32 under power-of-two scales, floor rule",
        "random Hadamard transforms; the order in which the tensor core adds",
    ),
    "mxfp4-saturation": EngineCard(
        mxfp4("saturation"),
        "none: mxfp4 with the error of its power-of-two scales alone (scale bias in arXiv 2605.20402)",
        "the two other errors",
    ),
    "mxfp4-dead-zone": EngineCard(
        mxfp4("dead zone"),
        "none: mxfp4 in which small numbers become zero and nothing else is rounded (arXiv 2605.20402)",
        "the two other errors",
    ),
    "mxfp4-grid": EngineCard(
        mxfp4("grid"),
        "none: mxfp4 with the rounding of numbers that neither saturate nor vanish (arXiv 2605.20402)",
        "the two other errors",
    ),
    "jet-rl": EngineCard(
        unified_fp8(),
        "Jet-RL (arXiv 2601.14243): one FP8 precision flow on both sides, 1 x 128 activations, 128 x 128 "
        "weights, and FP8 products in the backward pass",
        "as fp8-block128; 1 x 128 scales of gradients in the products for weights (128 x 128 here)",
    ),
    "fp8-block128-dequantized": EngineCard(
        fp8_block_training("dequantized", Site()),
        "TransformerEngine block FP8 with NVTE_BACKWARD_OVERRIDE=dequantized: FP8 forward pass of a trainer, "
        "gradients of the dequantized operands",
        "BF16 products in the backward pass (float32 here)",
    ),
    "fp8-block128-high-precision": EngineCard(
        fp8_block_training("high_precision", Site()),
        "miles and TransformerEngine with NVTE_BACKWARD_OVERRIDE=high_precision: gradients of the operands "
        "as they were before quantization",
        "BF16 weights and products in the backward pass (float32 here)",
    ),
    "fp8-block128-quantized": EngineCard(
        fp8_block_training("quantized", Site.of("e4m3fn", scaling="deepseek-1x128")),
        "TransformerEngine block FP8 without an override: every product of the backward pass in FP8",
        "as jet-rl; E5M2 gradients of the hybrid recipe",
    ),
    "vllm-bf16-fp32head": EngineCard(
        replace(server(BF16, SPLIT_K), lm_head=Linear(BF16, BF16, Site()), token_softmax=Softmax()),
        "vllm-bf16 with the lm_head in float32 (vLLM head_dtype=float32, MiniMax-M1 Sec. 3.2)",
        "float32 weights of the head",
    ),
    "bf16-fp32residual": EngineCard(
        replace(trainer(BF16), residual=Site(), norm=Norm(Site(), BF16, BF16)),
        "bf16 with Megatron's fp32_residual_connection: the residual stream and what norms read in float32",
        "as bf16",
    ),
    "vllm-bf16-fp32residual": EngineCard(
        replace(server(BF16, SPLIT_K), residual=Site()),
        "the same residual stream in the server",
        "as vllm-bf16",
    ),
    **{
        f"vllm-bf16-tp{ranks}": EngineCard(
            tensor_parallel(ranks),
            f"vLLM in BF16 with tensor_parallel_size={ranks}: BF16 all-reduce after o and down",
            "tree and ring orders of NCCL (rank by rank here); split-K within a rank",
        )
        for ranks in (1, 2, 4, 8)
    },
    **{
        f"vllm-bf16-ep{ranks}": EngineCard(
            expert_parallel(ranks),
            f"vLLM in BF16 with enable_expert_parallel on {ranks} devices: each adds its own experts, then "
            "BF16 sums by device; one device is vllm-bf16-tp1",
            "tree and ring orders of NCCL and DeepEP (rank by rank here); dense models have no experts",
        )
        for ranks in (2, 4, 8)
    },
    "vllm-bf16-split-kv8": EngineCard(
        split_over_keys(8),
        "SGLang and vLLM triton_decode_attention (NUM_KV_SPLITS = 8): ranges of keys grow with the length",
        "the largest score of each range (that of all here); splits of FlashAttention and FlashInfer",
    ),
    "bf16-fp8kv-split-kv8": EngineCard(
        with_cache(split_over_keys(8), Site.of("e4m3fn")),
        "the same kernel with kv_cache_dtype=fp8 at the default scale of 1",
        "as vllm-bf16-split-kv8 and bf16-fp8kv",
    ),
    "bf16-fp8kv-from-4": EngineCard(
        cache_behind(with_cache(server(BF16, SPLIT_K), Site.of("e4m3fn")), 4),
        "bf16-fp8kv that keeps the first 4 tokens, the attention sinks, in BF16 (KVQuant, arXiv 2401.18079)",
        "as bf16-fp8kv",
    ),
    "bf16-fp32head": EngineCard(
        replace(trainer(BF16), lm_head=Linear(BF16, BF16, Site()), token_softmax=Softmax()),
        "bf16 with the lm_head in float32 (MiniMax-M1 Sec. 3.2): BF16 inputs and weights, float32 logits",
        "float32 master weights of the head",
    ),
    "bf16-fp32router": EngineCard(
        replace(trainer(BF16), router=Linear(BF16, BF16, Site()), router_weights=Site()),
        "bf16 with Megatron's moe_router_dtype=fp32: BF16 inputs and weights, float32 router logits",
        "float32 router weights",
    ),
    "f32-flash": EngineCard(
        Engine(attention=Attention(normalize="after", fused=FusedAttention())),
        "vLLM in float32 with its Triton attention (kernel_unified_attention, 2D grid): FlashAttention-2 "
        "(arXiv 2307.08691) over blocks of 16 keys from the first to the last, everything else as f32",
        "blocks of 32 keys of the 2D grid; TF32 products and exponentials of a GPU; segments of the 3D grid",
    ),
    "f32-exact": EngineCard(
        with_accumulators(Engine(), EXACT, ORDERED),
        "none: float32 storage, exact sums; equals its own decoding bit for bit, provided that the compiler "
        "contracts the multiply-adds of attention values equally",
        "everything about the order of sums",
    ),
    "bf16-exact": EngineCard(
        with_accumulators(trainer(BF16), EXACT, ORDERED),
        "none: the rounding points of bf16, exact sums; equals its own decoding bit for bit",
        "everything about the order of sums",
    ),
    "bf16-ordered": EngineCard(
        with_accumulators(trainer(BF16), ORDERED, ORDERED),
        "batch-invariant kernels (one fixed order of float32 sums), as vexact uses on both sides",
        "the tile shape of those kernels: products are added one by one",
    ),
    "fp8-e4m3-exact": EngineCard(
        fp8_exact(),
        "none: fp8-e4m3 with exact sums; equals its own decoding bit for bit",
        "everything about the order of sums",
    ),
    "a100-bf16": EngineCard(
        on_gpu("ampere"),
        "BF16 kernels of an A100 (mma.sync, 24 bits, blocks of 8), one running sum over K",
        _GPU_GAPS,
    ),
    "h100-bf16": EngineCard(
        on_gpu("hopper"),
        "BF16 kernels of an H100 (wgmma, 25 bits, blocks of 16), one running sum over K; a B200 adds equally",
        _GPU_GAPS,
    ),
    "h100-fp8": EngineCard(
        on_gpu("hopper", fp8_on("hopper")),
        "vLLM with quantization=fp8 on an H100: CUTLASS with fast accumulation, 13 bits over all of K",
        _GPU_GAPS,
    ),
    "h100-fp8-deepgemm": EngineCard(
        on_gpu("hopper", fp8_on("hopper", "deepseek-1x128", "deepseek-128x128")),
        "DeepGEMM on an H100: 13 bits within 128 products, whose sums are scaled and added in float32",
        f"the fused multiply-add of scale and sum (two roundings here); {_GPU_GAPS}",
    ),
    "ada-fp8": EngineCard(
        on_gpu("ampere", fp8_on("ada")),
        "vLLM with quantization=fp8 on an L40S or RTX 4090: mma.sync, 13 bits, blocks of 16",
        f"BF16 products of its own: those of an A100 stand in; {_GPU_GAPS}",
    ),
    "b200-fp8": EngineCard(
        on_gpu("blackwell", fp8_on("blackwell")),
        "vLLM with quantization=fp8 on a B200: tcgen05, 25 bits, blocks of 32",
        _GPU_GAPS,
    ),
    "b200-mxfp8": EngineCard(
        on_gpu("blackwell", mxfp8_on("blackwell")),
        "MXFP8 E4M3 on a B200: tcgen05 block scaling, scales added to exponents before 25 bits are kept",
        f"scales by round-up, as torchao and cuBLAS choose them (floor rule here); {_GPU_GAPS}",
    ),
    "b200-nvfp4": EngineCard(
        on_gpu("blackwell", nvfp4_on_blackwell()),
        "NVFP4 W4A4 on a B200: tcgen05 adds four exact sums of 16 products under their E4M3 scales",
        f"as nvfp4; {_GPU_GAPS}",
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
    "bf16-fp32head/vllm-bf16-fp32head",
    "bf16/bf16-nvfp4kv",
    "bf16/int4-g32-experts",
    "bf16/nvfp4-four-over-six",
    "bf16/mxfp4",
    "jet-rl/jet-rl",
    "fp8-block128-high-precision/fp8-block128",
    "vllm-bf16-tp1/vllm-bf16-tp4",
    "vllm-bf16-tp1/vllm-bf16-ep4",
    "bf16/int4-g128-w4a8",
    "bf16/vllm-bf16-split-kv8",
    "int4-g128/int4-g128",
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
    "f32/f32-flash",
    *EXACT_PAIRS,
)


def _pair(name: str) -> EnginePair:
    train, infer = name.split("/")
    return EnginePair(ENGINES[train], ENGINES[infer])


ENGINE_PAIRS: dict[str, EnginePair] = {name: _pair(name) for name in _PAIR_NAMES}


def find_engine(engine: Engine | str) -> Engine:
    """Return the engine itself or the one of that name.

    Raises:
        ValueError: For an unknown name, listing the names.
    """
    return engine if isinstance(engine, Engine) else lookup(ENGINES, engine, "engine")


def find_pair(pair: EnginePair | str) -> EnginePair:
    """Return the pair itself, the one of that name, or any two engines as `train/infer`.

    Raises:
        ValueError: For a name with one slash, naming the unknown engine and listing the engines; for another
            name, listing the pairs.
    """
    if isinstance(pair, EnginePair):
        return pair
    halves = pair.split("/") if isinstance(pair, str) else []
    if len(halves) != 2:
        return lookup(ENGINE_PAIRS, pair, "engine pair")
    of_pair = f"engine of the pair {shorten(pair)},"
    train = lookup(ENGINES, halves[0], f"training {of_pair}")
    return EnginePair(train, lookup(ENGINES, halves[1], f"inference {of_pair}"))
