"""docs/architecture.md matches the code: layers, functions of the paths, calls down to the rounding."""

import ast
import re
import tomllib
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp

from simlab.engines import ENGINES
from simlab.formats import gradients
from simlab.models import TransformerConfig, init_params
from simlab.rollout.generate import generate
from simlab.rollout.sampler import GREEDY

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def read_nodes(heading: str) -> list[tuple[str, str]]:
    """Return the (name, file) nodes of a drawing, each once, in their order."""
    drawing = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return list(dict.fromkeys(re.findall(r'"(\w+)<br/>([\w/]+\.py)"', drawing)))


def test_layers_are_those_of_pyproject():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    chain = " ".join(
        re.findall(r"^  (\w.* --> .*)$", PAGE.partition("```mermaid")[2].partition("```")[0], re.M)
    )
    drawn = list(dict.fromkeys(re.findall(r"\w+", chain)))
    assert drawn == re.findall(r"\w+", " ".join(layers))


def test_nodes_of_the_paths_exist():
    headings = ("Path of a precision value", "Path of a log-probability", "Path of a claim")
    for heading in headings:
        nodes = read_nodes(heading)
        assert len(nodes) >= 5, heading
        for name, file in nodes:
            tree = ast.parse((ROOT / "simlab" / file).read_text())
            defined = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
            assert name in defined, f"{name} is not in simlab/{file}"


def test_path_of_a_precision_value_is_the_call_stack(monkeypatch):
    original, paths = gradients.round_to_format, []

    def record(*arguments, **options):
        stack = traceback.extract_stack()
        names = [frame.name for frame in stack if "/simlab/" in frame.filename.replace("\\", "/")]
        paths.append((*names[names.index("generate") :], "round_to_format"))
        return original(*arguments, **options)

    monkeypatch.setattr(gradients, "round_to_format", record)
    config = TransformerConfig(hidden_size=32, num_hidden_layers=1, intermediate_size=32)
    params = init_params(jax.random.key(0), config)
    jax.eval_shape(
        lambda prompts: generate(
            params,
            config,
            ENGINES["fp8-e4m3"],
            GREEDY,
            jax.random.key(0),
            prompts,
            lambda tokens: jnp.zeros(tokens.shape[0]),
            group_size=1,
            length=2,
            end=1,
            pad=0,
        ),
        jnp.zeros((1, 3), jnp.int32),
    )
    drawn = tuple(name for name, _ in read_nodes("Path of a precision value"))
    expected = drawn[drawn.index("generate") :]
    assert expected in paths
