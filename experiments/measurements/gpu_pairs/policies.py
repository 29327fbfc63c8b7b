"""Score tokens of policies trained in simlab, and logits of a real model, under any engine."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.measurements.softmax import real
from simlab.core.backend import require_one_thread
from simlab.core.paths import checkout_root
from simlab.core.streams import stream
from simlab.engines import ENGINES, Engine
from simlab.models.config import MODELS, TransformerConfig
from simlab.models.parameters import Params
from simlab.models.transformer import response_logps
from simlab.rollout import Trajectory
from simlab.sweeps.start import load_initial_params, read_start
from simlab.tasks import TASKS
from simlab.theory.engine_pairs import WIDTH, engine_rows
from simlab.training.recipe import SamplingRecipe
from simlab.training.step import sample_responses

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
    """Return a policy of simlab with responses that it samples in float32, grouped by prompt."""
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
    asked = TASK.prompts(stream(key, "which card prompts"), prompts, "held_out")
    sampling = SamplingRecipe(
        engine=ENGINES["f32"], task=TASK, model=config, prompts_per_step=prompts, group_size=GROUP_SIZE
    )
    return sample_responses(sampling, params, stream(key, "which card"), asked)


@partial(jax.jit, static_argnames="config")
def _score(
    params: Params, config: TransformerConfig, engine: Engine, prompts: Array, responses: Array
) -> Array:
    return response_logps(params, config, engine, prompts, responses).logp


def _parameters(model: str, seed: int, steps: int) -> tuple[Params, str]:
    """Load a warm start, or train one in `steps` updates if there is none."""
    name, config = f"add-{model}-{seed}.npz", MODELS[model]
    is_stored = (checkout_root() / "experiments" / "warm_starts" / name).is_file()
    start = read_start(name, config) if is_stored else {"seed": seed, "steps": steps}
    if not is_stored:
        require_one_thread()
    with tempfile.TemporaryDirectory() as folder:
        params = load_initial_params(start, TASK, config, seed, Path(folder))
    return params, name if is_stored else f"{steps} steps, not kept"


def smollm2(positions: int, tokens: int, seed: int) -> Policy:
    """Return real logits as a policy: one product and a head with these logits as exact result.

    Only the largest 128 logits of each position are used. `tokens` are drawn per position in float32.
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
