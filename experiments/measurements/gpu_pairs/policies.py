"""Scored policies: tokens of the lab's trained policies, and real logits, each under any engine."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.measurements.softmax import real
from simlab.core.paths import checkout_root
from simlab.core.streams import stream
from simlab.engines import ENGINES, Engine
from simlab.models.config import MODELS, TransformerConfig
from simlab.models.parameters import Params, init_params
from simlab.models.transformer import response_logps
from simlab.rollout import SamplingParams, Trajectory, generate
from simlab.tasks import EOS_TOKEN_ID, PAD_TOKEN_ID, TASKS
from simlab.theory.engine_pairs import WIDTH, engine_rows
from simlab.training.checkpoints import load_tree
from simlab.training.warm_start import WarmStart, warm_start

TASK = TASKS["add"]()
GROUP_SIZE = 4


@dataclass(frozen=True)
class Policy:
    """Sampled tokens and how to score them: `score(engine)` gives log-probabilities [units, tokens].

    `mask` is true at tokens that count. Units (prompts, or positions of a text) are independent.
    `attends`: whether the scored model has attention.
    """

    name: str
    source: str
    attends: bool
    mask: np.ndarray
    score: Callable[[Engine], np.ndarray]


def train_policy(model: str, seed: int, prompts: int, steps: int) -> Policy:
    """Return a policy of the lab with responses that it samples in float32, grouped by prompt."""
    config = MODELS[model]
    params, source = _parameters(model, seed, steps)
    sampled = _sample(params, config, prompts, jax.random.key(seed))
    mask = np.asarray(sampled.mask).reshape(prompts, -1)

    def score(engine: Engine) -> np.ndarray:
        logps = _score(params, config, engine, sampled.prompts, sampled.responses)
        return np.asarray(logps, float).reshape(mask.shape)

    return Policy(model, source, True, mask, score)


@partial(jax.jit, static_argnames=("config", "prompts"))
def _sample(params: Params, config: TransformerConfig, prompts: int, key: Array) -> Trajectory:
    return generate(
        params,
        config,
        ENGINES["f32"],
        SamplingParams(),
        stream(key, "which card"),
        TASK.prompts(stream(key, "which card prompts"), prompts, "held_out"),
        TASK.check,
        group_size=GROUP_SIZE,
        length=TASK.response_length,
        end=EOS_TOKEN_ID,
        pad=PAD_TOKEN_ID,
    )


@partial(jax.jit, static_argnames="config")
def _score(
    params: Params, config: TransformerConfig, engine: Engine, prompts: Array, responses: Array
) -> Array:
    return response_logps(params, config, engine, prompts, responses).logp


def _parameters(model: str, seed: int, steps: int) -> tuple[Params, str]:
    """Load a warm start, or make one in `steps` updates where there is none."""
    name, config = f"add-{model}-{seed}.npz", MODELS[model]
    path = checkout_root() / "experiments" / "warm_starts" / name
    if path.is_file():
        return load_tree(path, init_params(jax.random.key(0), config)), name
    train = jax.jit(warm_start, static_argnums=(0, 1))
    return train(TASK, config, WarmStart(steps=steps), jax.random.key(seed))[0], f"{steps} steps, not kept"


def smollm2(positions: int, tokens: int, seed: int) -> Policy:
    """Return real logits as a policy: one product and a head whose exact result they are.

    The largest 128 logits of each position stand for all. `tokens` are drawn per position in float32.
    """
    logits = np.asarray(real.load(positions).logits[:, -WIDTH:], np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    key = stream(jax.random.key(seed), "real tokens")
    wanted = jnp.asarray(logits[:, None], jnp.float32)
    drawn = np.asarray(jax.random.categorical(key, wanted, shape=(len(logits), tokens)))

    def score(engine: Engine) -> np.ndarray:
        return np.take_along_axis(np.log(engine_rows(logits, engine)), drawn, axis=1)

    mask = np.ones(drawn.shape, bool)
    return Policy("smollm2", "experiments/data/smollm2_logits.npz", False, mask, score)
