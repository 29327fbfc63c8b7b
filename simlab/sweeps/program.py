"""The compiled function of a run batch: `runs_per_batch` runs side by side, a chunk of steps per call."""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from simlab.models.parameters import Params
from simlab.sweeps.compile_cache import compile_cache_folder, fixed_order_options
from simlab.sweeps.config import RunConfig, recipe_of
from simlab.sweeps.export_cache import load_or_export
from simlab.sweeps.switch_objective import PROGRAM, SwitchObjective, as_switch_objective
from simlab.training.checkpoints import Progress, restore
from simlab.training.loop import scan_steps
from simlab.training.recipe import Recipe, TrainState, initial_state

LONGEST_CHUNK = 10


def swept_recipe(config: RunConfig) -> Recipe:
    """Return the recipe of a run as a sweep computes it: its objective in the form that all share."""
    recipe = recipe_of(config)
    return replace(recipe, objective=as_switch_objective(recipe.objective))


def program_name(recipe: Recipe) -> str:
    """Return what shapes a run's compiled function beyond its config: the branches of its objective."""
    return PROGRAM if isinstance(recipe.objective, SwitchObjective) else ""


def static_signature(recipe: Recipe, steps: int) -> Hashable:
    """Return what runs of a batch have in common: structure of the recipe, types of its numbers, steps."""
    leaves, tree = jax.tree.flatten(recipe)
    return tree, tuple(_dtype(leaf) for leaf in leaves), steps


def chunk_length(steps: int) -> int:
    """Return how many steps one call makes; whole calls may pass `steps` by less than their number."""
    return -(-steps // -(-steps // LONGEST_CHUNK))


@dataclass(frozen=True)
class BatchedRun:
    """One run of a batch: its recipe, first parameters and seed, and how far it has come."""

    recipe: Recipe
    params: Params
    seed: int
    progress: Progress | None = None

    @property
    def steps_completed(self) -> int:
        """Return the number of steps completed."""
        return 0 if self.progress is None else len(next(iter(self.progress.metrics.values())))


@dataclass
class Program:
    """A compiled chunk, from leaves to leaves, and what it cost to get it."""

    compiled: jax.stages.Compiled
    seconds: float

    def run(self, recipe: Recipe, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        """Advance stacked runs by a chunk; the state given is used up."""
        leaves, tree = jax.tree.flatten(state)
        after, metrics = self.compiled(jax.tree.leaves(recipe), leaves)
        return tree.unflatten(after), metrics


_PROGRAMS: dict[Hashable, Program] = {}


def compile_chunk(arguments: tuple[Recipe, TrainState], steps: int) -> Program:
    """Return the program for arguments of these structures and shapes, compiled at most once."""
    leaves, tree = jax.tree.flatten(arguments)
    chunk = chunk_length(steps)
    name = (tree, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves), chunk)
    if name not in _PROGRAMS:
        start = time.perf_counter()
        traced = load_or_export(
            partial(_leaves_of_chunk, chunk), arguments, str(chunk), compile_cache_folder()
        )
        run = jax.jit(traced.call, donate_argnums=1, compiler_options=fixed_order_options())
        parts = [jax.tree.leaves(argument) for argument in arguments]
        _PROGRAMS[name] = Program(run.lower(*parts).compile(), time.perf_counter() - start)
    return _PROGRAMS[name]


def _leaves_of_chunk(chunk: int, recipe: Recipe, state: TrainState) -> tuple[list[jax.Array], dict]:
    after, metrics = jax.vmap(partial(scan_steps, steps=chunk))(recipe, state)
    return jax.tree.leaves(after), metrics


def stack_members(members: Sequence[BatchedRun], runs_per_batch: int) -> tuple[Recipe, TrainState]:
    """Return recipes and states side by side.

    Every number has an axis of its own member, whether or not it varies, so that neighbors never change the
    program. Empty members repeat the first run and are thrown away.
    """
    padded = [*members, *[members[0]] * (runs_per_batch - len(members))]
    return _stack([member.recipe for member in padded]), _stack([_state(member) for member in padded])


def _state(member: BatchedRun) -> TrainState:
    first = partial(initial_state, member.recipe, member.params, jax.random.key(member.seed))
    if member.progress is None:
        return first()
    return restore(member.progress.state, jax.eval_shape(first), "a checkpoint")


def _stack(trees: list[PyTree]) -> PyTree:
    return jax.tree.map(_stack_leaves, *trees)


def _stack_leaves(*leaves: PyTree) -> jax.Array:
    if jax.dtypes.issubdtype(_dtype(leaves[0]), jax.dtypes.prng_key):
        return jnp.stack(leaves)
    # On the host: an operation per leaf on the device costs more than the batch itself.
    return jnp.asarray(np.stack([np.asarray(leaf, _dtype(leaf)) for leaf in leaves]))


def _dtype(leaf: PyTree) -> np.dtype:
    # A Python number has no type of its own until it is put into an array.
    return getattr(leaf, "dtype", None) or jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)
