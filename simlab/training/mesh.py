"""One run over many devices: JAX's own SPMD divides the program of one device as the mesh says.

| axis of the mesh | divides | repeats |
|---|---|---|
| `data` | sequences | parameters |
| `fsdp` | sequences; matrices along the width D, gathered where they are used | |
| `expert` | experts; the other matrices, as `fsdp` does | what is not experts' work |
| `tensor` | heads, the inner width of feed-forward layers, the vocabulary | norms, residual stream |

Moments, the reference of a KL, a critic and past parameters lie as the parameters do. Norms, biases, keys and
counters are whole on every device. A matrix whose sizes do not divide is refused by name.

Only the layout changes. Sums that XLA splits over devices are added in another order: float32 products, and
the gradient's sums over tokens. Exact, ordered and tensor-core accumulators fix their sums, so forward passes
under engines made of them have the bits of one device, on every mesh.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from simlab.core.pytree import pytree, static
from simlab.engines import Accumulator, Engine, Linear
from simlab.training.recipe import Recipe, TrainState
from simlab.training.step import Metrics, train_step

AXES = ("data", "fsdp", "expert", "tensor")
SEQUENCES = ("data", "fsdp")
# The axes that divide the outputs of a product, the larger parts first.
_OUTPUTS = ("tensor", "fsdp", "expert")

# By the name of a parameter, whose axes are those of `init_params`. What is not here is whole everywhere.
MATRICES: dict[str, P] = {
    "embedding": P(_OUTPUTS, None),
    "lm_head": P(None, _OUTPUTS),
    "qkv": P(None, _OUTPUTS),
    "o": P("tensor", ("fsdp", "expert")),
    "gate_up": P(None, _OUTPUTS),
    "down": P("tensor", ("fsdp", "expert")),
    "router": P(None, "expert"),
}
EXPERT_MATRICES: dict[str, P] = {
    "gate_up": P("expert", None, ("tensor", "fsdp")),
    "down": P("expert", "tensor", "fsdp"),
}


def make_mesh(data: int = 1, fsdp: int = 1, expert: int = 1, tensor: int = 1, devices: Any = None) -> Mesh:
    """Return the mesh of those sizes over `devices`, by default all of all processes.

    Raises `ValueError` unless the sizes are at least 1 and their product is the number of devices.
    """
    sizes = dict(zip(AXES, (data, fsdp, expert, tensor), strict=True))
    devices = jax.devices() if devices is None else list(devices)
    written = " x ".join(f"{name} {size}" for name, size in sizes.items())
    if min(sizes.values()) < 1 or prod(sizes.values()) != len(devices):
        raise ValueError(
            f"mesh {written}; allowed: sizes of at least 1 whose product is the {len(devices)} devices"
        )
    return jax.make_mesh(tuple(sizes.values()), AXES, (AxisType.Auto,) * len(AXES), devices=devices)


def shardings(tree: Any, mesh: Mesh) -> Any:
    """Return where each array of a `TrainState`, or of parameters, lies on `mesh`: a tree of its form.

    Arrays are known by their names, so anything that is shaped like parameters lies as they do. Of the leaves
    only shape and type are read: those of `jax.eval_shape` will do.
    Raises `ValueError` naming a matrix that does not divide, its axis, and the sizes.
    """
    return jax.tree_util.tree_map_with_path(partial(_sharding, mesh), tree)


def _sharding(mesh: Mesh, path: tuple, leaf: Any) -> NamedSharding:
    name = getattr(path[-1], "key", None)
    ages = int(getattr(path[0], "name", None) == "past_params")
    specs = EXPERT_MATRICES if leaf.ndim - ages == 3 else MATRICES
    spec = P(*[None] * ages, *specs[name]) if name in specs else P()
    for axis, names in enumerate(spec):
        parts = prod(mesh.shape[name] for name in _names(names))
        if leaf.shape[axis] % parts:
            raise ValueError(
                f"{jax.tree_util.keystr(path)} {leaf.shape}: axis {axis} of {leaf.shape[axis]} does not "
                f"divide by the {parts} of {' x '.join(_names(names))}; "
                f"allowed: divisors of {leaf.shape[axis]}"
            )
    return NamedSharding(mesh, spec)


def _names(names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else names


def place(tree: Any, mesh: Mesh) -> Any:
    """Return a copy of a `TrainState`, or of parameters, laid on `mesh`; every process has it whole."""
    # What lies on one device may become a part of what lies on many, and a step would free both.
    own = jax.tree.map(lambda x: jnp.copy(x) if isinstance(x, Array) else x, tree)
    return jax.device_put(own, shardings(tree, mesh))


def born(make: Callable[[], Any], mesh: Mesh) -> Any:
    """Return `make()`, a `TrainState` or parameters, computed on `mesh`: no device ever holds it whole."""
    return jax.jit(make, out_shardings=shardings(jax.eval_shape(make), mesh))()


@pytree
class BySequence:
    """An accumulator whose rows stay on the devices of their sequences; its sums are those of `inner`.

    Rows [M, K] are the tokens of whole sequences. If M does not divide, XLA lays them as it likes.
    """

    inner: Accumulator
    mesh: Mesh = static()

    def dot(self, a: Array, b: Array) -> Array:
        """Return float32 [M, N]."""
        return rows_by_sequence(self.inner.dot(rows_by_sequence(a, self.mesh), b), self.mesh)


def rows_by_sequence(x: Array, mesh: Mesh) -> Array:
    """Return x with axis 0 divided over the axes of sequences, and the others as XLA likes."""
    if x.shape[0] % prod(mesh.shape[name] for name in SEQUENCES):
        return x
    spec = P(SEQUENCES, *[P.UNCONSTRAINED] * (x.ndim - 1))
    return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def by_sequence(engine: Engine, mesh: Mesh) -> Engine:
    """Return the engine with the rows of its products with weights on the devices of their sequences."""

    def laid(sites: Linear) -> Linear:
        return replace(sites, accumulator=BySequence(sites.accumulator, mesh))

    return replace(
        engine,
        projection=laid(engine.projection),
        router=laid(engine.router),
        lm_head=laid(engine.lm_head),
    )


def sharded_step(
    mesh: Mesh, state: TrainState, **options: Any
) -> Callable[[Recipe, TrainState], tuple[TrainState, Metrics]]:
    """Return the compiled `train_step` for states that lie on `mesh` as `state` does; it donates them.

    The state that it returns lies the same way; metrics are whole on every device. `options` are those of
    `jax.jit`.
    """
    where = shardings(state, mesh)

    def step(recipe: Recipe, state: TrainState) -> tuple[TrainState, Metrics]:
        pair = recipe.engines
        pair = replace(pair, train=by_sequence(pair.train, mesh), infer=by_sequence(pair.infer, mesh))
        return train_step(replace(recipe, engines=pair), state)

    whole = NamedSharding(mesh, P())
    return jax.jit(
        step, in_shardings=(None, where), out_shardings=(where, whole), donate_argnums=1, **options
    )


def bytes_per_device(tree: Any) -> int:
    """Return how many bytes of a tree of arrays lie on the fullest device of this process."""
    used: dict[Any, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            used[shard.device] = used.get(shard.device, 0) + shard.data.nbytes
    return max(used.values())
