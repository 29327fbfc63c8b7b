"""A traced program is found again by what it is made of, and never taken for another one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import export

from simlab.core.pytree import pytree, static
from simlab.engines import attend
from simlab.formats import FORMATS, ROUNDINGS, Format, round_to_format
from simlab.objectives import OBJECTIVE_MODIFIERS, OBJECTIVES, get_objective
from simlab.objectives.advantages import Gae
from simlab.sweeps.config import run_config
from simlab.sweeps.export_cache import KERNELS, load_or_export
from simlab.sweeps.program import lone_recipe, stack_shapes, swept_recipe
from simlab.training.step import learning_recipe

X = {"x": jnp.linspace(-3, 3, 8), "key": jax.random.key(0)}


def rounded(fmt: Format, x: dict):
    noise = jax.random.normal(x["key"], x["x"].shape)
    return [round_to_format(x["x"] + noise, fmt, ROUNDINGS["nearest_even"])], {"noise": noise}


def never(fmt: Format, x: dict):
    raise AssertionError("traced again")


def first_leaf(record):
    return [jnp.asarray(jax.tree.leaves(record)[0])]


def never_again(record):
    raise AssertionError("traced again")


def call(traced, *arguments):
    return traced.call(*[jax.tree.leaves(argument) for argument in arguments])


def test_load_or_export_traces_once(tmp_path):
    arguments = FORMATS["e4m3fn"], X
    first = load_or_export(rounded, arguments, "r", tmp_path)
    again = load_or_export(never, arguments, "r", tmp_path)
    expected = jax.jit(rounded)(*arguments)
    for traced in (first, again):
        found = call(traced, *arguments)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        assert all(map(jnp.array_equal, jax.tree.leaves(found), jax.tree.leaves(expected)))


def test_kernels_are_exported_for_a_gpu():
    q, mask = jax.ShapeDtypeStruct((3, 16), jnp.float32), jax.ShapeDtypeStruct((3, 3), jnp.bool_)
    attention = jax.jit(lambda q, mask: attend(q, q, q, mask, "f32-flash"))
    with pytest.raises(ValueError, match="no compatibility guarantees"):
        export.export(attention, platforms=["cuda"])(q, mask)
    exported = export.export(attention, platforms=["cuda"], disabled_checks=KERNELS)(q, mask)
    assert export.deserialize(exported.serialize()).platforms == ("cuda",)


@pytest.mark.parametrize(
    "name", [*OBJECTIVES, *(f"reinforce+{modifier}" for modifier in OBJECTIVE_MODIFIERS)]
)
def test_trace_of_every_built_in_objective_is_stored(name, tmp_path):
    critic = {"critic": {}} if isinstance(get_objective(name).advantage, Gae) else {}
    config = run_config({"task": "add", "model": "tiny-dense", "objective": name, **critic})
    for build in (swept_recipe, lone_recipe):
        recipe, _ = stack_shapes(build(config), 2)
        load_or_export(first_leaf, (learning_recipe(recipe),), "r", tmp_path / build.__name__)
        load_or_export(never_again, (learning_recipe(recipe),), "r", tmp_path / build.__name__)


def test_trace_of_a_function_that_captures_values_is_not_stored(tmp_path):
    def captured(scale: float):
        return lambda batch: scale * batch.rewards

    objective = replace(get_objective("grpo"), advantage=captured(2.0))
    load_or_export(first_leaf, (objective,), "r", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changed", ["name", "shape", "type", "setting"])
def test_load_or_export_traces_another_program(tmp_path, changed):
    load_or_export(rounded, (FORMATS["bf16"], X), "r", tmp_path)
    x = X | {"x": X["x"][:4]} if changed == "shape" else X
    x = x | {"x": x["x"].astype(jnp.int32)} if changed == "type" else x
    precision = "highest" if changed == "setting" else None
    with jax.default_matmul_precision(precision), pytest.raises(AssertionError, match="traced again"):
        load_or_export(never, (FORMATS["bf16"], x), "s" if changed == "name" else "r", tmp_path)


def test_load_or_export_replaces_a_damaged_file(tmp_path):
    arguments = FORMATS["bf16"], X
    load_or_export(rounded, arguments, "r", tmp_path)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    load_or_export(rounded, arguments, "r", tmp_path)
    load_or_export(never, arguments, "r", tmp_path)


@pytree
class Own:
    """A record of a user's."""

    x: jax.Array


@pytree
class Holder:
    """What holds static content."""

    x: jax.Array
    content: object = static()


@pytest.mark.parametrize("content", [lambda x: x, Own, (1, Own)])
def test_load_or_export_does_not_store_own_code(tmp_path, content):
    # The digest of the package does not know it.
    Holder.__module__ = "simlab.elsewhere"
    for argument in (Own(X["x"]), Holder(X["x"], content)):
        load_or_export(lambda own: [own.x], (argument,), "r", tmp_path)
    assert not list(tmp_path.iterdir())


def test_load_or_export_stores_package_code(tmp_path):
    Holder.__module__ = "simlab.elsewhere"
    load_or_export(lambda own: [own.x], (Holder(X["x"], ("word", 1.5, jnp.sin, None)),), "r", tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
