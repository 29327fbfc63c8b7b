"""Build the engines of the catalog: trainers, servers, and replacements of their products."""

from dataclasses import replace

import numpy as np

from simlab.core.catalog import lookup
from simlab.engines.accumulate import ACCUMULATORS, Accumulator, ExactSum, Float32Sum, PartialSums
from simlab.engines.engine import Attention, Engine, Linear, Norm, Softmax
from simlab.engines.kernel_order import LastTileFirst
from simlab.engines.length_splits import LengthSplits
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


def trainer(stored: Site) -> Engine:
    """Return a trainer: modules one by one, each result stored, softmax and norm statistics in float32."""
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


def server(stored: Site, accumulator: Accumulator) -> Engine:
    """Return an inference engine of fused kernels.

    The norm reads the unrounded residual sum, attention divides last, and the weights of experts are float32.
    """
    product = Linear(stored, stored, stored, accumulator)
    return replace(
        trainer(stored),
        projection=product,
        attention=Attention(stored, stored, Softmax(exponentials=stored), stored, normalize="after"),
        router=product,
        router_weights=Site(),
        lm_head=product,
        norm=Norm(Site(), stored, stored),
    )


def quantize_operands(
    fmt: str | Format,
    activations: str | Scaling,
    weights: str | Scaling,
    rounding: str = "nearest_even",
) -> Engine:
    """Return a BF16 server whose projections and experts multiply quantized operands; the rest stays BF16."""
    base = server(BF16, Float32Sum())
    x = Site.of(fmt, rounding, scaling=activations)
    w = Site.of(fmt, rounding, scaling=weights)
    return replace(base, projection=Linear(x, w, BF16))


def quantize_everywhere(engine: Engine) -> Engine:
    """Quantize the operands of lm_head and attention as those of the projections; results are unchanged."""
    x, w = engine.projection.activations, engine.projection.weights
    softmax = replace(engine.attention.softmax, exponentials=x)
    return replace(
        engine,
        lm_head=replace(engine.lm_head, activations=x, weights=w),
        attention=replace(engine.attention, queries=x, cache=x, softmax=softmax),
    )


def with_accumulators(engine: Engine, product: Accumulator, values: Accumulator) -> Engine:
    """Return `engine` with other sums at the same rounding sites.

    `values` adds over keys, whose number grows in decoding. `experts` and `row_parallel` keep their own.
    """
    return replace(
        engine,
        projection=replace(engine.projection, accumulator=product),
        attention=replace(engine.attention, score_accumulator=product, value_accumulator=values),
        router=replace(engine.router, accumulator=product),
        lm_head=replace(engine.lm_head, accumulator=product),
    )


def scale_along_k(scaling: str) -> Scaling:
    """Return the preset with its blocks along the second last axis, as weights [K, N] need."""
    return replace(SCALINGS[scaling], axis=-2)


def with_cache(engine: Engine, cache: Site) -> Engine:
    """Return `engine` with keys and values stored at `cache`."""
    return replace(engine, attention=replace(engine.attention, cache=cache))


def weight_only(fmt: str, scaling: str) -> Linear:
    """Return a product of BF16 activations and weights that are dequantized to BF16 first."""
    return Linear(BF16, Site.of(fmt, scaling=scale_along_k(scaling)), BF16, dequantized=BF16)


def int4_products(group: str, activations: str) -> Linear:
    """Return products of INT4 weights in groups and activations in INT8 per token, or in INT4 groups."""
    fmt = "int8" if activations == "int8-per-token" else "int4"
    return Linear(Site.of(fmt, scaling=activations), Site.of("int4", scaling=scale_along_k(group)), BF16)


def four_over_six() -> Linear:
    """Return projections in NVFP4 whose block scales follow four over six."""
    return quantize_operands("e2m1", "nvfp4-four-over-six", scale_along_k("nvfp4-four-over-six")).projection


def with_projection(product: Linear, *, experts_only: bool = False) -> Engine:
    """Return a BF16 server with this product in projections and experts, or in experts alone."""
    base = server(BF16, Float32Sum())
    return replace(base, experts=product) if experts_only else replace(base, projection=product)


def mxfp4(*errors: str) -> Engine:
    """Return a BF16 server in MXFP4 that makes only the named `ERRORS`; all three without a name."""
    x, w = SCALINGS["mxfp4"], scale_along_k("mxfp4")
    if errors:
        x, w = (replace(scaling, errors=errors) for scaling in (x, w))
    return quantize_operands("e2m1", x, w)


def fp8_block_training(backward: str, cotangent: Site) -> Engine:
    """Return a BF16 trainer with the projections and experts of fp8-block128; see `Linear.backward`."""
    product = quantize_operands("e4m3fn", "deepseek-1x128", "deepseek-128x128").projection
    return replace(trainer(BF16), projection=replace(product, backward=backward, cotangent=cotangent))


def unified_fp8() -> Engine:
    """Return the server fp8-block128 with every product of the backward pass in FP8, too."""
    engine = quantize_operands("e4m3fn", "deepseek-1x128", "deepseek-128x128")
    cotangent = Site.of("e4m3fn", scaling="deepseek-1x128")
    return replace(engine, projection=replace(engine.projection, backward="quantized", cotangent=cotangent))


