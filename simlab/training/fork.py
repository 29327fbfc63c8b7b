"""Forks: a run goes on from any state under another recipe, with the same random streams."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from simlab.models.parameters import init_params
from simlab.training.checkpoints import load_tree
from simlab.training.recipe import Recipe, TrainState, initial_state

ALWAYS_KEPT = ("params", "step", "key")


def load_state(path: Path, recipe: Recipe) -> TrainState:
    """Return the state in `path`, saved by `save_tree` from a run of `recipe`.

    Raises `ValueError` naming what differs if the state is that of another recipe.
    """

    def first() -> TrainState:
        key = jax.random.key(0)
        return initial_state(recipe, init_params(key, recipe.model), key)

    return load_tree(path, jax.eval_shape(first))


def fork(state: TrainState, recipe: Recipe) -> TrainState:
    """Return a state in arrays of its own, from which `recipe` goes on where another recipe stood.

    Parameters, step and key stay, so the next rollout draws the same numbers. Every other part of the state
    (moments, memory of the schedule, critic, ring of past parameters, reference of the KL) stays bit for bit
    if both recipes have it in the same form; what only the new recipe has starts as in a run whose first
    parameters are those of now; what only the old one had is dropped.

    Raises `ValueError` if the parameters are those of another model. For many runs at once, `jax.vmap` it.
    """
    fresh = jax.eval_shape(lambda: init_params(jax.random.key(0), recipe.model))
    if _form(fresh) != _form(state.params):
        raise ValueError("the parameters of this state are not those of the recipe's model")
    first = initial_state(recipe, state.params, state.key)

    def part(name: str) -> Any:
        old, new = getattr(state, name), getattr(first, name)
        kept = name in ALWAYS_KEPT or _form(old) == _form(new)
        return jax.tree.map(jnp.copy, old) if kept else new

    return TrainState(**{field.name: part(field.name) for field in fields(TrainState)})


def _form(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
