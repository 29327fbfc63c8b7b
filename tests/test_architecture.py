"""docs/architecture.md matches the code: its layers, and the functions of its paths."""

import ast
import re
import tomllib
from pathlib import Path

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
    for heading in ("Path of a log-probability", "Path of a claim"):
        nodes = read_nodes(heading)
        assert len(nodes) >= 5, heading
        for name, file in nodes:
            tree = ast.parse((ROOT / "simlab" / file).read_text())
            defined = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
            assert name in defined, f"{name} is not in simlab/{file}"
