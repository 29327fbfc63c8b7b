"""Reinforcement learning with a real engine: the engine samples with the current weights, simlab trains.

`learn(rollout(state))` with another rollout: the engine takes the weights and answers the prompts that simlab
 would have drawn. Everything after that, metrics included, is simlab's own:

    train(recipe, state, steps, chunk=1, advance=learn_from(engine_rollout(engine)))
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from simlab.core.streams import stream
from simlab.rollout.trajectory import Trajectory
from simlab.serving.protocol import EngineError, RealEngine, SamplingRequest
from simlab.tasks import EOS_TOKEN_ID, PAD_TOKEN_ID
from simlab.training.recipe import Recipe, TrainState
from simlab.training.step import Metrics


def real_rollout(engine: RealEngine, recipe: Recipe, state: TrainState) -> tuple[Trajectory, float]:
    """Return what `engine` samples at the parameters of `state`, and the distance of its probe in nats.

    Prompts are those of `simlab.training.step.rollout` at this step. Raises `EngineError`, and `ValueError`
    for a recipe that the engine cannot follow: stale parameters, or filters of sampling.
    """
    filters = (recipe.sampling.top_k, recipe.sampling.top_p, recipe.sampling.noise)
    if recipe.staleness or any(each is not None for each in filters):
        raise ValueError("a real engine samples at a temperature, with the parameters of now; nothing else")
    apart = engine.sync_weights(recipe.model, state.params)
    key = jax.random.fold_in(stream(state.key, "rollout"), state.step)
    prompts = jnp.repeat(
        recipe.task.prompts(stream(key, "prompts"), recipe.prompts_per_step), recipe.group_size, axis=0
    )
    task = recipe.task
    sampling = SamplingRequest(
        max_tokens=task.response_length,
        eos_token_id=getattr(task, "eos_token_id", EOS_TOKEN_ID),
        pad_token_id=getattr(task, "pad_token_id", PAD_TOKEN_ID),
        temperature=float(recipe.sampling.temperature),
        seed=int(jax.random.randint(stream(key, "tokens"), (), 0, 2**30)),
    )
    generation = engine.generate(np.asarray(prompts), sampling)
    if recipe.engines.replay == "R3" and generation.routed_experts is None:
        raise EngineError("replay R3 needs an engine that reports its experts.")
    responses = jnp.asarray(generation.responses)
    trajectory = Trajectory(
        prompts=prompts,
        responses=responses,
        mask=jnp.asarray(generation.mask),
        logp_infer=jnp.asarray(generation.logps),
        rewards=task.check(jnp.concatenate([prompts, responses], axis=-1)),
        routed_experts=None if generation.routed_experts is None else jnp.asarray(generation.routed_experts),
    )
    return trajectory, apart


def engine_rollout(engine: RealEngine) -> Callable[[Recipe, TrainState], tuple[Trajectory, Metrics]]:
    """Return the rollout of `engine` for `simlab.training.loop.learn_from`.

    Its metric `sync_apart` is the distance of the engine's probe after each sync, in nats.
    """

    def rollout(recipe: Recipe, state: TrainState) -> tuple[Trajectory, Metrics]:
        trajectory, apart = real_rollout(engine, recipe, state)
        return trajectory, {"sync_apart": jnp.asarray(apart, jnp.float32)}

    return rollout
