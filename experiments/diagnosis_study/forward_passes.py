"""Forward passes of a lab policy under real engines and with faults inside: logits per context.

A pool holds one set of contexts of one policy, and the logits of each engine and of each faulty forward pass
at exactly these contexts. Logs are then assembled in NumPy, which is cheap.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import simlab.models.transformer as transformer
from simlab.engines import find_engine
from simlab.models import MODELS, TransformerConfig, logits
from simlab.models.kv_cache import empty_cache
from simlab.rollout.generate import generate
from simlab.rollout.sampling import SamplingParams
from simlab.sweeps.start import load_initial_params, model_of_start, read_start
from simlab.tasks import EOS_TOKEN_ID, PAD_TOKEN_ID, TASKS

CONTEXTS = 5000
"""Maximum number of contexts of a pool."""
TRAIN_ENGINES = ("f32", "bf16", "bf16-fp32head")
INFER_ENGINES = ("f32", "bf16", "vllm-bf16", "fp8-e4m3", "bf16-fp8kv", "nvfp4")
HELD_OUT_ENGINES = ("mxfp8", "int8-w8a8", "fp16")
"""Inference engines that the fit never sees."""
UPDATES = 6
UPDATE_SIZE = 1.5e-3
ROPE_FACTORS = (1.3, 2.0, 4.0, 8.0)
GAPS = (1, 4, 16)


@dataclass
class Pool:
    """Logits [N, V] at the same N contexts, and where each context is in its sequence.

    - `engines`: by engine, of the policy itself.
    - `faults`: by fault, float32 engine; `reference` is the float32 engine without a fault.
    - `hidden` [N, D]: last hidden states; `head` [V, D].
    - `sequence`, `index`: place of each context; `experts` [N, layers x top_k] or None.
    """

    name: str
    engines: dict[str, np.ndarray]
    faults: dict[str, np.ndarray]
    hidden: np.ndarray
    sequence: np.ndarray
    index: np.ndarray
    experts: np.ndarray | None
    flipped: np.ndarray | None

    @property
    def reference(self) -> np.ndarray:
        """Logits [N, V] of the float32 engine."""
        return self.engines["f32"]


def make_pool(name: str, seed: int, contexts: int = CONTEXTS) -> Pool:
    """Sample contexts of the stored policy `name` and run every engine and every faulty forward pass."""
    task = TASKS["chain" if name.startswith("chain") else "add"]()
    config = _config(name)
    params = load_initial_params(read_start(name, config), task, config, 0, Path())
    rng = np.random.default_rng(seed)
    prompts = rng.permutation(task.prompt_set())[: contexts // task.response_length]
    found = _generate_responses(params, config, task, jnp.asarray(prompts), jax.random.key(seed))
    tokens = np.concatenate([prompts, np.asarray(found.responses)], axis=1)
    first, mask = prompts.shape[1], np.asarray(found.mask)

    def pick(values: Any) -> np.ndarray:
        return np.asarray(values)[:, first - 1 : -1][mask].astype(np.float32)

    scored = jax.jit(logits, static_argnums=(1, 3))
    engines = {
        engine: pick(scored(params, config, tokens, engine))
        for engine in dict.fromkeys((*TRAIN_ENGINES, *INFER_ENGINES, *HELD_OUT_ENGINES))
    }
    forward = _forward(params, config, tokens)
    faults = _weight_faults(params, config, tokens, first, mask, rng, pick)
    faults |= _context_faults(params, config, tokens, first, rng, pick)
    faults |= {f"dropout {rate}": pick(_dropout(params, config, tokens, rate, seed)) for rate in (0.05, 0.1)}
    experts = flipped = None
    if forward.routed_experts is not None:
        chosen = np.asarray(forward.routed_experts)
        faults["routing"], moved = _other_experts(params, config, tokens, chosen, rng, pick)
        experts = chosen[:, first - 1 : -1][mask].reshape(int(mask.sum()), -1).astype(np.int16)
        flipped = moved[:, first - 1 : -1][mask]
    sequence, index = np.nonzero(mask)
    hidden = np.asarray(forward.hidden)[:, first - 1 : -1][mask]
    return Pool(name, engines, faults, hidden, sequence, index, experts, flipped)


def _config(name: str) -> TransformerConfig:
    model: Any = model_of_start(name)
    if isinstance(model, str):
        return MODELS[model]
    fields = {key: value for key, value in model.items() if key != "name"}
    return replace(MODELS[model["name"]], **fields)


def _generate_responses(params: Any, config: TransformerConfig, task: Any, prompts: Any, key: Any) -> Any:
    def run(params: Any, prompts: Any, key: Any) -> Any:
        return generate(
            params,
            config,
            find_engine("f32"),
            SamplingParams(),
            key,
            prompts,
            lambda tokens: jnp.zeros(len(tokens)),
            group_size=1,
            length=task.response_length,
            end=EOS_TOKEN_ID,
            pad=PAD_TOKEN_ID,
        )

    return jax.jit(run)(params, prompts, key)


def _forward(params: Any, config: TransformerConfig, tokens: Any) -> Any:
    engine = find_engine("f32")
    weights = transformer.prepare(params, config, engine)
    return transformer.extend(weights, config, engine, empty_cache(config, *tokens.shape), tokens, 0)


def _weight_faults(
    params: Any,
    config: TransformerConfig,
    tokens: Any,
    first: int,
    mask: np.ndarray,
    rng: Any,
    pick: Any,
) -> dict[str, np.ndarray]:
    """Return old weights (1 to `UPDATES` updates back) and one layer that never arrived."""
    scored = jax.jit(logits, static_argnums=(1, 3))

    found, old = {}, params
    for age in range(1, UPDATES + 1):
        # Adam's first steps move every weight by about the learning rate, in the direction of the gradient.
        advantages = rng.normal(size=(len(tokens), 1)).astype(np.float32)
        step = _gradient(old, config, tokens, first, advantages * mask)
        old = jax.tree.map(lambda weight, slope: weight - UPDATE_SIZE * jnp.sign(slope), old, step)
        found[f"old {age}"] = pick(scored(old, config, tokens, "f32"))
    late = dict(params) | {"layers": (old["layers"][0], *params["layers"][1:])}
    found["layer old"] = pick(scored(late, config, tokens, "f32"))
    noisy = jax.tree.map(
        lambda weight: weight + 0.3 * weight.std() * rng.normal(size=weight.shape).astype(np.float32),
        params["layers"][-1],
    )
    lost = dict(params) | {"layers": (*params["layers"][:-1], noisy)}
    found["layer corrupt"] = pick(scored(lost, config, tokens, "f32"))
    return found


def _objective(params: Any, config: TransformerConfig, tokens: Any, first: int, advantages: Any) -> Any:
    table = jax.nn.log_softmax(logits(params, config, tokens, "f32")[:, first - 1 : -1])
    return jnp.sum(jnp.take_along_axis(table, tokens[:, first:, None], axis=2)[..., 0] * advantages)


_gradient = jax.jit(jax.grad(_objective), static_argnums=(1, 3))


def _context_faults(
    params: Any, config: TransformerConfig, tokens: Any, first: int, rng: Any, pick: Any
) -> dict[str, np.ndarray]:
    """Return forward passes with other positions, another prompt, or one other token in the response."""
    scored = jax.jit(logits, static_argnums=(1, 3))
    found = {}
    for factor in ROPE_FACTORS:
        other = replace(config, rope_theta=config.rope_theta / factor**2)
        found[f"rope {factor}"] = pick(scored(params, other, tokens, "f32"))
    for gap in GAPS:
        found[f"gap {gap}"] = pick(_with_gap(params, config, tokens, first, gap))
    prompt = tokens.copy()
    prompt[:, 0] = PAD_TOKEN_ID
    found["prompt start"] = pick(scored(params, config, prompt, "f32"))
    prompt = tokens.copy()
    prompt[:, first - 1] = rng.integers(2, 30, len(tokens))
    found["prompt end"] = pick(scored(params, config, prompt, "f32"))
    other = tokens.copy()
    place = first + rng.integers(0, max(1, tokens.shape[1] - first - 2), len(tokens))
    other[np.arange(len(tokens)), place] = rng.integers(2, 30, len(tokens))
    found["other token"] = pick(scored(params, config, other, "f32"))
    return found


def _with_gap(params: Any, config: TransformerConfig, tokens: Any, first: int, gap: int) -> Any:
    """Read the response `gap` positions too late; the empty cache slots between are visible."""
    engine = find_engine("f32")
    weights = transformer.prepare(params, config, engine)
    caches = empty_cache(config, len(tokens), tokens.shape[1] + gap)
    prompt = transformer.extend(weights, config, engine, caches, tokens[:, :first], 0)
    rest = transformer.extend(weights, config, engine, prompt.caches, tokens[:, first:], first + gap)
    hidden = jnp.concatenate([prompt.hidden, rest.hidden], axis=1)
    return transformer.read_logits(weights, engine, hidden)


def _dropout(params: Any, config: TransformerConfig, tokens: Any, rate: float, seed: int) -> Any:
    """Score with dropout on the output of every block, as a trainer left in training mode does."""
    plain, keys = transformer.add_residual, iter(jax.random.split(jax.random.key(seed), 64))

    def drop_units(stored: Any, update: Any, engine: Any) -> Any:
        kept = jax.random.bernoulli(next(keys), 1 - rate, update.shape)
        return plain(stored, jnp.where(kept, update / (1 - rate), 0), engine)

    # The lab's models have no dropout; this adds it where Hugging Face's have it.
    with mock.patch.object(transformer, "add_residual", drop_units):
        return logits(params, config, jnp.asarray(tokens), "f32")


def _other_experts(
    params: Any, config: TransformerConfig, tokens: Any, chosen: np.ndarray, rng: Any, pick: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Route 6% of the tokens to another second expert in one layer; return logits and the moved tokens."""
    moved = rng.random(tokens.shape) < 0.06
    layer = rng.integers(0, config.num_hidden_layers, tokens.shape)
    other, rows = chosen.copy(), np.nonzero(moved)
    taken = chosen[(*rows, layer[rows])]
    free = np.array([next(e for e in rng.permutation(config.num_experts) if e not in row) for row in taken])
    other[(*rows, layer[rows], np.full(len(free), -1))] = free
    engine = find_engine("f32")
    weights = transformer.prepare(params, config, engine)
    caches = empty_cache(config, *tokens.shape)
    hidden = transformer.extend(weights, config, engine, caches, tokens, 0, jnp.asarray(other)).hidden
    return pick(transformer.read_logits(weights, engine, hidden)), moved
