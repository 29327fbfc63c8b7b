"""Emulations outside the catalog: llama.cpp, whose files round as well, and vLLM's FP8 cache on a CPU."""

import tempfile
from dataclasses import replace
from pathlib import Path

from simlab.checkpoints.checkpoint_reader import load_checkpoint
from simlab.checkpoints.gguf_writer import save_gguf
from simlab.engines import ENGINE_CARDS, Engine, Linear, Site
from simlab.formats import Scaling
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.serving.calibration import Emulation

BLOCK = 32
_SUMS = "the order of sums of its kernels"


def get_vllm_cpu_emulations() -> dict[str, Emulation]:
    """Return `bf16-fp8kv truncated`: `bf16-fp8kv` with keys and values truncated to FP8, not rounded.

    Reference: log-probs of vLLM 0.32 on a CPU, token by token.
    """
    card = ENGINE_CARDS["bf16-fp8kv"]
    attention = replace(card.engine.attention, cache=Site.of("e4m3fn", "toward_zero"))
    return {"bf16-fp8kv truncated": Emulation(replace(card.engine, attention=attention), card.not_modeled)}


def _build_engine(weights: Site) -> Engine:
    """Return an engine with int8 activations in blocks of 32 and attention in float16.

    Reference: llama.cpp ggml ggml_vec_dot_q8_0_q8_0, ggml_vec_dot_q4_0_q8_0, ggml_vec_dot_f16.
    """
    product = Linear(Site.of("int8", scaling=Scaling("block", block=BLOCK)), weights, Site())
    half, attention = Site.of("fp16"), Engine().attention
    softmax = replace(attention.softmax, probs=half)
    attention = replace(attention, queries=half, cache=half, softmax=softmax)
    return replace(Engine(), projection=product, lm_head=product, attention=attention)


def _store_in_blocks(fmt: str) -> Site:
    return Site.of(fmt, scaling=Scaling("block", block=BLOCK, axis=-2))


def get_llamacpp_emulations() -> dict[str, Emulation]:
    """Return `q8_0`, `q4_0`, and `read back`.

    The first two round the weights as far as an engine can. `read back` is llama.cpp on weights that its file
    has rounded, so it needs the parameters of `reload_from_gguf`.
    """
    return {
        "q8_0": Emulation(
            _build_engine(_store_in_blocks("int8")), f"float16 scales, rounded embeddings, {_SUMS}"
        ),
        "q4_0": Emulation(
            _build_engine(_store_in_blocks("int4")),
            f"float16 scales, rounded embeddings, the sixteenth level of a block (-8), {_SUMS}",
        ),
        "read back": Emulation(_build_engine(Site()), _SUMS),
    }


def get_real_kernels() -> dict[str, Emulation]:
    """Return all emulations that use unchanged parameters."""
    emulations = get_vllm_cpu_emulations() | get_llamacpp_emulations()
    del emulations["read back"]
    return emulations


def reload_from_gguf(config: TransformerConfig, params: Params, stored: str) -> Params:
    """Return the parameters that llama.cpp dequantizes from a file with matrices in the format `stored`."""
    with tempfile.TemporaryDirectory(prefix="simlab-") as folder:
        path = save_gguf(Path(folder) / "policy.gguf", config, params, stored=stored)
        return load_checkpoint(path)[1]
