"""One run over many devices: JAX's own SPMD divides the compiled function of one device as the mesh defines.

| axis of the mesh | divides | repeats |
|---|---|---|
| `data` | sequences | parameters |
| `fsdp` | sequences; matrices along the width D, gathered where they are used | |
| `expert` | experts; the other matrices, as `fsdp` does | what is not experts' work |
| `tensor` | heads, the inner width of feed-forward layers, the vocabulary | norms, residual stream |

Optimizer state, the reference of a KL, a critic and past parameters are sharded as the parameters are. Norms,
biases, keys and counters are complete on every device. JAX rejects a matrix whose sizes do not divide.

Only the layout changes. Sums that XLA splits over devices are added in another order: float32 products, and
the gradient's sums over tokens. Exact, ordered and tensor-core accumulators fix their sums, so forward passes
under engines made of them have the bits of one device, on every mesh.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, PyTree

from simlab.core.backend import CompilerOptions, compiler_options
from simlab.core.pytree import pytree, static
from simlab.engines import Accumulator, Engine, Linear
from simlab.training.loop import Advance, build_advance
from simlab.training.recipe import Recipe, TrainState
from simlab.training.step import learn, rollout

Tree = TypeVar("Tree")
AXES = ("data", "fsdp", "expert", "tensor")
SEQUENCES = ("data", "fsdp")
# The axes that divide the outputs of a product, the larger parts first.
_OUTPUTS = ("tensor", "fsdp", "expert")

# By the name of a parameter, whose axes are those of `init_params`. All others are complete everywhere.
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


def make_mesh(data: int = 1, fsdp: int = 1, expert: int = 1, tensor: int = 1) -> Mesh:
    """Return the mesh of those sizes over all devices of all processes; JAX rejects sizes that do not fit."""
    return jax.make_mesh((data, fsdp, expert, tensor), AXES, (AxisType.Auto,) * len(AXES))


def shardings(tree: PyTree, mesh: Mesh) -> PyTree[NamedSharding]:
    """Return the sharding on `mesh` of each array of a `TrainState`, or of parameters, in the same tree.

    Arrays are known by their names, so anything that is shaped like parameters is sharded as they are. Only
    shape and type of leaves are read: those of `jax.eval_shape` will do.
    """
    return jax.tree_util.tree_map_with_path(partial(_sharding, mesh), tree)


def _sharding(mesh: Mesh, path: tuple, leaf: Array) -> NamedSharding:
    name = getattr(path[-1], "key", None)
    ages = int(getattr(path[0], "name", None) == "past_params")
    specs = EXPERT_MATRICES if leaf.ndim - ages == 3 else MATRICES
    return NamedSharding(mesh, P(*[None] * ages, *specs[name]) if name in specs else P())


def init_sharded(make: Callable[[], Tree], mesh: Mesh) -> Tree:
    """Return `make()`, a `TrainState` or parameters, computed on `mesh`: no device holds all of it."""
    return jax.jit(make, out_shardings=shardings(jax.eval_shape(make), mesh))()


def shard(tree: Tree, mesh: Mesh) -> Tree:
    """Return a copy of a `TrainState`, or of parameters, sharded on `mesh`."""
    # Arrays of one device may become parts of the sharded ones, and training would free both.
    return jax.device_put(jax.tree.map(jnp.copy, tree), shardings(tree, mesh))


@pytree
class BySequence:
    """An accumulator whose rows stay on the devices of their sequences; its sums are those of `inner`.

    Rows [M, K] are the tokens of complete sequences. If M does not divide, XLA chooses the sharding.
    """

    inner: Accumulator
    mesh: Mesh = static()

    def dot(self, a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N]."""
        return _by_rows(self.inner.dot(_by_rows(a, self.mesh), b), self.mesh)


def _by_rows(x: Array, mesh: Mesh) -> Array:
    if x.shape[0] % prod(mesh.shape[name] for name in SEQUENCES):
        return x
    spec = P(SEQUENCES, *[P.UNCONSTRAINED] * (x.ndim - 1))
    return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def by_sequence(engine: Engine, mesh: Mesh) -> Engine:
    """Return the engine with the rows of its products with weights on the devices of their sequences.

    `experts` and `row_parallel` keep the sharding that XLA chooses.
    """

    def by_rows(sites: Linear) -> Linear:
        return replace(sites, accumulator=BySequence(sites.accumulator, mesh))

    return replace(
        engine,
        projection=by_rows(engine.projection),
        router=by_rows(engine.router),
        lm_head=by_rows(engine.lm_head),
    )


def compile_sharded(
    steps: int, state: TrainState, mesh: Mesh, options: CompilerOptions | None = None
) -> Advance:
    """Return the function that makes `steps` steps for `train`, for states sharded on `mesh` as `state` is.

    It donates the state. The state that it returns has the same shardings; metrics are complete on every
    device. `options` of the compiler are by default those of `compiler_options`.
    """

    def on_mesh(function: Callable) -> Callable:
        def shard(recipe: Recipe, *rest: PyTree) -> PyTree:
            pair = recipe.engines
            pair = replace(pair, train=by_sequence(pair.train, mesh), infer=by_sequence(pair.infer, mesh))
            return function(replace(recipe, engines=pair), *rest)

        return shard

    where, options = shardings(state, mesh), options or compiler_options()
    sample = jax.jit(on_mesh(rollout), in_shardings=(None, where), compiler_options=options)
    update = jax.jit(
        on_mesh(learn),
        in_shardings=(None, where, None),
        out_shardings=(where, NamedSharding(mesh, P())),
        donate_argnums=1,
        compiler_options=options,
    )

    return build_advance(sample, update, steps)


def bytes_per_device(tree: PyTree[Array]) -> int:
    """Return how many bytes of a tree of arrays lie on the fullest device of this process."""
    used = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            used[shard.device] = used.get(shard.device, 0) + shard.data.nbytes
    return max(used.values())
