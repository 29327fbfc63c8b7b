"""A run over many devices and processes is that of one device, and its memory is divided."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from simlab.models import MODELS
from simlab.models.parameters import shapes_of
from simlab.objectives import get_objective
from simlab.training.critic import Critic
from simlab.training.mesh import AXES, shardings
from tests.training.recipes import small_recipe, small_state

ROOT = Path(__file__).parents[2]
MESH = AbstractMesh((1, 2, 2, 2), AXES)


def start(*command, **environment):
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process) -> str:
    out, error = process.communicate(timeout=540)
    assert process.returncode == 0, f"{process.args} failed:\n{out}\n{error}"
    return out


def numbers(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_is_divided_by_the_whole_mesh(name):
    params = shapes_of(replace(MODELS[name], tie_word_embeddings=False))
    for path, sharding in jax.tree.leaves_with_path(shardings(params, MESH)):
        leaf = params
        for part in path:
            leaf = leaf[part.key if hasattr(part, "key") else part.idx]
        parts = leaf.size // jax.tree.reduce(int.__mul__, sharding.shard_shape(leaf.shape), 1)
        expected = {"router": 2}.get(path[-1].key, 1 if leaf.ndim == 1 else 8)
        assert parts == expected, path


def test_whatever_is_shaped_like_parameters_lies_as_they_do():
    recipe = replace(small_recipe(model=MODELS["tiny-moe"]), staleness=2, kl_loss_coef=0.1)
    recipe = replace(recipe, critic=Critic(), objective=get_objective("ppo"))
    state = jax.eval_shape(lambda: small_state(recipe))
    where = shardings(state, MESH)
    specs = jax.tree.map(lambda sharding: sharding.spec, where)
    for tree in (specs.reference, specs.critic.params["body"]):
        assert tree == specs.params
    for opt_state, params in ((specs.opt_state, specs.params), (specs.critic.opt_state, specs.critic.params)):
        adam = next(part for part in opt_state if hasattr(part, "mu"))
        assert adam.mu == adam.nu == params
    aged = jax.tree.map(lambda spec: P(None, *spec), specs.params)
    for old, spec in zip(jax.tree.leaves(specs.past_params), jax.tree.leaves(aged), strict=True):
        assert P(*old, *[None] * (len(spec) - len(old))) == spec
    assert specs.step == specs.key == P()


@pytest.mark.slow
def test_eight_devices_are_one():
    flags = "--xla_force_host_platform_device_count=8"
    print(answer(start("-m", "pytest", "-s", "tests/training/on_eight_devices.py", XLA_FLAGS=flags)))


@pytest.mark.slow
def test_two_processes_are_one():
    # A sum of two numbers has one order: two devices give the same bits in one process and in two.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    run = ["examples/mesh.py", "--model", "tiny-dense", "--layers", "1", "--pair", "f32/f32", "--fsdp", "2"]
    joined = [*run, "--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process"]
    quick = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    both = [start(*joined, number, **quick) for number in "01"]
    found, other = (numbers(answer(process)) for process in both)
    assert found == numbers(answer(start(*run, "--virtual", "2", **quick)))
    assert not other, "the first process speaks for all"
    first, second = map(json.loads, found)
    assert first["entropy"] != second["entropy"]
    assert first["grad_norm"] > 0
