"""A run batch: `runs_per_batch` runs in parallel, a chunk of steps per call."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from simlab.engines.constant import ConstantEngine, hold_constant
from simlab.models.parameters import Params
from simlab.sweeps.config import RunConfig, recipe_of
from simlab.sweeps.switch_objective import SwitchObjective, as_switch_objective, list_kinds
from simlab.training.checkpoints import UnfinishedRun, restore
from simlab.training.recipe import Recipe, TrainState, initial_state, state_shapes

LONGEST_CHUNK = 10


def swept_recipe(config: RunConfig) -> Recipe:
    """Return the recipe of a run as a sweep computes it.

    Its objective has the form that all share; engines of the catalog are constants. Both follow from the
    config alone, not from the other runs of the sweep.
    """
    recipe = recipe_of(config)
    pair = recipe.engines
    pair = replace(pair, train=hold_constant(pair.train), infer=hold_constant(pair.infer))
    return replace(recipe, objective=as_switch_objective(recipe.objective), engines=pair)


def lone_recipe(config: RunConfig) -> Recipe:
    """Return the recipe of a run whose compile group has one objective.

    Its stages are those of the objective alone: `learn` compiles in 70% of the time. On a CPU the bits are
    those of `swept_recipe`, so the key of a run does not name this form.
    """
    return replace(swept_recipe(config), objective=replace(recipe_of(config).objective, source=""))


def program_name(recipe: Recipe) -> str:
    """Return what shapes a run's compiled functions beyond its config.

    These are the branches of its objective and the engines that are constants, because both can change the
    bits of a run. If all engines are arguments, the name is that of versions without constants.
    """
    objective = recipe.objective
    branches = list_kinds(objective.alternatives) if isinstance(objective, SwitchObjective) else ""
    sides = {"train": recipe.engines.train, "infer": recipe.engines.infer}
    held = [side for side, engine in sides.items() if isinstance(engine, ConstantEngine)]
    return f"{branches}; constant engines: {', '.join(held)}" if held else branches


def static_signature(recipe: Recipe, steps: int) -> Hashable:
    """Return what the runs of a batch share: structure of the recipe, types of its numbers, steps."""
    leaves, tree = jax.tree.flatten(recipe)
    return tree, tuple(_dtype(leaf) for leaf in leaves), steps


def chunk_length(steps: int) -> int:
    """Return how many steps one call makes; complete calls may pass `steps` by less than their number."""
    return -(-steps // -(-steps // LONGEST_CHUNK))


@dataclass(frozen=True)
class BatchedRun:
    """One run of a batch: its recipe, initial parameters, seed and progress."""

    recipe: Recipe
    params: Params
    seed: int
    progress: UnfinishedRun | None = None

    @property
    def steps_completed(self) -> int:
        """Return the number of steps completed."""
        return 0 if self.progress is None else len(next(iter(self.progress.metrics.values())))


def stack_members(members: Sequence[BatchedRun], runs_per_batch: int) -> tuple[Recipe, TrainState]:
    """Stack recipes and states.

    Every number has an axis of its own member, whether or not it varies, so other runs of the batch never
    change the compiled function. Empty members repeat the first run and are discarded.
    """
    padded = [*members, *[members[0]] * (runs_per_batch - len(members))]
    return _stack([member.recipe for member in padded]), _stack([_state(member) for member in padded])


def stack_shapes(recipe: Recipe, runs_per_batch: int) -> tuple[PyTree, PyTree]:
    """Return recipe and state of a batch of runs like `recipe` as `stack_members` does, in shapes alone."""

    def stack(leaf: PyTree) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((runs_per_batch, *np.shape(leaf)), _dtype(leaf))

    return jax.tree.map(stack, recipe), jax.tree.map(stack, state_shapes(recipe))


def _state(member: BatchedRun) -> TrainState:
    first = partial(initial_state, member.recipe, member.params, jax.random.key(member.seed))
    if member.progress is None:
        return first()
    return restore(member.progress.state, jax.eval_shape(first), "a checkpoint")


def _stack(trees: list[PyTree]) -> PyTree:
    # On the host and in one transfer: an operation per leaf on the device costs more than the batch itself.
    return jax.device_put(jax.tree.map(_stack_leaves, *jax.device_get(trees)))


def _stack_leaves(*leaves: PyTree) -> jax.Array | np.ndarray:
    if jax.dtypes.issubdtype(_dtype(leaves[0]), jax.dtypes.prng_key):
        return jnp.stack(leaves)
    return np.stack([np.asarray(leaf, _dtype(leaf)) for leaf in leaves])


def _dtype(leaf: PyTree) -> np.dtype:
    # A Python number has no type of its own until it is put into an array.
    return getattr(leaf, "dtype", None) or jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)
