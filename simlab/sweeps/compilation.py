"""The two compiled functions of a run batch, `sample` and `learn`, compiled at the same time.

Batches whose recipes differ only in the inference engine share `learn`. Batches that differ only in what a
rollout does not read share `sample`. Neither depends on the number of steps.
"""

import hashlib
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, export
from jaxtyping import PyTree

from simlab.core.backend import compile_cache_folder, compiler_options
from simlab.rollout.trajectory import Trajectory
from simlab.sweeps.compile_cache import compiling_alone
from simlab.sweeps.export_cache import load_or_export
from simlab.sweeps.memory import keep_freed_memory, resident_bytes, return_free_memory
from simlab.training.loop import alternate, map_updates
from simlab.training.recipe import Recipe, SamplingRecipe, TrainState
from simlab.training.step import Metrics, learn, learning_recipe, sample, sampling_recipe, swap_time

Leaves = list[Array]
Shapes = list[jax.ShapeDtypeStruct]


@dataclass(frozen=True)
class BatchProgram:
    """The compiled functions of a run batch, from leaves to leaves, and the cost of obtaining them."""

    sample: jax.stages.Compiled
    learn: jax.stages.Compiled
    seconds: float

    def advance(self, steps: int, recipe: Recipe, state: TrainState) -> tuple[TrainState, list[Metrics]]:
        """Start `steps` steps of stacked runs. The input state is donated."""
        sampling = jax.tree.leaves(sampling_recipe(recipe))
        learning = jax.tree.leaves(learning_recipe(recipe))
        leaves, tree = jax.tree.flatten(state)

        def rollout(leaves: Leaves) -> tuple[Leaves, Metrics]:
            return self.sample(sampling, jax.tree.leaves(_sampled_part(tree.unflatten(leaves)))), {}

        def update(leaves: Leaves, trajectory: Leaves) -> tuple[Leaves, Metrics]:
            return self.learn(learning, leaves, trajectory)

        after, metrics = alternate(rollout, update, leaves, steps)
        return tree.unflatten(after), metrics


# Each with the shapes of what it returns.
_COMPILED: dict[Hashable, tuple[Future[jax.stages.Compiled], Shapes]] = {}


def count_operations(recipe: Recipe, state: TrainState) -> dict[str, int]:
    """Trace the functions of stacked runs, given in arrays or shapes, and count their operations by digest.

    A trace is stored in the cache folder, where the compilation reads it.
    """
    sampling = sampling_recipe(recipe)
    sampled = _trace(_sample_leaves, (sampling, _sampled_part(state)))
    trajectory = jax.tree.unflatten(_trajectory_tree(sampling), _shapes(sampled))
    learned = _trace(_learn_leaves, (learning_recipe(recipe), state, trajectory))
    return {_digest(each): each.mlir_module().count(" stablehlo.") for each in (sampled, learned)}


def compile_batch(recipe: Recipe, state: TrainState) -> BatchProgram:
    """Return the functions of stacked runs, compiled once for these structures and shapes."""
    start = time.perf_counter()
    sampling = sampling_recipe(recipe)
    # A thread of its own: this one traces the next function in the meantime.
    with ThreadPoolExecutor(2) as pool:
        sampled, shapes = _compile(pool, _sample_leaves, (sampling, _sampled_part(state)))
        trajectory = jax.tree.unflatten(_trajectory_tree(sampling), shapes)
        learned, _ = _compile(pool, _learn_leaves, (learning_recipe(recipe), state, trajectory), donated=(1,))
        program = BatchProgram(sampled.result(), learned.result(), time.perf_counter() - start)
    return_free_memory()
    keep_freed_memory()
    return program


def forget_compiled() -> None:
    """Drop the compiled functions of this process; they stay in the cache folder."""
    _COMPILED.clear()


def forget_above(limit: float) -> None:
    """Forget compiled functions, and free their memory, if this process has more than `limit` bytes."""
    if resident_bytes() > limit:
        forget_compiled()
        jax.clear_caches()
        return_free_memory()


def _compile(
    pool: ThreadPoolExecutor, function: Callable, arguments: tuple, donated: tuple[int, ...] = ()
) -> tuple[Future[jax.stages.Compiled], Shapes]:
    leaves, tree = jax.tree.flatten(arguments)
    name = (function, tree, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))
    if name not in _COMPILED:
        traced = _trace(function, arguments)
        parts = [jax.tree.leaves(argument) for argument in arguments]
        _COMPILED[name] = pool.submit(_compile_traced, traced, parts, donated), _shapes(traced)
    return _COMPILED[name]


def _trace(function: Callable, arguments: tuple) -> export.Exported:
    return load_or_export(function, arguments, function.__name__, compile_cache_folder())


def _shapes(traced: export.Exported) -> Shapes:
    return [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in traced.out_avals]


def _compile_traced(traced: export.Exported, parts: list, donated: tuple[int, ...]) -> jax.stages.Compiled:
    function = jax.jit(traced.call, donate_argnums=donated, compiler_options=compiler_options())
    # Processes that begin with different engine pairs need the same `learn` at the same time.
    with compiling_alone(_digest(traced)):
        return function.lower(*parts).compile()


def _digest(traced: export.Exported) -> str:
    return hashlib.sha256(traced.mlir_module_serialized).hexdigest()


def _sampled_part(state: TrainState) -> tuple:
    """Return what `sample` reads of a state."""
    return state.params, state.past_params, state.key, state.step


def _sample_leaves(recipe: SamplingRecipe, state: tuple) -> Leaves:
    return jax.tree.leaves(jax.vmap(lambda *arguments: swap_time(sample(*arguments)))(recipe, *state))


def _learn_leaves(recipe: Recipe, state: TrainState, trajectory: Trajectory) -> tuple[Leaves, Metrics]:
    after, metrics = map_updates(learn)(recipe, state, jax.vmap(swap_time)(trajectory))
    return jax.tree.leaves(after), metrics


def _trajectory_tree(recipe: SamplingRecipe) -> PyTree:
    """Return the structure of a trajectory, which depends only on these two arguments."""
    leaf = jnp.zeros(())
    experts, vocabulary = (leaf if has else None for has in (recipe.model.num_experts, recipe.vocabulary))
    return jax.tree.structure(Trajectory(leaf, leaf, leaf, leaf, leaf, experts, vocabulary))
