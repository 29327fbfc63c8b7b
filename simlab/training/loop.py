"""Running many steps: one compiled scan per chunk, for one run or for many at once."""

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax

from simlab.engines.site import prepare_sites
from simlab.training.checkpoints import Progress, load_progress, named_arrays, restored, save_progress
from simlab.training.recipe import Recipe, TrainState
from simlab.training.step import Metrics, train_step

CHECKPOINT_SECONDS = 30.0
"""How much work a kill may cost; writing a state takes a fraction of a second."""


def advance(recipe: Recipe, state: TrainState, steps: int) -> tuple[TrainState, Metrics]:
    """Make `steps` steps in one scan; metrics are stacked, [steps, ...]. A pure function: jit and vmap it."""
    recipe = prepare_sites(recipe)
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


def train_on(
    path: Path,
    recipe: Recipe,
    state: TrainState,
    steps: int,
    *,
    chunk: int = 25,
    axes: Any = None,
    every: float = CHECKPOINT_SECONDS,
) -> Iterator[tuple[TrainState, Any]]:
    """Yield as `train` does, and go on from the checkpoint in `path` where a run from `state` was stopped.

    The steps that the checkpoint holds come first, as one long chunk: whoever joins the metrics has all of
    them. It is written at the end of the first chunk that is `every` seconds behind the last one, and at the
    end of the run. On the same kind of device the bits are those of a run that nobody stopped.

    Raises `ValueError` for a checkpoint of another run, and `DamagedCheckpointError`.
    """
    along, made, parts = 0 if axes is None else 1, 0, []
    if path.is_file():
        progress = load_progress(path)
        first = named_arrays(state)
        if not np.array_equal(progress.state.get(".key", ()), first[".key"]):
            raise ValueError(f"{path} is the checkpoint of a run with another key")
        state, parts = restored(progress.state, state, path), [progress.metrics]
        made = next(iter(progress.metrics.values())).shape[along]
        if made > steps:
            raise ValueError(f"{path} holds {made} steps; asked for are {steps}")
        yield state, progress.metrics
    written = time.monotonic()
    for after, metrics in train(recipe, state, steps - made, chunk=chunk, axes=axes):
        parts.append({name: np.asarray(values) for name, values in metrics.items()})
        made += chunk
        if made == steps or time.monotonic() - written >= every:
            parts = [joined(parts, along)]
            save_progress(path, Progress(named_arrays(after), parts[0]))
            written = time.monotonic()
        yield after, metrics


def joined(parts: list, along: int = 0) -> dict[str, np.ndarray]:
    """Return the metrics of several chunks as those of one, joined along the axis of the steps."""
    return {name: np.concatenate([part[name] for part in parts], axis=along) for name in parts[0]}


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
