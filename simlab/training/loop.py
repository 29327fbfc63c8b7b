"""Running many steps: one compiled scan per chunk, for one run or for many at once."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
from jax import lax

from simlab.training.recipe import Recipe, TrainState
from simlab.training.step import Metrics, train_step


def advance(recipe: Recipe, state: TrainState, steps: int) -> tuple[TrainState, Metrics]:
    """Make `steps` steps in one scan; metrics are stacked, [steps, ...]. A pure function: jit and vmap it."""
    return lax.scan(lambda state, _: train_step(recipe, state), state, None, length=steps)


def train(
    recipe: Recipe, state: TrainState, steps: int, *, chunk: int = 25, axes: Any = None
) -> Iterator[tuple[TrainState, Metrics]]:
    """Yield (state, metrics [..., chunk, ...]) after every chunk until `steps` steps are made.

    Between chunks there is time for progress, checkpoints and an early stop; chunks change no bit of the run.
    For many runs at once, `recipe` and `state` have a leading axis wherever `axes`, the pair of their
    `jax.vmap` axes, has a 0: `axes=(None, 0)` is one recipe over many seeds.

    Raises `ValueError` if `chunk` does not divide `steps`: another length would compile another program.
    """
    if chunk < 1 or steps % chunk:
        raise ValueError(f"chunk {chunk} does not divide the {steps} steps")
    run = compiled(chunk, axes)
    for _ in range(steps // chunk):
        state, metrics = run(recipe, state)
        yield state, metrics


def compiled(steps: int, axes: Any = None) -> Callable[[Recipe, TrainState], tuple[TrainState, Metrics]]:
    """Return the jitted `advance` over `steps` steps, mapped over `axes` if given; it donates the state.

    The same arguments give the same function, so that nothing is compiled twice.
    """
    leaves, tree = jax.tree.flatten(axes, is_leaf=lambda x: x is None)
    return _compiled(steps, tuple(leaves), tree)


@cache
def _compiled(steps: int, leaves: tuple, tree: Any) -> Callable:
    axes = jax.tree.unflatten(tree, leaves)
    many = partial(advance, steps=steps)
    return jax.jit(many if axes is None else jax.vmap(many, in_axes=axes), donate_argnums=1)
