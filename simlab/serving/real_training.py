"""Reinforcement learning with a real engine: it samples with the weights of now, the lab learns.

`learn(rollout(state))` with another rollout: the engine takes the weights, answers the prompts that the lab
would have drawn, and everything behind that, metrics included, is the lab's own.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from simlab.core.atomic import write_atomically
from simlab.core.streams import stream
from simlab.rollout.trajectory import Trajectory
from simlab.serving.protocol import EngineError, RealEngine, SamplingParams
from simlab.serving.rewards import TextTask
from simlab.tasks import END, PAD
from simlab.training.checkpoints import load_tree, save_tree
from simlab.training.recipe import Recipe, TrainState
from simlab.training.step import learn, train_step

Metrics = dict[str, np.ndarray]
Step = Callable[[Recipe, TrainState], tuple[TrainState, Metrics]]


def real_rollout(engine: RealEngine, recipe: Recipe, state: TrainState) -> tuple[Trajectory, float]:
    """Return what `engine` samples at the parameters of `state`, and the distance of its probe in nats.

    Prompts are those of `simlab.training.step.rollout` at this step. Raises `EngineError`, and `ValueError`
    for a recipe that the engine cannot follow: stale parameters, or filters of the sampler.
    """
    sampler = recipe.sampler
    if (
        recipe.staleness
        or sampler.top_k is not None
        or sampler.top_p is not None
        or sampler.noise is not None
    ):
        raise ValueError("a real engine samples at a temperature, with the parameters of now; nothing else")
    apart = engine.sync_weights(recipe.model, state.params)
    key = jax.random.fold_in(stream(state.key, "rollout"), state.step)
    prompts = jnp.repeat(
        recipe.task.prompts(stream(key, "prompts"), recipe.prompts), recipe.group_size, axis=0
    )
    task = recipe.task
    end, pad = (task.eos_token_id, task.pad_token_id) if isinstance(task, TextTask) else (END, PAD)
    sampling = SamplingParams(
        max_tokens=task.response_length,
        eos_token_id=end,
        pad_token_id=pad,
        temperature=float(sampler.temperature),
        seed=int(jax.random.randint(stream(key, "tokens"), (), 0, 2**30)),
    )
    found = engine.generate(np.asarray(prompts), sampling)
    if recipe.engines.replay == "R3" and found.routed_experts is None:
        raise EngineError("replay R3 needs an engine that tells its experts; this one does not")
    responses = jnp.asarray(found.responses)
    trajectory = Trajectory(
        prompts=prompts,
        responses=responses,
        mask=jnp.asarray(found.mask),
        logp_infer=jnp.asarray(found.logps),
        rewards=task.check(jnp.concatenate([prompts, responses], axis=-1)),
        routed_experts=None if found.routed_experts is None else jnp.asarray(found.routed_experts),
    )
    return trajectory, apart


def real_step(engine: RealEngine) -> Step:
    """Return a step that samples with `engine`; its metrics have `sync_apart`, the probe's distance, too."""

    def step(recipe: Recipe, state: TrainState) -> tuple[TrainState, Metrics]:
        trajectory, apart = real_rollout(engine, recipe, state)
        state, metrics = _learn(recipe, state, trajectory)
        return state, {**_measured(metrics), "sync_apart": np.asarray(apart, np.float32)}

    return step


def emulated_step(recipe: Recipe, state: TrainState) -> tuple[TrainState, Metrics]:
    """Make the same step with the recipe's own inference engine: the twin."""
    state, metrics = _train_step(recipe, state)
    return state, _measured(metrics)


def train_with(
    step: Step, recipe: Recipe, state: TrainState, steps: int, folder: Path, every: int = 10
) -> Iterator[Metrics]:
    """Yield the metrics of each of `steps` steps; a run that was killed goes on where it last was saved.

    The state and all metrics so far are saved in `folder` every so many steps; what is there already is
    yielded again without being computed.
    """
    saved, rows = folder / "state.npz", folder / "metrics.npz"
    history: list[Metrics] = []
    if saved.is_file() and rows.is_file():
        with np.load(rows) as stored:
            names = stored.files
            history = [
                {name: stored[name][number] for name in names} for number in range(len(stored[names[0]]))
            ]
        state = load_tree(saved, state)
        # The two files are written one after the other: metrics may be ahead by one save.
        history = history[: int(state.step)]
    yield from history
    while len(history) < steps:
        state, metrics = step(recipe, state)
        history.append(metrics)
        if len(history) % every == 0 or len(history) == steps:
            stacked = {name: np.stack([row[name] for row in history]) for name in metrics}
            write_atomically(
                rows, lambda file, stacked=stacked: np.savez(file, allow_pickle=False, **stacked)
            )
            save_tree(saved, state)
        yield metrics


def _measured(metrics: Any) -> Metrics:
    return {name: np.asarray(value) for name, value in metrics.items()}


_learn = jax.jit(learn)
_train_step = jax.jit(train_step)
