"""The compiled program of a slice: `width` runs side by side, a chunk of steps per call."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from simlab.models.parameters import Params
from simlab.sweeps.any_objective import PROGRAM, AnyObjective, shared
from simlab.sweeps.cache import one_order
from simlab.sweeps.config import RunConfig, recipe_of
from simlab.training.loop import advance
from simlab.training.recipe import Recipe, TrainState, initial_state

LONGEST_CHUNK = 10
Metrics = dict[str, np.ndarray]


def swept_recipe(config: RunConfig) -> Recipe:
    """Return the recipe of a run as a sweep computes it: its objective in the form that all share."""
    recipe = recipe_of(config)
    return replace(recipe, objective=shared(recipe.objective))


def program_name(recipe: Recipe) -> str:
    """Return what shapes a run's program beyond its config: the menus that its objective was picked from."""
    return PROGRAM if isinstance(recipe.objective, AnyObjective) else ""


def static_signature(recipe: Recipe, steps: int) -> Any:
    """Return what runs of a slice have in common: structure of the recipe, types of its numbers, steps."""
    leaves, tree = jax.tree.flatten(recipe)
    return tree, tuple(_dtype(leaf) for leaf in leaves), steps


def chunk_length(steps: int) -> int:
    """Return how many steps one call makes; whole calls may pass `steps` by less than their number."""
    return -(-steps // -(-steps // LONGEST_CHUNK))


@dataclass(frozen=True)
class Lane:
    """One run of a slice: its recipe, first parameters and seed."""

    recipe: Recipe
    params: Params
    seed: int


@dataclass
class Program:
    """A compiled chunk and what it cost to get it."""

    run: Any
    seconds: float


_PROGRAMS: dict[Any, Program] = {}


def compiled(arguments: tuple[Recipe, TrainState], steps: int) -> Program:
    """Return the program for arguments of these structures and shapes, compiled at most once."""
    leaves, tree = jax.tree.flatten(arguments)
    chunk = chunk_length(steps)
    name = (tree, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves), chunk)
    if name not in _PROGRAMS:
        start = time.perf_counter()
        many = jax.vmap(partial(advance, steps=chunk))
        run = jax.jit(many, donate_argnums=1, compiler_options=one_order()).lower(*arguments).compile()
        _PROGRAMS[name] = Program(run, time.perf_counter() - start)
    return _PROGRAMS[name]


def run_slice(lanes: Sequence[Lane], width: int, steps: int) -> Iterator[tuple[int, Metrics]]:
    """Yield (steps done, metrics [lanes, steps of the chunk, ...]) after every chunk.

    Empty lanes repeat the first run and are thrown away. Every number has an axis of its own lane, whether or
    not it varies, so that neighbors never change the program.
    """
    recipe, state = stacked(lanes, width)
    program = compiled((recipe, state), steps)
    for done in range(0, steps, chunk_length(steps)):
        state, metrics = program.run(recipe, state)
        count = min(chunk_length(steps), steps - done)
        yield (
            done + count,
            {name: np.asarray(values)[: len(lanes), :count] for name, values in metrics.items()},
        )


def stacked(lanes: Sequence[Lane], width: int) -> tuple[Recipe, TrainState]:
    """Return recipes and first states side by side, padded to `width`."""
    padded = [*lanes, *[lanes[0]] * (width - len(lanes))]
    states = [initial_state(lane.recipe, lane.params, jax.random.key(lane.seed)) for lane in padded]
    return _stack([lane.recipe for lane in padded]), _stack(states)


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(_stack_leaves, *trees)


def _stack_leaves(*leaves: Any) -> jax.Array:
    if jax.dtypes.issubdtype(_dtype(leaves[0]), jax.dtypes.prng_key):
        return jnp.stack(leaves)
    # On the host: an operation per leaf on the device costs more than the slice itself.
    return jnp.asarray(np.stack([np.asarray(leaf, _dtype(leaf)) for leaf in leaves]))


def _dtype(leaf: Any) -> Any:
    # A Python number has no type of its own until it is put into an array.
    return getattr(leaf, "dtype", None) or jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)
