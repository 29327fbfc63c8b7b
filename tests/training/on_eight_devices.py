"""What `test_mesh.py` runs on eight virtual devices, in a process of its own: the mesh against one device."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from simlab.engines import Attention, Engine, ExactSum, Linear, Site, Softmax
from simlab.formats import Format
from simlab.models.parameters import init_params
from simlab.models.transformer import logits
from simlab.training.loop import train
from simlab.training.mesh import (
    SEQUENCES,
    by_sequence,
    bytes_per_device,
    compile_sharded,
    make_mesh,
    shard,
)
from simlab.training.optimizer import AdamW
from tests.tolerances import assert_exact
from tests.training.recipes import DENSE, MOE, QUICK, small_recipe, small_state

# Multiples of 2^-6 below 2: products are multiples of 2^-12 below 4, so that float32 holds sums of up to 2^10
# of them exactly, and in any order. What XLA splits over devices has to give the bits of one device.
FIXED = Site.of(Format.declare(7, 1, 127 / 64))
_PRODUCT = Linear(FIXED, FIXED)
ORDER_FREE = Engine(
    projection=_PRODUCT,
    attention=Attention(FIXED, FIXED, Softmax(probs=FIXED)),
    router=_PRODUCT,
    lm_head=_PRODUCT,
)
# Scales are maxima over the terms of a sum; E4M3 takes two slices.
EXACT_FP8 = replace(
    ORDER_FREE,
    projection=Linear(
        Site.of("e4m3fn", scaling="fp8-per-token"),
        Site.of("e4m3fn", scaling="fp8-per-channel"),
        accumulator=ExactSum(slices=2),
    ),
)
TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (8, 6), 0, 32))
LENGTH = 16


def roundings(tokens: int) -> int:
    """Count the roundings on a path through the gradient of one layer of width 32 that reads `tokens`.

    Forward, sums of up to 64 terms: three norms, qkv, two norms of heads, scores, o, router, gate and up,
    down, head, softmax over 32 tokens, and two over `LENGTH`; backward each is met twice; then a sum over
    the tokens.
    """
    forward = 14 * 64 + 2 * LENGTH
    return 3 * forward + tokens


def allowed(scale, tokens):
    """Bound on the distance of two float32 programs whose order of sums differs.

    n independent roundings of 2^-24 add up to 8 sqrt(n) of them, with probability 1 - 2 exp(-32) each (Higham
    and Mary 2019, Theorem 2.4); both programs have them. `scale` is the size of what is added up.
    """
    return 2 * 8 * np.sqrt(roundings(tokens)) * 2.0**-24 * scale


def ask(config, engine, params, tokens):
    """Return logits, and the operations of one device."""
    run = jax.jit(lambda params, tokens: logits(params, config, tokens, engine), compiler_options=QUICK)
    program = run.lower(params, tokens).compile()
    return np.asarray(program(params, tokens)), program.cost_analysis()["flops"]


# The axis `expert` divides the work of experts only; gathered weights are rounded by every device.
CASES = {"moe": (MOE, ORDER_FREE, (1, 2, 2, 2), 4), "fp8": (DENSE, EXACT_FP8, (1, 2, 2, 2), 2)}


@pytest.mark.parametrize("name", CASES)
def test_unordered_sums_equal_one_device_on_its_part(name):
    config, engine, shape, part = CASES[name]
    params, mesh = init_params(jax.random.key(0), config), make_mesh(*shape)
    expected, alone = ask(config, engine, params, TOKENS)
    assert np.unique(expected).size > 100
    tokens = jax.device_put(TOKENS, NamedSharding(mesh, P(SEQUENCES)))
    found, shared = ask(config, by_sequence(engine, mesh), shard(params, mesh), tokens)
    assert_exact(found, expected)
    print(f"{name}: one of {mesh.size} devices does 1/{alone / shared:.1f} of the work")
    assert shared * part < alone


# eps 1 makes the step, g / (|g| + eps), no steeper than g; nothing is clipped.
SMOOTH = AdamW(learning_rate=1.0, eps=1.0, max_grad_norm=1e9)


def test_a_step_is_that_of_one_device_but_for_the_order_of_sums():
    recipe = small_recipe(model=MOE, optimizer=SMOOTH, minibatches=1)
    mesh, before = make_mesh(1, 2, 2, 2), small_state(recipe)
    one, expected = train(recipe, small_state(recipe), 1, chunk=1)
    advance = compile_sharded(1, before, mesh, QUICK)
    many, metrics = train(recipe, shard(before, mesh), 1, chunk=1, advance=advance)
    # A token that the two draw differently would change these; of 80, each with a chance of 1e-6.
    for name in ("response_length", "router_flips"):
        assert_exact(metrics[name], expected[name])
    np.testing.assert_allclose(metrics["reward"], expected["reward"], rtol=16 * 2.0**-24)
    sequences = recipe.prompts_per_step * recipe.group_size
    tokens = sequences * recipe.task.response_length
    np.testing.assert_allclose(metrics["entropy"], expected["entropy"], atol=allowed(np.log(32), tokens))
    moved = 0
    for path, first in jax.tree.leaves_with_path(before.params):
        gradient, again = (10 * np.asarray(at(adam(state).mu, path)) for state in (one, many))
        # Sequences add up to the gradient with either sign; none is taken to be above the largest entry.
        bound = allowed(sequences * np.abs(gradient).max(), tokens)
        apart = np.abs(gradient - again).max()
        print(f"{jax.tree_util.keystr(path)}: {apart:.1e} apart, allowed {bound:.1e}")
        assert apart <= bound
        after, also = (np.asarray(at(state.params, path)) for state in (one, many))
        np.testing.assert_allclose(also, after, rtol=2.0**-23, atol=bound)
        moved += np.abs(after - np.asarray(first)).max() > 10 * bound
    assert moved > 8
    check_memory(many, before.params, mesh)


def check_memory(state, params, mesh):
    """All matrices are divided by all devices, but routers by `expert` alone; vectors are whole."""
    sizes = {path[-1].key: 0 for path, _ in jax.tree.leaves_with_path(params)}
    for path, leaf in jax.tree.leaves_with_path(params):
        parts = {1: 1, 2: mesh.size, 3: mesh.size}[leaf.ndim]
        sizes[path[-1].key] += leaf.nbytes // (mesh.shape["expert"] if path[-1].key == "router" else parts)
    assert bytes_per_device(state.params) == sum(sizes.values())
    assert bytes_per_device((adam(state).mu, adam(state).nu)) == 2 * sum(sizes.values())


def adam(state):
    return next(part for part in state.opt_state if hasattr(part, "mu"))


def at(tree, path):
    for part in path:
        tree = tree[part.key if hasattr(part, "key") else part.idx]
    return tree
