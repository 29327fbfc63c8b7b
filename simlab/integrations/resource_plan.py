"""Estimate memory and time of a training step of a real model on given devices, with formulas.

Bytes and seconds are per device. Assumed: states, work and batch divide evenly over all devices; training in
BF16 with Adam, everything sharded (ZeRO stage 3), each layer's input kept and the rest recomputed; the engine
that samples holds the same weights, sharded too, while the training states are elsewhere or next to it.
"""

import re
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

from simlab.checkpoints.hugging_face_config import parse_config_json, read_json_object
from simlab.checkpoints.param_tree import leaves_of
from simlab.core.catalog import lookup
from simlab.models.config import MODELS, TransformerConfig
from simlab.models.parameters import shapes_of


@dataclass(frozen=True)
class Device:
    """A device: BF16 FLOP/s without sparsity, bytes of memory, bytes/s to it, bytes/s to its neighbors."""

    flops: float
    memory: float
    bandwidth: float
    link: float
    source: str


DEVICES: dict[str, Device] = {
    "A100": Device(
        312e12, 80e9, 2.039e12, 300e9, "NVIDIA A100 80GB SXM datasheet; NVLink 600 GB/s both ways"
    ),
    "H100": Device(989.4e12, 80e9, 3.35e12, 450e9, "NVIDIA H100 SXM datasheet; NVLink 900 GB/s both ways"),
    "H200": Device(989.4e12, 141e9, 4.8e12, 450e9, "NVIDIA H200 SXM datasheet; NVLink 900 GB/s both ways"),
    "H20": Device(148e12, 96e9, 4.0e12, 450e9, "NVIDIA H20 SXM, published; NVLink 900 GB/s both ways"),
    "H800": Device(989.4e12, 80e9, 3.35e12, 200e9, "NVIDIA H800 SXM: an H100 with NVLink 400 GB/s both ways"),
    "B200": Device(2250e12, 180e9, 8e12, 900e9, "NVIDIA HGX B200 datasheet; NVLink 1.8 TB/s both ways"),
    "TPU-v5p": Device(459e12, 95e9, 2.765e12, 600e9, "Google Cloud TPU v5p: 2765 GB/s, links 4800 Gbit/s"),
    "TPU-v6e": Device(918e12, 32e9, 1.64e12, 448e9, "Google Cloud TPU v6e: 1640 GB/s, links 3584 Gbit/s"),
}