def tensor_parallel(ranks: int) -> Engine:
    """Return a BF16 server on `ranks` devices: o and down are partial sums in BF16, added in BF16 by rank."""
    base = server(BF16, Float32Sum())
    partial = PartialSums(Site.of("bf16", overflow="format"), order="split-k", splits=ranks)
    return replace(base, row_parallel=replace(base.projection, accumulator=partial))


def expert_parallel(ranks: int) -> Engine:
    """Return a BF16 server with its experts divided among `ranks` devices, whose sums are added in BF16."""
    return replace(server(BF16, Float32Sum()), expert_ranks=ranks)


def split_over_keys(splits: int) -> Engine:
    """Return a BF16 server that adds values over `splits` ranges of keys, whose sizes follow the length."""
    base = server(BF16, Float32Sum())
    return replace(base, attention=replace(base.attention, value_accumulator=LengthSplits(splits)))


def cache_behind(engine: Engine, positions: int) -> Engine:
    """Return `engine` with the cache of the first `positions` tokens held in BF16."""
    attention = replace(engine.attention, early_cache=BF16, cache_from=positions)
    return replace(engine, attention=attention)


# Largest magnitude of keys and values that the calibrated caches of the catalog hold; `calibrated_cache`
# takes that of a calibration set.
CALIBRATED_AMAX = 16.0


def _site_with_scale(fmt: str, scaling: Scaling, amax: float, level: float) -> Site:
    scale = np.float32(max(amax, 2.0**-100) / level)
    return Site.of(fmt, scaling=replace(scaling, given=scale))


def calibrated_fp8(amax: float = CALIBRATED_AMAX) -> Site:
    """Return an FP8 site whose one scale sends `amax` to the largest value."""
    return _site_with_scale("e4m3fn", SCALINGS["per-tensor"], amax, 448.0)


def calibrated_nvfp4(amax: float = CALIBRATED_AMAX) -> Site:
    """Return an NVFP4 site whose upper scale is that of a tensor with this `amax`."""
    return _site_with_scale("e2m1", SCALINGS["nvfp4"], amax, 448.0 * 6.0)


CALIBRATED_CACHES = {"fp8": calibrated_fp8, "nvfp4": calibrated_nvfp4}


def calibrated_cache(engine: Engine, cache: str, amax: float) -> Engine:
    """Return `engine` with a cache ("fp8", "nvfp4") whose scale sends magnitude `amax` to the largest value.

    Args:
        engine: any engine.
        cache: name of `CALIBRATED_CACHES`.
        amax: largest magnitude of keys and values on a calibration set.

    Raises:
        ValueError: For an unknown cache.

    Reference: vLLM calculate_kv_scales, k_scale and v_scale.
    Deviation: one scale for keys and values of all layers.
    """
    return with_cache(engine, lookup(CALIBRATED_CACHES, cache, "calibrated cache")(amax))


def fp8_exact() -> Engine:
    """Return fp8-e4m3 with exact sums."""
    fp8 = quantize_operands("e4m3fn", "fp8-per-token", "fp8-per-channel")
    exact = with_accumulators(fp8, EXACT, ORDERED)
    return replace(exact, projection=replace(exact.projection, accumulator=ExactSum(slices=2)))


def on_gpu(architecture: str, projection: Linear | None = None) -> Engine:
    """Return a BF16 inference engine on the tensor cores of a GPU, whose values FlashAttention adds.

    Args:
        architecture: name of `TENSOR_CORES`.
        projection: of projections and experts; None keeps BF16.
    """
    core = TENSOR_CORES[architecture]["bf16"]
    engine = with_accumulators(server(BF16, core), core, LastTileFirst(core))
    return engine if projection is None else replace(engine, projection=projection)


def fp8_on(architecture: str, activations: str = "fp8-per-token", weights: str = "fp8-per-channel") -> Linear:
    """Return projections in E4M3 with the FP8 accumulator of an architecture."""
    x, w = (Site.of("e4m3fn", scaling=scaling) for scaling in (activations, weights))
    return Linear(x, w, BF16, TENSOR_CORES[architecture]["e4m3fn"])


def mxfp8_on(architecture: str) -> Linear:
    """Return projections in MXFP8 with the FP8 accumulator of an architecture.

    14 is the number of binades between the top one of E4M3 and that of its smallest normal number.
    """
    x, w = Site.of("e4m3fn", scaling="mxfp8"), Site.of("e4m3fn", scaling=scale_along_k("mxfp8"))
    return Linear(x, w, BF16, MXTensorCore(TENSOR_CORES[architecture]["e4m3fn"], np.int32(14)))


def nvfp4_on_blackwell() -> Linear:
    """Return projections in NVFP4 with the accumulator of tcgen05."""
    product = quantize_operands("e2m1", "nvfp4", scale_along_k("nvfp4")).projection
    return replace(product, accumulator=NVFP4TensorCore(np.int32(35), np.int32(23)))
