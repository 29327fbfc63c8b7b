"""Engines: records of where a forward pass rounds and in which order it adds, and its operations."""

from simlab.engines.accumulate import ACCUMULATORS, Accumulator, ExactSum, Float32Sum, PartialSums
from simlab.engines.attention import attend, store_cache
from simlab.engines.builders import calibrated_cache
from simlab.engines.catalog import (
    ENGINE_CARDS,
    ENGINE_PAIRS,
    ENGINES,
    EXACT_PAIRS,
    EngineCard,
    find_engine,
    find_pair,
)
from simlab.engines.engine import Attention, Engine, EnginePair, Linear, Norm, Softmax, static_signature
from simlab.engines.linear import HeldWeights, linear, quantize_operand, quantize_weights
from simlab.engines.matmul import matmul
from simlab.engines.norm import add_residual, rms_norm
from simlab.engines.router import combine_experts, route
from simlab.engines.site import Site, rounds_stochastically, site_key, store
from simlab.engines.softmax import SOFTMAX_PLACEMENTS, Placement, log_softmax, softmax, softmax_placement

__all__ = [
    "ACCUMULATORS",
    "ENGINES",
    "ENGINE_CARDS",
    "ENGINE_PAIRS",
    "EXACT_PAIRS",
    "SOFTMAX_PLACEMENTS",
    "Accumulator",
    "Attention",
    "Engine",
    "EngineCard",
    "EnginePair",
    "ExactSum",
    "Float32Sum",
    "HeldWeights",
    "Linear",
    "Norm",
    "PartialSums",
    "Placement",
    "Site",
    "Softmax",
    "add_residual",
    "attend",
    "calibrated_cache",
    "combine_experts",
    "find_engine",
    "find_pair",
    "linear",
    "log_softmax",
    "matmul",
    "quantize_operand",
    "quantize_weights",
    "rms_norm",
    "rounds_stochastically",
    "route",
    "site_key",
    "softmax",
    "softmax_placement",
    "static_signature",
    "store",
    "store_cache",
]
