"""Forward passes of a simlab policy under emulated engines and with faults inside: logits per context.

A pool holds one set of contexts of one policy, and logits and hidden states of each engine and of each faulty
forward pass at exactly these contexts. Logs are then assembled in NumPy, which is cheap.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import simlab.models.transformer as transformer
from simlab.core.arrays import AnyArray
from simlab.engines import Engine, find_engine
from simlab.models import MODELS, TransformerConfig, logits
from simlab.models.kv_cache import empty_cache
from simlab.models.parameters import Params
from simlab.sweeps.start import load_initial_params, model_of_start, read_start
from simlab.tasks import PAD_TOKEN_ID, TASKS
from simlab.training.recipe import SamplingRecipe
from simlab.training.step import sample_responses

CONTEXTS = 800
"""Maximum number of contexts of a pool."""
TRAIN_ENGINES = ("f32", "bf16")
INFER_ENGINES = (
    "f32", "bf16", "fp16", "vllm-bf16", "bf16-fp8kv", "fp8-e4m3", "int8-w8a8", "nvfp4", "nvfp4-w4a16",
    "mxfp8", "mxfp4", "int4-g128", "int4-g32", "int4-g32-w4a8", "int4-g32-w4a4", "nvfp4-four-over-six",
    "fp8-e4m3-truncated", "bf16-nvfp4kv", "bf16-fp8kv-calibrated", "vllm-bf16-tp4",
)  # fmt: skip
HELD_OUT_ENGINES = ("vllm-bf16-split-kv8", "fp8-block128", "int4-g128-w4a8")
"""Inference engines that the fit never sees, nor others with the same forward pass (`jet-rl`)."""
UPDATES = 6
UPDATE_SIZE = 1.5e-3
DROPOUT = {
    "dropout 0.05": (0.05, "everywhere"),
    "dropout 0.1": (0.1, "everywhere"),
    "dropout in the last layer": (0.15, "last layer"),
    "dropout in attention": (0.15, "attention"),
}
"""Rate of dropout and where it acts, by fault."""
Edit = Callable[[jax.Array], jax.Array]
Outputs = tuple[jax.Array, jax.Array]
"""Logits [B, T, V] and last hidden states [B, T, D]."""
ROPE_FACTORS = (1.3, 2.0, 4.0, 8.0)
GAPS = (1, 4, 16)


class Pass(NamedTuple):
    """Logits [N, V] and last hidden states [N, D] of one forward pass."""

    logits: np.ndarray
    hidden: np.ndarray


@dataclass
class Pool:
    """Forward passes at the same N contexts, and where each context is in its sequence.

    - `engines`: by engine, of the policy itself.
    - `faults`: by fault, float32 engine; `reference` is the float32 engine without a fault.
    - `sequence`, `index`: where each context is; `experts` [N, layers x top_k] or None.
    - `flipped` [N]: contexts whose experts the fault `routing` changes, or None.
    - `direct`: std of noise on the training engine's log-probs, nats; 0 unless noise is hand-made.
    """

    name: str
    engines: dict[str, Pass]
    faults: dict[str, Pass]
    sequence: np.ndarray
    index: np.ndarray
    experts: np.ndarray | None
    flipped: np.ndarray | None
    direct: float = 0.0

    @property
    def reference(self) -> Pass:
        """The float32 engine."""
        return self.engines["f32"]

    @property
    def coarsest(self) -> Pass:
        """The engine whose logits differ most from those of `reference`."""
        return max(self.engines.values(), key=lambda forward: np.std(forward.logits - self.reference.logits))


def make_pool(
    name: str, seed: int, infer_engines: tuple[str, ...] = INFER_ENGINES, contexts: int = CONTEXTS
) -> Pool:
    """Sample contexts of the stored policy `name` and run every engine and every faulty forward pass."""
    task = TASKS["chain" if name.startswith("chain") else "add"]()
    config = _config(name)
    params = load_initial_params(read_start(name, config), task, config, 0, Path())
    rng = np.random.default_rng(seed)
    prompts = rng.permutation(task.prompt_set())[: contexts // task.response_length]
    sampling = SamplingRecipe(
        engine=find_engine("f32"), task=task, model=config, prompts_per_step=len(prompts), group_size=1
    )
    sampled = jax.jit(sample_responses)(sampling, params, jax.random.key(seed), jnp.asarray(prompts))
    tokens = np.concatenate([prompts, np.asarray(sampled.responses)], axis=1)
    first, mask = prompts.shape[1], np.asarray(sampled.mask)
    policy = _ScoredPolicy(params, config, tokens, first, mask, rng)
    names = dict.fromkeys((*TRAIN_ENGINES, *infer_engines))
    engines = {engine: policy.read(engine=engine) for engine in names}
    sequence, index = np.nonzero(mask)
    faults, old = _old_weights(policy)
    faults |= _missing_weights(policy, old)
    faults |= _context_faults(policy)
    for name, (rate, where) in DROPOUT.items():
        faults[name] = policy.pick(_dropout(params, config, tokens, rate, seed, where))
    experts = flipped = None
    if config.num_experts:
        chosen = np.asarray(_forward(params, config, tokens).routed_experts)
        other, moved = _other_experts(config, tokens, chosen, rng)
        faults["routing"] = policy.pick(_read(params, config, tokens, "f32", jnp.asarray(other)))
        faults |= _expert_faults(policy)
        experts = chosen[:, first - 1 : -1][mask].reshape(int(mask.sum()), -1).astype(np.int16)
        flipped = moved[:, first - 1 : -1][mask]
    return Pool(name, engines, faults, sequence, index, experts, flipped)


@dataclass(frozen=True)
class _ScoredPolicy:
    """A policy, tokens [B, P + T] whose responses begin at `first`, and the mask [B, T] of the contexts."""

    params: Params
    config: TransformerConfig
    tokens: np.ndarray
    first: int
    mask: np.ndarray
    rng: np.random.Generator

    def pick(self, values: Outputs, begin: int | None = None) -> Pass:
        """Return logits and hidden states at the contexts, from those of responses that start at `begin`."""
        start = (self.first if begin is None else begin) - 1
        return Pass(*(np.asarray(part)[:, start:-1][self.mask].astype(np.float32) for part in values))

    def read(
        self, changes: Params | None = None, tokens: np.ndarray | None = None, engine: str = "f32"
    ) -> Pass:
        """Return the pass with some parameters changed, on other tokens, or under another engine."""
        params = dict(self.params) | (changes or {})
        return self.pick(_read(params, self.config, self.tokens if tokens is None else tokens, engine))


def _config(name: str) -> TransformerConfig:
    model = model_of_start(name)
    if isinstance(model, str):
        return MODELS[model]
    fields = {key: value for key, value in model.items() if key != "name"}
    return replace(MODELS[model["name"]], **fields)


@partial(jax.jit, static_argnums=1)
def _forward(params: Params, config: TransformerConfig, tokens: AnyArray) -> transformer.Forward:
    engine = find_engine("f32")
    weights = transformer.prepare(params, config, engine)
    return transformer.extend(weights, config, engine, empty_cache(config, *tokens.shape), tokens, 0)


def _read_eagerly(
    params: Params, config: TransformerConfig, tokens: AnyArray, engine: str, experts: AnyArray | None = None
) -> Outputs:
    """Return logits [B, T, V] and last hidden states [B, T, D], with the experts given or chosen."""
    numerics = find_engine(engine)
    weights = transformer.prepare(params, config, numerics)
    caches = empty_cache(config, *tokens.shape)
    hidden = transformer.extend(weights, config, numerics, caches, tokens, 0, experts).hidden
    return transformer.read_logits(weights, numerics, hidden), hidden


_read = jax.jit(_read_eagerly, static_argnums=(1, 3))


def _noisy(leaf: jax.Array, rng: np.random.Generator, size: float) -> jax.Array:
    return leaf + size * leaf.std() * rng.normal(size=leaf.shape).astype(np.float32)


def _old_weights(policy: _ScoredPolicy) -> tuple[dict[str, Pass], Params]:
    """Return the passes with the weights of 1 to `UPDATES` updates ago, and the oldest weights."""
    passes, old = {}, policy.params
    for age in range(1, UPDATES + 1):
        # Adam's first steps move every weight by about the learning rate, in the direction of the gradient.
        advantages = policy.rng.normal(size=(len(policy.tokens), 1)).astype(np.float32)
        step = _gradient(old, policy.config, policy.tokens, policy.first, advantages * policy.mask)
        old = jax.tree.map(lambda weight, slope: weight - UPDATE_SIZE * jnp.sign(slope), old, step)
        passes[f"old {age}"] = policy.read(old)
    return passes, old


def _missing_weights(policy: _ScoredPolicy, old: Params) -> dict[str, Pass]:
    """Return the passes with tensors that never arrived or are corrupt."""
    params, rng = policy.params, policy.rng
    layers, embedding = params["layers"], params["embedding"]
    late_rows = (rng.random(policy.config.vocab_size) < 0.3)[:, None]
    changed = {
        "layer old": {"layers": (old["layers"][0], *layers[1:])},
        "layer corrupt": {
            "layers": (*layers[:-1], jax.tree.map(lambda leaf: _noisy(leaf, rng, 0.3), layers[-1]))
        },
        "embedding rows": {"embedding": jnp.where(late_rows, _noisy(embedding, rng, 0.3), embedding)},
        "norms old": {"layers": jax.tree.map(lambda leaf: leaf * _gain(leaf, rng), layers)},
        "layers swapped": {"layers": (*layers[:-2], layers[-1], layers[-2])},
        "fresh layer": {"layers": (jax.tree.map(lambda leaf: _fresh(leaf, rng), layers[0]), *layers[1:])},
        "attention corrupt": {
            "layers": tuple(dict(layer) | {"o": _noisy(layer["o"], rng, 0.2)} for layer in layers)
        },
    }
    return {name: policy.read(leaves) for name, leaves in changed.items()}


def _fresh(leaf: jax.Array, rng: np.random.Generator) -> jax.Array | np.ndarray:
    """Return values as they are before training: a layer that never arrived in a new engine."""
    return (
        leaf.std() * rng.normal(size=leaf.shape).astype(np.float32) if leaf.ndim > 1 else np.ones_like(leaf)
    )


def _gain(leaf: jax.Array, rng: np.random.Generator) -> np.ndarray | float:
    """Return other gains for a norm's scale [D], 1 for matrices."""
    return np.exp(0.2 * rng.normal(size=leaf.shape)).astype(np.float32) if leaf.ndim == 1 else 1.0


