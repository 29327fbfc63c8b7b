"""Replace format, accumulator and order of one GPU by those of another; compute exact Shapley shares."""

from dataclasses import replace

import numpy as np

from simlab.engines import ENGINES, Accumulator, Engine
from simlab.engines.kernel_order import LastTileFirst, Promoted, SplitK
from simlab.engines.tensor_core import TENSOR_CORES, TensorCore

FACTORS = ("format", "accumulator", "order")
NARROW = 13
SPLITS = 2
SHORT_TILE = 16  # sequences of simlab are shorter than one tile of a real kernel


def between(changed: frozenset[str]) -> Engine:
    """Return `h100-bf16` with the projections of an FP8 rollout for the factors in `changed`.

    `format`: E4M3 per token and channel instead of BF16; `accumulator`: 13 bits instead of 25; `order`:
    split-K instead of one running sum.
    """
    engine, core = ENGINES["h100-bf16"], TENSOR_CORES["hopper"]["bf16"]
    if "format" in changed:
        engine, core = ENGINES["b200-fp8"], TENSOR_CORES["blackwell"]["e4m3fn"]
    if "accumulator" in changed:
        core = with_bits(core, NARROW)
    return with_sums(engine, SplitK(core, SPLITS) if "order" in changed else core)


def with_bits(core: TensorCore, bits: int) -> TensorCore:
    """Return the accumulator with this number of fraction bits, and at most as many in its results."""
    return replace(core, fraction_bits=np.int32(bits), result_bits=np.int32(min(bits, 23)))


def with_sums(engine: Engine, accumulator: Accumulator) -> Engine:
    """Return the engine with other sums in its projections."""
    return replace(engine, projection=replace(engine.projection, accumulator=accumulator))


def with_accumulator_bits(bits: int) -> Engine:
    """Return FP8 on a Hopper GPU with this number of accumulator bits; 13 and 25 are an H100 and a B200."""
    return with_sums(ENGINES["b200-fp8"], with_bits(TENSOR_CORES["blackwell"]["e4m3fn"], bits))


def orders(attention: bool) -> dict[str, tuple[str, Engine]]:
    """Return other orders of the same products: name -> (GPU with one running sum, engine).

    Includes orders over keys if there is `attention`.
    """
    listed = {}
    for gpu in ("h100-bf16", "h100-fp8"):
        core = ENGINES[gpu].projection.accumulator
        listed[f"{gpu}, split-K {SPLITS}"] = gpu, with_sums(ENGINES[gpu], SplitK(core, SPLITS))
    core = ENGINES["h100-fp8"].projection.accumulator
    listed["h100-fp8, promoted every 32"] = "h100-fp8", with_sums(ENGINES["h100-fp8"], Promoted(core, 32))
    if attention:
        base = ENGINES["h100-bf16"]
        tiles = LastTileFirst(TENSOR_CORES["hopper"]["bf16"], SHORT_TILE)
        turned = replace(base.attention, value_accumulator=tiles)
        listed["h100-bf16, keys from the end"] = "h100-bf16", replace(base, attention=turned)
    return listed