_QWEN3 = {"vocab_size": 151936, "head_dim": 128, "rope_theta": 1e6, "tie_word_embeddings": False}
_QWEN3_MOE: dict[str, Any] = _QWEN3 | {"num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8}

REAL_MODELS: dict[str, TransformerConfig] = {
    "SmolLM2-135M": TransformerConfig(
        vocab_size=49152,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        intermediate_size=1536,
        qk_norm=False,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
    ),
    "Qwen3-8B": TransformerConfig(
        hidden_size=4096,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=12288,
        **_QWEN3,
    ),
    "Qwen3-30B-A3B": TransformerConfig(
        hidden_size=2048,
        num_hidden_layers=48,
        num_attention_heads=32,
        moe_intermediate_size=768,
        **_QWEN3_MOE,
    ),
    "Qwen3-235B-A22B": TransformerConfig(
        hidden_size=4096,
        num_hidden_layers=94,
        num_attention_heads=64,
        moe_intermediate_size=1536,
        **_QWEN3_MOE,
    ),
}
"""Shapes from the models' `config.json` on Hugging Face."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of training: `sequences` of `prompt` and `response` tokens, and what devices reach.

    `compute` and `memory` are the fractions of peak FLOP/s and of memory bandwidth that kernels reach.
    `weight_bytes` of the sampling engine: 2 for BF16, 1 for FP8; `cache_bytes` likewise.
    """

    sequences: int = 2048
    prompt: int = 1024
    response: int = 8192
    micro_batch: int = 1
    weight_bytes: float = 2
    cache_bytes: float = 2
    compute: float = 0.4
    memory: float = 0.7

    def __post_init__(self):
        """Reject invalid values."""
        for name in ("sequences", "prompt", "response", "micro_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"invalid {name} {getattr(self, name)}; allowed: 1 or more")
        for name in ("compute", "memory"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"invalid {name} {getattr(self, name)}; allowed: above 0, up to 1")


@dataclass(frozen=True)
class Item:
    """One line of a plan: a number, its unit, how it was computed, and whether it is a lower bound."""

    part: str
    quantity: str
    value: float
    unit: str
    formula: str
    bound: str = "exact"


ESTIMATE, AT_LEAST = "estimate", "at least"
"""Kinds of numbers: `estimate` at the given fraction of the peak, `at least` without overheads."""

USABLE = 0.9
"""Fraction of a device's memory that an engine may use; the rest is for the framework and fragmentation."""


def find_devices(text: str) -> tuple[int, Device]:
    """Return number and kind of devices of `8xH100`. Raises `ValueError` for anything else."""
    match = re.fullmatch(r"(\d+)x(.+)", text)
    if not match or int(match[1]) < 1:
        raise ValueError(f"invalid devices {text!r}; write them as 8xH100")
    exact = {name.lower(): name for name in DEVICES}.get(match[2].lower(), match[2])
    return int(match[1]), lookup(DEVICES, exact, "device")


def find_model(name: str) -> TransformerConfig:
    """Return a model of `REAL_MODELS`, a preset of simlab, or the model of a `config.json` or its folder.

    Raises `ValueError` with the known names, or with the fields of the file that simlab does not support.
    """
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix == ".json":
        return parse_config_json(read_json_object(path), path)
    return lookup(REAL_MODELS | MODELS, name, "model")


def parameter_counts(config: TransformerConfig) -> tuple[int, int]:
    """Return the number of parameters, and of those that one token uses.

    The latter counts the chosen experts and, once, the head; the look-up of an embedding is not a product.
    """
    total, active = 0, 0
    for path, leaf in leaves_of(shapes_of(config)).items():
        size = prod(leaf.shape)
        total += size
        if path[-1] == "embedding":
            active += size if config.tie_word_embeddings else 0
        elif len(leaf.shape) == 3:
            active += size * config.num_experts_per_tok // config.num_experts
        else:
            active += size
    return total, active


def memory_items(config: TransformerConfig, count: int, device: Device, step: Step) -> list[Item]:
    """Return bytes per device while training and while sampling.

    Reference: S. Rajbhandari et al. 2020, ZeRO, Sec. 3.1.
    Deviation: nothing is added for fragmentation, communication buffers or the framework.
    """
    total, _ = parameter_counts(config)
    length = step.prompt + step.response
    tokens = step.micro_batch * length
    layer_inputs = 2 * tokens * config.hidden_size * config.num_hidden_layers
    layer = 2 * tokens * _layer_numbers(config)
    logits = 8 * tokens * config.vocab_size
    cache = _cache_bytes(config, step)
    usable = USABLE * device.memory
    free = usable - step.weight_bytes * total / count
    num_concurrent = max(0, int(free * count / (cache * length)))
    gathered = 4 * (total // config.num_hidden_layers)
    train = 16 * total / count + gathered + layer_inputs + layer + logits
    limit = f"of {device.memory / 1e9:.3g} GB, of which {USABLE:g} ({usable / 1e9:.3g} GB) are used"
    fits = "fits" if train < usable else "does not fit"
    return [
        Item("train", "states", 16 * total / count, "byte", "(2 + 2 + 4 + 4 + 4) x parameters / devices"),
        Item("train", "gathered layers", gathered, "byte", "2 layers x 2 byte x parameters / layers"),
        Item("train", "layer inputs", layer_inputs, "byte", "2 x tokens x hidden x layers"),
        Item("train", "activations of a layer", layer, "byte", "2 x tokens x its intermediate values"),
        Item("train", "logits", logits, "byte", "(4 + 4) x tokens x vocabulary"),
        Item("train", "sum", train, "byte", f"{limit}: {fits}", AT_LEAST),
        Item("sample", "weights", step.weight_bytes * total / count, "byte", "byte x parameters / devices"),
        Item("sample", "cache of a token", cache, "byte", "2 x layers x key heads x head_dim x byte"),
        Item("sample", "concurrent", num_concurrent, "sequences", "(0.9 memory - weights) x devices / cache"),
    ]


def time_items(config: TransformerConfig, count: int, device: Device, step: Step) -> list[Item]:
    """Return seconds of each part of a step.

    A decoded token costs the larger of reading all weights and the cache, and 2 FLOPs per active parameter;
    every expert is read, as a batch of hundreds of tokens reaches them all. Attention takes
    4 heads head_dim length^2 / 2 FLOPs per layer and sequence in a forward pass. For every micro-batch each
    device gets all weights twice and sends all gradients once.
    """
    total, active = parameter_counts(config)
    speed, reading = count * device.flops * step.compute, count * device.bandwidth * step.memory
    length = step.prompt + step.response
    attention = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    forward = step.sequences * (2 * active * length + attention * length**2)
    prefill = step.sequences * (2 * active * step.prompt + attention * step.prompt**2) / speed
    memory = memory_items(config, count, device, step)
    num_concurrent = next(item.value for item in memory if item.unit == "sequences")
    if not num_concurrent:
        raise ValueError(
            "the memory of the inference engine is too small for one sequence. Use more devices."
        )
    rounds = ceil(step.sequences / num_concurrent)
    batch = step.sequences / rounds
    mean_length = step.prompt + step.response / 2
    read = (step.weight_bytes * total + _cache_bytes(config, step) * mean_length * batch) / reading
    computed = batch * (2 * active + 2 * attention * mean_length) / speed
    decode = rounds * step.response * max(read, computed)
    batches = ceil(step.sequences / count / step.micro_batch)
    gathered = batches * 6 * total * (count - 1) / count / device.link
    sync = step.weight_bytes * total / count / device.link
    decoding = f"{rounds} rounds x tokens x max(read {read:.2e} s, compute {computed:.2e} s), equal lengths"
    gathering = f"{batches} micro-batches x 3 x 2 byte x parameters, links at peak"
    times = [
        ("prefill", prefill, "sequences x (2 active x prompt + attention) / speed", ESTIMATE),
        ("decode", decode, decoding, AT_LEAST),
        ("score", forward / speed, "forward pass over all tokens", ESTIMATE),
        ("update", 4 * forward / speed, "forward, forward again, and twice that backward", ESTIMATE),
        ("gather", gathered, gathering, AT_LEAST),
        ("sync", sync, "weights of a device, its link at peak", AT_LEAST),
    ]
    lines = [Item("time", name, value, "s", formula, bound) for name, value, formula, bound in times]
    total_seconds = sum(line.value for line in lines)
    return [*lines, Item("time", "step", total_seconds, "s", "sum: a synchronous step", AT_LEAST)]


def plan(model: str, devices: str, step: Step) -> list[Item]:
    """Return the lines of a plan. Raises `ValueError` for unknown names and for a step that cannot run."""
    config, (count, device) = find_model(model), find_devices(devices)
    total, active = parameter_counts(config)
    return [
        Item("model", "parameters", total, "", "of all matrices and norms"),
        Item("model", "active parameters", active, "", "used by one token"),
        *memory_items(config, count, device, step),
        *time_items(config, count, device, step),
    ]


def _cache_bytes(config: TransformerConfig, step: Step) -> float:
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * step.cache_bytes


def _layer_numbers(config: TransformerConfig) -> int:
    """Return the numbers per token that one layer keeps for its backward pass, with fused attention."""
    heads = (sum(config.heads) + config.num_attention_heads) * config.head_dim
    inner, experts = config.intermediate_size, 1
    if config.num_experts:
        inner, experts = config.moe_intermediate_size, config.num_experts_per_tok
    # Two norms, residual sums and outputs of both halves; gate, up, their product and an output per expert.
    return 6 * config.hidden_size + heads + experts * (3 * inner + config.hidden_size)