def _expert_faults(policy: _ScoredPolicy) -> dict[str, Pass]:
    """Return experts in another order behind the same router, experts of noise, and a late expert shard."""
    rng, layers, count = policy.rng, policy.params["layers"], policy.config.num_experts

    def change(layer: Params, edit: Edit) -> Params:
        return {
            name: edit(leaf) if name != "router" and leaf.ndim == 3 else leaf for name, leaf in layer.items()
        }

    order = rng.permutation(count)
    late = (np.arange(count) < count // 4)[:, None, None]
    edits: dict[str, Edit] = {
        "experts permuted": lambda leaf: leaf[order],
        "experts noisy": lambda leaf: _noisy(leaf, rng, 0.3),
        "experts scrambled": lambda leaf: leaf[..., rng.permutation(leaf.shape[-1])],
        "expert shard old": lambda leaf: jnp.where(late, _noisy(leaf, rng, 0.5), leaf),
    }
    passes = {
        name: policy.read({"layers": (*layers[:-1], change(layers[-1], edit))})
        for name, edit in edits.items()
    }
    for name in ("experts permuted", "experts scrambled"):
        everywhere = tuple(change(layer, edits[name]) for layer in layers)
        passes[f"all {name}"] = policy.read({"layers": everywhere})
    half = layers[0]["gate_up"].shape[-1] // 2
    swapped = tuple(dict(layer) | {"gate_up": jnp.roll(layer["gate_up"], half, axis=-1)} for layer in layers)
    passes["gate and up swapped"] = policy.read({"layers": swapped})
    return passes


def _objective(
    params: Params, config: TransformerConfig, tokens: AnyArray, first: int, advantages: AnyArray
) -> jax.Array:
    table = jax.nn.log_softmax(logits(params, config, tokens, "f32")[:, first - 1 : -1])
    return jnp.sum(jnp.take_along_axis(table, tokens[:, first:, None], axis=2)[..., 0] * advantages)


_gradient = jax.jit(jax.grad(_objective), static_argnums=(1, 3))


def _context_faults(policy: _ScoredPolicy) -> dict[str, Pass]:
    """Return forward passes with other positions, another prompt, or one other token in the response."""
    params, config, tokens, first = policy.params, policy.config, policy.tokens, policy.first
    passes, count = {}, len(tokens)
    for factor in ROPE_FACTORS:
        other = replace(config, rope_theta=config.rope_theta / factor**2)
        passes[f"rope {factor}"] = policy.pick(_read(params, other, tokens, "f32"))
    for gap in GAPS:
        passes[f"gap {gap}"] = policy.pick(_with_gap(params, config, tokens, first, gap))
    start, end, other = tokens.copy(), tokens.copy(), tokens.copy()
    start[:, 0] = PAD_TOKEN_ID
    end[:, first - 1] = policy.rng.integers(2, 30, count)
    changed = first + policy.rng.integers(0, max(1, tokens.shape[1] - first - 2), count)
    other[np.arange(count), changed] = policy.rng.integers(2, 30, count)
    prompts = np.concatenate([np.roll(tokens[:, :first], 1, 0), tokens[:, first:]], 1)
    contexts = {"prompt start": start, "prompt end": end, "other prompt": prompts, "other token": other}
    passes |= {name: policy.read(tokens=context) for name, context in contexts.items()}
    passes["no first token"] = policy.pick(_read(params, config, tokens[:, 1:], "f32"), first - 1)
    return passes


@partial(jax.jit, static_argnums=(1, 3))
def _with_gap(params: Params, config: TransformerConfig, tokens: AnyArray, first: int, gap: int) -> Outputs:
    """Read the response `gap` positions too late; the empty cache slots between are visible."""
    engine = find_engine("f32")
    weights = transformer.prepare(params, config, engine)
    caches = empty_cache(config, len(tokens), tokens.shape[1] + max(GAPS))
    prompt = transformer.extend(weights, config, engine, caches, tokens[:, :first], 0)
    rest = transformer.extend(weights, config, engine, prompt.caches, tokens[:, first:], first + gap)
    hidden = jnp.concatenate([prompt.hidden, rest.hidden], axis=1)
    return transformer.read_logits(weights, engine, hidden), hidden


@partial(jax.jit, static_argnums=(1, 5))
def _dropout(
    params: Params, config: TransformerConfig, tokens: AnyArray, rate: float, seed: int, where: str
) -> Outputs:
    """Score with dropout on the output of blocks, as in training mode.

    `where` is "everywhere", "last layer", or "attention": every second block.
    """
    plain, keys = transformer.add_residual, iter(jax.random.split(jax.random.key(seed), 64))
    calls = iter(range(64))

    def drop_units(stored: jax.Array, update: jax.Array, engine: Engine) -> tuple[jax.Array, jax.Array]:
        call = next(calls)
        is_last = call >= 2 * (config.num_hidden_layers - 1)
        if not {"everywhere": True, "last layer": is_last, "attention": call % 2 == 0}[where]:
            return plain(stored, update, engine)
        kept = jax.random.bernoulli(next(keys), 1 - rate, update.shape)
        return plain(stored, jnp.where(kept, update / (1 - rate), 0), engine)

    # simlab's models have no dropout; this adds it, while tracing, where Hugging Face's have it.
    with mock.patch.object(transformer, "add_residual", drop_units):
        return _read_eagerly(params, config, tokens, "f32")


def _other_experts(
    config: TransformerConfig, tokens: np.ndarray, chosen: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return experts with another second expert in one layer for 6% of the tokens, and the moved tokens."""
    moved = rng.random(tokens.shape) < 0.06
    layer = rng.integers(0, config.num_hidden_layers, tokens.shape)
    other, rows = chosen.copy(), np.nonzero(moved)
    taken = chosen[(*rows, layer[rows])]
    free = np.array([next(e for e in rng.permutation(config.num_experts) if e not in row) for row in taken])
    other[(*rows, layer[rows], np.full(len(free), -1))] = free
    return other, moved
