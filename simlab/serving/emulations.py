"""Engines that the catalog lacks: llama.cpp, whose files round too, and vLLM's FP8 cache on a CPU."""

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


def vllm_cpu_emulations() -> dict[str, Emulation]:
    """Return `bf16-fp8kv truncated`: `bf16-fp8kv`, but keys and values are cut to FP8, not rounded.

    Reference: log-probs of vLLM 0.32 on a CPU, token by token.
    """
    card = ENGINE_CARDS["bf16-fp8kv"]
    attention = replace(card.engine.attention, cache=Site.of("e4m3fn", "toward_zero"))
    return {"bf16-fp8kv truncated": Emulation(replace(card.engine, attention=attention), card.leaves_out)}


def _engine(weights: Site) -> Engine:
    """Products of `weights` with activations that are int8 in blocks of 32; attention reads float16.

    Reference: llama.cpp ggml ggml_vec_dot_q8_0_q8_0, ggml_vec_dot_q4_0_q8_0, ggml_vec_dot_f16.
    """
    product = Linear(Site.of("int8", scaling=Scaling("block", block=BLOCK)), weights, Site())
    half, attention = Site.of("fp16"), Engine().attention
    softmax = replace(attention.softmax, probs=half)
    attention = replace(attention, queries=half, cache=half, softmax=softmax)
    return replace(Engine(), projection=product, lm_head=product, attention=attention)


def _stored(fmt: str) -> Site:
    return Site.of(fmt, scaling=Scaling("block", block=BLOCK, axis=-2))


def llamacpp_emulations() -> dict[str, Emulation]:
    """Return `q8_0`, `q4_0`, and `read back`: llama.cpp on weights that its file has rounded already.

    The first two round the weights themselves, as far as an engine can; the last wants the parameters of
    `read_back`.
    """
    return {
        "q8_0": Emulation(_engine(_stored("int8")), f"float16 scales, rounded embeddings, {_SUMS}"),
        "q4_0": Emulation(
            _engine(_stored("int4")),
            f"float16 scales, rounded embeddings, the sixteenth level of a block (-8), {_SUMS}",
        ),
        "read back": Emulation(_engine(Site()), _SUMS),
    }


def real_kernels() -> dict[str, Emulation]:
    """Return all emulations that take the parameters as they are."""
    emulations = vllm_cpu_emulations() | llamacpp_emulations()
    del emulations["read back"]
    return emulations


def read_back(config: TransformerConfig, params: Params, stored: str) -> Params:
    """Return the parameters that llama.cpp dequantizes from a file whose matrices are `stored`."""
    with tempfile.TemporaryDirectory(prefix="simlab-") as folder:
        path = save_gguf(Path(folder) / "policy.gguf", config, params, stored=stored)
        return load_checkpoint(path)[1]
