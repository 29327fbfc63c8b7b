"""Notebooks are complete stories that need only the wheel; `make docs` runs them from top to bottom."""

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import jupytext
import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("[0-9]*.py"))
CHECKOUT_ONLY = {"scripts", "tests"}
BUNDLED = {"experiments", "figures"}
OURS = {"simlab", *BUNDLED}


def _imports(path):
    """Yield (line, top package, is inside try) of the imports of a notebook."""
    tree = ast.parse(path.read_text())
    guarded = {id(node) for each in ast.walk(tree) if isinstance(each, ast.Try) for node in each.body}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            yield node.lineno, name.split(".")[0], id(node) in guarded


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_imports_only_what_the_wheel_ships(path):
    opened = re.search(r"^add_checkout_to_path\(\)", path.read_text(), re.MULTILINE)
    opened_at = path.read_text()[: opened.start()].count("\n") + 1 if opened else float("inf")
    for line, package, is_guarded in _imports(path):
        assert package not in CHECKOUT_ONLY or is_guarded, f"line {line} imports {package}"
        assert package not in BUNDLED or line > opened_at, f"line {line}: first add_checkout_to_path()"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_name_that_a_notebook_imports_exists(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.module.split(".")[0] not in OURS:
            continue
        module = import_module(node.module)
        for name in (alias.name for alias in node.names):
            assert hasattr(module, name) or find_spec(f"{node.module}.{name}"), f"line {node.lineno}: {name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_begins_with_a_title_and_tells_its_story(path):
    cells = jupytext.read(path).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert sum(cell.cell_type == "markdown" for cell in cells) >= 3
