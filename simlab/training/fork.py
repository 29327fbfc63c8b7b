"""Forks: a run continues from any state under another recipe, with the same random streams."""

from collections.abc import Hashable
from dataclasses import fields

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from simlab.models.parameters import shapes_of
from simlab.training.recipe import Recipe, TrainState, initial_state

ALWAYS_COPIED = ("params", "step", "key")


def fork(state: TrainState, recipe: Recipe) -> TrainState:
    """Return a state in arrays of its own, from which `recipe` continues the run of another recipe.

    Parameters, step and key stay, so the next rollout draws the same numbers. Every other part of the state
    stays bit for bit if both recipes have it in the same form. A part that only the new recipe has starts as
    in a run whose initial parameters are the current ones; a part that only the old one had is dropped.
    For many runs at once, `jax.vmap` it.

    Raises:
        ValueError: If the parameters are those of another model.
    """
    if _form(shapes_of(recipe.model)) != _form(state.params):
        raise ValueError(
            f"the parameters of this state are not those of the recipe's model {recipe.model}; fork under a "
            "recipe with the model of the state"
        )
    first = initial_state(recipe, state.params, state.key)

    def part(name: str) -> PyTree:
        old, new = getattr(state, name), getattr(first, name)
        is_copied = name in ALWAYS_COPIED or _form(old) == _form(new)
        return jax.tree.map(jnp.copy, old) if is_copied else new

    return TrainState(**{field.name: part(field.name) for field in fields(TrainState)})


def _form(tree: PyTree) -> tuple[Hashable, list]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
